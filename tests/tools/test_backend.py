"""torch.compile(m, backend="tilewright"): one test of each kind, since Dynamo takes seconds to start."""

from __future__ import annotations

import copy
import warnings
from importlib.metadata import entry_points

import pytest
import torch
from torch import nn

from tilewright import errors
from tilewright.interop.backend import tilewright


def test_the_entry_point_is_the_backend() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="tilewright")
    assert found.load() is tilewright


def graph_of(m: nn.Module) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph of `mlp()` as Dynamo would hand it over: parameters are inputs, before x."""
    graph = torch.fx.Graph()
    w0, b0, w1, b1, x = (graph.placeholder(n) for n in ("w0", "b0", "w1", "b1", "x"))
    up = graph.call_function(nn.functional.linear, (x, w0, b0))
    act = graph.call_function(nn.functional.gelu, (up,))
    graph.output((graph.call_function(nn.functional.linear, (act, w1, b1)),))
    return torch.fx.GraphModule(nn.Module(), graph), list(m.parameters())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def test_parameters_are_packed_and_told_apart() -> None:
    first = mlp()
    graph, weights = graph_of(first)
    x = torch.randn(3, 8)
    compiled = tilewright(graph, [*weights, x])
    with torch.no_grad():
        torch.testing.assert_close(compiled(*weights, x)[0], first(x))
        (static,) = compiled._made.values()
        assert static.executable.packed_bytes > 0
        for _ in range(6):  # other instances of the class share the graph; old ones are let go
            other = copy.deepcopy(first)
            nn.init.normal_(other[0].weight)
            torch.testing.assert_close(compiled(*other.parameters(), x)[0], other(x))
            torch.testing.assert_close(compiled(*weights, x)[0], first(x))
        assert len(static.bound) <= 4
        first[2].bias.add_(1)
        torch.testing.assert_close(compiled(*weights, x)[0], first(x))


def test_options_reach_the_compiler() -> None:
    graph, weights = graph_of(mlp())
    with pytest.raises(errors.UnknownOption, match="did you mean 'library'"):
        tilewright(graph, weights, options={"libary": False})
    assert tilewright(graph, [*weights, torch.ones(2, 8)], options={"library": False})


@pytest.fixture
def dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_through_dynamo(dynamo: None) -> None:
    m = mlp()
    fast = torch.compile(m, backend="tilewright")
    x = torch.randn(3, 8)
    torch.testing.assert_close(fast(x), m(x))
    fast(x).square().sum().backward()
    got = [p.grad for p in m.parameters()]
    m.zero_grad()
    m(x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in m.parameters()])
    for n in (5, 6, 7):  # symbolic sizes of Dynamo's
        x = torch.randn(n, 8)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), m(x))


def batches(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x.reshape(-1, n) * n, x.flatten()[:2]


def writes(x: torch.Tensor, n: int) -> torch.Tensor:
    x.mul_(2)
    return x[1:] + n


@pytest.mark.parametrize("f", [batches, writes])
def test_symbolic_sizes_views_and_writes(f, dynamo: None) -> None:
    fast = torch.compile(f, backend="tilewright", dynamic=True)
    for rows, n in ((4, 2), (6, 3), (4, 4), (6, 3)):
        x = torch.randn(rows, 2 * n)
        y = x.clone()
        torch.testing.assert_close(fast(x, n), f(y, n))
        torch.testing.assert_close(x, y)


def test_training_with_writes_falls_back(dynamo: None) -> None:
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    twin = copy.deepcopy(m)
    fast = torch.compile(m, backend="tilewright")
    x = torch.randn(6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(x).square().sum().backward()
    twin(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in m.parameters()], [p.grad for p in twin.parameters()])
    torch.testing.assert_close(m[1].running_mean, twin[1].running_mean)


def test_an_index_out_of_range_is_eagers_error(dynamo: None) -> None:
    fast = torch.compile(lambda t, i: t[i] + 1, backend="tilewright")
    with torch.no_grad():
        fast(torch.randn(4, 2), torch.tensor([1, 2]))
        with pytest.raises(IndexError, match="out of bounds"):
            fast(torch.randn(4, 2), torch.tensor([1, 9]))
