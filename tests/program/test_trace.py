"""`tw.trace`: frozen control flow with warnings at the user's line, and clear errors for other arguments."""

import warnings

import pytest
import torch
from torch import nn

from tilewright.base.errors import ArgumentError, NotCallable, RecordError
from tilewright.program.trace import TracerWarning, trace


def test_a_branch_is_frozen_and_said_so():
    def fn(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.warns(TracerWarning, match="Python value") as found:
        traced = trace(fn, torch.ones(3))
    assert [w.filename for w in found] == [__file__]
    assert [w.lineno for w in found] == [fn.__code__.co_firstlineno + 1]
    assert torch.equal(traced(-torch.ones(3)), torch.zeros(3))


def test_values_come_from_the_examples():
    def fn(x):
        n = int(x.max())
        return x * n + len(x.tolist()), n

    with pytest.warns(TracerWarning):
        traced = trace(fn, (torch.tensor([1.0, 4.0]),))
    result, n = traced(torch.tensor([2.0, 3.0]))
    assert n == 4
    assert torch.equal(result, torch.tensor([10.0, 14.0]))


def test_no_warning_without_a_read():
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace(module, x)
    torch.testing.assert_close(traced(x + 1), module(x + 1).detach())
    with torch.no_grad():
        module[0].weight.mul_(2)
    torch.testing.assert_close(traced(x), module(x).detach())


def test_random_values_cannot_be_read():
    with pytest.raises(RecordError, match="random"):
        trace(lambda x: x * torch.rand(1).item(), torch.ones(2))


def test_other_arguments_are_refused():
    traced = trace(lambda x, y: (x + y, x), (torch.ones(2), torch.ones(2)))
    with pytest.raises(ArgumentError, match=r"argument 1.*f32\[2\].*nothing"):
        traced(torch.ones(2))
    with pytest.raises(ArgumentError, match=r"argument 0"):
        traced(torch.ones(3), torch.ones(2))
    with pytest.raises(ArgumentError, match="float"):
        traced(1.0, torch.ones(2))
    x = torch.ones(2)
    assert traced(x, x)[1] is x
    with pytest.raises(NotCallable):
        trace(3, torch.ones(2))


def test_containers_and_keywords():
    def fn(d, scale):
        return {"y": d["x"][0] * scale, "n": len(d)}

    traced = trace(fn, ({"x": [torch.ones(2)]},), {"scale": torch.tensor(3.0)})
    assert torch.equal(traced({"x": [torch.full((2,), 2.0)]}, scale=torch.tensor(2.0))["y"], torch.full((2,), 4.0))
