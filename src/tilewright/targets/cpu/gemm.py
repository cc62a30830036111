"""Matrix products: loops over register tiles, and the micro-kernels they call.

In: three strided operands, sizes, and the function being written. Out: instructions in that function, and one internal
micro-kernel a distinct tile in its module. Must not know tile programs, panels' origin, or threads.

A micro-kernel keeps `rows` x `vectors` accumulators in registers over the whole k range, and at the end stores them to
the accumulator block, or adds them to it. The register blocking is that of Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication" (2008); where a tile has too few accumulators to hide the latency of a
multiply-add, k is split over several sets of them.
"""

from __future__ import annotations


from dataclasses import dataclass
from typing import TypeAlias

from ...base import dtypes
from ...base.dtypes import DType
from . import llvm
from .isa import Isa
from .micro import Micro, micro_kernel

Amount: TypeAlias = int | str
"""A size or stride: a number, or the name of an i64 in the function being written."""

UNROLL = 4
HIDDEN = 8
"""Independent multiply-adds that must be in flight to hide their latency: two units, four cycles."""


@dataclass(frozen=True)
class GemmOperand:
    """A matrix in memory: `pointer` is an SSA name, strides are in elements.

    For a, `row` steps m and `column` steps k; for b, `row` steps k and `column` steps n; for the accumulator, `row` steps
    m and `column` is 1. With `pairs` (b, 16-bit floats) element (k, n) lives at `(k // 2) * row + 2 * n + k % 2`, and an
    odd last k is padded with zero. `padded`: reading b up to the next multiple of the vector width behind n is allowed.
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
    return [(rows, times) for rows, times in ((small + 1, extra), (small, count - extra)) if times and rows]


def emit_gemm(
    f: llvm.Function, isa: Isa, a: GemmOperand, b: GemmOperand, acc: GemmOperand, m: Amount, n: Amount, k: Amount, clear: bool
) -> None:
    """Write acc[m, n] (+)= sum over k of a[m, k] * b[k, n]; `clear` overwrites. b's and acc's `column` must be 1.

    Element types: floats of any width into f32 or f64, integers into integers; operands are converted to acc's type.
    Nothing outside the m x n block of acc is written.
    """
    _Product(f, isa, a, b, acc, k, clear).columns(m, n)


class _Product:
    """The loops of one product, between the function and its micro-kernels."""

    def __init__(
        self, f: llvm.Function, isa: Isa, a: GemmOperand, b: GemmOperand, acc: GemmOperand, k: Amount, clear: bool
    ) -> None:
        self.f, self.isa, self.a, self.b, self.acc, self.k, self.clear = f, isa, a, b, acc, k, clear
        self.lanes = isa.lanes_of(acc.dtype)
        self.vectors = 2

    def columns(self, m: Amount, n: Amount) -> None:
        """Panels of n, the last one as wide as it needs."""
        f, width = self.f, self.vectors * self.lanes
        whole = n // width * width if isinstance(n, int) else f.let(f"and i64 {n}, {-width}")
        rest = f.index("sub", n, whole)
        if whole == width:
            self.rows(m, 0, width)
        elif whole != 0:
            f.loop(0, whole, width, lambda j: self.rows(m, j, width))
        if rest != 0:
            self.rows(m, whole, rest)

    def rows(self, m: Amount, j: Amount, n: Amount) -> None:
        """Register tiles down the rows of one panel of `n` columns from column `j`."""
        f = self.f
        largest = self.isa.mr
        if isinstance(m, int):
            first = 0
            parts = tiles(m, largest)
            for rows, times in parts:
                self.run(rows, times, first, j, n)
                first += rows * times
            return
        whole = f.let(f"udiv i64 {m}, {largest}")
        self.run(largest, whole, 0, j, n)
        done = f.let(f"mul i64 {whole}, {largest}")
        size = 1 << (largest - 1).bit_length() - 1
        while size:
            left = f.let(f"and i64 {f.index('sub', m, f.let(f'mul i64 {whole}, {largest}'))}, {size}")
            self.run(size, f.let(f"udiv i64 {left}, {size}"), done, j, n)
            done = f.let(f"add i64 {done}, {left}")
            size //= 2

    def run(self, rows: int, times: Amount, first: Amount, j: Amount, n: Amount) -> None:
        """`times` tiles of `rows` rows from row `first`."""
        f = self.f
        if times == 1:
            self.tile(rows, first, j, n)
        elif times != 0:
            f.loop(0, times, 1, lambda t: self.tile(rows, f.index("add", f.index("mul", t, rows), first), j, n))

    def tile(self, rows: int, i: Amount, j: Amount, n: Amount) -> None:
        f, a, b, acc = self.f, self.a, self.b, self.acc
        vectors = -(-n // self.lanes) if isinstance(n, int) else self.vectors
        micro = self.micro(rows, vectors, n)
        name = micro_kernel(f.module, self.isa, micro)
        pa = f.at(a.pointer, f.index("mul", i, a.row), llvm.TYPES[a.dtype])
        pb = f.at(b.pointer, f.index("mul", j, 2 if b.pairs else 1), llvm.TYPES[b.dtype])
        pc = f.at(acc.pointer, f.index("add", f.index("mul", i, acc.row), j), llvm.TYPES[acc.dtype])
        steps = self.k
        args = [f"ptr {pa}", f"ptr {pb}", f"ptr {pc}", "ptr null", f"i64 {steps}", f"i1 {'true' if self.clear else 'false'}"]
        for value, known in ((a.row, micro.a_row), (a.column, micro.a_step), (b.row, micro.b_row), (acc.row, micro.acc_row)):
            if known is None:
                args.append(f"i64 {value}")
        f.do(f"call void @{name}({', '.join(args)})")

    def micro(self, rows: int, vectors: int, n: Amount) -> Micro:
        a, b, acc = self.a, self.b, self.acc
        sets = 1
        while sets < UNROLL and rows * vectors * sets < HIDDEN:
            sets *= 2
        return Micro(
            a.dtype, b.dtype, acc.dtype, rows, vectors,
            _constant(a.row), _constant(a.column), _constant(b.row), _constant(acc.row),
            tail=n % self.lanes if isinstance(n, int) else None, pairs=b.pairs, padded=b.padded, unroll=UNROLL, sets=sets,
            whole=isinstance(self.k, int) and self.k % UNROLL == 0,
        )  # fmt: skip


def _constant(amount: Amount) -> int | None:
    return amount if isinstance(amount, int) else None
