"""The verifier of kernels. In: a `Kernel`. Out: nothing, or `VerifyError` naming the statement and what is wrong with it.

Checks what the types of `ir.py` cannot: names, scopes, element types, ranks, extents that are constants, what may stand
inside a `Parallel`. Must not know targets: what a target lacks, it says itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..base import dtypes, scalar
from ..base.dtypes import DType
from ..base.errors import VerifyError
from . import ir
from .builder import RESERVED
from .ir import Buffer, Const, Expr, Kernel, Layout, Load, Region, Scope, Stmt, Var
from .text import buffer_text, expr_text, statement_text

LOOP_KINDS = frozenset(("serial", "unrolled", "vectorized", "pipelined", "persistent"))
REDUCTIONS = frozenset(("sum", "prod", "max", "min", "any", "all", "bitand", "bitor", "bitxor", "argmax", "argmin"))
SCANS = frozenset(("sum", "prod", "max", "min"))
ATOMICS = frozenset(("add", "max", "min", "and", "or", "xor", "exchange"))

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANY_TYPE = frozenset(("neg", "abs", "floor", "ceil", "trunc", "round", "isnan"))  # the other unary ones are for floats
_INTEGER_ONLY = frozenset(("and", "or", "xor", "shl", "shr", "not"))
_NOT_BOOL = frozenset(("neg", "sub", "floordiv", "mod", "quot", "rem", "pow", "shl", "shr"))


def verify(kernel: Kernel) -> None:
    """Raises VerifyError for the first thing that is wrong; the kernel's size is the time it takes."""
    _Verifier(kernel).run()


