"""The entry points of a compiled graph: `int tw_run(const tw_call *)` and its kin, as straight-line launches, and `tw_plan`.

In: launches whose arguments are placed in memory. Out: LLVM functions that fill each kernel's argument array and hand
it to the call's `parallel_for`; of a graph with symbolic sizes, one that says how much memory a call needs. Must not know how
kernels compute. The layout of `tw_call` is native/tw_call.h's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base import dtypes
from ...base.dims import Size
from ..plan import Place, Slot
from . import llvm
from .sizes import Sizes

FIELDS = {"inputs": 8, "outputs": 16, "folded": 24, "arena": 32, "sizes": 56, "parallel_for": 64, "error": 96}
"""Byte offsets in `tw_call`, checked against the header by a test."""

PLAN = "tw_plan"


@dataclass(frozen=True)
class PlacedLaunch:
    """One launch: the kernel's symbol, its pointers, its run-time integers, its blocks and one-thread nanoseconds.

    `checks`: the kernel holds assertions; where one fails, the launches behind it do not happen. `cost` is that of touching
    `planned` bytes; a call touches `bytes`.
    """

    symbol: str
    pointers: tuple[Place, ...]
    scalars: tuple[Size, ...]
    blocks: Size
    cost: int
    checks: bool = False
    bytes: Size = 0
    planned: int = 0


def emit_plan(
    module: llvm.Module, symbols: Sequence[str], slots: Sequence[Slot], shapes: Sequence[Size], scratch: Sequence[Size]
) -> None:
    """Add `void tw_plan(ptr sizes, ptr out)`: writes `shapes`, the bytes of the arena, and the most bytes of `scratch`."""
    f = llvm.Function(module, PLAN, ["ptr %sizes", "ptr %out"])
    sizes = Sizes(f, symbols, slots, "%sizes")
    arena = sizes.greatest([sizes.end(k) for k in range(len(slots))])
    values = [*map(sizes.value, shapes), arena, sizes.greatest(list(map(sizes.value, scratch)))]
    for k, value in enumerate(values):
        f.do(f"store i64 {value}, ptr {f.at('%out', k, 'i64')}")
    f.close()


def emit_run(
    module: llvm.Module, name: str, launches: Sequence[PlacedLaunch], symbols: Sequence[str] = (), slots: Sequence[Slot] = ()
) -> None:
    """Add `i32 name(ptr call)`: the launches in order. It returns 0, or 1 where an assertion failed (the call's
    `error` says which). `symbols` name the call's sizes, and `slots` make up its arena where those decide where they lie."""
    f = llvm.Function(module, name, ["ptr %call"], returns="i32")
    if launches:
        sizes = Sizes(f, symbols, slots, _field(f, "sizes") if symbols else "")
        words = max(len(x.pointers) + len(x.scalars) + x.checks for x in launches)
        args = f.let(f"alloca [{max(words, 1)} x i64], align 64")
        error = f.at("%call", FIELDS["error"], "i8")
        parallel_for = _field(f, "parallel_for")
        bases = _Bases(f, sizes)
        for x in launches:
            for k, p in enumerate(x.pointers):
                f.do(f"store ptr {bases.address(p)}, ptr {f.at(args, k, 'i64')}")
            for k, value in enumerate(x.scalars, len(x.pointers)):
                f.do(f"store i64 {sizes.value(value)}, ptr {f.at(args, k, 'i64')}")
            if x.checks:
                f.do(f"store ptr {error}, ptr {f.at(args, len(x.pointers) + len(x.scalars), 'i64')}")
            blocks, cost = sizes.value(x.blocks), _cost(f, sizes, x)
            f.do(f"call void {parallel_for}(ptr %call, ptr @{x.symbol}, ptr {args}, i64 {blocks}, i64 {cost})")
            if x.checks:
                _leave_on_error(f, error)
    f.close("i32 0")


def _cost(f: llvm.Function, sizes: Sizes, x: PlacedLaunch) -> str | int:
    """The launch's nanoseconds, in proportion to the bytes that it touches."""
    if isinstance(x.bytes, int) or not x.planned:
        return x.cost
    touched = f.let(f"sitofp i64 {sizes.value(x.bytes)} to double")
    cost = f.let(f"fmul double {touched}, {llvm.number(x.cost / x.planned, dtypes.f64)}")
    return f.let(f"fptosi double {cost} to i64")


class _Bases:
    """Base pointers, each loaded once."""

    def __init__(self, f: llvm.Function, sizes: Sizes) -> None:
        self.f = f
        self.sizes = sizes
        self.loaded: dict[tuple[str, int], str] = {}

    def address(self, p: Place) -> str:
        base = self._load((p.base, -1))
        offset = self.sizes.value(p.offset)
        if p.base in ("inputs", "outputs"):
            base = self._load((p.base, p.index))
        elif p.index >= 0:
            offset = self.f.index("add", self.sizes.start(p.index), offset)
        return self.f.at(base, offset, "i8")

    def _load(self, key: tuple[str, int]) -> str:
        if key not in self.loaded:
            table, index = key
            if index < 0:
                self.loaded[key] = _field(self.f, table)
            else:
                self.loaded[key] = self.f.let(f"load ptr, ptr {self.f.at(self._load((table, -1)), index, 'ptr')}")
        return self.loaded[key]


def _leave_on_error(f: llvm.Function, error: str) -> None:
    first = f.let(f"load i8, ptr {error}")
    fine, failed = f.name_for("fine")[1:], f.name_for("failed")[1:]
    f.do(f"br i1 {f.let(f'icmp eq i8 {first}, 0')}, label %{fine}, label %{failed}")
    f.label(failed)
    f.do("ret i32 1")
    f.label(fine)


def _field(f: llvm.Function, name: str) -> str:
    return f.let(f"load ptr, ptr {f.at('%call', FIELDS[name], 'i8')}")
