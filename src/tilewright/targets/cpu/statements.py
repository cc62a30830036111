"""Statements of the tile IR to code: control flow, memory, and the hand-over to the emitters of nests and matrix products.

In: a statement and a `Context`. Out: instructions. Must not know kernels' parameters or the grid.

Within a vectorised nest the same functions run with `ctx.lanes` > 1 or several copies: a statement is then written for
every copy, and an `If` whose condition differs between lanes becomes a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...base import dims, dtypes, errors
from ...base.dims import Size
from ...base.scalar import Expr, Var, var
from ...tile import ir
from ...tile.ir import (
    Alloc,
    Assert,
    Atomic,
    Block,
    Break,
    Buffer,
    Continue,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Let,
    Load,
    Parallel,
    Print,
    Reduce,
    Region,
    Scan,
    Scope,
    Stmt,
    Store,
    Sync,
    While,
    bodies,
    const,
)
from . import atomic, expr, gemm, memory, paired, reduce, scan, vector
from .context import Context

_UNROLLED = 64
_LOCAL_BYTES = 4096


def emit(ctx: Context, s: Stmt) -> None:
    """Write `s` at the current place."""
    match s:
        case Block(body):
            for k in body:
                emit(ctx, k)
        case Store(buffer, index, value):
            memory.store(ctx, buffer, index, value)
        case Parallel():
            vector.parallel(ctx, s)
        case Reduce():
            reduce.reduce(ctx, s)
        case Copy():
            _copy(ctx, s)
        case Fill(dst, value):
            variables, index = _walk(dst)
            _masked(ctx, Parallel(variables, dst.shape, Store(dst.buffer, index, value)))
        case Gemm():
            _gemm(ctx, s)
        case Scan():
            scan.scan(ctx, s)
        case Atomic():
            for _ in ctx.each_copy():
                atomic.atomic(ctx, s)
        case Alloc(buffer, body):
            _alloc(ctx, buffer, body)
        case _:
            _control(ctx, s)


def _control(ctx: Context, s: Stmt) -> None:
    match s:
        case For():
            _for(ctx, s)
        case If():
            _if(ctx, s)
        case While(cond, body):
            _while(ctx, cond, body)
        case Let(v, value, body):
            ctx.enter(False)
            if ctx.facts.is_uniform(value):
                ctx.hold(v, {-1: expr.value(ctx, value)})
            else:
                ctx.hold(v, {k: expr.value(ctx, value) for k in ctx.each_copy()})
            emit(ctx, body)
            ctx.leave()
        case Break() | Continue():
            ctx.f.do(f"br label %{ctx.exits[-1][isinstance(s, Break)]}")
            ctx.f.label(ctx.f.name_for("dead")[1:])
        case Assert(cond, message):
            _assert(ctx, cond, message)
        case Sync() | Print():
            pass
        case _:
            raise errors.CompileError(reason=f"a {type(s).__name__} statement is not known on a CPU")


def _walk(r: Region) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """Variables over a region's shape, and the index they give in its buffer."""
    variables = tuple(var(f"{r.buffer.name}.{k}") for k, e in enumerate(r.extents) if e is not None)
    return variables, _at(r, variables)


def _at(r: Region, variables: Sequence[Expr]) -> tuple[Expr, ...]:
    rest = iter(variables)
    return tuple(o if e is None else o + next(rest) for o, e in zip(r.offsets, r.extents, strict=True))


def _copy(ctx: Context, s: Copy) -> None:
    if paired.copied(ctx, s):
        return
    variables, index = _walk(s.dst)
    source = (*variables[:-2], variables[-1], variables[-2]) if s.transpose else variables
    store = Store(s.dst.buffer, index, Load(s.src.buffer, _at(s.src, source)))
    _masked(ctx, Parallel(variables, s.dst.shape, store))


def _masked(ctx: Context, s: Parallel) -> None:
    """A nest that may name elements beyond its buffers, whatever holds for others of the kernel."""
    trusted, ctx.in_bounds = ctx.in_bounds, False
    vector.parallel(ctx, s)
    ctx.in_bounds = trusted


def _gemm(ctx: Context, s: Gemm) -> None:
    """Name the operands' strides as a matrix product sees them: a[m, k], b[k, n], acc[m, n]."""
    m, n = (expr.size(ctx, e) for e in s.acc.shape)
    k = expr.size(ctx, s.a.shape[0 if s.transpose_a else 1])
    a, b, acc = _operand(ctx, s.a, s.transpose_a), _operand(ctx, s.b, s.transpose_b), _operand(ctx, s.acc, False)
    b = replace(b, padded=not s.transpose_b and b.column == 1 and _has_room(ctx, s.b, n))
    try:
        bytes_ = gemm.gemm_scratch(ctx.isa, b, k)
        scratch = _from_scratch(ctx, ctx.reserve(bytes_)) if bytes_ else None
        multiple = ctx.facts.divisor(ctx.facts.linear(s.a.shape[0 if s.transpose_a else 1]))
        gemm.emit_gemm(ctx.f, ctx.isa, a, b, acc, m, n, k, s.clear, scratch, multiple)
    except ValueError as e:
        raise errors.CompileError(reason=str(e)) from e
    ctx.forget((s.acc.buffer,))


