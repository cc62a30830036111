"""Loads and stores: scalar, contiguous, reversed, or gathered and scattered; masked where a read may miss its buffer.

In: a buffer, an index, a value. Out: instructions. Must not know statements.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base import dtypes, scalar
from ...base.dtypes import DType
from ...base.scalar import Cast, Expr
from ...tile.ir import Buffer, Load, Scope
from . import expr, llvm, storage
from .context import Context, Value
from .indexing import Linear

_ZEROS = "tw_zeros"
_STEPS_NARROW = 1 << 26
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def load(ctx: Context, e: Load) -> Value:
    """One element, or one a lane. Above the upper bound of a global buffer a read gives zero; so does an inactive lane."""
    buffer = e.buffer
    x = ctx.facts.address(buffer, e.index)
    checks = unproven(ctx, buffer, e.index)
    step = ctx.facts.step(x)
    if ctx.lanes == 1 or ctx.facts.is_uniform(e) or (step == 0 and not checks):
        return Value(_scalar_load(ctx, buffer, x, checks))
    mask = active(ctx, checks)
    if step in (1, -1):
        raw = _row_load(ctx, buffer, x, step == -1, mask)
    else:
        addresses = pointers(ctx, buffer, x)
        raw = _masked(ctx, "gather", buffer.dtype, addresses, mask or _all(ctx))
    return Value(storage.from_memory(ctx.ops(buffer.dtype, ctx.lanes), raw, buffer.dtype), ctx.lanes)


def store(ctx: Context, buffer: Buffer, index: Sequence[Expr], e: Expr) -> None:
    """Write `e`, converted to the buffer's type, in every copy. A write above the upper bound is dropped."""
    e = stored(e, buffer.dtype)
    along = not all(map(ctx.facts.is_uniform, index))

    def compute() -> Value:
        v = expr.value(ctx, e)
        if along and not v.literal and v.lanes < ctx.lanes:
            v = Value(expr.widened(ctx, e, v, ctx.lanes), ctx.lanes)
        return v

    values = ctx.interleaved(compute)
    for k in ctx.each_copy():
        write(ctx, buffer, index, values[k])


def write(ctx: Context, buffer: Buffer, index: Sequence[Expr], v: Value) -> None:
    """Write a register value of the buffer's own type (a 16-bit float as float) in the current copy."""
    x = ctx.facts.address(buffer, index)
    checks = unproven(ctx, buffer, index)
    if ctx.lanes == 1 or (v.lanes == 1 and all(map(ctx.facts.is_uniform, index))):
        _put(ctx, buffer, x, v.text, checks)
        ctx.forget((buffer,))
        if not checks and ctx.lanes == 1 and buffer.dtype is buffer.dtype.compute:
            place = Load(buffer, tuple(index))
            ctx.remember(place, v, ctx.facts.buffers(place))
        return
    o = ctx.ops(buffer.dtype, ctx.lanes)
    text = o.splat_literal(v.text) if v.literal else v.text if v.lanes > 1 else o.broadcast(v.text)
    raw = storage.to_memory(o, text, buffer.dtype)
    mask = active(ctx, checks)
    step = ctx.facts.step(x)
    if step in (1, -1):
        _row_store(ctx, buffer, x, raw, step == -1, mask)
    else:
        _masked_store(ctx, "scatter", buffer.dtype, raw, pointers(ctx, buffer, x), mask or _all(ctx))
    ctx.forget((buffer,))


def _put(ctx: Context, buffer: Buffer, x: Linear, text: str, checks: Sequence[Expr]) -> None:
    raw = storage.to_memory(ctx.ops(buffer.dtype, 1), text, buffer.dtype)
    pointer = expr.pointer(ctx, buffer, x)
    if checks:
        pointer = ctx.f.let(f"select i1 {_every(ctx, checks)}, ptr {pointer}, ptr {ctx.sink()}")
    ctx.f.do(f"store {storage.element(buffer.dtype)} {raw}, ptr {pointer}, align {buffer.dtype.bytes}")


def stored(e: Expr, dtype: DType) -> Expr:
    """What to compute for storing `e` as `dtype`: a float that the store itself rounds need not be rounded before."""
    if e.dtype is not dtype:
        e = scalar.cast(e, dtype)
    while isinstance(e, Cast) and dtype.is_float and dtype.bytes < 4 and e.dtype is dtype and e.x.dtype is dtypes.f32:
        e = e.x
    return e


def unproven(ctx: Context, buffer: Buffer, index: Sequence[Expr]) -> list[Expr]:
    """The tests that an index of a global buffer lies within its size, where that cannot be proven."""
    if ctx.in_bounds or buffer.scope is not Scope.GLOBAL:
        return []
    return [_within(ctx, i, n) for i, n in zip(index, buffer.shape, strict=True) if not _is_within(ctx, i, n)]


def _is_within(ctx: Context, i: Expr, n: Expr) -> bool:
    return ctx.facts.is_below(i, n) and (ctx.facts.bounds(i)[0] >= 0 or not ctx.facts.buffers(i))


def _within(ctx: Context, i: Expr, n: Expr) -> Expr:
    """An index out of memory may be anything, so that it is tested on both sides at once."""
    if ctx.facts.buffers(i) and ctx.facts.bounds(i)[0] < 0:
        return scalar.cast(i, dtypes.u64) < scalar.cast(n, dtypes.u64)
    return i < n


def active(ctx: Context, checks: Sequence[Expr] = ()) -> str | None:
    """The mask of lanes that are active and pass `checks`; None for all."""
    mask = ctx.mask
    o = ctx.ops(dtypes.b1, ctx.lanes)
    for check in checks:
        test = expr.vector(ctx, check)
        mask = test if mask is None else o.both(mask, test)
    return mask


