"""Kernels that only move small floats see their bits: a value that is not computed with is neither widened nor rounded.

In and out: a kernel. Must not know LLVM. Widening and rounding would keep numbers, but for denormals where an instruction
flushes those, and for the payloads of NaNs; and it costs time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...base import dtypes, scalar
from ...base.dtypes import DType
from ...base.scalar import Cast, Const, Expr, Select
from ...tile.evaluate import encode, held, rounded, stored
from ...tile.ir import Assert, Block, Buffer, For, If, Kernel, Let, Load, Parallel, Stmt, Store, const, loads, statements

_SIMPLE = (Block, For, Parallel, If, Let, Store, Assert)
_BITS = {1: dtypes.u8, 2: dtypes.u16}


def as_bits(kernel: Kernel) -> Kernel:
    """The kernel with each small float buffer whose elements are only moved seen as integers of its size."""
    small = {b for b in kernel.params if _is_small(b.dtype)}
    if not small or not all(isinstance(s, _SIMPLE) for s in statements(kernel.body)):
        return kernel
    for group in _groups(kernel.body, small):
        small.difference_update(group)
    if not small:
        return kernel
    new = {b: Buffer(b.name, _BITS[b.dtype.bytes], b.shape, b.scope, b.strides, b.layout) for b in small}
    return replace(kernel, params=tuple(new.get(b, b) for b in kernel.params), body=_seen(kernel.body, new))


def _is_small(dtype: DType) -> bool:
    return dtype.is_float and dtype.bytes in _BITS


def _groups(body: Stmt, small: set[Buffer]) -> Iterable[set[Buffer]]:
    """The buffers that are computed with, and with them all that exchange values with them."""
    together: dict[Buffer, set[Buffer]] = {b: {b} for b in small}
    computed: set[Buffer] = set()

    def join(a: Buffer, b: Buffer) -> None:
        union = together[a] | together[b]
        together.update(dict.fromkeys(union, union))

    for s in statements(body):
        for e in _read(s):
            computed.update(x.buffer for x in loads(e))
        if not isinstance(s, Store):
            continue
        found = _moved(s.value, s.buffer.dtype) if s.buffer in small else None
        if found is None:
            computed.update({s.buffer, *(x.buffer for x in loads(s.value))})
            continue
        sources, read = found
        for b in sources:
            join(s.buffer, b)
        computed.update(x.buffer for e in read for x in loads(e))
    return [together[b] for b in computed if b in small]


def _read(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement, but for what a store writes."""
    match s:
        case Store():
            return s.index
        case For():
            return (s.extent,)
        case Parallel():
            return s.extents
        case If() | Assert():
            return (s.cond,)
        case Let():
            return (s.value,)
    return ()


def _moved(e: Expr, dtype: DType) -> tuple[list[Buffer], list[Expr]] | None:
    """The buffers of `dtype` among whose elements `e` chooses, and the indices and tests by which; None where it computes."""
    match e:
        case Cast(x, to) if to in (dtype, dtype.compute) and x.dtype in (dtype, dtype.compute):
            return _moved(x, dtype)
        case Load(buffer, index) if buffer.dtype is dtype:
            return [buffer], list(index)
        case Const(_, own) if own in (dtype, dtype.compute):
            return [], []
        case Select(test, x, y):
            a, b = _moved(x, dtype), _moved(y, dtype)
            return None if a is None or b is None else (a[0] + b[0], [test, *a[1], *b[1]])
    return None


def _bits(e: Expr, new: dict[Buffer, Buffer], dtype: DType) -> Expr:
    """A moved value as its bits."""
    match e:
        case Cast(x):
            return _bits(x, new, dtype)
        case Load(buffer, index):
            return Load(new[buffer], index)
        case Const(value):
            number = rounded(held(dtype).type(value), dtype)
            return const(int(encode(number, dtype, stored(dtype)).view(_BITS[dtype.bytes].name)), _BITS[dtype.bytes])
        case Select(test, x, y):
            return scalar.select(test, _bits(x, new, dtype), _bits(y, new, dtype))
    raise TypeError(f"{e} is not moved")


def _seen(s: Stmt, new: dict[Buffer, Buffer]) -> Stmt:
    match s:
        case Block(body):
            return Block(tuple(_seen(k, new) for k in body))
        case For() | Parallel() | Let():
            return replace(s, body=_seen(s.body, new))
        case If(cond, then, orelse):
            return If(cond, _seen(then, new), None if orelse is None else _seen(orelse, new))
        case Store(buffer, index, value) if buffer in new:
            return Store(new[buffer], index, _bits(value, new, buffer.dtype))
    return s
