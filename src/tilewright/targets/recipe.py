"""What a launcher needs to run a compiled graph, apart from its code: plain rows that the disk cache and packages keep as JSON.

In: a `Plan` of a graph. Out: a frozen `Recipe`, its JSON both ways, and, where it has size symbols, the recipe for given sizes.
Must not know native code or how values were found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from ..base import dims, dtypes
from ..base.dims import Dim, Size, Symbol
from ..base.dtypes import DType
from ..base.errors import ParseError
from ..graph.ir import INPUT, Graph, InputAttrs, InputKind, Node, Output, TensorType, TupleType
from ..tile.program import Call, Storage, Value, View
from .arena import aligned
from .plan import Place, Plan, Segment, Slot

FORMAT = 2

Ints: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = tuple[Size, ...]


@dataclass(frozen=True)
class InputRow:
    """A graph input: `kind` is "user", "parameter" or "constant"; strides in elements."""

    name: str
    kind: str
    dtype: DType
    shape: Sizes
    strides: Sizes


@dataclass(frozen=True)
class OutputRow:
    """A result. `alias` is "" for new memory, else "input" or "output", whose entry `of` it views, `offset` elements in."""

    dtype: DType
    shape: Sizes
    strides: Sizes
    alias: str = ""
    of: int = -1
    offset: Size = 0


@dataclass(frozen=True)
class SymbolRow:
    """A size known at run time, with its facts and the value planned for.

    It is dimension `dim` of input `input`; where no input has it, `input` is -1 and a caller gives it.
    """

    name: str
    lo: int | None
    hi: int | None
    divisor: int
    hint: int
    input: int
    dim: int

    @property
    def symbol(self) -> Symbol:
        return Symbol(self.name, self.lo, self.hi, self.divisor)


@dataclass(frozen=True)
class TensorRow:
    """A strided view of planned memory: where it starts (`plan.Place`; `offset` in bytes), and strides in elements."""

    base: str
    index: int
    offset: Size
    dtype: DType
    shape: Sizes
    strides: Sizes


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

    `folded_inputs` are those that the `fold` steps read; `written_inputs` those that `run` writes. Where there are `symbols`,
    in the order of a call's sizes, `arena_bytes` and costs are those planned for, and `slots` (`plan.Slot`) make up the arena.
    """

    inputs: tuple[InputRow, ...]
    outputs: tuple[OutputRow, ...]
    run: tuple[StepRow, ...]
    fold: tuple[StepRow, ...]
    arena_bytes: int
    folded_bytes: int
    scratch_bytes: Size
    folded_inputs: Ints = ()
    written_inputs: Ints = ()
    symbols: tuple[SymbolRow, ...] = ()
    slots: tuple[Slot, ...] = ()

    def sizes(self, shapes: Sequence[Sequence[int]], given: Sequence[int] = ()) -> Ints:
        """The values of the symbols for inputs of these shapes; `given` are those that no input has, in order."""
        rest = iter(given)
        return tuple(next(rest) if s.input < 0 else shapes[s.input][s.dim] for s in self.symbols)

    def at(self, sizes: Sequence[int]) -> Recipe:
        """The recipe for these values of the symbols. Its calls' graphs stay as they are."""
        if not self.symbols:
            return self
        known = {s.name: n for s, n in zip(self.symbols, sizes, strict=True)}
        ends: list[int] = []
        starts: list[int] = []
        for slot in self.slots:
            starts.append(max((ends[k] for k in slot.behind), default=0))
            ends.append(starts[-1] + aligned(max(dims.evaluate(slot.bytes, known), 0)))
        return replace(_at(self, known, starts), arena_bytes=max(ends, default=0), symbols=(), slots=())

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
            symbols = [_unpacked(dict(s), {}) for s in found.get("symbols", ())]
            made = _unpacked(found, {s.name: s.symbol.dim for s in symbols})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ParseError(what="the recipe", reason=str(error)) from None
        if not isinstance(made, Recipe):
            raise ParseError(what="the recipe", reason=f"it is a {type(made).__name__}")
        return made