def _every(ctx: Context, checks: Sequence[Expr]) -> str:
    texts = [expr.scalar(ctx, c) for c in checks]
    total = texts[0]
    for t in texts[1:]:
        total = ctx.f.let(f"and i1 {total}, {t}")
    return total


def _all(ctx: Context) -> str:
    return ctx.ops(dtypes.b1, ctx.lanes).const(1)


def _scalar_load(ctx: Context, buffer: Buffer, x: Linear, checks: Sequence[Expr]) -> str:
    pointer = expr.pointer(ctx, buffer, x)
    if checks:
        ctx.f.module.globals[_ZEROS] = f"@{_ZEROS} = internal constant [64 x i8] zeroinitializer, align 64"
        pointer = ctx.f.let(f"select i1 {_every(ctx, checks)}, ptr {pointer}, ptr @{_ZEROS}")
    raw = ctx.f.let(f"load {storage.element(buffer.dtype)}, ptr {pointer}, align {buffer.dtype.bytes}", "x")
    return storage.from_memory(ctx.ops(buffer.dtype, 1), raw, buffer.dtype)


def _row_load(ctx: Context, buffer: Buffer, x: Linear, backwards: bool, mask: str | None) -> str:
    """Lanes side by side in memory, the last one first where `backwards`."""
    pointer = _row(ctx, buffer, x, backwards)
    if mask is None:
        type_ = llvm.vector(ctx.lanes, storage.element(buffer.dtype))
        raw = ctx.f.let(f"load {type_}, ptr {pointer}, align {buffer.dtype.bytes}", "x")
    else:
        raw = _masked(ctx, "load", buffer.dtype, pointer, _turned(ctx, mask, "i1") if backwards else mask)
    return _turned(ctx, raw, storage.element(buffer.dtype)) if backwards else raw


def _row_store(ctx: Context, buffer: Buffer, x: Linear, raw: str, backwards: bool, mask: str | None) -> None:
    pointer = _row(ctx, buffer, x, backwards)
    if backwards:
        raw = _turned(ctx, raw, storage.element(buffer.dtype))
        mask = None if mask is None else _turned(ctx, mask, "i1")
    if mask is None:
        type_ = llvm.vector(ctx.lanes, storage.element(buffer.dtype))
        ctx.f.do(f"store {type_} {raw}, ptr {pointer}, align {buffer.dtype.bytes}")
    else:
        _masked_store(ctx, "store", buffer.dtype, raw, pointer, mask)


def _row(ctx: Context, buffer: Buffer, x: Linear, backwards: bool) -> str:
    return expr.pointer(ctx, buffer, Linear(x.const - (ctx.lanes - 1 if backwards else 0), x.terms))


def _turned(ctx: Context, x: str, element_type: str) -> str:
    """The lanes in the opposite order."""
    type_ = llvm.vector(ctx.lanes, element_type)
    order = ", ".join(f"i32 {k}" for k in reversed(range(ctx.lanes)))
    return ctx.f.let(f"shufflevector {type_} {x}, {type_} poison, <{ctx.lanes} x i32> <{order}>")


def pointers(ctx: Context, buffer: Buffer, x: Linear) -> str:
    """The addresses of all lanes: one pointer and an offset a lane, of 32 bits where they suffice."""
    facts, lanes = ctx.facts, ctx.lanes
    known = Linear(x.const, {a: c for a, c in x.terms.items() if facts.step(Linear(0, {a: 1})) is not None})
    step = facts.step(known) or 0
    base = expr.pointer(ctx, buffer, known)
    rest = {a: c for a, c in x.terms.items() if a not in known.terms}
    narrow = abs(step) < _STEPS_NARROW and expr.fits_narrow(ctx, rest)
    o = ctx.ops(dtypes.i32 if narrow else dtypes.i64, lanes)
    offsets = o.listed([step * k for k in range(lanes)])
    for position, (atom, factor) in enumerate(rest.items()):
        part = expr.narrow(ctx, atom) if narrow else expr.vector(ctx, scalar.cast(atom, dtypes.i64))
        part = part if factor == 1 else o.mul(part, o.const(factor))
        offsets = part if position == 0 and step == 0 else o.add(offsets, part)
    return ctx.f.let(f"getelementptr {storage.element(buffer.dtype)}, ptr {base}, {o.type} {offsets}", "p")


def _masked(ctx: Context, kind: str, dtype: DType, pointer: str, mask: str) -> str:
    """A masked load or gather: zero in inactive lanes."""
    name, type_, address, tests = _masked_names(ctx, kind, dtype)
    return ctx.f.call(type_, name, [address, tests, type_], [f"align {dtype.bytes} {pointer}", mask, "zeroinitializer"])


def _masked_store(ctx: Context, kind: str, dtype: DType, raw: str, pointer: str, mask: str) -> None:
    name, type_, address, tests = _masked_names(ctx, kind, dtype)
    ctx.f.call("void", name, [type_, address, tests], [raw, f"align {dtype.bytes} {pointer}", mask])


def _masked_names(ctx: Context, kind: str, dtype: DType) -> tuple[str, str, str, str]:
    one, lanes = storage.element(dtype), ctx.lanes
    many = kind in ("gather", "scatter")
    name = f"llvm.masked.{kind}.v{lanes}{_SUFFIX.get(one, one)}.{f'v{lanes}p0' if many else 'p0'}"
    return name, llvm.vector(lanes, one), llvm.vector(lanes, "ptr") if many else "ptr", llvm.vector(lanes, "i1")