def _operand(ctx: Context, r: Region, transpose: bool) -> gemm.GemmOperand:
    pointer = expr.pointer(ctx, r.buffer, ctx.facts.address(r.buffer, r.offsets))
    layout = r.buffer.layout
    pair_row = paired.pair_row(ctx.facts, layout) if layout is not None else None
    if pair_row is not None:
        if transpose or [d for d, e in enumerate(r.extents) if e is not None] != [r.buffer.rank - 2, r.buffer.rank - 1]:
            raise errors.CompileError(reason=f"a matrix product reads {r.buffer.name}, which is in pairs, across them")
        return gemm.GemmOperand(pointer, pair_row, 1, r.buffer.dtype, pairs=True)
    steps = [expr.size(ctx, step) for step, e in zip(_steps(ctx, r.buffer), r.extents, strict=True) if e is not None]
    row, column = reversed(steps) if transpose else steps
    return gemm.GemmOperand(pointer, row, column, r.buffer.dtype)


def _steps(ctx: Context, buffer: Buffer) -> tuple[Expr, ...]:
    """The strides of a buffer, those of a linear layout included."""
    if buffer.layout is None:
        return buffer.steps()
    form = ctx.facts.linear(buffer.layout.address)
    if any(a not in buffer.layout.vars for a in form.terms):
        raise errors.CompileError(reason=f"a matrix product of {buffer.name}, whose layout {buffer.layout.name} has no strides")
    return tuple(const(form.terms.get(v, 0)) for v in buffer.layout.vars)


