"""What a launcher needs to run a compiled graph, apart from its code: plain rows that the disk cache and packages keep as JSON.

In: a `Plan` of a graph. Out: a frozen `Recipe`, and its JSON both ways. Must not know native code or how values were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ..base import dims, dtypes
from ..base.dims import Size
from ..base.dtypes import DType
from ..base.errors import ParseError
from ..graph.ir import INPUT, Graph, InputAttrs, InputKind, Node, Output, TensorType, TupleType
from ..tile.program import Call, Storage, Value, View
from .plan import Place, Plan, Segment

FORMAT = 1

Ints: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class InputRow:
    """A graph input: `kind` is "user", "parameter" or "constant"; strides in elements."""

    name: str
    kind: str
    dtype: DType
    shape: Ints
    strides: Ints


@dataclass(frozen=True)
class OutputRow:
    """A result. `alias` is "" for new memory, else "input" or "output", whose entry `of` it views, `offset` elements in."""

    dtype: DType
    shape: Ints
    strides: Ints
    alias: str = ""
    of: int = -1
    offset: int = 0


@dataclass(frozen=True)
class TensorRow:
    """A strided view of planned memory: where it starts (`plan.Place`; `offset` in bytes), and strides in elements."""

    base: str
    index: int
    offset: int
    dtype: DType
    shape: Ints
    strides: Ints


@dataclass(frozen=True)
class NativeRow:
    """Call the native function `symbol`; `cost` in one-thread nanoseconds."""

    symbol: str
    launches: int
    cost: int


@dataclass(frozen=True)
class CallRow:
    """Interpret `graph` (text of `graph.text`: one operator) on `args`, and copy its outputs into `results`."""

    graph: str
    library: bool
    args: tuple[TensorRow, ...]
    results: tuple[TensorRow, ...]


StepRow: TypeAlias = NativeRow | CallRow


@dataclass(frozen=True)
class Recipe:
    """All a launcher needs. `scratch_bytes` is for each thread; `cost` the sum of the native steps' nanoseconds.

    `folded_inputs` are those that the `fold` steps read; `written_inputs` those that `run` writes.
    """

    inputs: tuple[InputRow, ...]
    outputs: tuple[OutputRow, ...]
    run: tuple[StepRow, ...]
    fold: tuple[StepRow, ...]
    arena_bytes: int
    folded_bytes: int
    scratch_bytes: int
    folded_inputs: Ints = ()
    written_inputs: Ints = ()

    @property
    def cost(self) -> int:
        return sum(s.cost for s in self.run if isinstance(s, NativeRow))

    @property
    def is_native(self) -> bool:
        """Whether one native call runs everything."""
        return all(isinstance(s, NativeRow) for s in self.run) and len(self.run) <= 1

    @property
    def launches(self) -> int:
        return sum(s.launches for s in self.run if isinstance(s, NativeRow))

    def calls(self, library: bool) -> int:
        """Eager calls: those the schedule chose, or those for want of a row."""
        return sum(s.library is library for s in self.run if isinstance(s, CallRow))

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | _packed(self))

    @staticmethod
    def from_json(text: str) -> Recipe:
        """Raises ParseError for text that is not a recipe of this format."""
        try:
            found = json.loads(text)
            if found.pop("format") != FORMAT:
                raise ValueError("of another format")
            made = _unpacked(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ParseError(what="the recipe", reason=str(error)) from None
        if not isinstance(made, Recipe):
            raise ParseError(what="the recipe", reason=f"it is a {type(made).__name__}")
        return made


def make_recipe(plan: Plan, scratch_bytes: int, graph_text: Callable[[Graph], str] | None = None) -> Recipe:
    """The rows of a plan. `scratch_bytes`: the most that a thread needs for one kernel. `graph_text` defaults to the printer.

    Raises TypeError for sizes that are not constants.
    """

    def steps(parts: Sequence[Segment | Call]) -> tuple[StepRow, ...]:
        return tuple(
            _call_row(p, plan, graph_text) if isinstance(p, Call) else NativeRow(p.symbol, len(p.launches), p.cost) for p in parts
        )

    return Recipe(
        inputs=_inputs(plan),
        outputs=_outputs(plan),
        run=steps(plan.run),
        fold=steps(plan.fold),
        arena_bytes=plan.arena_bytes,
        folded_bytes=plan.folded_bytes,
        scratch_bytes=scratch_bytes,
        folded_inputs=plan.folded_inputs,
        written_inputs=plan.written_inputs,
    )


def call_graph(call: Call) -> Graph:
    """The graph of this one operator: an input for each operand, an output for each kept result, strides as the call has them."""
    node = call.node
    inputs = tuple(_input(k, a.tensor) for k, a in enumerate(node.args))
    inner = Node(node.op, inputs, node.attrs, node.type)
    results = [inner]
    if isinstance(node.type, TupleType):
        from ..graph.ops.opaque import GETITEM

        results = [GETITEM(inner, index=k) for k in call.items or range(len(node.type.items))]
    outputs = tuple(Output(r, v.strides) for r, v in zip(results, call.results, strict=True))
    return Graph(inputs, outputs, tuple(a.strides for a in call.args))


def _input(index: int, type_: TensorType) -> Node:
    return Node(INPUT, (), InputAttrs(index, f"x{index}", InputKind.USER, type_), type_)


def _call_row(call: Call, plan: Plan, graph_text: Callable[[Graph], str] | None) -> CallRow:
    if graph_text is None:
        from ..graph.text import print_graph

        graph_text = print_graph
    args = tuple(_view_row(a, plan) for a in call.args)
    results = tuple(_tensor_row(plan.place(v), v, v.shape, v.strides) for v in call.results)
    return CallRow(graph_text(call_graph(call)), call.library, args, results)


def _view_row(view: View, plan: Plan) -> TensorRow:
    p = plan.place(view.value)
    offset = p.offset + dims.as_int(view.offset) * view.value.dtype.bytes
    return _tensor_row(Place(p.base, p.index, offset), view.value, view.shape, view.strides)


def _tensor_row(p: Place, value: Value, shape: Sequence[Size], strides: Sequence[Size]) -> TensorRow:
    return TensorRow(p.base, p.index, p.offset, value.dtype, dims.as_ints(shape), dims.as_ints(strides))


def _inputs(plan: Plan) -> tuple[InputRow, ...]:
    if plan.graph is not None:
        rows = []
        for node, strides in zip(plan.graph.inputs, plan.graph.strides, strict=True):
            assert isinstance(node.attrs, InputAttrs)
            a = node.attrs
            rows.append(InputRow(a.name, a.kind.value, node.dtype, dims.as_ints(node.shape), dims.as_ints(strides)))
        return tuple(rows)
    found = sorted((v for v in plan.program.values if v.storage is Storage.INPUT), key=lambda v: v.index)
    return tuple(InputRow(v.name, "user", v.dtype, dims.as_ints(v.shape), dims.as_ints(v.strides)) for v in found)


def _outputs(plan: Plan) -> tuple[OutputRow, ...]:
    if plan.graph is not None:
        rows = []
        for o in plan.graph.outputs:
            alias = ("", -1, 0) if o.alias is None else (o.alias.of, o.alias.index, dims.as_int(o.alias.offset))
            rows.append(OutputRow(o.node.dtype, dims.as_ints(o.node.shape), dims.as_ints(o.strides), *alias))
        return tuple(rows)
    found = sorted((v for v in plan.program.values if v.storage is Storage.OUTPUT), key=lambda v: v.index)
    return tuple(OutputRow(v.dtype, dims.as_ints(v.shape), dims.as_ints(v.strides)) for v in found)


# JSON

_ROWS: dict[str, type] = {c.__name__: c for c in (Recipe, InputRow, OutputRow, TensorRow, NativeRow, CallRow)}


def _packed(value: Any) -> Any:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return [_packed(v) for v in value]
    if type(value).__name__ in _ROWS:
        return {"row": type(value).__name__} | {f.name: _packed(getattr(value, f.name)) for f in fields(value)}
    return value


def _unpacked(value: Any, name: str = "") -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(v) for v in value)
    if isinstance(value, dict):
        row = _ROWS[value.pop("row")]
        return row(**{k: _unpacked(v, k) for k, v in value.items()})
    return dtypes.named(value) if name == "dtype" else value
