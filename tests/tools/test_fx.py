"""Graphs to FX and back: values, strides, shared memory, effects; every row of the op table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from tilewright import interop
from tilewright.errors import CompileError
from tilewright.graph.interpret import interpret
from tilewright.graph.ops import OPS
from tilewright.graph.record import record

sys.path.append(str(Path(__file__).parents[1] / "graph"))

import op_cases


def same(a: list[torch.Tensor], b: list[torch.Tensor], exact: bool = True) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {"rtol": 1e-2, "atol": 1e-3}))
        assert x.stride() == y.stride() or x.numel() < 2


@pytest.mark.parametrize("name", [n for n in OPS if n not in op_cases.OPAQUE_ROWS])
def test_every_row_becomes_aten_calls(name: str) -> None:
    for k, case in enumerate(op_cases.cases(name)):
        if k % 7:
            continue
        graph = op_cases.graph_of(case)
        try:
            want = interpret(graph, case.tensors)
        except NotImplementedError:  # an older torch lacks the dtype
            continue
        module = interop.to_fx(graph)
        called = [n.target for n in module.graph.nodes if n.op == "call_function"]
        assert all(isinstance(t, torch._ops.OpOverload) or t.__module__ == "_operator" for t in called)
        same(list(module(*case.tensors)), want, exact=case.op.expand is None)


def views(x, y):
    x.mul_(2)
    z = x + y
    return x[1:], z, z.t(), z[:, 0], (x - y).expand(3, *x.shape), y, z.sum(0, keepdim=True).permute(1, 0)


def opaque(x, y):
    v, i = torch.sort(x, -1)
    return v @ y.t(), i, nn.functional.conv2d(x[None, None], y[None, None, :2, :2])


@pytest.mark.parametrize("f", [views, opaque])
def test_outputs_share_memory_and_effects_are_written(f) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    graph = record(f, (x.clone(), y.clone())).graph
    module = interop.to_fx(graph)
    mine, eager = (x.clone(), y.clone()), (x.clone(), y.clone())
    got, want = module(*mine), interpret(graph, eager)
    same([*got, *mine], [*want, *eager])
    for i, a in enumerate(got):
        for j, b in enumerate(got):
            shared = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            assert shared == (want[i].untyped_storage().data_ptr() == want[j].untyped_storage().data_ptr()), (i, j)


def test_there_and_back() -> None:
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    module = fx.symbolic_trace(m)
    x = torch.randn(3, 8)
    graph = interop.from_fx(module, [x])
    held = [*(p for _, p in m.named_parameters())]
    assert len(graph.inputs) == 1 + len(held) and [n.attrs.kind.value for n in graph.inputs] == ["user", *["parameter"] * 6]
    again = interop.from_fx(interop.to_fx(graph), [x, *held])
    with torch.no_grad():
        torch.testing.assert_close(interpret(again, [x, *held])[0], m(x), rtol=1e-5, atol=1e-6)
    assert len(again.inputs) == len(graph.inputs)


def test_examples_without_data_will_do() -> None:
    module = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    graph = interop.from_fx(module, [torch.empty(2, 3, device="meta")])
    assert graph.inputs[0].shape == (2, 3)
    (out,) = interop.to_fx(graph)(torch.ones(2, 3))
    assert torch.equal(out, torch.full((2, 3), 2.0))


def test_symbolic_graphs_are_refused() -> None:
    import dataclasses

    graph = record(lambda x: x + 1, (torch.ones(3),)).graph
    with pytest.raises(CompileError, match="symbolic"):
        interop.to_fx(dataclasses.replace(graph, hints=(("s0", 3),)))
