"""Functions that C code calls at a graph break run compiled; the frame hook is on nowhere else."""

import functools
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright import native

KNOWN = sys.version_info < (3, 14)


def scaled(x):
    return torch.sin(x) * 2


def compiled(fast):
    """The functions that have compiled entries."""
    return {getattr(c.fn, "__name__", type(c.fn).__name__) for c in fast.program.children.values() if c.entries}


def test_a_version_that_is_known():
    """Fails first where a release of CPython moves the frames: teach hook.c, or let it be a plain call there."""
    seen = []

    def choose(f, args, kwargs):
        seen.append((f.__name__, args[0]))

    assert native.segment(choose, list, map(plain, [1, 2])) == [2, 3]
    assert seen == ([("plain", 1), ("plain", 2)] if KNOWN else [])


def plain(n):
    return n + 1


def test_what_is_chosen_is_called_with_the_arguments():
    calls = []

    def instead(*args, **kwargs):
        calls.append((args, kwargs))
        return "instead"

    def f(a, b=2, *rest, c, d=4, **more):
        return "f"

    choose = lambda g, args, kwargs: instead if g is f else None  # noqa: E731
    got = native.segment(choose, functools.partial(f, 1, c=3))
    assert got == ("instead" if KNOWN else "f")
    native.segment(choose, functools.partial(f, 1, 5, 6, 7, c=3, e=8))
    if KNOWN:
        assert calls == [((1, 2), {"c": 3, "d": 4}), ((1, 5, 6, 7), {"c": 3, "d": 4, "e": 8})]
    assert f(1, c=2) == "f"


def test_an_exception_leaves_the_segment_and_turns_the_hook_off():
    def raises(n):
        raise KeyError(n)

    def instead(n):
        raise ValueError(n)

    with pytest.raises(ValueError if KNOWN else KeyError):
        native.segment(lambda f, args, kwargs: instead if f is raises else None, list, map(raises, [1]))
    with pytest.raises(KeyError):
        list(map(raises, [1]))


def test_other_threads_are_left_alone():
    seen, started, stop = set(), threading.Event(), threading.Event()

    def work():
        started.set()
        while not stop.is_set():
            plain(1)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()

    def choose(f, args, kwargs):
        seen.add(threading.get_ident())

    native.segment(choose, list, map(plain, range(2000)))
    stop.set()
    thread.join()
    assert seen <= {threading.get_ident()}


@pytest.mark.skipif(not KNOWN, reason="no frame hook")
def test_callbacks_of_c_code_are_compiled():
    def f(x, call):
        y = x + 1
        z = call([y, y * 2])
        return [v + 1 for v in z]

    fast = tw.compile(f)
    for n in range(4):
        x = torch.arange(3.0) + n
        got, want = fast(x, lambda v: list(map(scaled, v))), f(x, lambda v: list(map(scaled, v)))
        torch.testing.assert_close(got, want)


@pytest.mark.skipif(not KNOWN, reason="no frame hook")
def test_what_a_ufunc_calls_is_compiled():
    """NumPy's C code calls `step`, which computes on tensors."""
    held = []

    def step(n):
        held.append(scaled(held[-1]) + n)
        return n

    steps = np.frompyfunc(step, 1, 1)

    def f(x):
        y = x + 1
        held[:] = [y]
        steps(np.arange(3))
        return held[-1] * 2

    fast = tw.compile(f)
    for n in range(4):
        x = torch.ones(2) * n
        torch.testing.assert_close(fast(x), f(x))
    assert "step" in compiled(fast) and fast.stats.eager_calls == 0


@pytest.mark.skipif(not KNOWN, reason="no frame hook")
def test_modules_that_native_code_calls_are_compiled():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * 3

    inner = Inner()

    def f(x, go):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return functools.reduce(lambda a, b: a + go(b), [y, y]) * 2

    fast = tw.compile(f)
    for _ in range(3):
        x = torch.ones(3)
        torch.testing.assert_close(fast(x, inner), f(x, inner))
    assert fast.stats.eager_calls == 0


def test_functions_without_tensors_are_left_to_python():
    calls = []

    def key(v):
        calls.append(v)
        return -v

    def f(x, values):
        y = x + 1
        print(end="")
        ordered = functools.reduce(lambda a, b: a + [b], sorted(values, key=key), [])
        return y * ordered[0]

    fast = tw.compile(f)
    for _ in range(3):
        x = torch.ones(3)
        torch.testing.assert_close(fast(x, [1, 3, 2]), f(x, [1, 3, 2]))
    assert len(calls) == 18


def test_disabled_functions_stay_eager():
    @tw.disable
    def slow(x):
        return scaled(x)

    fast = tw.compile(lambda x: slow(x + 1) * 2)
    x = torch.ones(3)
    torch.testing.assert_close(fast(x), slow(x + 1) * 2)
    assert "scaled" not in compiled(fast)
