"""Errors that depend on data: a compiled call raises what eager raises, and leaves its inputs alone."""

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import tilewright as tw


def same_outcome(f, *args):
    """The compiled function's result or exception is eager's, from the first call on and again."""
    fast = tw.compile(f)
    for good in (True, True, False, False, True):
        given = args[0] if good else args[1]
        mine, theirs = [t.clone() for t in given], [t.clone() for t in given]
        try:
            want, error = f(*theirs), None
        except Exception as e:
            want, error = None, e
        assert (error is None) == good
        if error is None:
            torch.testing.assert_close(fast(*mine), want)
        else:
            with pytest.raises(type(error)) as got:
                fast(*mine)
            assert str(got.value) == str(error)
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)
    assert fast.stats.compiles == 1
    assert fast.stats.eager_calls == 2


def ints(*values):
    return torch.tensor(values)


def test_embedding():
    table = nn.Embedding(10, 8)
    with torch.no_grad():
        same_outcome(lambda i: table(i) + 1, (ints(0, 9, 3),), (ints(0, 10, 3),))
        same_outcome(lambda i: F.layer_norm(table(i), (8,)), (ints(0, 9, 3),), (ints(0, -1, 3),))


def test_computed_indices():
    x = torch.randn(6, 4)
    same_outcome(lambda i: x.index_select(0, i * 2).relu(), (ints(0, 1, 2),), (ints(0, 1, 3),))
    same_outcome(lambda i: x.gather(0, i.reshape(2, 2).t()[None, 0].expand(3, 2)), (ints(0, 1, 5, 2),), (ints(0, 1, 6, 2),))


def test_indices_that_are_an_intermediate_of_a_fused_group():
    x = torch.randn(6)

    def f(i, y):
        j = i + 1
        return x.index_select(0, j) * y, j * 2

    same_outcome(f, (ints(0, 4), torch.ones(2)), (ints(0, 5), torch.ones(2)))


def truncated(x, y):
    return torch.div(x, y, rounding_mode="trunc")


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod, truncated])
def test_integer_division_by_zero(divide):
    same_outcome(lambda x, y: divide(x, y - 1) + 1, (ints(7, -7, 5), ints(3, 3, -2)), (ints(7, -7, 5), ints(3, 1, -2)))
    same_outcome(lambda x, y: divide(x, y), (ints(7, -7, 5), torch.tensor(3)), (ints(7, -7, 5), torch.tensor(0)))


def test_a_failed_check_writes_nothing():
    table = torch.randn(5)

    def f(x, i):
        x.mul_(2)
        return table.index_select(0, i) + x.sum()

    fast = tw.compile(f)
    x = torch.ones(3)
    fast(x, ints(0, 4))
    assert torch.equal(x, torch.full((3,), 2.0))
    with pytest.raises(IndexError):
        fast(x, ints(0, 5))
    assert torch.equal(x, torch.full((3,), 4.0))  # eager's own write, once


def test_scalar_indices_and_empty_ones():
    x = torch.randn(4, 3)
    same_outcome(lambda i: x.index_select(0, i), (torch.tensor(3),), (torch.tensor(4),))
    fast = tw.compile(lambda i: x.index_select(0, i))
    assert fast(torch.zeros(0, dtype=torch.int64)).shape == (0, 3)


ROWS = torch.arange(12.0).reshape(4, 3)
CONSTANT = {
    "index": lambda x: x[torch.tensor([9])] + 1,
    "negative": lambda x: x[torch.tensor([-9])] + 1,
    "full": lambda x: x[torch.full((2, 2), 4)],
    "range": lambda x: x[torch.arange(5)].sin(),
    "part of a range": lambda x: x[torch.arange(10)[3:5]] * 2,
    "select": lambda x: x.index_select(1, torch.arange(2, 5)),
    "gather": lambda x: x.gather(0, torch.full((1, 3), 4)) + 1,
    "division": lambda x: x.long() // torch.zeros(3, dtype=torch.int64),
    "division by a range": lambda x: x.long() // torch.arange(-1, 2),
}
FINE = {
    "index": lambda x: x[torch.tensor([-4, 3])] + 1,
    "range": lambda x: x[torch.arange(4)].sin(),
    "part of a range": lambda x: x[torch.arange(10)[2:4]] * 2,
    "none": lambda x: x[torch.full((0,), 9)] + 1,
    "division by a range": lambda x: x.long() // torch.arange(-1, 4, 2)[torch.tensor([0, 1, 2])],
    "odd": lambda x: x.long() // torch.arange(-1, 4, 2),
}


@pytest.mark.parametrize("name", list(CONSTANT))
def test_constants_that_eager_refuses(name):
    f = CONSTANT[name]
    with torch.no_grad():
        with pytest.raises((IndexError, RuntimeError, ZeroDivisionError)) as eager:
            f(ROWS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(type(eager.value)) as got:
                tw.compile(f)(ROWS)
    assert str(got.value) == str(eager.value)


@pytest.mark.parametrize("name", list(FINE))
def test_constants_that_eager_admits(name):
    fast = tw.compile(FINE[name])
    with torch.no_grad():
        torch.testing.assert_close(fast(ROWS), FINE[name](ROWS))
    assert fast.stats.eager_calls == 0
