"""What a machine is to the lowering, and the analytic model that sizes tiles, grids and costs for it.

In: sizes of a group's iteration space. Out: block sizes and estimated one-thread nanoseconds, in microseconds of Python.
Must not know statements, targets or instructions: a target describes itself as a `Machine`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base import dtypes, scalar
from ..base.dtypes import DType
from ..base.scalar import Expr


@dataclass(frozen=True)
class Machine:
    """One core of the target, as far as schedules depend on it. Rates are per thread: gflops of fp32 FMA, bytes per ns."""

    lanes: int = 16  # fp32 lanes of a vector
    nr: int = 32  # columns of a packed panel
    mr: int = 14  # rows of a register tile
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    threads: int = 2
    gflops: float = 110.0
    bandwidth: float = 12.0  # from memory
    cache_bandwidth: float = 40.0  # from the second-level cache
    ghz: float = 3.5
    dot_pairs: bool = False  # the target multiplies 16-bit pairs well: bf16 panels are packed two rows of K together
    pair_depth: int = 2  # of K, from which it does
    tile: int = 0  # rows and columns of a product in tile registers, and K of one step; 0 where there are none

    def pair_of(self, dtype: DType, k: int) -> int:
        """How many rows of K lie together in a packed right side."""
        return 2 if self.dot_pairs and dtype is dtypes.bf16 and k >= self.pair_depth else 1

    def widens(self, dtype: DType, k: int, rows: int) -> bool:
        """Whether both sides of a product of 16-bit floats are converted beforehand: where many rows share the conversion."""
        return dtype.is_float and dtype.bytes == 2 and self.pair_of(dtype, k) == 1 and rows >= WIDE_ROWS

    def library_wins(self, dtype: DType, rows: int, columns: int, k: int) -> bool:
        """Whether torch.mm is faster than own code for a product of two matrices that both change.

        Measured so for bf16 in tile registers only, where packing the right side shows and the call's own cost does not.
        """
        pairs = self.tile > 0 and self.pair_of(dtype, k) > 1
        return pairs and rows >= PACKED_ROWS and 2.0 * rows * columns * k >= LIBRARY_FLOPS

    def packs_ahead(self, dtype: DType, rows: int, columns: int, k: int) -> bool:
        """Whether a right side that changes is packed by a kernel of its own: then blocks of rows and panels go in any order."""
        return rows >= PACKED_ROWS and columns * k * dtype.bytes >= PACKED_BYTES


# Cost of an operation on one vector of fp32, in cycles of throughput; those absent cost one.
_CYCLES = {
    "div": 10, "sqrt": 12, "rsqrt": 20, "recip": 10, "floordiv": 40, "mod": 40, "quot": 30, "rem": 40, "pow": 120, "atan2": 80,
    "exp": 12, "exp2": 10, "expm1": 20, "log": 16, "log2": 16, "log10": 16, "log1p": 20, "sin": 25, "cos": 25, "tan": 40,
    "tanh": 24, "asin": 40, "acos": 40, "atan": 40, "sinh": 30, "cosh": 30, "erf": 28, "erfc": 40,
}  # fmt: skip

ROW_LIMIT = 170  # rows of A in a block: with 1024 of K they stay in a second-level cache beside a panel of B
K_LIMIT = 1024
PAIRED_K_LIMIT = 2048
PACKED_ROWS, PACKED_BYTES = 128, 1 << 18  # of a left and a right side, from which packing the right one beforehand pays
LIBRARY_FLOPS = 2.5e8  # of a product, from which leaving native code for a faster library pays
WIDE_ROWS = 32  # of a product of 16-bit floats, from which converting both sides beforehand pays
LAUNCH_NS = 600.0  # starting one more kernel: the call, the fork and the first misses


def op_cycles(op: str) -> int:
    """Throughput of one vector operation in cycles, by scalar operator name."""
    return _CYCLES.get(op, 1)


def expression_cycles(*roots: Expr) -> float:
    """Cycles for one vector of the given expressions; common parts count once."""
    total = 0.0
    for e in scalar.walk(*roots):
        match e:
            case scalar.Unary(op, _) | scalar.Binary(op, _, _):
                total += 0 if e.dtype.is_integer else op_cycles(op)
            case scalar.Const() | scalar.Var():
                pass
            case _:
                total += 1
    return total


def elementwise_ns(machine: Machine, elements: int, cycles: float, bytes_moved: int) -> float:
    """One thread's time for `elements` results of `cycles` each vector, moving `bytes_moved` in all."""
    vectors = elements / machine.lanes
    rate = machine.cache_bandwidth if bytes_moved <= machine.l2_bytes else machine.bandwidth
    return max(vectors * cycles / machine.ghz, bytes_moved / rate) + 20.0


