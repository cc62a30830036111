"""The verifier: it passes what is right, and names the node and the fault of each kind of wrong graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from graph.op_cases import cases, draw, graph_of, input_node
from tilewright.base import dtypes
from tilewright.base.errors import VerifyError
from tilewright.graph import ir
from tilewright.graph.ir import Alias, Attrs, Effect, Graph, Node, Output, TensorType
from tilewright.graph.ops import OPS, opaque
from tilewright.graph.ops import pointwise as pw
from tilewright.graph.ops import view as vw
from tilewright.graph.verify import verify

X, Y = (input_node(i, torch.zeros(3, 4)) for i in range(2))
GOOD = Graph(
    (X, Y), (Output(pw.ADD(X, Y), (4, 1)), Output(X, (1, 4), Alias("input", 0))), ((4, 1), (4, 1)), (Effect(1, pw.EXP(X)),)
)


def returning(node: Node, strides: tuple[int, ...] = (4, 1), alias: Alias | None = None) -> Graph:
    return replace(GOOD, outputs=(Output(node, strides, alias),))


def test_passes_good_graphs() -> None:
    verify(GOOD)
    for name in ("add", "cat", "layer_norm", "attention", "take", "full", "where"):
        for case in cases(name):
            verify(graph_of(case))


def wrong_type() -> Graph:
    return returning(Node(OPS["exp"], (X,), Attrs(), TensorType(dtypes.f16, (3, 4))))


def wrong_dtype() -> Graph:
    cast = pw.CAST(X, dtype=dtypes.i64)
    return returning(Node(OPS["exp"], (cast,), Attrs(), cast.type))


def wrong_arity() -> Graph:
    return returning(Node(OPS["add"], (X,), Attrs(), X.type))


def wrong_attrs() -> Graph:
    return returning(Node(OPS["exp"], (X,), vw.FlipAttrs((0,)), X.type))


def foreign_row() -> Graph:
    return returning(Node(replace(pw.EXP, eager=lambda attrs, x: x), (X,), Attrs(), X.type))


def foreign_input() -> Graph:
    return returning(input_node(2, torch.zeros(3, 4)))


def shared_seq() -> Graph:
    draws = [draw(x, 3) for x in (X, Y)]
    return returning(pw.ADD(*draws))


def several_results() -> Graph:
    call = opaque.CALL(X, overload="aten.f.g", args=(opaque.TensorArg(0),), kwargs=(), type=ir.TupleType((X.tensor,)))
    return returning(call)


def output_of_other_dtype() -> Graph:
    return returning(pw.CAST(X, dtype=dtypes.i32), (4, 1), Alias("input", 0))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (wrong_type(), "its type should be f32[3, 4]"),
        (wrong_dtype(), "i64 operands are not admitted, only f64, f32, f16, bf16"),
        (wrong_arity(), "2 operands expected, got 1"),
        (wrong_attrs(), "its attributes are FlipAttrs, not Attrs"),
        (foreign_row(), "its operator is not the row of that name"),
        (foreign_input(), "it is none of the graph's inputs"),
        (shared_seq(), "its seq 3 is another call's"),
        (several_results(), "output 0 has several results"),
        (returning(X, (4,)), "output 0 has the strides (4,)"),
        (returning(X, (4, -1)), "output 0 has a negative stride"),
        (returning(X, alias=Alias("output", 0)), "output 0 shares the memory of output 0, which does not come before it"),
        (returning(X, alias=Alias("input", 2)), "output 0 shares the memory of input 2, which does not come before it"),
        (returning(X, alias=Alias("constant", 0)), "output 0 shares the memory of 'constant', which is neither"),
        (output_of_other_dtype(), "output 0 shares the memory of a tensor of f32"),
        (replace(GOOD, strides=((4, 1),)), "2 inputs have 1 rows of strides"),
        (replace(GOOD, strides=((4, 1), (1,))), "it has the strides (1,)"),
        (replace(GOOD, inputs=(X, X)), "its index is 0 and its place 1"),
        (replace(GOOD, inputs=(X, pw.EXP(Y))), "it stands among the inputs and is none"),
        (replace(GOOD, effects=(Effect(2, X),)), "it is written into input 2 of 2"),
        (replace(GOOD, effects=(Effect(0, vw.PERMUTE(X, dims=(1, 0))),)), "it is written into input 0, a f32[3, 4]"),
    ],
)
def test_names_the_fault(graph: Graph, reason: str) -> None:
    with pytest.raises(VerifyError) as e:
        verify(graph)
    assert reason in str(e.value)
    if "rows of strides" not in reason:
        assert "the node %" in str(e.value)
