"""Matrices of 16-bit elements with two consecutive rows interleaved, as dot products and tile registers read them.

In: layouts, copies into memory of such a layout, and the function being written. Out: the distance of two pairs of rows, and
code that packs pairs by vectors. Must not know products, nor which layouts a lowering chooses: it is seen from the address.
"""

from __future__ import annotations

from typing import TypeAlias

from ...base.scalar import Binary, Const, Expr
from ...tile.ir import Copy, Layout, Region
from . import expr, llvm
from .context import Context
from .indexing import Facts
from .isa import Isa
from .micro import load, store
from .transpose import emit_transpose_pairs

Amount: TypeAlias = int | str


def pair_row(facts: Facts, layout: Layout) -> int | None:
    """Elements from one pair of rows to the next, where the last two dimensions of `layout` are a matrix in pairs, else None."""
    if len(layout.vars) < 2:
        return None
    i, j = layout.vars[-2:]
    terms = dict(facts.linear(layout.address).terms)
    if terms.pop(j, 0) != 2:
        return None
    found: dict[str, int] = {}
    for e, c in terms.items():
        if i not in facts.variables(e):
            continue
        if not (isinstance(e, Binary) and e.x is i and isinstance(e.y, Const) and e.y.value == 2):
            return None
        found[e.op] = c
    return found.get("floordiv") if found.keys() == {"floordiv", "mod"} and found["mod"] == 1 else None


def copied(ctx: Context, s: Copy) -> bool:
    """Write a copy of a matrix into pairs, where it is one that vectors can do; what the source lacks is written as zero."""
    layout = s.dst.buffer.layout
    row = pair_row(ctx.facts, layout) if layout is not None else None
    if row is None or not _is_plain(ctx, s):
        return False
    k, n = (expr.size(ctx, e) for e in s.dst.shape)
    steps = [expr.size(ctx, t) for t in s.src.buffer.steps()]
    shape = [(d, steps[d]) for d, e in enumerate(s.src.extents) if e is not None]
    (k_dim, k_step), (n_dim, n_step) = reversed(shape) if s.transpose else shape
    if not _is_even(ctx, s.dst.shape[0]):
        return False
    has_k, has_n = _valid(ctx, s.src, k_dim, k), _valid(ctx, s.src, n_dim, n)
    source = expr.pointer(ctx, s.src.buffer, ctx.facts.address(s.src.buffer, s.src.offsets))
    target = expr.pointer(ctx, s.dst.buffer, ctx.facts.address(s.dst.buffer, s.dst.offsets))
    if k_step == 1:
        _from_columns(ctx, source, n_step, target, row, (k, n), (has_k, has_n))
    elif n_step == 1:
        _from_rows(ctx, source, k_step, target, row, (k, n), (has_k, has_n))
    else:
        return False
    ctx.forget((s.dst.buffer,))
    return True


def _is_plain(ctx: Context, s: Copy) -> bool:
    """A whole matrix of 16-bit elements that starts at an even row, outside any vector."""
    kept = [d for d, e in enumerate(s.dst.extents) if e is not None]
    rank = s.dst.buffer.rank
    if kept != [rank - 2, rank - 1] or ctx.lanes > 1 or ctx.mask is not None or s.src.buffer.layout is not None:
        return False
    return _is_even(ctx, s.dst.offsets[-2]) and s.src.buffer.dtype is s.dst.buffer.dtype and s.dst.buffer.dtype.bytes == 2


def _is_even(ctx: Context, e: Expr) -> bool:
    form = ctx.facts.linear(e)
    return form.const % 2 == 0 and all(c % 2 == 0 for c in form.terms.values())


def _valid(ctx: Context, src: Region, d: int, extent: Amount) -> Amount:
    """How many of `extent` elements along dimension `d` lie within the source."""
    offset, size, count = src.offsets[d], src.buffer.shape[d], src.extents[d]
    assert count is not None
    if ctx.facts.is_below(offset + (count - 1), size):
        return extent
    left = expr.index(ctx, ctx.facts.linear(size).plus(ctx.facts.linear(offset), -1))
    if isinstance(left, int) and isinstance(extent, int):
        return max(0, min(left, extent))
    return ctx.i64.intrinsic("smin", ctx.i64.intrinsic("smax", str(left), "0"), str(extent))


