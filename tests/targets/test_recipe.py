"""Recipes: rows of a plan, JSON both ways, and calls as graphs of one operator that run."""

from __future__ import annotations

import json

import pytest
import torch

from tilewright.base.dtypes import f32, i64
from tilewright.base.errors import ParseError
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import INPUT, Alias, Graph, InputAttrs, InputKind, Node, Output, TensorType, TupleType
from tilewright.graph.ops.opaque import CALL, TensorArg
from tilewright.graph.text import parse_graph
from tilewright.targets.plan import Segment, make_plan
from tilewright.targets.recipe import CallRow, InputRow, NativeRow, OutputRow, Recipe, make_recipe
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.program import Arg, Call, Launch, Program, Storage, Value, View


def input_node(index: int, kind: InputKind, *shape: int) -> Node:
    t = TensorType(f32, shape)
    return Node(INPUT, (), InputAttrs(index, f"x{index}", kind, t), t)


def program_with_a_call() -> tuple[Program, Graph]:
    """x -> double -> sort along rows (values, positions); a folded weight -> double."""
    x, w = input_node(0, InputKind.USER, 4, 3), input_node(1, InputKind.PARAMETER, 4, 3)
    pair = TupleType((TensorType(f32, (4, 3)), TensorType(i64, (4, 3))))
    spec = (TensorArg(0), 1)
    sort = CALL(x, overload="aten.sort.default", args=spec, kwargs=(), type=pair)
    vx = Value(0, f32, (4, 3), (3, 1), Storage.INPUT, 0)
    vw = Value(1, f32, (4, 3), (3, 1), Storage.INPUT, 1)
    folded = Value(2, f32, (4, 3), (3, 1), Storage.FOLDED)
    doubled = Value(3, f32, (4, 3), (1, 4), Storage.TEMP)
    order, position = Value(4, f32, (4, 3), (3, 1), Storage.TEMP), Value(5, i64, (4, 3), (3, 1), Storage.OUTPUT, 1)
    out = Value(6, f32, (4, 3), (3, 1), Storage.OUTPUT, 0)
    b = KernelBuilder("double")
    a, y = b.param("a", f32, (12,)), b.param("y", f32, (12,), out=True)
    with b.parallel(12) as (i,):
        b.store(y, i, a[i] * 2.0)
    double = b.build(cost=7)
    steps = (
        Launch(double, (Arg(vx), Arg(doubled))),
        Call(sort, (View(doubled, (4, 3), (1, 4)),), (order, position), library=False),
        Launch(double, (Arg(folded), Arg(out))),
    )
    graph = Graph((x, w), (Output(x, (3, 1)), Output(w, (3, 1), Alias("input", 1))), ((3, 1), (3, 1)))
    values = (vx, vw, folded, doubled, order, position, out)
    return Program(values, steps, (Launch(double, (Arg(vw), Arg(folded))),)), graph


def made() -> Recipe:
    program, graph = program_with_a_call()
    return make_recipe(make_plan(program, graph), scratch_bytes=100)


def test_segments_end_at_calls() -> None:
    program, graph = program_with_a_call()
    plan = make_plan(program, graph)
    first, call, second = plan.run
    assert isinstance(first, Segment) and isinstance(second, Segment) and isinstance(call, Call)
    assert (first.symbol, second.symbol) == ("tw_run_0", "tw_run_1")
    assert plan.opaque_calls == 1 and plan.library_calls == 0
    assert "call aten.sort.default(%3) -> %4, %5" in plan.text()


def test_rows() -> None:
    recipe = made()
    assert recipe.inputs == (InputRow("x0", "user", f32, (4, 3), (3, 1)), InputRow("x1", "parameter", f32, (4, 3), (3, 1)))
    assert recipe.outputs == (OutputRow(f32, (4, 3), (3, 1)), OutputRow(f32, (4, 3), (3, 1), "input", 1, 0))
    assert recipe.run[0] == NativeRow("tw_run_0", 1, 7) and recipe.fold == (NativeRow("tw_fold", 1, 7),)
    assert recipe.folded_inputs == (1,) and recipe.folded_bytes == 64 and recipe.scratch_bytes == 100
    assert (recipe.launches, recipe.calls(False), recipe.calls(True), recipe.cost) == (2, 1, 0, 14)
    assert not recipe.is_native


def test_a_call_is_a_graph_that_runs() -> None:
    (row,) = [s for s in made().run if isinstance(s, CallRow)]
    assert row.args[0].strides == (1, 4) and [r.base for r in row.results] == ["arena", "outputs"]
    x = torch.randn(3, 4).t()
    values, positions = interpret(parse_graph(row.graph), [x])
    assert torch.equal(values, x.sort(1).values) and torch.equal(positions, x.sort(1).indices)


def test_json_round_trip() -> None:
    recipe = made()
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 0}', '{"format": 2, "row": "NativeRow", "symbol": "s", "launches": 1, "cost": 1}']
)
def test_json_that_is_no_recipe(text: str) -> None:
    with pytest.raises(ParseError, match="cannot read the recipe"):
        Recipe.from_json(text)
    with pytest.raises(ParseError):
        Recipe.from_json(json.dumps({**json.loads(made().to_json()), "unknown": 1}))