@dataclass(frozen=True)
class _Context:
    """What is in scope."""

    variables: frozenset[Var]
    buffers: frozenset[Buffer]
    parallel: bool = False
    loop: bool = False  # Break and Continue have a loop to act on


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.where: Stmt | Buffer | None = None  # what is being checked; None: the kernel as a whole
        self.checked: dict[Expr, DType] = {}  # expressions whose types are known to be right

    def fail(self, problem: str) -> VerifyError:
        if self.where is None:
            return VerifyError(what=f"kernel {self.kernel.name}", reason=problem)
        try:
            text = buffer_text(self.where) if isinstance(self.where, Buffer) else statement_text(self.where)
        except (TypeError, ValueError, AttributeError):  # so wrong that it has no text
            text = type(self.where).__name__
        return VerifyError(what=f"kernel {self.kernel.name}", reason=f"{problem}\n  in: {text}")

    def run(self) -> None:
        k = self.kernel
        self.name(k.name)
        params = [p.name for p in k.params]
        if len(set(params)) != len(params):
            raise self.fail("two parameters have one name")
        if unknown := set(k.outputs) - set(params):
            raise self.fail(f"the outputs {sorted(unknown)} are no parameters")
        if len(set(k.outputs)) != len(k.outputs):
            raise self.fail("an output is named twice")
        for v in k.scalars:
            self.variable(v)
        scalars = frozenset(k.scalars)
        context = _Context(scalars, frozenset())
        for p in k.params:
            if p.scope is not Scope.GLOBAL:
                raise self.fail(f"the parameter {p.name} is {p.scope.value}; parameters are global")
            self.buffer(p, context)
        for v, extent in k.grid:
            self.variable(v)
            self.index(extent, context)
        variables = [*k.scalars, *(v for v, _ in k.grid)]
        if len({v.name for v in variables}) != len(variables):
            raise self.fail("two scalars or grid variables have one name")
        self.statement(k.body, _Context(frozenset(variables), frozenset(k.params)))

    # names, buffers, layouts

    def name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise self.fail(f"{name!r} is no name")

    def variable(self, v: Var) -> None:
        self.name(v.name)

    def bind(self, context: _Context, variables: Sequence[Var]) -> _Context:
        """`context` with these variables; a name already in scope may not be bound again."""
        known = {v.name for v in context.variables}
        for v in variables:
            self.variable(v)
            if v.name in known:
                raise self.fail(f"the name {v.name!r} is already bound here")
            known.add(v.name)
        return replace(context, variables=context.variables | set(variables))

    def buffer(self, b: Buffer, context: _Context) -> None:
        outer, self.where = self.where, b
        self.name(b.name)
        if b.strides is not None and b.layout is not None:
            raise self.fail("a buffer has strides or a layout, not both")
        if b.strides is not None and len(b.strides) != b.rank:
            raise self.fail(f"{len(b.strides)} strides for {b.rank} dimensions")
        for e in (*b.shape, *(b.strides or ())):
            self.index(e, context)
        for e in b.shape:
            if isinstance(e, Const) and e.value < 0:
                raise self.fail(f"the extent {e.value} is negative")
        if b.layout is not None:
            self.layout(b.layout, b.rank, context)
        self.where = outer

    def layout(self, layout: Layout, rank: int, context: _Context) -> None:
        if len(layout.vars) != rank:
            raise self.fail(f"the layout {layout.name} is of {len(layout.vars)} dimensions, the buffer of {rank}")
        self.index(layout.size, context)
        self.index(layout.address, replace(context, variables=context.variables | set(layout.vars)))

    # statements

    def statement(self, s: Stmt, context: _Context) -> None:
        if isinstance(s, ir.Block):
            for inner in s.body:
                self.statement(inner, context)
            return
        self.where = s
        if context.parallel and not isinstance(s, ir.Store | ir.Atomic | ir.Let | ir.If | ir.Reduce | ir.Parallel | ir.Assert):
            raise self.fail(f"{type(s).__name__} may not stand inside a Parallel")
        match s:
            case ir.For() | ir.Parallel() | ir.While() | ir.If() | ir.Let() | ir.Alloc():
                self.nest(s, context)
            case ir.Store(buffer, index, value):
                self.element(buffer, index, context, written=True)
                self.expr(value, context)
            case ir.Atomic(op, buffer, index, value):
                self.one_of(op, ATOMICS, "atomic operation")
                self.element(buffer, index, context, written=True)
                self.expr(value, context)
            case ir.Reduce():
                self.reduction(s, context)
            case ir.Copy() | ir.Fill() | ir.Gemm() | ir.Scan():
                self.tile(s, context)
            case ir.Break() | ir.Continue():
                if not context.loop:
                    raise self.fail(f"{type(s).__name__} outside a loop")
            case ir.Assert(cond):
                self.condition(cond, context)
            case ir.Print(_, args):
                for a in args:
                    self.expr(a, context)

    def nest(self, s: Stmt, context: _Context) -> None:
        """The statements with a body."""
        match s:
            case ir.For(var, extent, body, kind, stages):
                self.one_of(kind, LOOP_KINDS, "kind of loop")
                self.index(extent, context)
                if kind in ("unrolled", "vectorized") and not isinstance(extent, Const):
                    raise self.fail(f"the extent of an {kind} loop must be a constant")
                if stages < 0 or (stages and kind != "pipelined"):
                    raise self.fail(f"{stages} stages for a {kind} loop")
                self.statement(body, replace(self.bind(context, (var,)), loop=True))
            case ir.Parallel(vars, extents, body):
                if len(vars) != len(extents):
                    raise self.fail(f"{len(vars)} variables for {len(extents)} extents")
                for e in extents:
                    self.index(e, context)
                self.statement(body, replace(self.bind(context, vars), parallel=True, loop=False))
            case ir.While(cond, body):
                self.condition(cond, context)
                self.statement(body, replace(context, loop=True))
            case ir.If(cond, then, orelse):
                self.condition(cond, context)
                self.statement(then, context)
                if orelse is not None:
                    self.statement(orelse, context)
            case ir.Let(var, value, body):
                found = self.expr(value, context)
                if found is not var.dtype:
                    raise self.fail(f"{var.name} is {var.dtype}, its value {found}")
                self.statement(body, self.bind(context, (var,)))
            case ir.Alloc(buffer, body):
                if buffer.scope is Scope.GLOBAL:
                    raise self.fail("a global buffer is a parameter and cannot be allocated")
                self.buffer(buffer, context)
                if buffer.name in {b.name for b in context.buffers}:
                    raise self.fail(f"a buffer named {buffer.name!r} is already in scope")
                self.statement(body, replace(context, buffers=context.buffers | {buffer}))

    def reduction(self, s: ir.Reduce, context: _Context) -> None:
        self.one_of(s.op, REDUCTIONS, "reduction")
        self.element(s.dst, s.index, context, written=True)
        if len(s.vars) != len(s.extents):
            raise self.fail(f"{len(s.vars)} variables for {len(s.extents)} extents")
        for e in s.extents:
            self.index(e, context)
        found = self.expr(s.value, self.bind(context, s.vars))
        if s.op in ("argmax", "argmin") and not (s.dst.dtype.is_integer and s.clear):
            raise self.fail(f"{s.op} needs an integer destination and clear")
        if s.op.startswith("bit") and found.is_float:
            raise self.fail(f"{s.op} of {found}")

    def tile(self, s: Stmt, context: _Context) -> None:
        """The statements on regions."""
        match s:
            case ir.Copy(src, dst, transpose):
                self.region(src, context, written=False)
                self.region(dst, context, written=True)
                shape = src.shape
                if transpose:
                    if len(shape) < 2:
                        raise self.fail("a transposing copy needs two dimensions")
                    shape = (*shape[:-2], shape[-1], shape[-2])
                self.same_shape(shape, dst.shape)
            case ir.Fill(dst, value):
                self.region(dst, context, written=True)
                self.expr(value, context)
            case ir.Scan(op, src, dst, axis):
                self.one_of(op, SCANS, "scan")
                self.region(src, context, written=False)
                self.region(dst, context, written=True)
                self.same_shape(src.shape, dst.shape)
                if not 0 <= axis < len(src.shape):
                    raise self.fail(f"axis {axis} of {len(src.shape)} dimensions")
            case ir.Gemm(a, b, acc):
                for r in (a, b):
                    self.region(r, context, written=False)
                self.region(acc, context, written=True)
                if any(len(r.shape) != 2 for r in (a, b, acc)):
                    raise self.fail("the regions of a gemm have two dimensions")
                (m, k), (k2, n) = a.shape, b.shape
                m, k = (k, m) if s.transpose_a else (m, k)
                k2, n = (n, k2) if s.transpose_b else (k2, n)
                self.same_shape((m, n, k), (*acc.shape, k2))

    # parts

    def region(self, r: Region, context: _Context, written: bool) -> None:
        self.known(r.buffer, context, written)
        if len(r.offsets) != r.buffer.rank or len(r.extents) != r.buffer.rank:
            raise self.fail(f"{r.buffer.name}: a region of {len(r.offsets)} dimensions of a buffer of {r.buffer.rank}")
        for e in (*r.offsets, *r.shape):
            self.index(e, context)
        for o, extent, n in zip(r.offsets, r.extents, r.buffer.shape, strict=True):
            if not isinstance(o, Const):
                continue
            if o.value < 0:
                raise self.fail(f"{r.buffer.name}: the offset {o.value} is negative")
            last = o.value + (extent.value if isinstance(extent, Const) else 1)
            if r.buffer.scope is not Scope.GLOBAL and isinstance(n, Const) and last > n.value:
                raise self.fail(f"{r.buffer.name}: the region ends at {last}, the dimension at {n.value}")

    def element(self, buffer: Buffer, index: Sequence[Expr], context: _Context, written: bool) -> None:
        self.known(buffer, context, written)
        if len(index) != buffer.rank:
            raise self.fail(f"{buffer.name}: {buffer.rank} indices expected, got {len(index)}")
        for i in index:
            self.index(i, context)

    def known(self, buffer: Buffer, context: _Context, written: bool) -> None:
        if buffer not in context.buffers:
            raise self.fail(f"{buffer_text(buffer)} is neither a parameter nor allocated around this")
        if written and buffer.scope is Scope.GLOBAL and buffer.name not in self.kernel.outputs:
            raise self.fail(f"{buffer.name} is written but is not an output")

    def same_shape(self, x: Sequence[Expr], y: Sequence[Expr]) -> None:
        """Equal numbers of dimensions, and equal extents where both are constants."""
        differ = any(isinstance(a, Const) and isinstance(b, Const) and a.value != b.value for a, b in zip(x, y, strict=False))
        if len(x) != len(y) or differ:
            raise self.fail(f"the extents [{_list(x)}] and [{_list(y)}] differ")

    def one_of(self, name: str, choices: Iterable[str], what: str) -> None:
        if name not in choices:
            raise self.fail(f"unknown {what} {name!r}")

    # expressions

    def index(self, e: Expr, context: _Context) -> None:
        found = self.expr(e, context)
        if not found.is_integer:
            raise self.fail(f"{expr_text(e)} is {found}; an index or extent is an integer")

    def condition(self, e: Expr, context: _Context) -> None:
        found = self.expr(e, context)
        if found is not dtypes.b1:
            raise self.fail(f"{expr_text(e)} is {found}; a condition is a bool")

    def expr(self, e: Expr, context: _Context) -> DType:
        """The type of `e`, whose parts fit together and name only what is in scope."""
        for node in scalar.walk(e):
            if isinstance(node, Var) and node not in context.variables:
                raise self.fail(f"the variable {node.name}: {node.dtype} is not in scope")
            if isinstance(node, Load):
                self.load(node, context)
            elif node not in self.checked:
                self.typed(node)
                self.checked[node] = node.dtype
        return e.dtype

    def load(self, node: Load, context: _Context) -> None:
        self.known(node.buffer, context, written=False)
        if len(node.index) != node.buffer.rank:
            raise self.fail(f"{node.buffer.name}: {node.buffer.rank} indices expected, got {len(node.index)}")
        for i in node.index:
            if not i.dtype.is_integer:
                raise self.fail(f"{expr_text(i)} is {i.dtype}; an index is an integer")

    def typed(self, e: Expr) -> None:
        match e:
            case Const(value, dtype):
                fits = isinstance(value, float) if dtype.is_float else isinstance(value, bool) == (dtype.kind == "bool")
                if not fits or (not dtype.is_float and isinstance(value, float)):
                    raise self.fail(f"the constant {value!r} of type {dtype}")
            case scalar.Unary(op, x):
                self.one_of(op, scalar.UNARY, "operation")
                self.admits(op, x.dtype)
            case scalar.Binary(op, x, y):
                self.one_of(op, scalar.BINARY, "operation")
                if x.dtype is not y.dtype:
                    raise self.fail(f"{op} of {x.dtype} and {y.dtype}")
                self.admits(op, x.dtype)
            case scalar.Select(cond, x, y):
                if cond.dtype is not dtypes.b1 or x.dtype is not y.dtype:
                    raise self.fail(f"select of {cond.dtype}, {x.dtype} and {y.dtype}")

    def admits(self, op: str, dtype: DType) -> None:
        floats = op in ("div", "atan2", "copysign") or (op in scalar.UNARY and op not in _ANY_TYPE | _INTEGER_ONLY)
        bad = dtype.is_float if op in _INTEGER_ONLY else floats and not dtype.is_float
        if bad or (op in _NOT_BOOL and dtype.kind == "bool") or dtype.kind == "complex":
            raise self.fail(f"{op} of {dtype}")


def _list(exprs: Sequence[Expr]) -> str:
    return ", ".join(map(expr_text, exprs))
