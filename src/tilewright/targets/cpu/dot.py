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


def tile_of(isa: Isa, m: Amount) -> tuple[int, int]:
    """(rows, columns) of the tile for m rows, whose sums and operands fill the registers."""
    if isinstance(m, int) and m <= 2:
        return m, 8 if isa.registers >= 32 or m == 1 else 4
    return (6, 4) if isa.registers >= 32 else (2, 4)


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
    sums = values[:count]
    for s in range(1, sets):
        sums = [f.let(f"{_addition(dot)} {vector} {x}, {y}") for x, y in zip(sums, values[s * count :], strict=False)]
    end = f.let(f"and i64 %k, {-step}") if sets > 1 else main
    if sets > 1:
        sums = f.loop(main, end, step, lambda i, *v: products(i, list(v), None), [(vector, s) for s in sums])
    if not dot.whole:
        mask_type = f"<{step} x i1>"

        def rest(i: str, *v: str) -> list[str]:
            mask = f.call(mask_type, f"llvm.get.active.lane.mask.v{step}i1.i64", ["i64", "i64"], [i, "%k"])
            return products(i, list(v), mask)

        sums = f.loop(end, "%k", step, rest, [(vector, s) for s in sums])
    _finish(f, dot, lanes, sums)
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


def _finish(f: llvm.Function, dot: Dot, lanes: int, sums: list[str]) -> None:
    """Add each sum up across its lanes, and store it or add it to the accumulator, some neighbours of a row at a time."""
    kind = llvm.TYPES[dot.acc]
    vector = llvm.vector(lanes, kind)
    chunk = min(4, lanes)
    width = -(-dot.columns // chunk) * chunk
    padded = [
        x
        for r in range(dot.rows)
        for x in (*sums[r * dot.columns :][: dot.columns], *["zeroinitializer"] * (width - dot.columns))
    ]
    totals = [_totals(f, dot.acc, lanes, padded[i : i + lanes]) for i in range(0, len(padded), lanes)]
    pieces = []  # (address, what to add there, how many)
    for i in range(0, len(padded), chunk):
        r, c = divmod(i, width)
        take = min(chunk, dot.columns - c)
        at = f.at(f.at("%acc", f.index("mul", "%acc_row", r), kind), c, kind)
        order = ", ".join(f"i32 {i % lanes + j}" for j in range(take))
        x = f.let(f"shufflevector {vector} {totals[i // lanes]}, {vector} poison, <{take} x i32> <{order}>")
        pieces.append((at, x, f"<{take} x {kind}>"))

    def new() -> None:
        for at, x, type_ in pieces:
            f.do(f"store {type_} {x}, ptr {at}, align {dot.acc.bytes}")

    def old() -> None:
        for at, x, type_ in pieces:
            before = f.let(f"load {type_}, ptr {at}, align {dot.acc.bytes}")
            f.do(f"store {type_} {f.let(f'{_addition(dot)} {type_} {before}, {x}')}, ptr {at}, align {dot.acc.bytes}")

    f.when("%clear", new, old)


def _addition(dot: Dot) -> str:
    return "fadd" if dot.acc.is_float else "add"


def _totals(f: llvm.Function, kind: DType, lanes: int, sums: list[str]) -> str:
    """One vector whose lane i is the sum of the lanes of `sums[i]`: neighbours are added, halving both, as often as it takes."""
    vector = llvm.vector(lanes, llvm.TYPES[kind])
    add = "fadd" if kind.is_float else "add"

    def neighbours(x: str, y: str) -> str:
        halves = []
        for start in (0, 1):
            order = ", ".join(f"i32 {i}" for i in range(start, 2 * lanes, 2))
            halves.append(f.let(f"shufflevector {vector} {x}, {vector} {y}, <{lanes} x i32> <{order}>"))
        return f.let(f"{add} {vector} {halves[0]}, {halves[1]}")

    for _ in range(lanes.bit_length() - 1):
        odd = [sums[-1]] * (len(sums) % 2)
        both = [*sums, *odd]
        sums = [neighbours(x, y) for x, y in zip(both[::2], both[1::2], strict=True)]
    return sums[0]
