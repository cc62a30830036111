"""Inclusive scans: one running value a line of the scanned axis, lines side by side in lanes where memory has them so.

In: a `Scan`. Out: loops that carry the running values. Must not know nests.
"""

from __future__ import annotations

from ...base import dtypes, scalar
from ...base.scalar import Expr
from ...tile.ir import For, Load, Region, Scan, Store
from . import expr, memory, operators, vector
from .context import Axis, Context, Value

_TOGETHER = 4
"""Lines scanned side by side where they do not fill vectors: each waits for its own additions."""

_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def scan(ctx: Context, s: Scan) -> None:
    """Sums and products of fp32 are carried in fp64, as in torch; those of 16-bit floats in fp32."""
    variables = tuple(scalar.var(f"{s.dst.buffer.name}.scan{k}") for k in range(len(s.dst.shape)))
    extents = [expr.size(ctx, e) for e in s.dst.shape]
    if any(n == 0 for n in extents):
        return
    along = variables[s.axis]
    here: tuple[Expr, ...] = variables
    if s.reverse:
        last = s.dst.shape[s.axis] - 1
        here = (*variables[: s.axis], last - along, *variables[s.axis + 1 :])
    source, target = Load(s.src.buffer, _at(s.src, here)), _at(s.dst, here)
    axes = [Axis(v, n) for v, n in zip(variables, extents, strict=True) if v is not along]
    body = For(along, s.dst.shape[s.axis], Store(s.dst.buffer, target, source))
    ctx.enter(False)
    for v, e in zip(variables, s.dst.shape, strict=True):
        ctx.ends(v, e)
    ctx.suppose(along, vector.extent_range(extents[s.axis]))
    vector.nest(ctx, axes, body, lambda: _lines(ctx, s, Axis(along, extents[s.axis]), source, target), together=_TOGETHER)
    ctx.leave()


def _at(r: Region, variables: tuple[Expr, ...]) -> tuple[Expr, ...]:
    rest = iter(variables)
    return tuple(o if e is None else o + next(rest) for o, e in zip(r.offsets, r.extents, strict=True))


def _lines(ctx: Context, s: Scan, axis: Axis, source: Load, target: tuple[Expr, ...]) -> None:
    wide = dtypes.f64 if source.dtype is dtypes.f32 and s.op in ("sum", "prod") else source.dtype
    o = ctx.ops(wide, ctx.lanes)
    op = _OPS[s.op]
    start = {"sum": 0.0, "prod": 1.0}.get(s.op)
    taken = scalar.cast(source, wide)

    def turn(i: str, *running: str) -> list[str]:
        ctx.bind(axis.var, i, vector.extent_range(axis.extent))
        after = list(running)
        for k in ctx.each_copy():
            slot = k - ctx.copies.start
            x = expr.vector(ctx, taken)
            if start is None:  # the first element is its own extreme
                first = ctx.f.let(f"icmp eq i64 {i}, 0")
                after[slot] = ctx.f.let(f"select i1 {first}, {o.type} {x}, {o.type} {operators.binary(o, op, running[slot], x)}")
            else:
                after[slot] = operators.binary(o, op, running[slot], x)
            stored = operators.cast(o, after[slot], s.dst.buffer.dtype)
            memory.write(ctx, s.dst.buffer, target, Value(stored, ctx.lanes))
        return after

    initial = o.const(start if start is not None else 0)
    ctx.loop(0, axis.extent, 1, turn, [(o.type, initial) for _ in ctx.copies], writes=frozenset((s.dst.buffer,)))
