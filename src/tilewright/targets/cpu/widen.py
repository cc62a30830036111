"""Rows of 16- or 8-bit elements, widened into scratch so that a micro-kernel need not convert one element at a time.

In: rows in memory, and the function being written. Out: a call to an internal function, one a pair of types in a module.
Must not know what the rows are for.
"""

from __future__ import annotations

from typing import TypeAlias

from ...base.dtypes import DType
from . import llvm
from .isa import Isa
from .micro import converted, store

Amount: TypeAlias = int | str


def widened_row(isa: Isa, length: int) -> int:
    """Elements from one widened row to the next: whole vectors, and no multiple of 1 KB, whose rows would share cache sets."""
    return (-(-length // isa.lanes) + 1) * isa.lanes


def emit_widened(
    f: llvm.Function, isa: Isa, source: str, row: Amount, target: str, rows: Amount, length: int, old: DType, new: DType
) -> None:
    """Write `rows` rows of `length` elements of type `old`, `row` elements apart, to `target` as type `new`.

    Rows of the target are `widened_row` elements apart; what lies between them is overwritten.
    """
    name = f"widen_{old.short}_{new.short}"
    if name not in f.module.functions:
        _write(f.module, isa, name, old, new)
    numbers = f"i64 {row}, i64 {widened_row(isa, length)}, i64 {rows}, i64 {length}"
    f.do(f"call void @{name}(ptr {source}, ptr {target}, {numbers})")


def _write(module: llvm.Module, isa: Isa, name: str, old: DType, new: DType) -> None:
    params = ["ptr noalias readonly %source", "ptr noalias %target", "i64 %source_row", "i64 %target_row", "i64 %rows"]
    f = llvm.Function(module, name, [*params, "i64 %length"], internal=True)
    lanes = isa.lanes_of(new)

    def line(r: str) -> None:
        source = f.at("%source", f.index("mul", r, "%source_row"), llvm.TYPES[old])
        target = f.at("%target", f.index("mul", r, "%target_row"), llvm.TYPES[new])

        def vector(i: str, mask: str | None) -> None:
            x = converted(f, f.at(source, i, llvm.TYPES[old]), old, new, lanes, mask)
            store(f, x, f.at(target, i, llvm.TYPES[new]), llvm.TYPES[new], new.bytes, lanes, None)

        def masked(i: str) -> None:
            vector(i, f.call(f"<{lanes} x i1>", f"llvm.get.active.lane.mask.v{lanes}i1.i64", ["i64", "i64"], [i, "%length"]))

        f.loop(0, whole, lanes, lambda i: vector(i, None))
        f.loop(whole, "%length", lanes, masked)

    whole = f.let(f"and i64 %length, {-lanes}")
    f.loop(0, "%rows", 1, line)
    f.close()
