"""Loops whose body breaks the graph: calls do not nest, entries serve all steps, iterators stay the objects that they are."""

import sys

import pytest
import torch

import tilewright as tw
from tilewright.base.log import TilewrightWarning
from tilewright.program import glue, units

STEPS = 1000
MOST_COMPILES = 24  # whatever the number of steps


@tw.disable
def out_of_graph(x):
    return x


def depth():
    n, frame = 0, sys._getframe()
    while frame is not None:
        n, frame = n + 1, frame.f_back
    return n


def ranged(x, n):
    for i in range(n):
        x = out_of_graph(x * 1.001) + i
    return x


def counted(x, n):
    i = 0
    while i < n:
        x = out_of_graph(x * 1.001) + i
        i += 1
    return x


def paired(x, n):
    for i, (a, b) in enumerate(zip(range(n), [0.5] * n)):
        x = out_of_graph(x * b) + a - i
    return x


def nested(x, n):
    for i in range(n // 50):
        for j in range(50):
            x = out_of_graph(x * 0.99) + i - j
        x = x + 1
    return x


def left_early(x, n):
    for i in range(n):
        if i % 3 == 0:
            continue
        x = out_of_graph(x * 0.999) + 1
        if i == n - 10:
            break
    else:
        x = x * 0
    return x


def protected(x, n):
    for i in range(n):
        try:
            with torch.no_grad():
                x = out_of_graph(x * 0.999) + 1
            if i % 100 == 99:
                raise KeyError(i)
        except KeyError:
            x = x - 1
    return x


def decided(x, n):
    for _ in range(n):
        x = x * 1.01
        if x.sum() > 100:
            x = x / 2
    return x


def called(x, n):
    def step(x, i):
        return out_of_graph(x * 0.999) + i

    for i in range(n):
        x = step(x, i) * 0.5
    return x


@pytest.mark.parametrize("f", [ranged, counted, paired, nested, left_early, protected, decided, called], ids=lambda f: f.__name__)
def test_a_thousand_breaks(f):
    fast, x = tw.compile(f), torch.ones(3)
    assert torch.equal(fast(x, STEPS), f(x, STEPS))
    assert fast.stats.compiles <= MOST_COMPILES
    assert torch.equal(fast(x + 1, STEPS), f(x + 1, STEPS))
    assert fast.stats.compiles <= MOST_COMPILES
    assert fast.stats.eager_calls == 0 and fast.program.native_tails == 0


def test_calls_do_not_nest():
    depths = []

    @tw.disable
    def look(x):
        depths.append(depth())
        return x

    def f(x, n):
        i = 0
        while i < n:
            x = look(x + 1)
            i += 1
        return x

    fast = tw.compile(f)
    fast(torch.ones(2), 20)
    depths.clear()
    fast(torch.ones(2), 20)
    assert len(depths) == 20 and max(depths) - min(depths) <= 2


def test_a_list_that_grows_while_it_is_read():
    def f(x, n):
        values = [0]
        for v in values:
            x = out_of_graph(x + v)
            if len(values) < n:
                values.append(len(values))
        return x, len(values)

    fast, x = tw.compile(f), torch.zeros(2)
    got, want = fast(x, 40), f(x, 40)
    assert torch.equal(got[0], want[0]) and got[1] == want[1]


@pytest.mark.parametrize(
    "make", [lambda: iter([1.0, 2.0, 3.0]), lambda: iter(range(4)), lambda: enumerate("abc"), lambda: iter({1: 2, 3: 4})]
)
def test_an_iterator_of_the_caller_is_moved_on(make):
    def f(x, values):
        y = out_of_graph(x + 1) * 2
        for v in values:
            y = out_of_graph(y + (v[0] if isinstance(v, tuple) else v))
            break
        return y

    fast, x = tw.compile(f), torch.ones(2)
    for _ in range(2):
        a, b = make(), make()
        assert torch.equal(fast(x, a), f(x, b)) and list(a) == list(b)


def test_an_exception_in_a_late_step():
    def f(x, n):
        for i in range(n):
            x = out_of_graph(x + 1)
            if i == 30:
                raise ValueError(i)
        return x

    fast = tw.compile(f)
    for _ in range(2):
        with pytest.raises(ValueError, match="30"):
            fast(torch.ones(2), 50)


def test_a_fault_of_the_compiler_behind_a_break_is_left_to_eager(monkeypatch):
    def f(x):
        return out_of_graph(x + 1) * 2

    fast, x = tw.compile(f), torch.ones(2)
    build, calls = fast.program.build, []

    def fails(*args):
        calls.append(args)
        if len(calls) > 1:
            raise RecursionError("too deep")
        return build(*args)

    monkeypatch.setattr(fast.program, "build", fails)
    with pytest.warns(TilewrightWarning, match="too deep"):
        assert torch.equal(fast(x), f(x))
    assert fast.program.native_tails == 1


def test_statistics_are_of_the_last_call():
    fast = tw.compile(lambda x: out_of_graph(x * 2) + 1)
    fast(torch.ones(2))
    kernels, pieces = fast.stats.kernels, len(fast.program.ran)
    for _ in range(3):
        fast(torch.ones(2))
    assert fast.stats.kernels == kernels == 2 and len(fast.program.ran) == pieces


@pytest.mark.parametrize("at", range(1, 30))
def test_a_break_where_a_generator_begins(at, monkeypatch):
    """Before its frame is the generator's, the rest makes the generator; behind, it is one."""

    def f(x):
        def steps(scale):
            got = yield x * scale
            yield got + 1

        g = steps(3.0)
        return [next(g), g.send(x), list(g)]

    want, piece, first = f(torch.ones(2)), units._piece, [True]

    def broken(program, capture):
        stop, first[0] = (at if first[0] else -1), False
        return piece(program, lambda count: capture(stop if count < 0 else count))

    monkeypatch.setattr(units, "_piece", broken)
    monkeypatch.setattr(glue, "_one_instruction", lambda *a: None)
    got = tw.compile(f)(torch.ones(2))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]) and got[2] == want[2] == []
