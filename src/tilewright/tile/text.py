"""Tile programs as text: a canonical printer (cache keys, golden tests, dumps). `parse.py` reads it back.

In: kernels, statements, expressions. Out: Python-like, indented text; `parse_kernel(kernel_text(k)) == k` for every kernel
whose blocks are flat (as `ir.block` makes them). Must not know targets.

    kernel name:                          # then in/out NAME: TYPE, scalar, cost, grid lines, then statements
        out C: f32[64, 64] strides[64, 1]
        grid b in 4
        alloc fragment acc: f32[16, 64]   # in scope to the end of its block, like `let`
        gemm(A[b * 16 +: 16, 0 +: 64], B[0 +: 64, 0 +: 64], acc[0 +: 16, 0 +: 64], clear=True)
        for i, j in parallel(16, 64):
            C[b * 16 + i, j] = max(acc[i, j], 0.0)

`A[o +: n, p]` is the region of n elements from o, at the point p. A plain number is i64 or f32; others carry their type
(`1i32`, `0.5f64`). A large sub-expression that is used twice is written once, as `%0 = ...`, before its statement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ..base import dtypes, scalar
from . import ir
from .ir import Buffer, Const, Expr, Kernel, Load, Region, Stmt, Var

INFIX = {
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4), "shl": ("<<", 5), "shr": (">>", 5),
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "mod": ("%", 7),
}  # fmt: skip
"""Binary operations with a symbol, and how tightly it binds. All associate to the left, comparisons not at all."""
PREFIX = 8
SHARED_SIZE = 8  # nodes from which on a repeated sub-expression is written once

INDENT = "    "


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel; ends with a newline."""
    lines = [f"kernel {kernel.name}:"]
    for p in kernel.params:
        lines.append(f"{INDENT}{'out' if p.name in kernel.outputs else 'in'} {buffer_text(p)}")
    if kernel.outputs != tuple(p.name for p in kernel.params if p.name in kernel.outputs):
        lines.append(f"{INDENT}outputs {', '.join(kernel.outputs)}")
    lines += [f"{INDENT}scalar {_declared(v)}" for v in kernel.scalars]
    if kernel.bounded:
        lines.append(f"{INDENT}bounded")
    if kernel.cost:
        lines.append(f"{INDENT}cost {float(kernel.cost)!r}")
    if kernel.grid:
        lines.append(f"{INDENT}grid {', '.join(f'{_declared(v)} in {expr_text(e)}' for v, e in kernel.grid)}")
    lines += [INDENT + line for line in _lines(kernel.body)]
    return "\n".join(lines) + "\n"


def statement_text(s: Stmt) -> str:
    """The statement itself, in one line: the head only of one that has a body."""
    *_, head = _head(s, _Names())
    return head


def expr_text(e: Expr) -> str:
    """One expression, every sub-expression written out."""
    return _Names().text(e)


def buffer_text(b: Buffer) -> str:
    """`name: dtype[shape]`, with strides or layout where they are given."""
    text = f"{b.name}: {b.dtype.short}[{', '.join(map(expr_text, b.shape))}]"
    if b.strides is not None:
        text += f" strides[{', '.join(map(expr_text, b.strides))}]"
    if b.layout is not None:
        layout = b.layout
        variables = ", ".join(map(_declared, layout.vars))
        text += f" layout {layout.name}({variables}) = {expr_text(layout.address)} size {expr_text(layout.size)}"
    return text


def _declared(v: Var) -> str:
    return v.name if v.dtype is dtypes.i64 else f"{v.name}: {v.dtype.short}"


def _lines(s: Stmt) -> Iterator[str]:
    """`s` as the whole content of a block."""
    items = s.body if isinstance(s, ir.Block) else (s,)
    if not items:
        yield "pass"
    for k, item in enumerate(items):
        scoped = isinstance(item, ir.Alloc | ir.Let) and k + 1 < len(items)
        if scoped or (isinstance(item, ir.Block) and len(items) > 1):
            yield "scope:"
            yield from (INDENT + line for line in _lines(item))
        else:
            yield from _statement(item)


def _statement(s: Stmt) -> Iterator[str]:
    match s:
        case ir.Block():
            yield from _lines(s)
        case ir.Alloc(_, body) | ir.Let(_, _, body):
            yield from _head(s, _Names())
            yield from _lines(body)
        case ir.If(_, then, orelse):
            yield from _head(s, _Names())
            yield from (INDENT + line for line in _lines(then))
            if orelse is not None:
                yield "else:"
                yield from (INDENT + line for line in _lines(orelse))
        case ir.For() | ir.Parallel() | ir.While():
            yield from _head(s, _Names())
            yield from (INDENT + line for line in _lines(s.body))
        case _:
            yield from _head(s, _Names())


def _head(s: Stmt, names: _Names) -> Iterator[str]:
    """The abbreviations that the statement uses, then its first line."""
    for index, e in enumerate(names.share(ir.expressions(s))):
        yield f"%{index} = {names.definition(e)}"
    yield _first_line(s, names)


