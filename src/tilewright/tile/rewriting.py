"""Statements rebuilt with other expressions, buffers and parts.

In: a statement, and functions that say what becomes of its parts. Out: a statement. Must not know what for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..base import scalar
from ..base.scalar import Expr, Var
from . import ir
from .ir import Buffer, Load, Region, Stmt

Leaf = Callable[[Expr], Expr | None]


def rewritten(
    s: Stmt, leaf: Leaf, buffers: Mapping[Buffer, Buffer], statement: Callable[[Stmt], Stmt | None] = lambda s: None
) -> Stmt:
    """`s` with `leaf(e)`, where not None, for expressions, other buffers for buffers, and `statement(s)`, where not None, for
    statements; that is taken as it is. Variables that statements bind go through `leaf` as well, and must become variables."""
    memo: dict[Expr, Expr] = {}

    def replaced(e: Expr) -> Expr | None:
        found = leaf(e)
        if found is None and isinstance(e, Load) and e.buffer in buffers:
            return Load(buffers[e.buffer], tuple([expr(i) for i in e.index]))
        return found

    def expr(e: Expr) -> Expr:
        return scalar.transform(e, replaced, memo)

    def exprs(es: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple([expr(e) for e in es])

    def bound(v: Var) -> Var:
        made = expr(v)
        assert isinstance(made, Var)
        return made

    def buffer(b: Buffer) -> Buffer:
        return buffers.get(b, b)

    def region(r: Region) -> Region:
        return Region(buffer(r.buffer), exprs(r.offsets), tuple([None if e is None else expr(e) for e in r.extents]))

    def go(s: Stmt) -> Stmt:
        made = statement(s)
        if made is not None:
            return made
        match s:
            case ir.Block(body):
                return ir.block(*map(go, body))
            case ir.For():
                return replace(s, var=bound(s.var), extent=expr(s.extent), body=go(s.body))
            case ir.Parallel(variables, extents, body):
                return ir.Parallel(tuple(map(bound, variables)), exprs(extents), go(body))
            case ir.Copy(src, dst):
                return replace(s, src=region(src), dst=region(dst))
            case ir.Fill(dst, value):
                return ir.Fill(region(dst), expr(value))
            case ir.Gemm():
                return replace(s, a=region(s.a), b=region(s.b), acc=region(s.acc))
            case ir.Reduce():
                variables = tuple(map(bound, s.vars))
                return replace(
                    s, dst=buffer(s.dst), index=exprs(s.index), vars=variables, extents=exprs(s.extents), value=expr(s.value)
                )
            case ir.Scan():
                return replace(s, src=region(s.src), dst=region(s.dst))
            case ir.Store() | ir.Atomic():
                return replace(s, buffer=buffer(s.buffer), index=exprs(s.index), value=expr(s.value))
            case ir.If(cond, then, orelse):
                return ir.If(expr(cond), go(then), None if orelse is None else go(orelse))
            case ir.While(cond, body):
                return ir.While(expr(cond), go(body))
            case ir.Let(v, value, body):
                return ir.Let(bound(v), expr(value), go(body))
            case ir.Alloc(b, body):
                return ir.Alloc(buffer(b), go(body))
            case ir.Assert(cond, message):
                return ir.Assert(expr(cond), message)
            case ir.Print(message, args):
                return ir.Print(message, exprs(args))
        return s

    return go(s)