def _has_room(ctx: Context, r: Region, n: int | str) -> bool:
    """Whether the rows of a matrix reach on to a whole vector behind column n."""
    if not isinstance(n, int):
        return False
    whole = -(-n // ctx.isa.lanes) * ctx.isa.lanes
    return ctx.facts.is_below(r.offsets[-1] + (whole - 1), r.buffer.shape[-1])


def _alloc(ctx: Context, buffer: Buffer, body: Stmt) -> None:
    """Shared memory and fragments lie in the thread's scratch, where siblings reuse the room; small locals on the stack."""
    before = ctx.scratch_used
    size = _elements(ctx, buffer) * buffer.dtype.bytes
    if buffer.scope is Scope.LOCAL and isinstance(size, int) and size <= _LOCAL_BYTES:
        ctx.pointers[buffer] = ctx.stack(size)
    else:
        ctx.pointers[buffer] = _from_scratch(ctx, ctx.reserve(size))
        ctx.scratch_used = (before + size + 63) // 64 * 64
    emit(ctx, body)
    ctx.scratch_used = before


def _elements(ctx: Context, buffer: Buffer) -> Size:
    """How many elements a buffer of the block's own needs room for."""
    try:
        if buffer.layout is not None:
            return _size(ctx, buffer.layout.size)
        shape = [_size(ctx, e) for e in buffer.shape]
        if buffer.strides is None:
            return math.prod(shape)
        return 1 + sum((n - 1) * _size(ctx, t) for n, t in zip(shape, buffer.strides, strict=True))
    except ValueError as e:
        raise errors.CompileError(reason=f"the size of buffer {buffer.name} must not change within a launch") from e


def _size(ctx: Context, e: Expr) -> Size:
    """A size in terms of the kernel's scalars. Raises ValueError where it depends on anything else."""
    n = expr.size(ctx, e)
    if isinstance(n, int):
        return n
    if any(v not in ctx.scalars for v in ctx.facts.variables(e)):
        raise ValueError("depends on a loop")
    return dims.of_expr(e)


def _from_scratch(ctx: Context, offset: Size) -> str:
    return ctx.from_scratch(expr.size(ctx, dims.to_expr(offset)))


def _for(ctx: Context, s: For) -> None:
    n = expr.size(ctx, s.extent)
    ctx.ends(s.var, s.extent)
    jumps = _has_jumps(s.body)
    if s.kind == "vectorized" and vector.is_nest(s.body):
        return vector.parallel(ctx, Parallel((s.var,), (s.extent,), s.body))
    if s.kind == "unrolled" and isinstance(n, int) and n <= _UNROLLED and not jumps:
        for k in range(n):
            ctx.enter(False)
            ctx.bind(s.var, k)
            emit(ctx, s.body)
            ctx.leave()
        return None
    writes = ir.written(s.body)
    top = n - 1 if isinstance(n, int) else float("inf")
    if not jumps:

        def turn(i: str) -> None:
            ctx.bind(s.var, i, (0, top))
            emit(ctx, s.body)

        ctx.loop(0, n, 1, turn, writes=writes)
        return None

    ctx.enter(True, False, writes)
    f = ctx.f
    names = head, inside, latch, after = [f.name_for(k)[1:] for k in ("for", "turn", "next", "end")]
    before, i, following = f.block, f.name_for("i"), f.name_for("n")
    f.do(f"br label %{head}")
    f.label(head)
    f.do(f"{i} = phi i64 [ 0, %{before} ], [ {following}, %{latch} ]")
    f.do(f"br i1 {f.let(f'icmp slt i64 {i}, {n}')}, label %{inside}, label %{after}")
    f.label(inside)
    ctx.bind(s.var, i, (0, top))
    ctx.exits.append((latch, after))
    emit(ctx, s.body)
    ctx.exits.pop()
    f.do(f"br label %{latch}")
    f.label(latch)
    f.do(f"{following} = add i64 {i}, 1")
    f.do(f"br label %{head}")
    f.label(names[-1])
    ctx.leave()
    return None


def _has_jumps(s: Stmt) -> bool:
    """Whether a Break or Continue in `s` leaves or restarts the loop around `s`."""
    if isinstance(s, (Break, Continue)):
        return True
    return not isinstance(s, (For, While)) and any(_has_jumps(k) for k in bodies(s))


def _while(ctx: Context, cond: Expr, body: Stmt) -> None:
    f = ctx.f
    head, inside, after = (f.name_for(k)[1:] for k in ("while", "do", "end"))
    ctx.enter(True, False, ir.written(body))
    f.do(f"br label %{head}")
    f.label(head)
    ctx.enter(False)
    f.do(f"br i1 {expr.scalar(ctx, cond)}, label %{inside}, label %{after}")
    f.label(inside)
    ctx.exits.append((head, after))
    emit(ctx, body)
    ctx.exits.pop()
    f.do(f"br label %{head}")
    f.label(after)
    ctx.leave()
    ctx.leave()


def _if(ctx: Context, s: If) -> None:
    if ctx.facts.is_uniform(s.cond):
        _branch(ctx, expr.scalar(ctx, s.cond), s.then, s.orelse, ctx.mask, ctx.mask)
        return
    whole = ctx.copies
    o = ctx.ops(dtypes.b1, ctx.lanes)
    for k in whole:
        ctx.copies, ctx.copy = range(k, k + 1), k
        test = expr.vector(ctx, s.cond)
        if ctx.lanes == 1:
            _branch(ctx, test, s.then, s.orelse, None, None)
            continue
        mask = memory.active(ctx, (s.cond,))
        assert mask is not None
        _branch(ctx, o.any(mask), s.then, None, mask, None)
        if s.orelse is not None:
            rest = o.op("xor", test, o.const(1))
            rest = rest if ctx.mask is None else o.both(ctx.mask, rest)
            _branch(ctx, o.any(rest), s.orelse, None, rest, None)
    ctx.copies, ctx.copy = whole, whole.start


def _branch(ctx: Context, test: str, then: Stmt, orelse: Stmt | None, mask: str | None, other: str | None) -> None:
    saved = ctx.mask

    def side(s: Stmt, active: str | None) -> None:
        ctx.enter(False, False)
        ctx.mask = active
        emit(ctx, s)
        ctx.mask = saved
        ctx.leave()

    ctx.f.when(test, lambda: side(then, mask), None if orelse is None else lambda: side(orelse, other))


def _assert(ctx: Context, cond: Expr, message: str) -> None:
    """A failed assertion ends the kernel's run of this thread: what would follow could touch memory it must not."""
    f = ctx.f
    for _ in ctx.each_copy():
        test = expr.value(ctx, cond)
        ok = test.text
        if test.lanes > 1:
            o = ctx.ops(dtypes.b1, ctx.lanes)
            failed = o.op("xor", ok, o.const(1))
            failed = failed if ctx.mask is None else o.both(failed, ctx.mask)
            ok = f.let(f"xor i1 {o.any(failed)}, true")
        on, failed = f.name_for("on")[1:], f.name_for("failed")[1:]
        f.do(f"br i1 {ok}, label %{on}, label %{failed}")
        f.label(failed)
        text, size = f.module.text_constant(message)
        f.call("void", "llvm.memcpy.p0.p0.i64", ["ptr", "ptr", "i64", "i1"], [ctx.error, text, str(size), "false"])
        f.do("br label %done")
        f.label(on)