def _first_line(s: Stmt, n: _Names) -> str:
    match s:
        case ir.For(var, extent, _, kind, stages):
            call = f"{'range' if kind == 'serial' else kind}({n.text(extent)}{f', stages={stages}' if stages else ''})"
            return f"for {_declared(var)} in {call}:"
        case ir.Parallel(vars, extents, _):
            return f"for {', '.join(map(_declared, vars))} in parallel({n.list(extents)}):"
        case ir.Copy(src, dst, transpose):
            return f"copy({n.region(src)}, {n.region(dst)}{', transpose=True' if transpose else ''})"
        case ir.Fill(dst, value):
            return f"fill({n.region(dst)}, {n.text(value)})"
        case ir.Gemm():
            flags = "".join(f", {f}=True" for f in ("transpose_a", "transpose_b", "clear") if getattr(s, f))
            policy = "" if s.policy == "square" else f", policy={json.dumps(s.policy)}"
            return f"gemm({n.region(s.a)}, {n.region(s.b)}, {n.region(s.acc)}{flags}{policy})"
        case ir.Reduce(op, dst, index, vars, extents, value, clear):
            over = ", ".join(f"{_declared(v)} in {n.text(e)}" for v, e in zip(vars, extents, strict=True))
            target = f"{dst.name}[{n.list(index)}]"
            return f"{'reduce' if clear else 'accumulate'} {target} = {op}{f' over {over}' if over else ''}: {n.text(value)}"
        case ir.Scan(op, src, dst, axis, reverse):
            return f"scan({op}, {n.region(src)}, {n.region(dst)}, axis={axis}{', reverse=True' if reverse else ''})"
        case ir.Store(buffer, index, value):
            return f"{buffer.name}[{n.list(index)}] = {n.text(value)}"
        case ir.Atomic(op, buffer, index, value):
            return f"atomic {op} {buffer.name}[{n.list(index)}] = {n.text(value)}"
        case ir.If(cond):
            return f"if {n.text(cond)}:"
        case ir.While(cond):
            return f"while {n.text(cond)}:"
        case ir.Break() | ir.Continue():
            return type(s).__name__.lower()
        case ir.Let(var, value):
            return f"let {var.name} = {n.text(value)}"
        case ir.Alloc(buffer):
            return f"alloc {buffer.scope.value} {buffer_text(buffer)}"
        case ir.Assert(cond, message):
            return f"assert {n.text(cond)}, {json.dumps(message)}"
        case ir.Print(message, args):
            return f"print({', '.join([json.dumps(message), *map(n.text, args)])})"
        case ir.Sync(scope):
            return f"sync({json.dumps(scope)})"
    return type(s).__name__.lower()


class _Names:
    """Prints the expressions of one statement; those in `numbered` by their number."""

    def __init__(self) -> None:
        self.numbered: dict[Expr, str] = {}

    def share(self, roots: Sequence[Expr]) -> list[Expr]:
        """Number every large expression below `roots` that has several users; them, operands first."""
        order = scalar.walk(*roots)
        uses: dict[Expr, int] = dict.fromkeys(order, 0)
        for e in (*roots, *(c for parent in order for c in scalar.children(parent))):
            uses[e] += 1
        sizes: dict[Expr, int] = {}
        found: list[Expr] = []
        for e in order:
            size = 1 + sum(sizes[c] for c in scalar.children(e))
            sizes[e] = 1 if uses[e] > 1 and size >= SHARED_SIZE else size
            if sizes[e] != size:
                found.append(e)
        self.numbered = {e: f"%{k}" for k, e in enumerate(found)}
        return found

    def definition(self, e: Expr) -> str:
        """A numbered expression itself."""
        number = self.numbered.pop(e)
        text = self.text(e)
        self.numbered[e] = number
        return text

    def list(self, exprs: Sequence[Expr]) -> str:
        return ", ".join(map(self.text, exprs))

    def region(self, r: Region) -> str:
        parts = [
            self.text(o) if e is None else f"{self.text(o)} +: {self.text(e)}" for o, e in zip(r.offsets, r.extents, strict=True)
        ]
        return f"{r.buffer.name}[{', '.join(parts)}]"

    def text(self, e: Expr, tightness: int = 0) -> str:
        """`e`, in parentheses where it binds less tightly than `tightness`."""
        if e in self.numbered:
            return self.numbered[e]
        match e:
            case Const(value, dtype):
                return number_text(value, dtype)
            case Var(name):
                return name
            case Load(buffer, index):
                return f"{buffer.name}[{self.list(index)}]"
            case scalar.Cast(x, dtype):
                return f"{dtype.short}({self.text(x)})"
            case scalar.Select(cond, x, y):
                return f"select({self.list((cond, x, y))})"
            case scalar.Unary("neg", x) if not isinstance(x, Const):
                return f"-{self.text(x, PREFIX)}"
            case scalar.Unary("not", x):
                return f"~{self.text(x, PREFIX)}"
            case scalar.Unary(op, x):
                return f"{op}({self.text(x)})"
            case scalar.Binary(op, x, y) if op in INFIX:
                symbol, level = INFIX[op]
                text = f"{self.text(x, level + (level == 1))} {symbol} {self.text(y, level + 1)}"
                return f"({text})" if level < tightness else text
            case scalar.Binary(op, x, y):
                return f"{op}({self.list((x, y))})"
        raise TypeError(f"no text for the expression {e!r}")


def number_text(value: scalar.Number, dtype: dtypes.DType) -> str:
    """A literal that keeps its type: i64, f32 and bool bare, others with their type behind."""
    if dtype.kind == "bool":
        return str(bool(value))
    if dtype.is_float:
        return repr(float(value)) + ("" if dtype is dtypes.f32 else dtype.short)
    return str(int(value)) + ("" if dtype is dtypes.i64 else dtype.short)