def balanced(total: int, limit: int) -> tuple[int, int, int]:
    """`total` in the fewest blocks of at most `limit`: (size, number of full blocks, size of the last one or 0).

    The full blocks are as equal to the last one as one size allows.
    """
    count = max(1, math.ceil(total / limit))
    size = math.ceil(total / count)
    full, rest = divmod(total, size) if size else (0, 0)
    return size, full, rest


@dataclass(frozen=True)
class GemmPlan:
    """`rows`: (block, full blocks, remainder). `depths`: lengths of the K steps. `panels`: panels of one block."""

    rows: tuple[int, int, int]
    depths: tuple[int, ...]
    panels: int


def plan_gemm(machine: Machine, m: int, n: int, k: int, batch: int = 1, pair: int = 1, grouped: bool = False) -> GemmPlan:
    """Blocks for [m, k] x [k, n] in panels of `machine.nr` columns.

    A block's A rows of one K step and a panel of B share the second-level cache. Where K takes several steps, panels go
    in groups so that a step of A is read from memory once a group; so they do where `grouped`. With `pair` rows of K
    together elements are so much smaller, and blocks of rows and steps of K hold whole tiles of the tile registers.
    """
    unit = max(16, machine.tile) if pair > 1 else 16
    steps = max(1, math.ceil(k / (PAIRED_K_LIMIT if pair > 1 else K_LIMIT)))
    depth = max(unit, math.ceil(math.ceil(k / steps) / unit) * unit)
    depths = tuple(min(depth, k - start) for start in range(0, k, depth)) or (0,)
    most = min(ROW_LIMIT, max(machine.mr, machine.l2_bytes * 3 // 4 // (4 // pair * max(depth, 1))))
    rows = _tiled_rows(m, most, machine.tile) if pair > 1 and machine.tile else balanced(m, most)
    all_panels = math.ceil(n / machine.nr)
    blocks = batch * math.ceil(m / max(rows[0], 1)) * all_panels
    if len(depths) == 1 and not grouped:
        return GemmPlan(rows, depths, 1)
    return GemmPlan(rows, depths, max(1, min(4, blocks // (4 * machine.threads))))


def _tiled_rows(total: int, limit: int, tile: int) -> tuple[int, int, int]:
    """As `balanced`, but the full blocks are whole tiles high."""
    if total <= tile:
        return balanced(total, limit)
    tiles, _, _ = balanced(math.ceil(total / tile), max(1, limit // tile))
    return tiles * tile, *divmod(total, tiles * tile)


def dot_rows(k: int) -> int:
    """Up to how many rows a right side that lies along K is multiplied as it is, not packed: more of them where K is long."""
    return 32 if k >= 256 else 8


def gemm_ns(machine: Machine, m: int, n: int, k: int, batch: int, element_bytes: int) -> float:
    """One thread's time for `batch` products: arithmetic, or reading B where few rows share it."""
    arithmetic = 2.0 * batch * m * n * k / machine.gflops
    return max(arithmetic, batch * k * n * element_bytes / machine.bandwidth) + 50.0


def chunk(total: int, target: int, multiple: int) -> int:
    """A block length for `total` elements near `target`: a divisor of `total` that is a multiple of `multiple` if there is
    one within a factor of two of `target`, else `target` itself."""
    if total <= target:
        return max(total, 1)
    for count in range(math.ceil(total / target), 2 * math.ceil(total / target) + 1):
        if total % count == 0 and (total // count) % multiple == 0:
            return total // count
    return target


def block_target(machine: Machine, total: int, cycles: float) -> int:
    """Elements of one pointwise block: a few microseconds of work, at least four blocks a thread where there is enough."""
    by_time = int(2500.0 * machine.ghz / max(cycles, 1.0)) * machine.lanes
    by_threads = math.ceil(total / (4 * machine.threads) / machine.lanes) * machine.lanes
    return max(machine.lanes * 4, min(by_time, 8192, max(by_threads, 1024)))
