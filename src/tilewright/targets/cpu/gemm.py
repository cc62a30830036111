"""Matrix products: loops over register tiles, and calls of the micro-kernels that compute one tile each.

In: three strided operands, sizes, and the function being written. Out: instructions in that function, and an internal
micro-kernel a distinct tile in its module. Must not know tile programs, where an operand came from, or threads.

The register blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). Cache
blocking is the caller's: m x k elements of a should fit half of the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...base import dtypes
from ...base.dtypes import DType
from ...tile.schedule import dot_rows
from . import amx, llvm
from .dot import Dot, dot_kernel, tile_of
from .isa import Isa
from .micro import Micro, micro_kernel
from .transpose import Strided, emit_transpose_copy
from .widen import emit_widened, widened_row

Amount: TypeAlias = int | str
"""A size or stride: a number, or the name of an i64 in the function being written."""

VECTORS = 2
"""Vectors across a register tile."""

IN_FLIGHT = 8
"""Independent multiply-adds that hide their latency: two units, four cycles. Smaller tiles split k over several sums."""

STREAM_AHEAD = 4096
"""How many bytes ahead b is fetched where it is read only once."""


@dataclass(frozen=True)
class GemmOperand:
    """A matrix in memory: `pointer` is an SSA name, strides are in elements.

    For a, `row` steps m and `column` steps k; for b, `row` steps k and `column` steps n; for the accumulator, `row` steps
    m and `column` is 1. With `pairs` (b, bf16) element (k, n) lives at `(k // 2) * row + 2 * n + k % 2`, and an odd last k
    is padded with zero. `padded`: b may be read behind n, up to a whole vector.
    """

    pointer: str
    row: Amount
    column: Amount
    dtype: DType
    pairs: bool = False
    padded: bool = False


def tiles(size: int, largest: int) -> list[tuple[int, int]]:
    """Split `size` rows into the fewest tiles of at most `largest`, as even as possible: [(rows, how many), ...]."""
    count = -(-size // largest)
    if count == 0:
        return []
    small, extra = divmod(size, count)
    return [(rows, times) for rows, times in ((small + 1, extra), (small, count - extra)) if times]


def gemm_scratch(isa: Isa, b: GemmOperand, k: Amount) -> int:
    """Bytes of scratch that `emit_gemm` may want, a's type being b's: for a packed panel where b is not contiguous along n,
    and for a tile's rows of a where 16-bit floats are to be widened.

    Raises ValueError where the first depends on a run-time k.
    """
    rows = isa.mr * widened_row(isa, k) * 4 if isinstance(k, int) and _is_half(b.dtype) and not b.pairs else 0
    if b.column == 1:
        return rows
    if not isinstance(k, int):
        raise ValueError("a matrix product whose b is strided along n needs a constant k")
    return rows + -(-k * isa.nr * b.dtype.bytes // 64) * 64


def _is_half(dtype: DType) -> bool:
    return dtype.is_float and dtype.bytes == 2


def _by_dots(a: GemmOperand, b: GemmOperand, m: Amount, k: Amount) -> bool:
    """Whether to multiply along k instead of packing b: too few rows would share a packed panel."""
    limit = dot_rows(k if isinstance(k, int) else 1)
    return a.column == 1 and b.row == 1 and isinstance(m, int) and m <= limit


def emit_gemm(
    f: llvm.Function,
    isa: Isa,
    a: GemmOperand,
    b: GemmOperand,
    acc: GemmOperand,
    m: Amount,
    n: Amount,
    k: Amount,
    clear: bool,
    scratch: str | None = None,
    multiple: int = 1,
) -> None:
    """Write acc[m, n] (+)= sum over k of a[m, k] * b[k, n]; `clear` overwrites acc. A run-time k is a multiple of `multiple`.

    Operands are converted to acc's type: floats of at most its width to a float, integers to an integer. Nothing
    outside the m x n block of acc is written. `scratch` points to `gemm_scratch` bytes, aligned like a vector.
    """
    if acc.column != 1:
        raise ValueError("the accumulator of a matrix product must be contiguous along n")
    if b.pairs and not isa.has_bf16_dot:
        raise ValueError(f"operands in pairs need a dot instruction, which {isa.name} lacks")
    if b.pairs and not isinstance(k, int) and multiple % 2:
        raise ValueError("operands in pairs need a constant or an even k")
    if b.pairs and not (a.dtype is b.dtype is dtypes.bf16 and acc.dtype is dtypes.f32 and a.column == 1):
        raise ValueError("operands in pairs must be bf16, a contiguous along k, and their products summed in fp32")
    if isinstance(n, int) and _by_tile_registers(isa, a, b, k, multiple):
        _in_tile_registers(f, isa, a, b, acc, m, n, k, clear)
        return
    if b.column == 1:
        _Product(f, isa, a, b, acc, m, k, clear, scratch).columns(n)
        return
    if _by_dots(a, b, m, k):
        _dots(f, isa, a, b, acc, m, n, k, clear)
        return
    if scratch is None:
        raise ValueError("a b that is strided along n needs scratch")
    _columns(f, n, isa.nr, lambda j, width: _packed(f, isa, a, b, acc, m, j, width, k, clear, scratch))


def _by_tile_registers(isa: Isa, a: GemmOperand, b: GemmOperand, k: Amount, multiple: int) -> bool:
    whole = k >= amx.DEPTH if isinstance(k, int) else multiple % amx.DEPTH == 0
    return isa.has_amx and b.pairs and b.column == a.column == 1 and whole


def _in_tile_registers(
    f: llvm.Function, isa: Isa, a: GemmOperand, b: GemmOperand, acc: GemmOperand, m: Amount, n: int, k: Amount, clear: bool
) -> None:
    """The product of bf16 pairs through AMX; what is left of k by the micro-kernels (nothing of one known at run time only)."""
    steps = k // amx.DEPTH if isinstance(k, int) else f.let(f"udiv i64 {k}, {amx.DEPTH}")
    share = 0  # of the next panel, which a tile fetches in each step
    if b.row == 2 * amx.COLUMNS and isinstance(m, int) and m > amx.ROWS and isinstance(k, int):
        share = -(-amx.DEPTH * amx.COLUMNS * 2 // -(-m // amx.ROWS))
    alike = isinstance(m, int) and len(tiles(m, amx.ROWS)) == 1 and (n % amx.COLUMNS == 0 or n < amx.COLUMNS)
    if alike and isinstance(m, int):
        amx.configure(f, tiles(m, amx.ROWS)[0][0], min(n, amx.COLUMNS))
    a_row, b_row, acc_row = f.index("mul", a.row, 2), f.index("mul", b.row, 2), f.index("mul", acc.row, 4)

    def tile(i: Amount, rows: int, j: Amount, columns: int) -> None:
        name = amx.tile_kernel(f.module, rows, columns, share, alike)
        pa = f.at(a.pointer, f.index("mul", i, a.row), "bfloat")
        pb = f.at(b.pointer, f.index("mul", j, 2), "bfloat")
        pc = f.at(acc.pointer, f.index("add", f.index("mul", i, acc.row), j), "float")
        part = f.let(f"udiv i64 {i}, {amx.ROWS}") if isinstance(i, str) else i // amx.ROWS
        ahead = "null"
        if share and isinstance(k, int):
            ahead = f.at(b.pointer, f.index("add", f.index("mul", part, share * steps), k * amx.COLUMNS * 2), "i8")
        numbers = f"i64 {steps}, i1 {str(clear).lower()}, i64 {a_row}, i64 {b_row}, i64 {acc_row}"
        f.do(f"call void @{name}(ptr {pa}, ptr {pb}, ptr {pc}, ptr {ahead}, {numbers})")

    def any_rows(j: Amount, columns: int) -> None:
        name = amx.rows_kernel(f.module, columns)
        pb = f.at(b.pointer, f.index("mul", j, 2), "bfloat")
        numbers = f"i1 {str(clear).lower()}, i64 {m}, i64 {steps}, i64 {a_row}, i64 {b_row}, i64 {acc_row}"
        f.do(f"call void @{name}(ptr {a.pointer}, ptr {pb}, ptr {f.at(acc.pointer, j, 'float')}, {numbers})")

    def rows(j: Amount, columns: Amount) -> None:
        if isinstance(m, int):
            _tiled(f, m, amx.ROWS, lambda i, height: tile(i, height, j, int(columns)))
        else:
            any_rows(j, int(columns))

    _columns(f, n, amx.COLUMNS, rows)
    amx.release(f)
    rest = k % amx.DEPTH if isinstance(k, int) else 0
    if rest and isinstance(k, int):
        left = replace(a, pointer=f.at(a.pointer, k - rest, "bfloat"))
        right = replace(b, pointer=f.at(b.pointer, f.index("mul", b.row, (k - rest) // 2), "bfloat"))
        _Product(f, isa, left, right, acc, m, rest, False).columns(n)


def _packed(
    f: llvm.Function,
    isa: Isa,
    a: GemmOperand,
    b: GemmOperand,
    acc: GemmOperand,
    m: Amount,
    j: Amount,
    n: Amount,
    k: Amount,
    clear: bool,
    scratch: str,
) -> None:
    """One panel: transposed into scratch, then multiplied."""
    source = f.at(b.pointer, f.index("mul", j, b.column), llvm.TYPES[b.dtype])
    emit_transpose_copy(f, isa, Strided(source, b.row, b.column), Strided(scratch, isa.nr, 1), k, isa.nr, b.dtype, k, n)
    panel = GemmOperand(scratch, isa.nr, 1, b.dtype, padded=True)
    there = replace(acc, pointer=f.at(acc.pointer, j, llvm.TYPES[acc.dtype]))
    room = f.at(scratch, -(-int(k) * isa.nr * b.dtype.bytes // 64) * 64, "i8")
    _Product(f, isa, a, panel, there, m, k, clear, room).columns(n)


def _tiled(f: llvm.Function, size: Amount, largest: int, tile: Callable[[Amount, int], None]) -> None:
    """`tile(first, length)` over a size: balanced tiles of a constant one, else whole tiles and then smaller and smaller ones."""
    parts: list[tuple[int, Amount]] = []
    if isinstance(size, int):
        parts += tiles(size, largest)
    else:
        left: Amount = size
        for length in (largest, *(1 << i for i in reversed(range((largest - 1).bit_length())))):
            whole = f.let(f"udiv i64 {left}, {length}")
            left = f.let(f"sub i64 {left}, {f.let(f'mul i64 {whole}, {length}')}")
            parts.append((length, whole))
    first: Amount = 0
    for length, times in parts:
        if times == 1:
            tile(first, length)
        else:
            f.loop(0, times, 1, lambda t, at=first, length=length: tile(f.index("add", f.index("mul", t, length), at), length))
        first = f.index("add", first, f.index("mul", times, length))


def _dots(
    f: llvm.Function, isa: Isa, a: GemmOperand, b: GemmOperand, acc: GemmOperand, m: Amount, n: Amount, k: Amount, clear: bool
) -> None:
    """The product as dot products: tiles down the rows within tiles across the columns."""
    rows, columns = tile_of(isa, m)
    pairs = isa.has_bf16_dot and a.dtype is b.dtype is dtypes.bf16 and acc.dtype is dtypes.f32
    whole = isinstance(k, int) and k % (isa.lanes_of(acc.dtype) * (2 if pairs else 1)) == 0

    def tile(i: Amount, height: int, j: Amount, width: int) -> None:
        name = dot_kernel(f.module, isa, Dot(a.dtype, b.dtype, acc.dtype, height, width, pairs, whole))
        pa = f.at(a.pointer, f.index("mul", i, a.row), llvm.TYPES[a.dtype])
        pb = f.at(b.pointer, f.index("mul", j, b.column), llvm.TYPES[b.dtype])
        pc = f.at(acc.pointer, f.index("add", f.index("mul", i, acc.row), j), llvm.TYPES[acc.dtype])
        numbers = f"i64 {k}, i1 {str(clear).lower()}, i64 {a.row}, i64 {b.column}, i64 {acc.row}"
        f.do(f"call void @{name}(ptr {pa}, ptr {pb}, ptr {pc}, {numbers})")

    _tiled(f, n, columns, lambda j, width: _tiled(f, m, rows, lambda i, height: tile(i, height, j, width)))


def _columns(f: llvm.Function, n: Amount, width: int, panel: Callable[[Amount, Amount], object]) -> None:
    """`panel(j, width)` for each whole panel of columns, then for what is left (a run-time rest may be 0)."""
    whole = n // width * width if isinstance(n, int) else f.let(f"and i64 {n}, {-width}")
    rest = f.index("sub", n, whole)
    if whole == width:
        panel(0, width)
    elif whole != 0:
        f.loop(0, whole, width, lambda j: (panel(j, width), None)[1])
    if rest != 0:
        panel(whole, rest)


class _Product:
    """The loops of one product, between the function and its micro-kernels."""

    def __init__(
        self,
        f: llvm.Function,
        isa: Isa,
        a: GemmOperand,
        b: GemmOperand,
        acc: GemmOperand,
        m: Amount,
        k: Amount,
        clear: bool | str,
        scratch: str | None = None,
    ) -> None:
        """`scratch`: room for the rows of a tile, widened, where a is of 16-bit floats."""
        self.f, self.isa, self.a, self.b, self.acc, self.m, self.k, self.clear = f, isa, a, b, acc, m, k, clear
        self.lanes = isa.lanes_of(acc.dtype)
        self.steps = k
        if b.pairs:
            self.steps = k // 2 if isinstance(k, int) else f.let(f"lshr i64 {k}, 1")
        self.odd = b.pairs and isinstance(k, int) and k % 2 == 1
        half = _is_half(a.dtype) and _is_half(b.dtype) and acc.dtype is dtypes.f32 and a.column == 1 and not b.pairs
        self.wide: GemmOperand | None = None
        if half and scratch is not None and isinstance(k, int) and k > 0:
            self.wide = GemmOperand(scratch, widened_row(isa, k), 1, dtypes.f32)

    def columns(self, n: Amount) -> None:
        """Panels of n, two vectors wide, the last one as wide as it needs."""
        _columns(self.f, n, VECTORS * self.lanes, self.panel)

    def panel(self, j: Amount, n: Amount) -> None:
        """The columns j..j+n, at most VECTORS vectors."""
        if isinstance(n, int):
            self.rows(j, -(-n // self.lanes), n % self.lanes)
            return
        f, lanes = self.f, self.lanes
        whole = f.let(f"and i64 {n}, {-lanes}")
        rest = f.let(f"sub i64 {n}, {whole}")
        f.loop(0, whole, lanes, lambda i: self.rows(f.index("add", j, i), 1, 0))
        f.when(f.let(f"icmp sgt i64 {rest}, 0"), lambda: self.rows(f.index("add", j, whole), 1, rest))

    def rows(self, j: Amount, vectors: int, tail: Amount) -> None:
        """Register tiles down all rows of a panel of `vectors` vectors, of whose last one `tail` lanes are used (0: all)."""
        if isinstance(self.m, int) or self.wide is not None:
            self.tiles(j, vectors, tail)
        else:
            self.any_rows(j, vectors, tail)

    def tiles(self, j: Amount, vectors: int, tail: Amount) -> None:
        _tiled(self.f, self.m, self.isa.mr, lambda i, rows: self.tile(rows, i, j, vectors, tail))

    def any_rows(self, j: Amount, vectors: int, tail: Amount) -> None:
        """Call the function that multiplies so many rows as it is told: its code is shared, whatever the strides are."""
        f, a, b, acc = self.f, self.a, self.b, self.acc
        steps = {"a_row": a.row, "acc_row": acc.row}
        if not isinstance(a.column, int):
            steps["a_step"] = a.column
        if not self.fetching()[0]:
            steps["b_row"] = b.row
        if not isinstance(tail, int):
            steps["tail"] = tail
        numbers = {"m": self.m, "k": self.steps, **steps}
        name = self._any_rows(vectors, "%tail" if "tail" in steps else tail, steps)
        pb = f.at(b.pointer, f.index("mul", j, 2 if b.pairs else 1), llvm.TYPES[b.dtype])
        pc = f.at(acc.pointer, j, llvm.TYPES[acc.dtype])
        args = [f"ptr {a.pointer}", f"ptr {pb}", f"ptr {pc}", f"i1 {_literal(self.clear)}"]
        args += [f"i64 {x}" for x in numbers.values()]
        f.do(f"call void @{name}({', '.join(args)})")

    def _any_rows(self, vectors: int, tail: Amount, steps: Iterable[str]) -> str:
        """That function's name, written into the module if it is not there yet; `steps` are its arguments."""
        step, module = {n: f"%{n}" for n in steps}, self.f.module
        a = replace(self.a, pointer="%a", row="%a_row", column=step.get("a_step", self.a.column))
        b = replace(self.b, pointer="%b", row=step.get("b_row", self.b.row))
        acc = replace(self.acc, pointer="%acc", row="%acc_row")
        params = ["ptr noalias readonly %a", "ptr noalias readonly %b", "ptr noalias %acc", "i1 %clear"]
        inner = _Product(self.f, self.isa, a, b, acc, "%m", 0, "%clear")
        inner.steps, inner.odd = "%k", self.odd
        name = "rows_" + inner.micro(a, self.isa.mr, vectors, tail, *inner.fetching()).name
        if name not in module.functions:
            inner.f = llvm.Function(module, name, [*params, *(f"i64 %{n}" for n in ("m", "k", *steps))], internal=True)
            inner.tiles(0, vectors, tail)
            inner.f.close()
        return name

    def tile(self, rows: int, i: Amount, j: Amount, vectors: int, tail: Amount) -> None:
        """Call the micro-kernel for the tile at row i, column j."""
        f, a, b, acc = self.f, self.a, self.b, self.acc
        fetching = step, ahead = self.fetching()
        pa = f.at(a.pointer, f.index("mul", i, a.row), llvm.TYPES[a.dtype])
        if self.wide is not None and isinstance(self.k, int):
            emit_widened(f, self.isa, pa, a.row, self.wide.pointer, rows, self.k, a.dtype, dtypes.f32)
            a, pa = self.wide, self.wide.pointer
        micro = self.micro(a, rows, vectors, tail, *fetching)
        name = micro_kernel(f.module, self.isa, micro)
        pb = f.at(b.pointer, f.index("mul", j, 2 if b.pairs else 1), llvm.TYPES[b.dtype])
        pc = f.at(acc.pointer, f.index("add", f.index("mul", i, acc.row), j), llvm.TYPES[acc.dtype])
        share = f.index("mul", i, ahead // self.m) if isinstance(self.m, int) else 0
        there = f.at(b.pointer, f.index("add", share, ahead), "i8") if step else "null"
        args = [f"ptr {pa}", f"ptr {pb}", f"ptr {pc}", f"ptr {there}", f"i64 {self.steps}", f"i1 {_literal(self.clear)}"]
        args += [f"ptr {f.at(pa, f.index('mul', a.row, r), llvm.TYPES[a.dtype])}" for r in micro.pointed]
        args += [f"i64 {f.index('mul', a.row, r * a.dtype.bytes)}" for r in micro.offset]
        args += [f"i64 {x}" for x in (a.column, b.row, acc.row, tail) if not isinstance(x, int)]
        f.do(f"call void @{name}({', '.join(args)})")

    def fetching(self) -> tuple[int, int]:
        """How b is fetched ahead: (bytes a step of k, from how far behind b's start).

        The tiles of a panel share out fetching the next panel into the second-level cache, taking that to lie right
        behind this one; a panel that is read once, or nobody knows how often, is fetched some way ahead of its use.
        """
        b, width = self.b, VECTORS * self.lanes
        if not isinstance(b.row, int) or b.row != width * (2 if b.pairs else 1):
            return 0, 0
        line = b.row * b.dtype.bytes
        if not isinstance(self.m, int):
            return line, STREAM_AHEAD
        if not isinstance(self.steps, int):
            return 0, 0
        count = -(-self.m // self.isa.mr)
        return (line, STREAM_AHEAD) if count == 1 else (-(-line // count), line * self.steps)

    def micro(self, a: GemmOperand, rows: int, vectors: int, tail: Amount, step: int, ahead: int) -> Micro:
        b, acc = self.b, self.acc
        sets = 1
        while rows * vectors * sets < IN_FLIGHT:
            sets *= 2
        unroll = max(2, sets)
        return Micro(
            a.dtype, b.dtype, acc.dtype, rows, vectors,
            _constant(a.row), _constant(a.column), _constant(b.row), _constant(acc.row), _constant(tail),
            pairs=b.pairs, odd=self.odd, padded=b.padded,
            unroll=unroll, sets=sets, whole=isinstance(self.steps, int) and self.steps % unroll == 0,
            fetch=step * unroll, near=ahead == STREAM_AHEAD,
        )  # fmt: skip


def _literal(flag: bool | str) -> str:
    return flag if isinstance(flag, str) else str(flag).lower()


def _constant(amount: Amount) -> int | None:
    return amount if isinstance(amount, int) else None
