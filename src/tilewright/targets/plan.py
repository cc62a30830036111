"""Where every value of a lowered program lives, and which launches make one native function.

In: a `Program`, and the graph it was lowered from. Out: a frozen `Plan`. Must not know instructions or how memory is
allocated: offsets are within an arena for temporaries (belonging to the call) and an area for folded values (kept).

Of a graph with symbolic sizes the plan is made for its hints; what it then says of every size is which temporary lies below which
(`Slot`), and offsets follow from the sizes of a call. Folded values do not depend on symbols.

Outputs are always new memory, never the arena's. Two temporaries share bytes only where no step has both alive; a step's
operands and results are all alive during it, so no kernel works in place by accident.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..base import dims
from ..base.dims import Size, Symbol
from ..base.errors import VerifyError
from ..base.scalar import Binary
from ..graph.ir import Graph
from ..tile.ir import Buffer, Const, Expr
from ..tile.program import Arg, Call, Launch, Program, Step, Storage, Value
from .arena import Block, aligned, arrange, directly_below, live_bytes


@dataclass(frozen=True)
class Place:
    """`base` is "inputs" or "outputs" (tables of pointers: entry `index`), "arena" or "folded"; `offset` is in bytes.

    Where sizes are symbolic, a temporary's `index` is that of its slot in the arena.
    """

    base: str
    index: int
    offset: Size

    def __str__(self) -> str:
        where = f"{self.base}[{self.index}]" if self.index >= 0 else self.base
        return f"{where}+{self.offset}" if self.offset or self.index < 0 else where


@dataclass(frozen=True)
class Slot:
    """A piece of the arena, `bytes` long. It begins where the last of the slots ends that it stands `behind`: earlier ones of the
    list."""

    bytes: Size
    behind: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Launches in a row, which become the native function `symbol`."""

    symbol: str
    launches: tuple[Launch, ...]

    @property
    def cost(self) -> int:
        """One-thread nanoseconds, as the schedule estimates them."""
        return round(sum(x.kernel.cost for x in self.launches))


@dataclass(frozen=True)
class Plan:
    """`places` holds one entry a value of the program, in their order. `run` and `fold` are what a call does, in order.

    `arena_bytes` covers the temporaries of both; `live_bytes` is the least that any plan of these lifetimes needs. Where sizes
    are symbolic, both are those for `hints`, and `slots` says where temporaries lie for others; `symbols` are the graph's.
    """

    program: Program
    places: tuple[Place, ...]
    run: tuple[Segment | Call, ...]
    fold: tuple[Segment | Call, ...]
    arena_bytes: int
    live_bytes: int
    folded_bytes: int
    graph: Graph | None = None
    symbols: tuple[Symbol, ...] = ()
    hints: tuple[int, ...] = ()
    slots: tuple[Slot, ...] = ()
    _by_id: dict[int, Place] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_id.update((v.id, p) for v, p in zip(self.program.values, self.places, strict=True))

    def place(self, value: Value) -> Place:
        return self._by_id[value.id]

    def pointer(self, arg: Arg) -> Place:
        """Where an argument starts: its value's place, its offset added."""
        p = self.place(arg.value)
        return Place(p.base, p.index, p.offset + arg.offset * arg.value.dtype.bytes)

    def hint(self, size: Size) -> int:
        """The size for the hints."""
        return dims.evaluate(size, {s.name: n for s, n in zip(self.symbols, self.hints, strict=True)})

    def segments(self) -> list[Segment]:
        return [s for s in (*self.fold, *self.run) if isinstance(s, Segment)]

    @property
    def launches(self) -> int:
        """Launches in one call, folding aside."""
        return sum(isinstance(s, Launch) for s in self.program.steps)

    @property
    def library_calls(self) -> int:
        return sum(isinstance(s, Call) and s.library for s in self.program.steps)

    @property
    def opaque_calls(self) -> int:
        return sum(isinstance(s, Call) and not s.library for s in self.program.steps)

    @property
    def written_inputs(self) -> tuple[int, ...]:
        """The inputs, by index, that a call writes."""
        return _input_indices(v for s in self.program.steps for v in s.writes())

    @property
    def folded_inputs(self) -> tuple[int, ...]:
        """The inputs, by index, from which folded values are computed."""
        return _input_indices(v for s in self.program.folded for v in s.reads())

    def text(self) -> str:
        """The values with their places and lifetimes, then the steps."""
        return "\n".join(_lines(self)) + "\n"


