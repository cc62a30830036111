"""What eager would refuse by looking at the data: an index out of range, a division of integers by zero.

In: a node that a kernel computes. Out: the conditions on its operands, and kernels that assert them, which run before it.
A launch that fails makes the call run in eager, whose error the caller then sees. Must not know fusion or memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ...base import dims, dtypes, scalar
from ...base.dims import Dim, Size, provably_le, provably_lt, provably_ne, to_expr
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


def settled(check: Check) -> bool:
    """Whether what the check wants holds of a constant, or a range or a part of one, for all sizes.

    Raises CompileError where it surely does not: eager raises its error.
    """
    found = _elements(check.node)
    if found is None:
        return False
    if found.count == 0 or _holds(check, found):
        return True
    if not found.is_static or not isinstance(check.size, int | None):
        return False
    raise CompileError(reason=_problem(check))


def _problem(check: Check) -> str:
    return "integer division by zero" if check.size is None else f"an index lies outside 0 to {check.size - 1}"


def _holds(check: Check, found: _Range) -> bool:
    low, high = found.ends
    if check.size is not None:
        return provably_le(0, low) and provably_lt(high, check.size)
    if found.is_static and found.step != 0:
        return not (provably_le(low, 0) and provably_le(0, high) and found.start % found.step == 0)
    return provably_lt(0, low) or provably_lt(high, 0) or (found.step == 0 and provably_ne(low, 0))


@dataclass(frozen=True)
class _Range:
    """`count` integers from `start` on, `step` apart."""

    start: Size
    step: Size
    count: Size

    @property
    def is_static(self) -> bool:
        return all(isinstance(s, int) for s in (self.start, self.step, self.count))

    @property
    def ends(self) -> tuple[Size, Size]:
        """The least and the greatest, if there are any."""
        last = self.start + (self.count - 1) * self.step
        return dims.minimum(self.start, last), dims.maximum(self.start, last)


def _elements(n: Node) -> _Range | None:
    """The values of a constant or of a range, seen through views; None where they are not known."""
    if isinstance(n.attrs, FullAttrs):
        value = n.attrs.value
        return _Range(value, 0, 1 if n.tensor.numel != 0 else 0) if isinstance(value, int | Dim) else None
    if isinstance(n.attrs, IotaAttrs):
        start, step, size = n.attrs.start, n.attrs.step, n.attrs.size
        return _Range(start, step, size) if isinstance(start, int | Dim) and isinstance(step, int | Dim) else None
    if n.op in (RESHAPE, PERMUTE, EXPAND, FLIP) and n.tensor.numel != 0:
        return _elements(n.args[0])
    if isinstance(n.attrs, SliceAttrs):
        found, a = _elements(n.args[0]), n.attrs
        if found is None or n.tensor.numel == 0:
            return None
        if found.step == 0:
            return found
        if len(n.shape) == 1:
            return _Range(found.start + a.start * found.step, found.step * a.step, n.shape[0])
    return None


def range_kernel(check: Check) -> Kernel | None:
    """Of a range: one block that looks at its ends; None of anything else. An error too many only makes a call run in eager."""
    found = _elements(check.node)
    if found is None:
        return None
    low, high = map(to_expr, found.ends)
    fine = (low > 0) | (high < 0) if check.size is None else (low >= 0) & (high < to_expr(check.size))
    b = KernelBuilder("check_range")
    b.check(fine | (to_expr(found.count) <= 0), _problem(check))
    return b.build(cost=1)


def _within(value: Expr, size: Size) -> Expr:
    if isinstance(size, int):
        return (value >= 0) & (value < size)
    return (value >= 0) & (scalar.cast(value, dtypes.i64) < to_expr(size))


def check_kernel(check: Check, view: View, hints: Hints) -> Kernel:
    """One block that looks at every element of the view, which is of the check's node."""
    size = check.size
    b = KernelBuilder("check_index" if size is not None else "check_divisor")
    shape = tuple(map(to_expr, view.shape))
    x = b.param("x", view.value.dtype, shape, tuple(map(to_expr, view.strides)))
    nest = b.parallel(*shape) if shape else contextlib.nullcontext(())
    with nest as index:
        value = x[index]
        fine: Expr = value.ne(0) if size is None else _within(value, size)
        b.check(fine, _problem(check))
    return b.build(cost=hints.product(view.shape) / 8)
