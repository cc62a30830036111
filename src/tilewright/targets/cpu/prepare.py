"""What the emitters want to know of a statement beforehand, and the simplification they rely on: no `Let` without need.

In and out: statements. Must not know LLVM.
"""

from __future__ import annotations

from dataclasses import replace

from ...base import scalar
from ...base.scalar import Expr, Var
from ...tile import ir
from ...tile.ir import (
    Alloc,
    Assert,
    Atomic,
    Block,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Let,
    Parallel,
    Print,
    Reduce,
    Region,
    Scan,
    Stmt,
    Store,
    While,
    written,
)


def without_lets(s: Stmt) -> Stmt:
    """Put the value of each `Let` in the place of its variable, where nothing in its body changes what the value reads.

    Expressions are computed once however often they occur, so this costs nothing, and shows index arithmetic to analysis.
    """
    match s:
        case Let(v, value, body):
            body = without_lets(body)
            read = {load.buffer for load in ir.loads(value)}
            if read and not read.isdisjoint(written(body)):
                return Let(v, value, body)
            return substituted(body, {v: value})
        case Block(body=statements):
            return Block(tuple(without_lets(k) for k in statements))
        case For() | Parallel() | While() | Alloc():
            return replace(s, body=without_lets(s.body))
        case If(cond, then, orelse):
            return If(cond, without_lets(then), None if orelse is None else without_lets(orelse))
    return s


def substituted(s: Stmt, env: dict[Var, Expr]) -> Stmt:
    """`s` with expressions in the place of variables; no variable of `env` is bound inside `s`."""
    memo: dict[Expr, Expr] = {}

    def e(x: Expr) -> Expr:
        return scalar.transform(x, lambda n: env.get(n) if isinstance(n, Var) else None, memo)

    def es(xs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(e(x) for x in xs)

    def region(r: Region) -> Region:
        return Region(r.buffer, es(r.offsets), tuple(None if x is None else e(x) for x in r.extents))

    def go(s: Stmt) -> Stmt:
        match s:
            case Block(body):
                return Block(tuple(go(k) for k in body))
            case For():
                return replace(s, extent=e(s.extent), body=go(s.body))
            case Parallel(variables, extents, body):
                return Parallel(variables, es(extents), go(body))
            case Copy(src, dst):
                return replace(s, src=region(src), dst=region(dst))
            case Fill(dst, value):
                return Fill(region(dst), e(value))
            case Gemm(a, b, acc):
                return replace(s, a=region(a), b=region(b), acc=region(acc))
            case Reduce():
                return replace(s, index=es(s.index), extents=es(s.extents), value=e(s.value))
            case Scan():
                return replace(s, src=region(s.src), dst=region(s.dst))
            case Store() | Atomic():
                return replace(s, index=es(s.index), value=e(s.value))
            case If(cond, then, orelse):
                return If(e(cond), go(then), None if orelse is None else go(orelse))
            case While(cond, body):
                return While(e(cond), go(body))
            case Let(v, value, body):
                return Let(v, e(value), go(body))
            case Alloc(buffer, body):
                return Alloc(buffer, go(body))
            case Assert(cond, message):
                return Assert(e(cond), message)
            case Print(message, args):
                return Print(message, es(args))
        return s

    return go(s)


def weight(*roots: Expr) -> int:
    """Roughly how many instructions a vector of `roots` takes."""
    total = 0
    for e in scalar.walk(*roots):
        match e:
            case scalar.Unary(op, _):
                total += 1 if op in _LIGHT else 6 if op in ("sqrt", "rsqrt", "recip") else 18
            case scalar.Binary(op, _, _):
                total += 18 if op in ("pow", "atan2", "mod", "rem", "floordiv") else 4 if op == "div" else 1
            case scalar.Select() | scalar.Cast() | ir.Load():
                total += 1
    return total


_LIGHT = ("neg", "abs", "not", "floor", "ceil", "trunc", "round", "isnan")