def make_plan(program: Program, graph: Graph | None = None) -> Plan:
    """Place every value. `graph`, where given, says which inputs and outputs there are beside those the program touches.

    Raises VerifyError for a program that reads what was never written, writes what it may not, or whose arguments do not
    fit their values; TypeError for sizes of symbols that the graph has no hints for, or of folded values that depend on symbols.
    """
    hints = dict(graph.hints) if graph is not None else {}
    _check(program, hints)
    if graph is not None:
        _check_outputs(program, graph)
    run_lives, fold_lives = _lifetimes(program.steps), _lifetimes(program.folded)
    kept = {v.id for v in program.values if v.storage is Storage.FOLDED and (v.id in run_lives or v.id not in fold_lives)}
    temps = [v for v in program.values if v.storage is Storage.TEMP]
    passing = [v for v in program.values if v.storage is Storage.FOLDED and v.id not in kept]
    places: dict[int, Place] = {}
    slots: list[Slot] = []
    arena = live = 0
    for values, lives in ((temps, run_lives), (passing, fold_lives)):
        blocks = [Block(_room(v, hints), *lives.get(v.id, (0, 0))) for v in values]
        offsets, size = arrange(blocks)
        if hints and values is temps:
            slots, numbers = _slots(values, blocks, offsets)
            places |= {v.id: Place("arena", n, 0) for v, n in zip(values, numbers, strict=True)}
        else:
            places |= {v.id: Place("arena", -1, o) for v, o in zip(values, offsets, strict=True)}
            slots += [Slot(size, ())] if hints and size else []  # where folding works
        arena, live = max(arena, size), max(live, live_bytes(blocks))
    folded = 0
    for v in program.values:
        if v.id in kept:
            places[v.id] = Place("folded", -1, folded)
            folded += aligned(dims.as_int(v.bytes))
        elif v.storage in (Storage.INPUT, Storage.OUTPUT):
            places[v.id] = Place("inputs" if v.storage is Storage.INPUT else "outputs", v.index, 0)
    ordered = tuple(places[v.id] for v in program.values)
    steps, folds = _schedule(program.steps, "tw_run"), _schedule(program.folded, "tw_fold")
    symbols = _symbols(program, graph) if graph is not None and hints else ()
    return Plan(program, ordered, steps, folds, arena, live, folded, graph, symbols, tuple(hints.values()), tuple(slots))