def _from_columns(
    ctx: Context, source: str, step: Amount, target: str, row: int, sizes: tuple[Amount, Amount], valid: tuple[Amount, Amount]
) -> None:
    """The source is contiguous along k: a transposition whose elements are pairs, then the odd last row."""
    f = ctx.f
    (k, n), (has_k, has_n) = sizes, valid
    whole = _half(f, has_k)
    emit_transpose_pairs(f, ctx.isa, source, step, target, row, (_half(f, k), n), (whole, has_n))

    def last() -> None:
        before = f.index("mul", whole, 2)
        start = f.at(target, f.index("mul", whole, row), "i16")

        def element(j: str) -> None:
            x = f.let(f"load i16, ptr {f.at(source, f.index('add', f.index('mul', j, step), before), 'i16')}, align 2")
            f.do(f"store i16 {x}, ptr {f.at(start, f.index('mul', j, 2), 'i16')}, align 2")

        f.loop(0, has_n, 1, element)

    if isinstance(has_k, int):
        if has_k % 2:
            last()
    else:
        f.when(f.let(f"trunc i64 {has_k} to i1"), last)


def _half(f: llvm.Function, amount: Amount) -> Amount:
    return amount // 2 if isinstance(amount, int) else f.let(f"lshr i64 {amount}, 1")


def _from_rows(
    ctx: Context, source: str, step: Amount, target: str, row: int, sizes: tuple[Amount, Amount], valid: tuple[Amount, Amount]
) -> None:
    """The source is contiguous along n: two of its rows are interleaved at a time."""
    name = _interleave(ctx.f.module, ctx.isa)
    numbers = ", ".join(f"i64 {x}" for x in (step, row, _half(ctx.f, sizes[0]), sizes[1], *valid))
    ctx.f.do(f"call void @{name}(ptr {source}, ptr {target}, {numbers})")


def _interleave(module: llvm.Module, isa: Isa) -> str:
    """The function `name(source, target, step, row, pairs, columns, valid_rows, valid_columns)`."""
    name = "interleave_16"
    if name in module.functions:
        return name
    numbers = [f"i64 %{x}" for x in ("step", "row", "pairs", "columns", "valid_rows", "valid_columns")]
    f = llvm.Function(module, name, ["ptr noalias readonly %source", "ptr noalias %target", *numbers], internal=True)
    lanes = isa.lanes
    narrow, wide, bits = (llvm.vector(lanes, t) for t in ("i16", "i32", "i1"))

    def upto(i: str, end: str) -> str:
        return f.call(bits, f"llvm.get.active.lane.mask.v{lanes}i1.i64", ["i64", "i64"], [i, end])

    def vector(low: str, j: str, second: bool, whole: bool) -> str:
        """The pairs at column j; the second row is `%step` behind the first."""
        mask = None if whole else upto(j, "%valid_columns")
        x = f.let(f"zext {narrow} {load(f, f.at(low, j, 'i16'), 'i16', 2, lanes, mask)} to {wide}")
        if not second:
            return x
        high = f.at(f.at(low, "%step", "i16"), j, "i16")
        y = f.let(f"zext {narrow} {load(f, high, 'i16', 2, lanes, mask)} to {wide}")
        return f.let(f"or {wide} {x}, {f.let(f'shl {wide} {y}, splat (i32 16)')}")

    def line(i: str, second: bool | None) -> None:
        """A pair of rows of which the source has both, one, or (None) no row."""
        low = f.at("%source", f.index("mul", f.index("mul", i, "%step"), 2), "i16")
        there = f.at("%target", f.index("mul", i, "%row"), "i16")

        def part(j: str, whole: bool) -> None:
            x = "zeroinitializer" if second is None else vector(low, j, second, whole)
            store(f, x, f.at(there, f.index("mul", j, 2), "i16"), "i32", 2, lanes, None if whole else upto(j, "%columns"))

        f.loop(0, even, lanes, lambda j: part(j, True))
        f.loop(even, "%columns", lanes, lambda j: part(j, False))

    even = f.let(f"and i64 %valid_columns, {-lanes}")
    both = f.let("lshr i64 %valid_rows, 1")
    some = f.let(f"lshr i64 {f.let('add i64 %valid_rows, 1')}, 1")
    f.loop(0, both, 1, lambda i: line(i, True))
    f.loop(both, some, 1, lambda i: line(i, False))
    f.loop(some, "%pairs", 1, lambda i: line(i, None))
    f.close()
    return name
