"""What eager would refuse by looking at the data: an index out of range, a division of integers by zero.

In: a node that a kernel computes. Out: the conditions on its operands, and kernels that assert them, which run before it.
A launch that fails makes the call run in eager, whose error the caller then sees. Must not know fusion or memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ...base import dtypes, scalar
from ...base.dims import Size, provably_le, to_expr
from ...base.errors import CompileError
from ...base.scalar import Expr
from ...graph.ir import Node
from ...graph.ops.index import GATHER, TAKE, DimAttrs, IotaAttrs
from ...graph.ops.pointwise import FLOORDIV, MOD, QUOT, REM, FullAttrs
from ...graph.ops.view import EXPAND, FLIP, PERMUTE, RESHAPE, SliceAttrs
from ..builder import KernelBuilder
from ..hints import Hints
from ..ir import Kernel
from ..program import View

DIVISIONS = (FLOORDIV, MOD, QUOT, REM)


@dataclass(frozen=True)
class Check:
    """Every element of `node` lies in [0, size), or, where `size` is None, differs from zero."""

    node: Node
    size: Size | None


def check_of(n: Node) -> Check | None:
    """The condition under which `n` can be computed, if it has one."""
    if n.op in (TAKE, GATHER):
        assert isinstance(n.attrs, DimAttrs)
        return Check(n.args[1], n.args[0].shape[n.attrs.dim])
    if n.op in DIVISIONS and n.dtype.is_integer:
        return Check(n.args[1], None)
    return None


def refuse_constant(check: Check) -> None:
    """Raise CompileError where a constant, or a range or a part of one, is not what the check wants: eager raises its error."""
    found = _elements(check.node)
    if found is None or not found.count:
        return
    low, high = sorted((found.start, found.start + (found.count - 1) * found.step))
    if check.size is None:
        if low <= 0 <= high and (not found.step or low % abs(found.step) == 0):
            raise CompileError(reason="integer division by zero")
    elif low < 0 or provably_le(check.size, high):
        raise CompileError(reason=f"an index lies outside 0 to {check.size - 1}")


@dataclass(frozen=True)
class _Range:
    start: int
    step: int
    count: int


def _elements(n: Node) -> _Range | None:
    """The values of a constant or of a range, seen through views; None where they are not known."""
    if isinstance(n.attrs, FullAttrs):
        value, count = n.attrs.value, n.tensor.numel
        return _Range(value, 0, 1 if count else 0) if isinstance(value, int) else None
    if isinstance(n.attrs, IotaAttrs):
        start, step, size = n.attrs.start, n.attrs.step, n.attrs.size
        return _Range(start, step, size) if isinstance(start, int) and isinstance(step, int) and isinstance(size, int) else None
    if n.op in (RESHAPE, PERMUTE, EXPAND, FLIP) and n.tensor.numel:
        return _elements(n.args[0])
    if isinstance(n.attrs, SliceAttrs):
        found, a = _elements(n.args[0]), n.attrs
        if found is None or not n.tensor.numel:
            return None
        if not found.step:
            return found
        if len(n.shape) == 1 and isinstance(a.start, int) and isinstance(a.step, int) and isinstance(n.shape[0], int):
            return _Range(found.start + a.start * found.step, found.step * a.step, n.shape[0])
    return None


def _within(value: Expr, size: Size) -> Expr:
    if isinstance(size, int):
        return (value >= 0) & (value < size)
    return (value >= 0) & (scalar.cast(value, dtypes.i64) < to_expr(size))


def check_kernel(view: View, size: Size | None, hints: Hints) -> Kernel:
    """One block that looks at every element of the view."""
    b = KernelBuilder("check_index" if size is not None else "check_divisor")
    shape = tuple(map(to_expr, view.shape))
    x = b.param("x", view.value.dtype, shape, tuple(map(to_expr, view.strides)))
    nest = b.parallel(*shape) if shape else contextlib.nullcontext(())
    with nest as index:
        value = x[index]
        fine: Expr = value.ne(0) if size is None else _within(value, size)
        b.check(fine, "integer division by zero" if size is None else f"an index lies outside 0 to {size - 1}")
    return b.build(cost=hints.product(view.shape) / 8)