def _hinted(size: Size, hints: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    try:
        return dims.evaluate(size, hints)
    except KeyError as e:
        raise TypeError(e.args[0]) from None


def _room(v: Value, hints: Mapping[str, int]) -> int:
    """The bytes to plan for: some, where other sizes than the hints may need some."""
    planned = max(_hinted(v.bytes, hints), 0)
    return planned if isinstance(v.bytes, int) else max(planned, 1)


def _slots(values: Sequence[Value], blocks: Sequence[Block], offsets: Sequence[int]) -> tuple[list[Slot], list[int]]:
    """The slots from the lowest on, and the number of each value's."""
    below = directly_below(blocks, offsets)
    order = sorted(range(len(blocks)), key=lambda i: offsets[i])
    number = {i: n for n, i in enumerate(order)}
    slots = [Slot(values[i].bytes, tuple(sorted(number[j] for j in below[i]))) for i in order]
    return slots, [number[i] for i in range(len(blocks))]


def _symbols(program: Program, graph: Graph) -> tuple[Symbol, ...]:
    """The graph's symbols, in the order of its hints, with what is known of them."""
    sizes = {d for v in program.values for d in (*v.shape, *v.strides)}
    sizes.update(d for s in (*program.folded, *program.steps) if isinstance(s, Launch) for d in s.scalars)
    sizes.update(d for n in graph.inputs for d in n.shape)
    sizes.update(d for o in graph.outputs for d in (*o.node.shape, *o.strides))
    known = {s.name: s for s in dims.symbols(*sizes)}
    return tuple(known.get(name) or Symbol(name, None, None, 1) for name, _ in graph.hints)


def output_sizes(plan: Plan) -> list[Size]:
    """What a call must find out of its outputs: shape, strides and offset of each one that has a symbolic size among them."""
    assert plan.graph is not None
    rows = [(*o.node.shape, *o.strides, o.alias.offset if o.alias else 0) for o in plan.graph.outputs]
    return [size for row in rows if not all(map(dims.is_static, row)) for size in row]


def blocks(launch: Launch) -> Size:
    """The number of blocks in the flattened grid. Raises TypeError where an extent is no size."""
    env: dict[Expr, Size] = dict(zip(launch.kernel.scalars, launch.scalars, strict=True))
    return math.prod(_size(extent, env) for _, extent in launch.kernel.grid)


def _size(e: Expr, env: Mapping[Expr, Size]) -> Size:
    """An expression over a kernel's scalars as a size."""
    if isinstance(e, Const):
        return int(e.value)
    if e in env:
        return env[e]
    if isinstance(e, Binary) and e.op in _SIZE_OPERATORS:
        return _SIZE_OPERATORS[e.op](_size(e.x, env), _size(e.y, env))
    raise TypeError(f"a grid's extents are sizes, got {e}")


_SIZE_OPERATORS: dict[str, Callable[[Size, Size], Size]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "min": dims.minimum, "max": dims.maximum,
}  # fmt: skip


def _schedule(steps: Sequence[Step], symbol: str) -> tuple[Segment | Call, ...]:
    """Runs of launches between calls. A schedule without calls is one segment of that very name, others are numbered."""
    parts: list[Call | list[Launch]] = []
    for s in steps:
        if isinstance(s, Call):
            parts.append(s)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(s)
        else:
            parts.append([s])
    if len(parts) == 1 and isinstance(parts[0], list):
        return (Segment(symbol, tuple(parts[0])),)
    made: list[Segment | Call] = []
    count = 0
    for p in parts:
        if isinstance(p, Call):
            made.append(p)
        else:
            made.append(Segment(f"{symbol}_{count}", tuple(p)))
            count += 1
    return tuple(made)


def _lifetimes(steps: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """value id -> the first and the last step that touches it."""
    lives: dict[int, tuple[int, int]] = {}
    for t, s in enumerate(steps):
        for v in (*s.reads(), *s.writes()):
            lives[v.id] = (lives.get(v.id, (t, t))[0], t)
    return lives


def _input_indices(values: Iterable[Value]) -> tuple[int, ...]:
    return tuple(sorted({v.index for v in values if v.storage is Storage.INPUT}))


# checks


def _invalid(reason: str) -> VerifyError:
    return VerifyError(what="the lowered program", reason=reason)


def _check(program: Program, hints: Mapping[str, int]) -> None:
    known = {v.id: v for v in program.values}
    if len(known) != len(program.values):
        raise _invalid("two values have one id")
    written: set[int] = {v.id for v in program.values if v.storage is Storage.INPUT}
    for steps, allowed in (
        (program.folded, {Storage.FOLDED}),
        (program.steps, {Storage.OUTPUT, Storage.TEMP, Storage.INPUT}),
    ):
        for s in steps:
            if isinstance(s, Launch):
                _check_launch(s, hints)
            for v in (*s.reads(), *s.writes()):
                if known.get(v.id) != v:
                    raise _invalid(f"{_name(s)} names {_value(v)}, which is not among the program's values")
            for v in s.reads():
                if v.id not in written and v.size != 0:
                    raise _invalid(f"{_name(s)} reads {_value(v)}, which nothing has written")
            for v in s.writes():
                if v.storage not in allowed:
                    raise _invalid(f"{_name(s)} writes {_value(v)}, of kind {v.storage.value}")
                written.add(v.id)
    for v in program.values:
        if v.storage is Storage.OUTPUT and v.id not in written and v.size != 0:
            raise _invalid(f"nothing writes {_value(v)}, an output")


def _check_outputs(program: Program, graph: Graph) -> None:
    """Every output that owns memory is among the values: what writes it is checked already."""
    made = {v.index for v in program.values if v.storage is Storage.OUTPUT}
    for i, o in enumerate(graph.outputs):
        if o.alias is None and i not in made and 0 not in o.node.shape:
            raise _invalid(f"nothing computes output {i}, {o.node}")


def _check_launch(launch: Launch, hints: Mapping[str, int]) -> None:
    """Symbolic extents are compared for the hints."""
    kernel = launch.kernel
    if len(launch.args) != len(kernel.params) or len(launch.scalars) != len(kernel.scalars):
        raise _invalid(f"{kernel.name}: {len(kernel.params)} arguments and {len(kernel.scalars)} sizes expected")
    for p, a in zip(kernel.params, launch.args, strict=True):
        if p.dtype is not a.value.dtype:
            raise _invalid(f"{kernel.name}: {p.name} is {p.dtype}, its value {_value(a.value)} is {a.value.dtype}")
        span = _span(p, {v: _hinted(s, hints) for v, s in zip(kernel.scalars, launch.scalars, strict=True)})
        if span is None:
            continue
        low, high = (_hinted(a.offset, hints) + s for s in span)
        if low < 0 or high > _hinted(a.value.size, hints):
            raise _invalid(
                f"{kernel.name}: {p.name} covers the elements {low} to {high} of {_value(a.value)}, which has {a.value.size}"
            )


def _span(p: Buffer, scalars: Mapping[Expr, Size]) -> tuple[int, int] | None:
    """The elements that a parameter may touch, from its first one; None for none."""
    if p.layout is not None:
        return 0, dims.as_int(_size(p.layout.size, scalars))
    low = high = 0
    for n, step in zip(p.shape, p.steps(), strict=True):
        count = dims.as_int(_size(n, scalars))
        if count <= 0:
            return None
        reach = (count - 1) * dims.as_int(_size(step, scalars))
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + 1


# text


def _lines(plan: Plan) -> list[str]:
    counts = f"{plan.launches} launches, {plan.library_calls} library calls, {plan.opaque_calls} opaque calls"
    lines = [
        f"plan: {counts}; arena {plan.arena_bytes} bytes ({plan.live_bytes} alive at once), folded {plan.folded_bytes} bytes"
    ]
    lines += [f"  size {s.name}, planned for {n}" for s, n in zip(plan.symbols, plan.hints, strict=True)]
    for n, slot in enumerate(plan.slots):
        behind = f" behind {', '.join(map(str, slot.behind))}" if slot.behind else ""
        lines.append(f"  arena[{n}]: {slot.bytes} bytes{behind}")
    lives = _lifetimes(plan.program.steps)
    for v in sorted(plan.program.values, key=lambda v: v.id):
        first, last = lives.get(v.id, (-1, -1))
        life = "" if first < 0 else f"  # steps {first}..{last}"
        shape, strides = ", ".join(map(str, v.shape)), ", ".join(map(str, v.strides))
        lines.append(f"  {_value(v)}: {v.dtype}[{shape}] strides[{strides}] at {plan.place(v)}{life}")
    for title, parts in (("fold", plan.fold), ("run", plan.run)):
        if not parts:
            continue
        lines.append(f"{title}:")
        for part in parts:
            if isinstance(part, Call):
                lines.append(
                    f"  {_name(part)}({', '.join(_value(a.value) for a in part.args)}) -> {', '.join(map(_value, part.results))}"
                )
            else:
                lines.append(f"  {part.symbol}:  # {part.cost} ns")
                lines += [f"    {_launch(x)}" for x in part.launches]
    return lines


def _launch(launch: Launch) -> str:
    kernel = launch.kernel
    args = []
    for p, a in zip(kernel.params, launch.args, strict=True):
        out = "out " if p.name in kernel.outputs else ""
        args.append(f"{out}{p.name}={_value(a.value)}{f'+{a.offset}' if a.offset else ''}")
    args += [f"{v.name}={s}" for v, s in zip(kernel.scalars, launch.scalars, strict=True)]
    env: dict[Expr, Size] = dict(zip(kernel.scalars, launch.scalars, strict=True))
    grid = ", ".join(str(_size(extent, env)) for _, extent in kernel.grid)
    return f"{kernel.name}[{grid}]({', '.join(args)})"


def _name(s: Step) -> str:
    if isinstance(s, Launch):
        return s.kernel.name
    return f"{'library' if s.library else 'call'} {getattr(s.node.attrs, 'overload', s.node.op.name)}"


def _value(v: Value) -> str:
    return f"%{v.id}{f':{v.name}' if v.name else ''}"
