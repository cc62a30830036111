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
    return _Rewriter(leaf, buffers, statement).statement(s)


class _Rewriter:
    def __init__(self, leaf: Leaf, buffers: Mapping[Buffer, Buffer], replace: Callable[[Stmt], Stmt | None]) -> None:
        self.leaf, self.buffers, self.replaced = leaf, buffers, replace
        self.memo: dict[Expr, Expr] = {}

    def expr(self, e: Expr) -> Expr:
        return scalar.transform(e, self._leaf, self.memo)

    def _leaf(self, e: Expr) -> Expr | None:
        found = self.leaf(e)
        if found is None and isinstance(e, Load) and e.buffer in self.buffers:
            return Load(self.buffers[e.buffer], self.exprs(e.index))
        return found

    def exprs(self, es: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple([self.expr(e) for e in es])

    def bound(self, v: Var) -> Var:
        made = self.expr(v)
        assert isinstance(made, Var)
        return made

    def buffer(self, b: Buffer) -> Buffer:
        return self.buffers.get(b, b)

    def region(self, r: Region) -> Region:
        extents = tuple([None if e is None else self.expr(e) for e in r.extents])
        return Region(self.buffer(r.buffer), self.exprs(r.offsets), extents)

    def statement(self, s: Stmt) -> Stmt:
        made = self.replaced(s)
        return made if made is not None else self._nest(s) if ir.bodies(s) else self._plain(s)

    def _nest(self, s: Stmt) -> Stmt:
        match s:
            case ir.Block(body):
                return ir.block(*map(self.statement, body))
            case ir.For():
                return replace(s, var=self.bound(s.var), extent=self.expr(s.extent), body=self.statement(s.body))
            case ir.Parallel(variables, extents, body):
                return ir.Parallel(tuple(map(self.bound, variables)), self.exprs(extents), self.statement(body))
            case ir.If(cond, then, orelse):
                return ir.If(self.expr(cond), self.statement(then), None if orelse is None else self.statement(orelse))
            case ir.While(cond, body):
                return ir.While(self.expr(cond), self.statement(body))
            case ir.Let(v, value, body):
                return ir.Let(self.bound(v), self.expr(value), self.statement(body))
            case ir.Alloc(b, body):
                return ir.Alloc(self.buffer(b), self.statement(body))
        raise TypeError(f"a statement with a body that is not known: {type(s).__name__}")

    def _plain(self, s: Stmt) -> Stmt:
        match s:
            case ir.Copy(src, dst):
                return replace(s, src=self.region(src), dst=self.region(dst))
            case ir.Fill(dst, value):
                return ir.Fill(self.region(dst), self.expr(value))
            case ir.Gemm():
                return replace(s, a=self.region(s.a), b=self.region(s.b), acc=self.region(s.acc))
            case ir.Reduce():
                index, extents, value = self.exprs(s.index), self.exprs(s.extents), self.expr(s.value)
                variables = tuple(map(self.bound, s.vars))
                return replace(s, dst=self.buffer(s.dst), index=index, vars=variables, extents=extents, value=value)
            case ir.Scan():
                return replace(s, src=self.region(s.src), dst=self.region(s.dst))
            case ir.Store() | ir.Atomic():
                return replace(s, buffer=self.buffer(s.buffer), index=self.exprs(s.index), value=self.expr(s.value))
            case ir.Assert(cond, message):
                return ir.Assert(self.expr(cond), message)
            case ir.Print(message, args):
                return ir.Print(message, self.exprs(args))
        return s
