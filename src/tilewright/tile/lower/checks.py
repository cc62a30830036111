"""What eager would refuse by looking at the data: an index out of range, a division of integers by zero.

In: a node that a kernel computes. Out: the conditions on its operands, and kernels that assert them, which run before it.
A launch that fails makes the call run in eager, whose error the caller then sees. Must not know fusion or memory.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ...base import dtypes, scalar
from ...base.dims import Size, to_expr
from ...base.scalar import Expr
from ...graph.ir import Node
from ...graph.ops.index import GATHER, TAKE, DimAttrs
from ...graph.ops.pointwise import FLOORDIV, MOD, QUOT, REM
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
