"""Atomic updates of memory that other threads update too.

In: an `Atomic`. Out: one atomic instruction a lane. Must not know nests.
"""

from __future__ import annotations

from ...base import errors, scalar
from ...tile.ir import Atomic
from . import expr, llvm, memory, storage
from .context import Context

_INTEGER = {"add": "add", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}
_FLOAT = {"add": "fadd", "max": "fmaximum", "min": "fminimum", "exchange": "xchg"}


def atomic(ctx: Context, s: Atomic) -> None:
    """`s` in the current copy, for every active lane in order."""
    dtype = s.buffer.dtype
    name = (_FLOAT if dtype.is_float else _INTEGER).get(s.op)
    if name is None:
        raise errors.CompileError(reason=f"atomic {s.op} on {dtype.name}")
    if dtype.kind == "uint" and name in ("max", "min"):
        name = "u" + name
    raw = expr.vector(ctx, scalar.cast(s.value, dtype))
    raw = storage.to_memory(ctx.ops(dtype, ctx.lanes), raw, dtype)
    x = ctx.facts.address(s.buffer, s.index)
    mask = memory.active(ctx, memory.unproven(ctx, s.buffer, s.index))
    pointers = expr.pointer(ctx, s.buffer, x) if ctx.lanes == 1 else memory.pointers(ctx, s.buffer, x)
    f, element = ctx.f, storage.element(dtype)
    for k in range(ctx.lanes):

        def update(k: int = k) -> None:
            pointer, own = pointers, raw
            if ctx.lanes > 1:
                pointer = f.let(f"extractelement <{ctx.lanes} x ptr> {pointers}, i64 {k}")
                own = f.let(f"extractelement {llvm.vector(ctx.lanes, element)} {raw}, i64 {k}")
            type_ = llvm.TYPES[dtype]
            if type_ != element:
                own = f.let(f"bitcast {element} {own} to {type_}")
            f.do(f"atomicrmw {name} ptr {pointer}, {type_} {own} monotonic, align {dtype.bytes}")

        if mask is None:
            update()
        else:
            f.when(mask if ctx.lanes == 1 else f.let(f"extractelement <{ctx.lanes} x i1> {mask}, i64 {k}"), update)
    ctx.forget((s.buffer,))
