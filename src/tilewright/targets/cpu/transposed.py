"""Copies between memory of different orders, found among parallel nests and handed to the register transposes.

In: a nest whose body moves elements. Out: loops around transposing copies, or nothing where the nest is not one. Must not
know how registers are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...base.scalar import Var
from ...tile.ir import Load, Stmt, Store
from . import expr, memory
from .context import Axis, Context
from .indexing import Linear
from .transpose import Strided, emit_transpose_copy

_LEAST = 8
"""Shorter sides are left to gathers."""


@dataclass(frozen=True)
class Transposition:
    """`rows` runs side by side in the source, `columns` in the target; `valid` bounds what may be read of either."""

    rows: Axis
    columns: Axis
    store: Store
    load: Load
    valid: dict[Var, Linear]


def found(ctx: Context, axes: Sequence[Axis], body: Stmt) -> Transposition | None:
    """The transposition that a nest over `axes` is, if it is one."""
    if (
        ctx.isa.lanes == 1
        or not isinstance(body, Store)
        or not isinstance(body.value, Load)
        or body.value.dtype is not body.buffer.dtype
    ):
        return None
    load = body.value
    source, target = ctx.facts.address(load.buffer, load.index), ctx.facts.address(body.buffer, body.index)
    rows = next((a for a in axes if source.terms.get(a.var) == 1 and target.terms.get(a.var) != 1), None)
    columns = next((a for a in axes if target.terms.get(a.var) == 1 and source.terms.get(a.var) != 1), None)
    if rows is None or columns is None or not all(_is_long(a) for a in (rows, columns)):
        return None
    pair = {rows.var, columns.var}
    for form in (source, target):
        if any(a not in pair and not pair.isdisjoint(ctx.facts.variables(a)) for a in form.terms):
            return None
    if memory.unproven(ctx, body.buffer, body.index):
        return None
    valid = _valid(ctx, load, pair)
    return None if valid is None else Transposition(rows, columns, body, load, valid)


def _is_long(a: Axis) -> bool:
    return not isinstance(a.extent, int) or a.extent >= _LEAST


def _valid(ctx: Context, load: Load, pair: set[Var]) -> dict[Var, Linear] | None:
    """How many elements along either variable lie within the source, where that is in question; None: it is not that simple."""
    result: dict[Var, Linear] = {}
    if ctx.in_bounds:
        return result
    for i, n in zip(load.index, load.buffer.shape, strict=True):
        if ctx.facts.is_below(i, n):
            continue
        form = ctx.facts.linear(i)
        mine = pair & form.terms.keys()
        if len(mine) != 1 or any(not pair.isdisjoint(ctx.facts.variables(a)) for a in form.terms if a not in mine):
            return None
        (v,) = mine
        if form.terms[v] != 1 or v in result:
            return None
        result[v] = ctx.facts.linear(n).plus(form, -1).plus(Linear(0, {v: 1}))
    return result


def emit(ctx: Context, t: Transposition) -> None:
    """Write one transposition, the other variables of the nest being bound."""
    source, target = ctx.facts.address(t.load.buffer, t.load.index), ctx.facts.address(t.store.buffer, t.store.index)
    pair = (t.rows.var, t.columns.var)

    def strided(buffer_form: Linear, pointer: Callable[[Linear], str]) -> Strided:
        rest = Linear(buffer_form.const, {a: c for a, c in buffer_form.terms.items() if a not in pair})
        return Strided(pointer(rest), *(buffer_form.terms.get(v, 0) for v in pair))

    emit_transpose_copy(
        ctx.f,
        ctx.isa,
        strided(source, lambda x: expr.pointer(ctx, t.load.buffer, x)),
        strided(target, lambda x: expr.pointer(ctx, t.store.buffer, x)),
        t.rows.extent,
        t.columns.extent,
        t.store.buffer.dtype,
        *(_amount(ctx, a, t.valid) for a in (t.rows, t.columns)),
    )
    ctx.forget((t.store.buffer,))


def _amount(ctx: Context, a: Axis, valid: dict[Var, Linear]) -> int | str:
    """The elements to read along an axis: between 0 and its extent."""
    if a.var not in valid:
        return a.extent
    left = expr.index(ctx, valid[a.var])
    if isinstance(left, int) and isinstance(a.extent, int):
        return max(0, min(left, a.extent))
    return ctx.i64.intrinsic("smin", ctx.i64.intrinsic("smax", str(left), "0"), str(a.extent))
