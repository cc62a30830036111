"""Matrix products of operands that are both contiguous along k: sums of products along vectors, nothing packed.

In: a[m, k] and b[k, n] with unit steps along k, sizes, and the function being written. Out: instructions in that function,
and an internal function a distinct tile. Must not know when this beats packing b: `gemm.emit_gemm` decides.

A tile keeps rows x columns vector sums over the whole k range; each is added up across its lanes at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from ...base.dtypes import DType
from . import llvm
from .isa import Isa
from .micro import converted, load, short

Amount: TypeAlias = int | str

IN_FLIGHT = 8


@dataclass(frozen=True)
class Dot:
    """One tile's function: `void name(a, b, acc, k, clear, a_row, b_column, acc_row)`, strides in elements.

    `pairs`: bf16 operands multiplied in pairs by a dot instruction. `whole`: k is a multiple of a vector's elements.
    """

    a: DType
    b: DType
    acc: DType
    rows: int
    columns: int
    pairs: bool
    whole: bool

    @property
    def name(self) -> str:
        return "dot_" + "_".join(short(getattr(self, f.name)) for f in fields(self))


def tile_of(isa: Isa) -> tuple[int, int]:
    """(rows, columns) of the tile whose sums and operands fill the registers."""
    return (4, 6) if isa.registers >= 32 else (2, 4)


def dot_kernel(module: llvm.Module, isa: Isa, dot: Dot) -> str:
    """The name of the tile's function, written into `module` if it is not there yet."""
    if dot.name not in module.functions:
        _write(module, isa, dot)
    return dot.name


def _write(module: llvm.Module, isa: Isa, dot: Dot) -> None:
    params = ["ptr noalias readonly %a", "ptr noalias readonly %b", "ptr noalias %acc", "i64 %k", "i1 %clear"]
    f = llvm.Function(module, dot.name, [*params, "i64 %a_row", "i64 %b_column", "i64 %acc_row"], internal=True)
    lanes = isa.lanes_of(dot.acc)
    step = 2 * lanes if dot.pairs else lanes
    vector = llvm.vector(lanes, llvm.TYPES[dot.acc])
    kinds = (llvm.TYPES[dot.a], llvm.TYPES[dot.b])
    lefts = [f.at("%a", f.index("mul", "%a_row", r), kinds[0]) for r in range(dot.rows)]
    rights = [f.at("%b", f.index("mul", "%b_column", c), kinds[1]) for c in range(dot.columns)]
    count = dot.rows * dot.columns

    def products(i: str, sums: list[str], mask: str | None) -> list[str]:
        right = [_operand(f, f.at(p, i, kinds[1]), dot.b, dot, lanes, mask) for p in rights]
        for r, p in enumerate(lefts):
            left = _operand(f, f.at(p, i, kinds[0]), dot.a, dot, lanes, mask)
            for c in range(dot.columns):
                at = r * dot.columns + c
                sums[at] = _multiply_add(f, dot, lanes, left, right[c], sums[at])
        return sums

    sets = 1
    while count * sets < IN_FLIGHT:
        sets *= 2

    def turn(i: str, *values: str) -> list[str]:
        return [
            x
            for s in range(sets)
            for x in products(str(f.index("add", i, s * step)), list(values[s * count : (s + 1) * count]), None)
        ]

    zeros = [(vector, "zeroinitializer")] * count
    main = f.let(f"and i64 %k, {-step * sets}")
    values = f.loop(0, main, step * sets, turn, zeros * sets)
    add = "fadd" if dot.acc.is_float else "add"
    sums = values[:count]
    for s in range(1, sets):
        sums = [f.let(f"{add} {vector} {x}, {y}") for x, y in zip(sums, values[s * count :], strict=False)]
    end = f.let(f"and i64 %k, {-step}") if sets > 1 else main
    if sets > 1:
        sums = f.loop(main, end, step, lambda i, *v: products(i, list(v), None), [(vector, s) for s in sums])
    if not dot.whole:
        mask_type = f"<{step} x i1>"

        def rest(i: str, *v: str) -> list[str]:
            mask = f.call(mask_type, f"llvm.get.active.lane.mask.v{step}i1.i64", ["i64", "i64"], [i, "%k"])
            return products(i, list(v), mask)

        sums = f.loop(end, "%k", step, rest, [(vector, s) for s in sums])
    _finish(f, dot, vector, lanes, sums)
    f.close()


def _operand(f: llvm.Function, pointer: str, kind: DType, dot: Dot, lanes: int, mask: str | None) -> str:
    """A vector along k, in the form that is multiplied."""
    if not dot.pairs:
        return converted(f, pointer, kind, dot.acc, lanes, mask)
    bits = load(f, pointer, "i16", 2, 2 * lanes, mask)
    return f.let(f"bitcast <{2 * lanes} x i16> {bits} to <{2 * lanes} x bfloat>")


def _multiply_add(f: llvm.Function, dot: Dot, lanes: int, x: str, y: str, z: str) -> str:
    v = llvm.vector(lanes, llvm.TYPES[dot.acc])
    if dot.pairs:
        wide = f"<{2 * lanes} x bfloat>"
        return f.call(v, f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", [v, wide, wide], [z, x, y])
    if dot.acc.is_float:
        return f.call(v, f"llvm.fma.v{lanes}f{dot.acc.bits}", [v, v, v], [x, y, z])
    return f.let(f"add {v} {f.let(f'mul {v} {x}, {y}')}, {z}")


def _finish(f: llvm.Function, dot: Dot, vector: str, lanes: int, sums: list[str]) -> None:
    """Add each sum up across its lanes, and store it or add it to the accumulator."""
    kind, bits = llvm.TYPES[dot.acc], dot.acc.bits
    suffix = f"v{lanes}{'f' if dot.acc.is_float else 'i'}{bits}"
    places = [
        f.at(f.at("%acc", f.index("mul", "%acc_row", r), kind), c, kind) for r in range(dot.rows) for c in range(dot.columns)
    ]
    totals = []
    for s in sums:
        if dot.acc.is_float:
            f.module.declare(f"declare {kind} @llvm.vector.reduce.fadd.{suffix}({kind}, {vector})")
            totals.append(f.let(f"call reassoc {kind} @llvm.vector.reduce.fadd.{suffix}({kind} 0.0, {vector} {s})"))
        else:
            totals.append(f.call(kind, f"llvm.vector.reduce.add.{suffix}", [vector], [s]))
    add = "fadd" if dot.acc.is_float else "add"

    def new() -> None:
        for p, x in zip(places, totals, strict=True):
            f.do(f"store {kind} {x}, ptr {p}, align {dot.acc.bytes}")

    def old() -> None:
        for p, x in zip(places, totals, strict=True):
            before = f.let(f"load {kind}, ptr {p}, align {dot.acc.bytes}")
            f.do(f"store {kind} {f.let(f'{add} {kind} {before}, {x}')}, ptr {p}, align {dot.acc.bytes}")

    f.when("%clear", new, old)