def _at(value: Any, known: Mapping[str, int], starts: Sequence[int]) -> Any:
    """Rows with every size evaluated, and slots as offsets in the arena."""
    if isinstance(value, Dim):
        return dims.evaluate(value, known)
    if isinstance(value, tuple):
        return tuple(_at(v, known, starts) for v in value)
    if type(value).__name__ not in _ROWS:
        return value
    made = replace(value, **{f.name: _at(getattr(value, f.name), known, starts) for f in fields(value)})
    if isinstance(made, TensorRow) and made.base == "arena" and made.index >= 0:
        return replace(made, index=-1, offset=made.offset + starts[made.index])
    return made


def make_recipe(plan: Plan, scratch_bytes: Size, graph_text: Callable[[Graph], str] | None = None) -> Recipe:
    """The rows of a plan. `scratch_bytes`: the most that a thread needs for one kernel. `graph_text` defaults to the printer.
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
        symbols=_symbols(plan),
        slots=plan.slots,
    )


def _symbols(plan: Plan) -> tuple[SymbolRow, ...]:
    found: dict[Size, tuple[int, int]] = {}
    for i, node in enumerate(plan.graph.inputs if plan.graph is not None else ()):
        for d, size in enumerate(node.shape):
            found.setdefault(size, (i, d))
    return tuple(
        SymbolRow(s.name, s.lo, s.hi, s.divisor, hint, *found.get(s.dim, (-1, -1)))
        for s, hint in zip(plan.symbols, plan.hints, strict=True)
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
    offset = p.offset + view.offset * view.value.dtype.bytes
    return _tensor_row(Place(p.base, p.index, offset), view.value, view.shape, view.strides)


def _tensor_row(p: Place, value: Value, shape: Sequence[Size], strides: Sequence[Size]) -> TensorRow:
    return TensorRow(p.base, p.index, p.offset, value.dtype, tuple(shape), tuple(strides))


def _inputs(plan: Plan) -> tuple[InputRow, ...]:
    if plan.graph is not None:
        rows = []
        for node, strides in zip(plan.graph.inputs, plan.graph.strides, strict=True):
            assert isinstance(node.attrs, InputAttrs)
            a = node.attrs
            rows.append(InputRow(a.name, a.kind.value, node.dtype, node.shape, strides))
        return tuple(rows)
    found = sorted((v for v in plan.program.values if v.storage is Storage.INPUT), key=lambda v: v.index)
    return tuple(InputRow(v.name, "user", v.dtype, v.shape, v.strides) for v in found)


def _outputs(plan: Plan) -> tuple[OutputRow, ...]:
    if plan.graph is not None:
        rows = []
        for o in plan.graph.outputs:
            alias: tuple[str, int, Size] = ("", -1, 0) if o.alias is None else (o.alias.of, o.alias.index, o.alias.offset)
            rows.append(OutputRow(o.node.dtype, o.node.shape, o.strides, *alias))
        return tuple(rows)
    found = sorted((v for v in plan.program.values if v.storage is Storage.OUTPUT), key=lambda v: v.index)
    return tuple(OutputRow(v.dtype, v.shape, v.strides) for v in found)


# JSON

_ROWS: dict[str, type] = {c.__name__: c for c in (Recipe, InputRow, OutputRow, SymbolRow, Slot, TensorRow, NativeRow, CallRow)}


def _packed(value: Any) -> Any:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Dim):
        return {"size": str(value)}
    if isinstance(value, tuple):
        return [_packed(v) for v in value]
    if type(value).__name__ in _ROWS:
        return {"row": type(value).__name__} | {f.name: _packed(getattr(value, f.name)) for f in fields(value)}
    return value


def _unpacked(value: Any, known: Mapping[str, Size], name: str = "") -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(v, known) for v in value)
    if isinstance(value, dict) and "size" in value:
        return dims.parse(value["size"], known)
    if isinstance(value, dict):
        row = _ROWS[value.pop("row")]
        return row(**{k: _unpacked(v, known, k) for k, v in value.items()})
    return dtypes.named(value) if name == "dtype" else value
