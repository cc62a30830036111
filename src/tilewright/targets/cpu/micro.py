"""The micro-kernel of a matrix product: one register tile over the whole k range, as an internal LLVM function.

In: a `Micro`, which is the tile's shape, element types and those strides that are constant. Out: its function in a
module, once. Must not know who calls it. Calls look like

    @name(a, b, acc, next, k, clear, [pointers], [offsets], [a_step], [b_row], [acc_row], [tail])

with a stride given where the `Micro` has None for it. Where that is the distance of a's rows, `pointers` are those to rows
4, 8 and so on, as far as there are such, and `offsets` those of the up to three rows behind each, in bytes. Products of one
tile are summed from zero and then added to the accumulator block, which is also the more accurate order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from ...base import dtypes
from ...base.dtypes import DType
from . import llvm
from .isa import Isa

Amount: TypeAlias = int | str

NEAR_ROWS = 4
"""Rows of a that one pointer reaches where their distance is a run-time number. An offset of each row would take more
registers than there are. Pointers and offsets come as arguments, so that LLVM cannot find that one follows from another: it
would compute each from the one before, and lose the registers that hold sums."""


@dataclass(frozen=True)
class Micro:
    """What distinguishes one micro-kernel from another. Strides are in elements; None means a run-time argument.

    `tail` is the number of lanes used of the last vector (0: all of them; None: a run-time argument). With `pairs` a step
    of k takes two elements of a and b at once, and where `odd` a last one follows that takes one of a. `unroll` steps make
    a turn of the main loop, and k is a multiple of it where `whole`. Step u of a turn adds to set u % `sets` of the sums.
    Each turn fetches the next `fetch` bytes of the memory at `next`: to the first-level cache where `near`, else the second.
    """

    a: DType
    b: DType
    acc: DType
    rows: int
    vectors: int
    a_row: int | None
    a_step: int | None
    b_row: int | None
    acc_row: int | None
    tail: int | None = 0
    pairs: bool = False
    odd: bool = False
    padded: bool = False
    unroll: int = 2
    sets: int = 1
    whole: bool = False
    fetch: int = 0
    near: bool = False

    @property
    def pointed(self) -> range:
        """The rows of a that a pointer of their own is given for."""
        return range(NEAR_ROWS, self.rows, NEAR_ROWS) if self.a_row is None else range(0)

    @property
    def offset(self) -> range:
        """The rows of a behind each of those that an offset is given for."""
        return range(1, min(NEAR_ROWS, self.rows)) if self.a_row is None else range(0)

    @property
    def name(self) -> str:
        return "micro_" + "_".join(short(getattr(self, f.name)) for f in fields(self))


def short(value: object) -> str:
    match value:
        case None:
            return "x"
        case bool():
            return "ny"[value]
    return str(value).replace("-", "m")


def micro_kernel(module: llvm.Module, isa: Isa, micro: Micro) -> str:
    """The name of the micro-kernel, written into `module` if it is not there yet."""
    if micro.name not in module.functions:
        _Writer(module, isa, micro).write()
    return micro.name


class _Writer:
    """Writes one micro-kernel."""

    def __init__(self, module: llvm.Module, isa: Isa, micro: Micro) -> None:
        self.isa, self.micro = isa, micro
        self.lanes = isa.lanes_of(micro.acc)
        self.element = llvm.TYPES[micro.acc]
        self.vector = llvm.vector(self.lanes, self.element)
        optional = [f"ptr %a{r}" for r in micro.pointed] + [f"i64 %off{r}" for r in micro.offset]
        optional += [f"i64 %{name}" for name in ("a_step", "b_row", "acc_row", "tail") if getattr(micro, name) is None]
        params = ["ptr noalias readonly %a", "ptr noalias readonly %b", "ptr noalias %acc", "ptr %next", "i64 %k", "i1 %clear"]
        self.f = llvm.Function(module, micro.name, params + optional, internal=True)
        self.mask: str | None = None

    def write(self) -> None:
        f, micro = self.f, self.micro
        self._prepare()
        counts = micro.rows * micro.vectors
        zero = "zeroinitializer"
        carried = [("ptr", p) for p in (*self.pointers, "%b")] + [("ptr", "%next")] * bool(micro.fetch)
        carried += [(self.vector, zero)] * (counts * micro.sets)
        main = "%k" if micro.whole or micro.unroll == 1 else f.let(f"and i64 %k, {-micro.unroll}")
        values = f.loop(0, main, micro.unroll, lambda i, *values: self._turn(values, micro.unroll), carried)
        a, b, rest = self._split(values)
        sums = self._added(rest[bool(micro.fetch) :])
        if main != "%k":
            carried = [("ptr", p) for p in (*a, b)] + [(self.vector, s) for s in sums]
            a, b, sums = self._split(f.loop(main, "%k", 1, lambda i, *values: self._step(values), carried))
        if micro.odd:
            sums = self._products(a, b, 0, sums, half=True)
        self._finish(sums)
        f.close()

    def _prepare(self) -> None:
        """Offsets of rows and the mask of the last vector, before the loops."""
        f, micro = self.f, self.micro
        self.a_step = "%a_step" if micro.a_step is None else micro.a_step
        self.b_row = "%b_row" if micro.b_row is None else micro.b_row
        acc_row = "%acc_row" if micro.acc_row is None else micro.acc_row
        self.pointers = ["%a", *(f"%a{r}" for r in micro.pointed)]
        self.acc_rows = [f.index("mul", acc_row, r) for r in range(micro.rows)]
        if micro.tail is None:
            lanes = self.lanes
            self.mask = f.call(f"<{lanes} x i1>", f"llvm.get.active.lane.mask.v{lanes}i1.i64", ["i64", "i64"], ["0", "%tail"])
        elif micro.tail:
            self.mask = f"<{', '.join('i1 true' if i < micro.tail else 'i1 false' for i in range(self.lanes))}>"

    def _split(self, values: Sequence[str]) -> tuple[list[str], str, list[str]]:
        """Pointers to rows of a, the one to b, and what is carried beside them."""
        a, (b, *rest) = list(values[: len(self.pointers)]), values[len(self.pointers) :]
        return a, b, rest

    def _turn(self, values: tuple[str, ...], unroll: int) -> list[str]:
        """`unroll` steps of k; values are the pointers, then the accumulators, set by set."""
        f, micro = self.f, self.micro
        a, b, rest = self._split(values)
        ahead = rest.pop(0) if micro.fetch else ""
        count = micro.rows * micro.vectors
        for line in range(0, micro.fetch, 64):
            level = "3" if micro.near else "2"
            f.call("void", "llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"], [f.at(ahead, line, "i8"), "0", level, "1"])
        here = [self._fixed(p) for p in a]
        for u in range(unroll):
            at = count * (u % micro.sets)
            rest[at : at + count] = self._products(here, b, u, rest[at : at + count])
        step = f.index("mul", self.a_step, unroll * self._depth)
        a = [f.at(p, step, llvm.TYPES[micro.a]) for p in a]
        b = f.at(b, f.index("mul", self.b_row, unroll), llvm.TYPES[micro.b])
        return [*a, b, *([f.at(ahead, micro.fetch, "i8")] if micro.fetch else []), *rest]

    @property
    def _depth(self) -> int:
        """Elements of k in one step."""
        return 2 if self.micro.pairs else 1

    def _fixed(self, pointer: str) -> str:
        """A pointer whose rows have offsets, hidden from LLVM's strength reduction, which would keep a pointer for every row."""
        if not self.micro.offset:
            return pointer
        return self.f.call("ptr", "llvm.launder.invariant.group.p0", ["ptr"], [pointer])

    def _step(self, values: tuple[str, ...]) -> list[str]:
        f, micro = self.f, self.micro
        a, b, sums = self._split(values)
        sums = self._products([self._fixed(p) for p in a], b, 0, sums)
        step = f.index("mul", self.a_step, self._depth)
        a = [f.at(p, step, llvm.TYPES[micro.a]) for p in a]
        return [*a, f.at(b, self.b_row, llvm.TYPES[micro.b]), *sums]

    def _products(self, a: Sequence[str], b: str, u: int, sums: list[str], half: bool = False) -> list[str]:
        """One step of k at `u` steps behind the pointers: rows x vectors multiply-adds. `half`: a has one element left."""
        f, micro = self.f, self.micro
        row = f.at(b, f.index("mul", self.b_row, u), llvm.TYPES[micro.b])
        right = [self._b(row, c) for c in range(micro.vectors)]
        behind = f.index("mul", self.a_step, u * self._depth)
        for r in range(micro.rows):
            left = self._a(self._row(a, r, behind), half)
            for c in range(micro.vectors):
                i = r * micro.vectors + c
                sums[i] = self._multiply_add(left, right[c], sums[i])
        return sums

    def _row(self, a: Sequence[str], r: int, behind: Amount) -> str:
        """Where the element of row r lies, `behind` elements behind the pointers."""
        f, micro, kind = self.f, self.micro, llvm.TYPES[self.micro.a]
        if micro.a_row is not None:
            return f.at(a[0], f.index("add", micro.a_row * r, behind), kind)
        near = r % NEAR_ROWS
        return f.at(f.at(a[r // NEAR_ROWS], f"%off{near}" if near else 0, "i8"), behind, kind)

    def _multiply_add(self, x: str, y: str, z: str) -> str:
        f, v = self.f, self.vector
        if self.micro.pairs:
            wide = f"<{2 * self.lanes} x bfloat>"
            return f.call(v, f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}", [v, wide, wide], [z, x, y])
        if self.micro.acc.is_float:
            return f.call(v, f"llvm.fma.v{self.lanes}f{self.micro.acc.bits}", [v, v, v], [x, y, z])
        return f.let(f"add {v} {f.let(f'mul {v} {x}, {y}')}, {z}")

    def _a(self, pointer: str, half: bool) -> str:
        """An element of a (a pair of them), in every lane."""
        f, lanes = self.f, self.lanes
        if self.micro.pairs:
            x = f.let(f"load {'i16' if half else 'i32'}, ptr {pointer}, align 2")
            x = self._splat("i32", f.let(f"zext i16 {x} to i32") if half else x)
            return f.let(f"bitcast <{lanes} x i32> {x} to <{2 * lanes} x bfloat>")
        return self._splat(self.element, converted(f, pointer, self.micro.a, self.micro.acc, 1, None))

    def _splat(self, kind: str, x: str) -> str:
        return splat(self.f, kind, x, self.lanes)

    def _b(self, row: str, c: int) -> str:
        """Vector `c` of a row of b."""
        f, lanes, micro = self.f, self.lanes, self.micro
        masked = self.mask if c == micro.vectors - 1 and not micro.padded else None
        if micro.pairs:
            x = load(f, f.at(row, 2 * c * lanes, "bfloat"), "i32", 2, lanes, masked)
            return f.let(f"bitcast <{lanes} x i32> {x} to <{2 * lanes} x bfloat>")
        return converted(f, f.at(row, c * lanes, llvm.TYPES[micro.b]), micro.b, micro.acc, lanes, masked)

    def _added(self, sums: list[str]) -> list[str]:
        """The sets of accumulators, added to one."""
        f, micro, add = self.f, self.micro, self._addition
        count = micro.rows * micro.vectors
        sets = [sums[i : i + count] for i in range(0, len(sums), count)]
        while len(sets) > 1:
            half = (len(sets) + 1) // 2
            for low, high in zip(sets, sets[half:], strict=False):
                low[:] = [f.let(f"{add} {self.vector} {x}, {y}") for x, y in zip(low, high, strict=True)]
            sets = sets[:half]
        return sets[0]

    @property
    def _addition(self) -> str:
        return "fadd" if self.micro.acc.is_float else "add"

    def _finish(self, sums: list[str]) -> None:
        f = self.f

        def new() -> None:
            for i, p in enumerate(places):
                self._store(sums[i], p, i)

        def old() -> None:
            for i, p in enumerate(places):
                x = load(f, p, self.element, self.micro.acc.bytes, self.lanes, self._masked(i))
                self._store(f.let(f"{self._addition} {self.vector} {x}, {sums[i]}"), p, i)

        places = [
            f.at(f.at("%acc", self.acc_rows[r], self.element), c * self.lanes, self.element)
            for r in range(self.micro.rows)
            for c in range(self.micro.vectors)
        ]
        f.when("%clear", new, old)

    def _masked(self, i: int) -> str | None:
        return self.mask if i % self.micro.vectors == self.micro.vectors - 1 else None

    def _store(self, x: str, pointer: str, i: int) -> None:
        store(self.f, x, pointer, self.element, self.micro.acc.bytes, self.lanes, self._masked(i))


def splat(f: llvm.Function, kind: str, x: str, lanes: int) -> str:
    """`x` in every lane."""
    if lanes == 1:
        return x
    v = llvm.vector(lanes, kind)
    first = f.let(f"insertelement {v} poison, {kind} {x}, i64 0")
    return f.let(f"shufflevector {v} {first}, {v} poison, <{lanes} x i32> zeroinitializer")


def _suffix(kind: str, lanes: int) -> str:
    return f"v{lanes}{ {'float': 'f32', 'double': 'f64', 'half': 'f16', 'bfloat': 'bf16'}.get(kind, kind) }"


def load(f: llvm.Function, pointer: str, kind: str, align: int, lanes: int, mask: str | None) -> str:
    """`lanes` elements; those outside `mask` are not touched and read as zero."""
    v = llvm.vector(lanes, kind)
    if mask is None:
        return f.let(f"load {v}, ptr {pointer}, align {align}")
    name = f"llvm.masked.load.{_suffix(kind, lanes)}.p0"
    return f.call(v, name, ["ptr", f"<{lanes} x i1>", v], [f"align {align} {pointer}", mask, "zeroinitializer"])


def store(f: llvm.Function, x: str, pointer: str, kind: str, align: int, lanes: int, mask: str | None) -> None:
    """The elements inside `mask`, or all."""
    v = llvm.vector(lanes, kind)
    if mask is None:
        f.do(f"store {v} {x}, ptr {pointer}, align {align}")
        return
    name = f"llvm.masked.store.{_suffix(kind, lanes)}.p0"
    f.call("void", name, [v, "ptr", f"<{lanes} x i1>"], [x, f"align {align} {pointer}", mask])


def converted(f: llvm.Function, pointer: str, source: DType, target: DType, lanes: int, mask: str | None) -> str:
    """`lanes` elements in memory, widened to `target`; those outside `mask` are not touched and read as zero."""
    new = llvm.vector(lanes, llvm.TYPES[target])
    if source is dtypes.bf16 and target is dtypes.f32:  # by its bits: the type is not legal everywhere
        bits, wide = (llvm.vector(lanes, kind) for kind in ("i16", "i32"))
        shift = "16" if lanes == 1 else "splat (i32 16)"
        x = f.let(f"zext {bits} {load(f, pointer, 'i16', 2, lanes, mask)} to {wide}")
        return f.let(f"bitcast {wide} {f.let(f'shl {wide} {x}, {shift}')} to {new}")
    x = load(f, pointer, llvm.TYPES[source], source.bytes, lanes, mask)
    if source is target:
        return x
    old = llvm.vector(lanes, llvm.TYPES[source])
    if source.is_float and target.is_float:
        return f.let(f"{'fpext' if source.bytes < target.bytes else 'fptrunc'} {old} {x} to {new}")
    if source.is_float or target.is_float:
        raise ValueError(f"a matrix product does not convert {source} to {target}")
    if source.bytes == target.bytes:
        return x
    return f.let(f"{'sext' if source.kind == 'int' else 'zext'} {old} {x} to {new}")
