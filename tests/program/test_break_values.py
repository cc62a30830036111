"""Graph breaks for the sake of values: Python numbers and texts of tensors' data, and side effects on both sides."""

import collections

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
def for_tensor_list():
    def f(x):
        y = x * 2
        for v in y.tolist():
            y = y + v
        return y

    return lambda: f


@case
def sorted_key():
    def f(x):
        l = sorted([x * 3, x * 1, x * -2], key=lambda t: t.sum().item())
        return l[0].sin(), l[-1] * 2

    return lambda: f


@case
def and_or():
    def f(x):
        t = x.sum() > 0
        a = t and x.max()
        b = (x.sum() > 100) or x.min()
        return x * 2, a, b

    return lambda: f


@case
def fstring():
    def f(x):
        y = x * 2
        s = f"v={y.sum()} {y.sum().item():.2f} {y!r:>20}"
        print(s, y)
        return y + 1, s

    return lambda: f


@case
def conversions():
    def f(x):
        y = x * 2
        a = int(y.sum())
        b = float(y.max())
        c = bool(y.any())
        d = y.tolist()
        e = y.numpy().sum()
        return y * a + b, c, d, float(e)

    return lambda: f


@case
def masks():
    def f(x):
        y = x[x > 1.5]
        z = torch.nonzero(x > 0)
        w = x.clone()
        w[x > 1] = 0
        return y * 2, z + 1, w.sin(), torch.unique(x)

    return lambda: f


@case
def while_loop():
    def f(x):
        n = 0
        while x.sum().item() < 100 and n < 4:
            x = x * 2 + 1
            n += 1
        return x, n

    return lambda: f


@case
def effects_exception():
    def make():
        log = []
        d = {}

        def f(x):
            log.append(1)
            d["a"] = x * 1
            k = x.sum().item()
            log.append(2)
            d["b"] = k
            if k > 3:
                raise ValueError("v")
            log.append(3)
            return x * 2, list(log)

        def g(x):
            try:
                return f(x), log, d
            except ValueError as e:
                return str(e), list(log), dict(d)

        return g

    return make


@case
def effects_exception_uncaught():
    def make():
        log = []

        def f(x):
            log.append(len(log))
            print("a", len(log))
            k = x.sum().item()
            log.append(len(log))
            print("b", len(log))
            if k > 3:
                raise ValueError(f"v {len(log)}")
            return x * 2, list(log)

        return f

    return make


@case
def closure_per_call():
    def f(x):
        k = 2

        def h(t):
            return t * k + t.sum().item()

        return h(x) + h(x + 1)

    return lambda: f


@case
def nonlocal_break():
    def f(x):
        n = 0

        def h(t):
            nonlocal n
            n += 1
            return t + t.sum().item() + n

        y = h(x)
        y = h(y)
        return y, n

    return lambda: f


@case
def item_arith():
    def f(x):
        k = x.sum().item()
        y = x * k + k**2
        return y.view(int(x.numel())) * k

    return lambda: f


@case
def unpack_break():
    def f(x):
        a, b, c = x.tolist()
        d, *e = x.numpy()
        return x * a + b, c, d, len(e)

    return lambda: f


@case
def default_dict():
    def f(x):
        d = collections.defaultdict(list)
        for i in range(3):
            d[x[i].item() > 1].append(x * i)
        return sorted((k, [t.sum().item() for t in v]) for k, v in d.items())

    return lambda: f


# Of these, some calls run a rest without the interpreter: those in which the program raises what nothing catches within.
RAISING = {"effects_exception_uncaught": 2}


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    agree(CASES[name](), x3, negative, zero, x3, natives=RAISING.get(name, 0))
