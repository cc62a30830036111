"""Where code goes: the nest of loops being written, what is bound in each, and which values are at hand.

In: loops opened and closed by the statement emitters. Out: for every expression, the outermost place that may compute it,
found from the variables it uses and the buffers it reads; what is computed there is remembered there. Must not know how
an operator or a statement is emitted.

LLVM runs no loop-invariant code motion here. So each loop keeps a slot just before itself, and an expression that does
not depend on the loop is written into that slot, however late it is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ...base import dims, dtypes
from ...base.dims import Size
from ...base.dtypes import DType
from ...base.interval import Range
from ...base.scalar import Const, Expr, Var
from ...tile.ir import Buffer
from . import llvm
from .indexing import UNKNOWN, Facts
from .isa import Isa
from .lanes import Lanes

NOTHING: frozenset[Buffer] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """A value in code: its text, and over how many lanes it spreads (1 is a scalar). A literal may stand in any lane."""

    text: str
    lanes: int = 1
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """A variable bound to a scalar: a number or an i64's name, available from `level` inwards."""

    scalar: int | str
    level: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The variable of the lanes: `base` + copy * lanes in lane 0, one more from lane to lane."""

    base: int | str
    level: int


@dataclass(frozen=True, slots=True)
class Held:
    """A `Let` variable: its value for each copy of the body, or one for all under -1."""

    values: dict[int, Value]
    level: int


@dataclass(frozen=True)
class Axis:
    """A loop of a nest: its variable and extent."""

    var: Var
    extent: int | str


@dataclass
class Level:
    """A place in the nest. `slot` is the line kept free before it, `before` what is to be put there.

    `loop`: it is a loop, so that code may be hoisted out of it. `surely`: it runs if what stands around it does, so loads
    may be hoisted too. `writes`: what it may write.
    """

    loop: bool
    surely: bool
    writes: frozenset[Buffer]
    slot: int
    before: list[str] = field(default_factory=list)
    known: dict[object, Value] = field(default_factory=dict)
    reading: dict[object, frozenset[Buffer]] = field(default_factory=dict)


class Context:
    """The state of writing one kernel's function.

    A statement may be written for several `copies` of the vector at once (an unrolled vector loop); `copy` is the one
    that expressions are evaluated for. `mask` says which lanes are active (None: all), in each copy.
    """

    def __init__(self, f: llvm.Function, isa: Isa, scalars: Sequence[Var] = ()) -> None:
        self.f = f
        self.scalars = frozenset(scalars)  # of the kernel: they do not change within a launch
        self.isa = isa
        self.facts = Facts()
        self.bindings: dict[Var, Bound | Spread | Held] = {}
        self.pointers: dict[Buffer, str] = {}
        self.error = ""  # where a failed assertion leaves its message
        self.lanes = 1
        self.copies = range(1)
        self.copy = 0
        self.region: object = None  # tells the vectors of one place from those of another
        self.mask: str | None = None
        self.in_bounds = False  # every access is known to lie in its buffer
        self.scratch_bytes: Size = 0
        self.scratch_used: Size = 0
        f.lines.append("")
        self.levels = [Level(False, True, NOTHING, len(f.lines) - 1)]
        self.level = 0
        self.exits: list[tuple[str, str]] = []  # of the loops that can be left early: where Continue and Break go
        self._shared: list[str] | None = None  # while copies are written apart, where what they share goes,
        self._apart = 0  # and the level they are written at
        self._sink: str | None = None
        self._lanes: dict[tuple[int, DType], Lanes] = {}

    def ops(self, dtype: DType, lanes: int) -> Lanes:
        found = self._lanes.get((lanes, dtype))
        if found is None:
            found = self._lanes[lanes, dtype] = Lanes(self.f, self.isa, lanes, dtype)
        return found

    # -- the nest

    def enter(self, loop: bool, surely: bool = True, writes: frozenset[Buffer] = NOTHING) -> None:
        """Start a level; what is known of memory that a loop writes is forgotten, for its second turn."""
        if loop:
            self.forget(writes)
        self.f.lines.append("")
        self.levels.append(Level(loop, surely, writes, len(self.f.lines) - 1))
        self.level += 1

    def leave(self) -> None:
        level = self.levels.pop()
        self.level -= 1
        self.f.lines[level.slot] = "\n".join(level.before)

    def forget(self, buffers: Iterable[Buffer]) -> None:
        """Drop the remembered values that were read from `buffers`: their contents change."""
        buffers = frozenset(buffers)
        if not buffers:
            return
        for level in self.levels:
            stale = [key for key, reads in level.reading.items() if reads & buffers]
            for key in stale:
                del level.known[key], level.reading[key]

    def finish(self) -> None:
        """Fill the entry's own slot (stack memory)."""
        self.f.lines[self.levels[0].slot] = "\n".join(self.levels[0].before)

    def stack(self, bytes_: int, align: int = 64) -> str:
        """Memory that lives as long as the function."""
        name = self.f.name_for("stack")
        self.levels[0].before.append(f"  {name} = alloca [{max(bytes_, 1)} x i8], align {align}")
        return name

    def reserve(self, bytes_: Size) -> Size:
        """Room in the thread's scratch behind what is in use: its offset. It may be given out again.

        Sizes are over the kernel's scalars, by their names.
        """
        self.scratch_bytes = dims.maximum(self.scratch_bytes, (self.scratch_used + bytes_ + 63) // 64 * 64)
        return self.scratch_used

    def from_scratch(self, offset: int | str) -> str:
        """The address `offset` bytes into the thread's scratch."""
        return self.place(("scratch", offset), None, 0, lambda: Value(self.f.at("%scratch", offset, "i8"))).text

    def sink(self) -> str:
        """Memory that a store goes to when its target is out of bounds."""
        if self._sink is None:
            self._sink = self.stack(64)
        return self._sink

    def loop(
        self,
        lo: int | str,
        hi: int | str,
        step: int | str,
        body: Callable[..., Sequence[str] | None],
        carried: Sequence[tuple[str, str]] = (),
        writes: frozenset[Buffer] = NOTHING,
        surely: bool | None = None,
    ) -> list[str]:
        """`llvm.Function.loop` with a level around its body."""
        if surely is None:
            surely = isinstance(lo, int) and isinstance(hi, int) and lo < hi
        self.enter(True, surely, writes)
        result = self.f.loop(lo, hi, step, body, carried)
        self.leave()
        return result

    # -- variables

    def bind(self, v: Var, value: int | str, extent: Range | None = None, level: int | None = None) -> None:
        """Bind to a scalar. `extent` is the range of values."""
        self.bindings[v] = Bound(value, self.level if level is None else level)
        if isinstance(value, int):
            extent = (value, value)
        self.facts.ranges[v] = UNKNOWN if extent is None else extent
        self.facts.varying.discard(v)
        self.facts.changed()

    def suppose(self, v: Var, extent: Range) -> None:
        """Note the range of a loop variable before its loop is written, for choosing how to write it."""
        self.facts.ranges[v] = extent
        self.facts.varying.discard(v)
        self.facts.changed()

    def ends(self, v: Var, extent: Expr) -> None:
        """Note that a loop variable stays below `extent`, for showing that what it names is there."""
        self.facts.ends.pop(v, None)
        if not isinstance(extent, Const):
            self.facts.ends[v] = extent

    def spread(self, v: Var, base: int | str, extent: Range) -> None:
        """Bind to the lanes. What depends on nothing else is the same in all loops around, if the base is a number."""
        self.bindings[v] = Spread(base, 0 if isinstance(base, int) else self.level)
        self.region = (v, base, self.lanes, self.mask)
        self.facts.ranges[v] = extent
        self.facts.lane, self.facts.lanes = v, self.lanes
        self.facts.changed()

    def hold(self, v: Var, values: dict[int, Value]) -> None:
        """Bind to computed values: one a copy, or under -1 one for all."""
        self.bindings[v] = Held(values, self.level)
        self.facts.ranges.pop(v, None)
        self.facts.ends.pop(v, None)
        (self.facts.varying.discard if -1 in values else self.facts.varying.add)(v)
        self.facts.changed()

    def each_copy(self) -> Iterator[int]:
        """Evaluate for every copy in turn."""
        for k in self.copies:
            self.copy = k
            yield k
        self.copy = self.copies.start

    def interleaved(self, compute: Callable[[], Value]) -> dict[int, Value]:
        """`compute()` for every copy, the instructions of the copies taking turns.

        A processor looks only so far ahead: copies one after the other would each wait for their own latencies.
        """
        if len(self.copies) == 1:
            return {k: compute() for k in self.each_copy()}
        lines, values, own = self.f.lines, {}, []
        self._shared, self._apart = lines, self.level
        for k in self.each_copy():
            self.f.lines = []
            values[k] = compute()
            own.append(self.f.lines)
        self.f.lines, self._shared = lines, None
        for turn in zip_longest(*own):
            lines += [line for line in turn if line is not None]
        return values

    # -- places

    def copy_of(self, e: Expr) -> object:
        """Which vector a value of `e` belongs to; None where all share it."""
        return None if self.facts.is_uniform(e) else (self.region, self.copy)

    def home(self, e: Expr) -> int:
        """The level to compute `e` at."""
        level = 0
        for v in self.facts.variables(e):
            binding = self.bindings.get(v)
            if binding is None:
                raise KeyError(f"variable {v.name} is not bound")
            level = max(level, binding.level)
        reads = self.facts.buffers(e)
        if reads:
            for k in range(self.level, level, -1):
                if not self.levels[k].surely or not reads.isdisjoint(self.levels[k].writes):
                    level = k
                    break
        return self.settled(level)

    def settled(self, level: int) -> int:
        """The innermost level that runs as often as `level`: hoisting goes out of loops, not out of branches."""
        while level < self.level and not self.levels[level + 1].loop:
            level += 1
        return level

    def recall(self, key: object) -> Value | None:
        for k in range(self.level, -1, -1):
            found = self.levels[k].known.get(key)
            if found is not None:
                return found
        return None

    def place(
        self, key: object, copy: object, level: int, make: Callable[[], Value], reads: frozenset[Buffer] = NOTHING
    ) -> Value:
        """What was remembered under `key`, or `make()` with its instructions put at `level`. No control flow in `make`.

        `copy` is the vector that the value belongs to (`copy_of`), None for one that all share.
        """
        key = (key, copy)
        found = self.recall(key)
        if found is not None:
            return found
        level = min(level, self.level)
        lines, here = self.f.lines, self.level
        if level < here:
            self.f.lines = self.levels[level + 1].before
            self.level = level
        elif copy is None and self._shared is not None and here == self._apart:
            self.f.lines = self._shared
        value = make()
        self.f.lines, self.level = lines, here
        self.levels[level].known[key] = value
        if reads:
            self.levels[level].reading[key] = reads
        return value

    def remember(self, e: Expr, value: Value, reads: frozenset[Buffer]) -> None:
        """Note that `value`, computed here, is what `e` is, for all that follows in the loops that `e` depends on."""
        level, need = self.level, max((self.bindings[v].level for v in self.facts.variables(e)), default=0)
        while level > need and self.levels[level].surely and not self.levels[level].loop:
            level -= 1
        key = (e, self.copy_of(e))
        self.levels[level].known[key] = value
        self.levels[level].reading[key] = reads

    @property
    def i64(self) -> Lanes:
        return self.ops(dtypes.i64, 1)
