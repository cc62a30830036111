"""Graph breaks in every kind of place: nothing but the broken instruction runs outside of compiled pieces."""

import contextlib
import functools

import numpy as np
import pytest
import torch

from program.agreement import agree
from tilewright.base.log import forget_warnings

CASES = {}


@pytest.fixture(autouse=True)
def _quiet():
    forget_warnings()
    with torch.no_grad():
        yield


def case(make):
    CASES[make.__name__] = make
    return make


def x3():
    return (torch.tensor([1.0, 2.0, 3.0]),)


def negative():
    return (-torch.ones(3),)


def zero():
    return (torch.zeros(3),)


@case
def for_numpy():
    def f(x):
        y = x * 2
        for v in np.arange(3):
            y = y.sin() + float(v)
        return y * 2

    return lambda: f


def gen_user(n):
    yield from range(n)


@case
def for_generator_arg_break_in_body():
    def f(x):
        y = x * 2
        for i in gen_user(3):
            y = y + y.sum().item() + i
        return y * 2

    return lambda: f


@case
def break_in_generator():
    def g(x):
        for _ in range(3):
            x = x * 2
            yield x.sum().item()

    def f(x):
        y = x.sin()
        for v in g(x):
            y = y + v
        return y * 2

    return lambda: f


@contextlib.contextmanager
def ctx(log):
    log.append("in")
    try:
        yield 5
    except KeyError as e:
        log.append(repr(e))
    finally:
        log.append("out")


@case
def break_in_contextmanager():
    def f(x):
        log = []
        with ctx(log) as k:
            y = x * k
            y = y + y.sum().item()
        return y * 2, log

    return lambda: f


@case
def break_in_contextmanager_raise():
    def f(x):
        log = []
        y = x
        with ctx(log) as k:
            y = x * k
            if y.sum().item() > 0:
                raise KeyError("k")
            y = y - 1
        return y * 2, log

    return lambda: f


class Ctx:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *a):
        self.log.append(("exit", a[0]))
        return False


@case
def break_in_user_context():
    def f(x):
        log = []
        with Ctx(log) as c:
            y = x * 2 + x.sum().item()
            c.log.append(y.max().item())
        return y + 1, log

    return lambda: f


@case
def break_in_enter():
    class C:
        def __init__(self, x):
            self.x = x

        def __enter__(self):
            self.k = self.x.sum().item()
            return self.k

        def __exit__(self, *a):
            self.x.max().item()

    def f(x):
        y = x * 2
        with C(y) as k:
            y = y + k
        return y.sin()

    return lambda: f


@case
def autocast_break():
    def f(x):
        y = x.reshape(1, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = y @ y.t()
            if a.sum() > 0:
                a = a + 1
            b = y @ y.t()
        return a, b, (y @ y.t())

    return lambda: f


@case
def handling():
    def f(x):
        try:
            y = x * 2
            raise ValueError("v")
        except ValueError:
            k = x.sum().item()
            y = x + k
            y = y.sin()
        return y, 2

    return lambda: f


@case
def handling_reraise():
    def f(x):
        try:
            raise ValueError("v")
        except ValueError as e:
            k = x.sum().item()
            if k > 0:
                raise RuntimeError(f"r{k}") from e
            return x - 1

    return lambda: f


@case
def handling_nested():
    def g(x):
        return x.sum().item()

    def f(x):
        y = x + 1
        try:
            try:
                raise KeyError("a")
            except KeyError:
                y = y + g(x)
                raise IndexError("b")  # noqa: B904
            finally:
                y = y * 2 + x.max().item()
        except IndexError as e:
            y = y.cos() + g(y)
            return y, repr(e), repr(e.__context__)

    return lambda: f


@case
def finally_break():
    def f(x):
        log = []
        try:
            y = x * 2
            log.append(1)
            return y, log
        finally:
            log.append(y.sum().item())

    return lambda: f


@case
def comprehension():
    def f(x):
        ys = [(x * i).sum().item() for i in range(4)]
        return x * ys[-1], ys

    return lambda: f


@case
def dict_comprehension():
    def f(x):
        ys = {i: (x * i).sum().item() for i in range(3) if x.max().item() > i}
        return x * 2, ys

    return lambda: f


@case
def genexpr():
    def f(x):
        k = sum((x * i).sum().item() for i in range(4))
        return x * k

    return lambda: f


@case
def map_reduce():
    def f(x):
        l = list(map(lambda t: t * t.sum().item(), [x, x + 1]))  # noqa: C417
        return functools.reduce(lambda a, b: a + b + a.sum().item(), l) * 2

    return lambda: f


@case
def deep():
    def a(x):
        x = x + 1
        if x.sum() > 0:
            x = x * 2
        return x.cos()

    def b(x):
        return a(x.sin()) + a(x)

    def c(x):
        return b(x * 2) * 3

    def f(x):
        return c(x) + 1

    return lambda: f


@case
def module_loop():
    class L(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            x = x * self.w
            if x.sum() > 100:
                x = x / 2
            return x + 1

    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ls = torch.nn.ModuleList([L() for _ in range(4)])

        def forward(self, x):
            for layer in self.ls:
                x = layer(x)
            return x

    return lambda: M()


@case
def constructor():
    class P:
        def __init__(self, x):
            self.x = x * 2
            self.k = x.sum().item()
            self.y = self.x + self.k

    def f(x):
        p = P(x.sin())
        q = P(p.y)
        return q.y * 2, p.k

    return lambda: f


@case
def property_break():
    class P:
        def __init__(self, x):
            self.x = x

        @property
        def total(self):
            return self.x.sum().item()

        def __getitem__(self, i):
            return self.x[i].item()

        def __len__(self):
            return int(self.x.sum().item())

        def __bool__(self):
            return bool((self.x > 0).all())

    def f(x):
        p = P(x * 2)
        y = x + p.total
        y = y * p[0]
        if p:
            y = y + 1
        return y.sin()

    return lambda: f


@case
def exc_in_callee_after_break():
    def g(x):
        k = x.sum().item()
        if k > 3:
            raise ValueError(f"{k}")
        return x * k

    def f(x):
        log = []
        for i in range(3):
            try:
                x = g(x) + i
            except ValueError as e:
                log.append(str(e))
                x = x - 10
        return x, log

    return lambda: f


# Of these, some calls run a rest without the interpreter: those in which the program raises what nothing catches within.
RAISING = {"handling_reraise": 2}


@pytest.mark.parametrize("name", CASES)
def test_a_break(name):
    agree(CASES[name](), x3, negative, zero, x3, natives=RAISING.get(name, 0))
