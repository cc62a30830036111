"""Transposing copies through registers: square tiles of one vector's lanes a side.

In: two strided matrices whose unit strides lie along different axes, and the function being written. Out: a call to an
internal function, one an element size in a module. Must not know tile programs, nor why somebody transposes.

Elements of 8 and 16 bits travel as 32-bit lanes. A packed panel of pairs (16-bit b operands of a dot instruction) is a
transposing copy of 32-bit elements: a pair is one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...base.dtypes import DType
from . import llvm
from .isa import Isa

Amount: TypeAlias = int | str


@dataclass(frozen=True)
class Strided:
    """A matrix in memory: an SSA pointer, and the strides of its rows and columns in elements of `bytes` bytes."""

    pointer: str
    row: Amount
    column: Amount


def emit_transpose_copy(
    f: llvm.Function,
    isa: Isa,
    source: Strided,
    target: Strided,
    rows: Amount,
    columns: Amount,
    dtype: DType,
    valid_rows: Amount | None = None,
    valid_columns: Amount | None = None,
) -> None:
    """Write target[r, c] = source[r, c] for r < rows, c < columns; elements outside the valid part are written as zero.

    Fast where source.row and target.column are 1 (or source.column and target.row); any strides are right. A number of
    type i64 names a run-time size or stride. The memory of the two must not overlap.
    """
    valid_rows = rows if valid_rows is None else valid_rows
    valid_columns = columns if valid_columns is None else valid_columns
    if (source.row, target.column) != (1, 1) and (source.column, target.row) == (1, 1):
        source, target = (Strided(s.pointer, s.column, s.row) for s in (source, target))
        rows, columns, valid_rows, valid_columns = columns, rows, valid_columns, valid_rows
    sizes = (rows, columns, valid_rows, valid_columns)
    steps = [source.row, source.column, target.row, target.column]
    if (source.row, target.column) == (1, 1):
        name, steps = _transpose(f.module, isa, dtype.bytes), steps[1:3]
    else:
        name = _scalar(f.module, dtype.bytes)
    numbers = [f"i64 {s}" for s in (*(f.index("mul", s, dtype.bytes) for s in steps), *sizes)]
    f.do(f"call void @{name}({', '.join((f'ptr {source.pointer}', f'ptr {target.pointer}', *numbers))})")


def emit_transpose_pairs(
    f: llvm.Function,
    isa: Isa,
    source: str,
    across: Amount,
    target: str,
    down: int,
    sizes: tuple[Amount, Amount],
    valid: tuple[Amount, Amount],
) -> None:
    """As `emit_transpose_copy`, of pairs of 16-bit elements: pair (r, c) goes from `source + c * across + 2 r` to
    `target + r * down + 2 c`, in 16-bit elements, which may be odd numbers apart."""
    name = _transpose(f.module, isa, 4)
    numbers = ", ".join(f"i64 {x}" for x in (f.index("mul", across, 2), 2 * down, *sizes, *valid))
    f.do(f"call void @{name}(ptr {source}, ptr {target}, {numbers})")


_SIZES = ["i64 %rows", "i64 %columns", "i64 %valid_rows", "i64 %valid_columns"]
_POINTERS = ["ptr noalias readonly %source", "ptr noalias %target"]


def _transpose(module: llvm.Module, isa: Isa, size: int) -> str:
    """The function for elements of `size` bytes: whole tiles, then the right and lower edges."""
    name = f"transpose_{8 * size}"
    if name in module.functions:
        return name
    f = llvm.Function(module, name, [*_POINTERS, "i64 %across", "i64 %down", *_SIZES], internal=True)
    lanes = isa.lanes // 2 if size == 8 else isa.lanes
    whole, edge = _tile(module, isa, size, lanes), _edge(module, isa, size, lanes)

    def place(r: Amount, c: Amount) -> str:
        source = f.at(f.at("%source", f.index("mul", c, "%across"), "i8"), f.index("mul", r, size), "i8")
        target = f.at(f.at("%target", f.index("mul", r, "%down"), "i8"), f.index("mul", c, size), "i8")
        return f"ptr {source}, ptr {target}, i64 %across, i64 %down"

    def least(x: str, y: Amount) -> str:
        return f.call("i64", "llvm.smin.i64", ["i64", "i64"], [x, str(y)])

    def edges(r: str, c: str) -> None:
        counts = [least(f.let(f"sub i64 %{n}, {i}"), lanes) for n, i in (("rows", r), ("columns", c))]
        counts += [least(f.let(f"sub i64 %valid_{n}, {i}"), lanes) for n, i in (("rows", r), ("columns", c))]
        f.do(f"call void @{edge}({place(r, c)}, {', '.join(f'i64 {n}' for n in counts)})")

    inner_rows = f.let(f"and i64 {least('%rows', '%valid_rows')}, {-lanes}")
    inner_columns = f.let(f"and i64 {least('%columns', '%valid_columns')}, {-lanes}")

    def band(r: str) -> None:
        f.loop(0, inner_columns, lanes, lambda c: f.do(f"call void @{whole}({place(r, c)})"))
        f.loop(inner_columns, "%columns", lanes, lambda c: edges(r, c))

    f.loop(0, inner_rows, lanes, band)
    f.loop(inner_rows, "%rows", lanes, lambda r: f.loop(0, "%columns", lanes, lambda c: edges(r, c)) and None)
    f.close()
    return name


def _tile(module: llvm.Module, isa: Isa, size: int, lanes: int) -> str:
    """One whole tile of lanes x lanes."""
    name = f"transpose_tile_{8 * size}"
    if name in module.functions:
        return name
    f = llvm.Function(module, name, [*_POINTERS, "i64 %across", "i64 %down"], internal=True)
    memory = f"i{8 * size}"
    register = memory if size >= 4 else "i32"
    here, there = llvm.vector(lanes, memory), llvm.vector(lanes, register)
    vectors = []
    for c in range(lanes):
        x = f.let(f"load {here}, ptr {f.at('%source', f.index('mul', '%across', c), 'i8')}, align {size}")
        vectors.append(x if here == there else f.let(f"zext {here} {x} to {there}"))
    for r, x in enumerate(transposed(f, vectors, register)):
        x = x if here == there else f.let(f"trunc {there} {x} to {here}")
        f.do(f"store {here} {x}, ptr {f.at('%target', f.index('mul', '%down', r), 'i8')}, align {size}")
    f.close()
    return name


def _edge(module: llvm.Module, isa: Isa, size: int, lanes: int) -> str:
    """A tile of which only some rows and columns exist: through two whole tiles on the stack.

    The last four arguments may be below zero (valid sizes) or up to `lanes`.
    """
    name = f"transpose_edge_{8 * size}"
    if name in module.functions:
        return name
    f = llvm.Function(module, name, [*_POINTERS, "i64 %across", "i64 %down", *_SIZES], internal=True)
    kind = f"i{8 * size}"
    square = f"[{lanes} x {llvm.vector(lanes, kind)}]"
    before, after = (f.let(f"alloca {square}, align 64") for _ in range(2))
    width = size * lanes

    def line(i: str, count: str, to: str, to_step: Amount, source: str, source_step: Amount) -> None:
        """Row `i`: `count` elements."""
        p, q = f.at(to, f.index("mul", i, to_step), "i8"), f.at(source, f.index("mul", i, source_step), "i8")

        def element(j: str) -> None:
            x = f.let(f"load {kind}, ptr {f.at(q, j, kind)}, align {size}")
            f.do(f"store {kind} {x}, ptr {f.at(p, j, kind)}, align {size}")

        f.loop(0, count, 1, element)

    f.do(f"store {square} zeroinitializer, ptr {before}, align 64")
    f.loop(0, "%valid_columns", 1, lambda c: line(c, "%valid_rows", before, width, "%source", "%across"))
    f.do(f"call void @{_tile(module, isa, size, lanes)}(ptr {before}, ptr {after}, i64 {width}, i64 {width})")
    f.loop(0, "%rows", 1, lambda r: line(r, "%columns", "%target", "%down", after, width))
    f.close()
    return name


def transposed(f: llvm.Function, vectors: Sequence[str], element: str) -> list[str]:
    """The transpose of a square of vectors of 32- or 64-bit integer elements.

    First within each 128-bit lane by interleaving, then whole 128-bit lanes, each step one instruction of the usual sets.
    """
    lanes = len(vectors)
    type_ = llvm.vector(lanes, element)
    block = 128 // int(element[1:])

    def shuffle(x: str, y: str, order: Sequence[int]) -> str:
        indices = ", ".join(f"i32 {i}" for i in order)
        return f.let(f"shufflevector {type_} {x}, {type_} {y}, <{lanes} x i32> <{indices}>")

    def within(pattern: Sequence[int]) -> list[int]:
        """`pattern` indexes one block of x (0..block-1) and of y (block..); repeated over the blocks."""
        return [base + (i if i < block else lanes + i - block) for base in range(0, lanes, block) for i in pattern]

    def blocks(group: list[str]) -> list[str]:
        if len(group) == 1:
            return group
        every = [b * block + i for b in range(2 * lanes // block) for i in range(block)]
        even = [i for i in every if i // block % 2 == 0]
        odd = [i for i in every if i // block % 2 == 1]
        pairs = list(zip(group[::2], group[1::2], strict=True))
        lower, upper = (blocks([shuffle(x, y, order) for x, y in pairs]) for order in (even, odd))
        return [v for both in zip(lower, upper, strict=True) for v in both]

    squares = []  # squares[b][i]: row i of each block's transpose, of input vectors b*block...
    for b in range(0, lanes, block):
        v = list(vectors[b : b + block])
        if block == 4:
            low01, high01 = shuffle(v[0], v[1], within((0, 4, 1, 5))), shuffle(v[0], v[1], within((2, 6, 3, 7)))
            low23, high23 = shuffle(v[2], v[3], within((0, 4, 1, 5))), shuffle(v[2], v[3], within((2, 6, 3, 7)))
            pairs = [(low01, low23), (high01, high23)]
            v = [shuffle(x, y, within(p)) for x, y in pairs for p in ((0, 1, 4, 5), (2, 3, 6, 7))]
        else:
            v = [shuffle(v[0], v[1], within(p)) for p in ((0, 2), (1, 3))]
        squares.append(v)
    columns = [blocks([square[i] for square in squares]) for i in range(block)]
    return [columns[r % block][r // block] for r in range(lanes)]


def _scalar(module: llvm.Module, size: int) -> str:
    """The function for any strides (in bytes): one element at a time."""
    name = f"copy_strided_{8 * size}"
    if name in module.functions:
        return name
    steps = ["i64 %source_row", "i64 %source_column", "i64 %target_row", "i64 %target_column"]
    f = llvm.Function(module, name, [*_POINTERS, *steps, *_SIZES], internal=True)
    kind = f"i{8 * size}"

    def element(r: str, c: str) -> None:
        to = f.at("%target", f.index("add", f.index("mul", r, "%target_row"), f.index("mul", c, "%target_column")), "i8")
        inside = f.let(f"and i1 {f.let(f'icmp slt i64 {r}, %valid_rows')}, {f.let(f'icmp slt i64 {c}, %valid_columns')}")

        def copy() -> None:
            at = f.at("%source", f.index("add", f.index("mul", r, "%source_row"), f.index("mul", c, "%source_column")), "i8")
            f.do(f"store {kind} {f.let(f'load {kind}, ptr {at}, align {size}')}, ptr {to}, align {size}")

        f.when(inside, copy, lambda: f.do(f"store {kind} 0, ptr {to}, align {size}"))

    f.loop(0, "%rows", 1, lambda r: f.loop(0, "%columns", 1, lambda c: element(r, c)) and None)
    f.close()
    return name
