"""Reductions over whole dims. In: one operand. Out: rows that keep its dtype (arg reductions give i64).

16-bit floats accumulate in float32. `sum` and `prod` keep the operand's dtype, so whoever wants torch's promotion of bool and
small integers casts to i64 first; `any` and `all` take bool. An empty `dims` reduces nothing. Must not know schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...base import dtypes
from ...base.dtypes import DType
from ..ir import Attrs, Family, Op, TensorType, Type
from .rules import ANY, BOOL, NUMBERS, admit, check_dims, reduced, require


@dataclass(frozen=True)
class ReduceAttrs(Attrs):
    dims: tuple[int, ...]
    keepdim: bool = False


@dataclass(frozen=True)
class ArgAttrs(Attrs):
    """`dims`: the one dim searched, or () for the flat operand (the result is then an index into it)."""

    dims: tuple[int, ...] = ()
    keepdim: bool = False


def _row(name: str, admitted: tuple[DType, ...], eager: Callable[[ReduceAttrs, torch.Tensor], torch.Tensor], empty: bool) -> Op:
    """`empty`: whether reducing no elements has a value."""

    def infer(attrs: ReduceAttrs, x: Type) -> TensorType:
        t = admit(x, admitted)
        check_dims(attrs.dims, t.rank)
        require(empty or all(t.shape[d] != 0 for d in attrs.dims), "no elements to reduce")
        return TensorType(t.dtype, reduced(t.shape, attrs.dims, attrs.keepdim))

    def run(attrs: ReduceAttrs, x: torch.Tensor) -> torch.Tensor:
        return eager(attrs, x) if attrs.dims else x.clone()

    return Op(name, Family.REDUCE, infer, run, ReduceAttrs, arity=1, dtypes=admitted)


def _prod(attrs: ReduceAttrs, x: torch.Tensor) -> torch.Tensor:
    """torch.prod takes one dim; the product over several accumulates in the compute type throughout."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    for d in reversed(attrs.dims):
        wide = torch.prod(wide, d, attrs.keepdim, dtype=wide.dtype)
    return wide.to(x.dtype)


SUM = _row("sum", NUMBERS, lambda a, x: torch.sum(x, a.dims, a.keepdim, dtype=x.dtype), empty=True)
PROD = _row("prod", NUMBERS, _prod, empty=True)
AMAX = _row("amax", ANY, lambda a, x: torch.amax(x, a.dims, a.keepdim), empty=False)
AMIN = _row("amin", ANY, lambda a, x: torch.amin(x, a.dims, a.keepdim), empty=False)
ANY_ = _row("any", BOOL, lambda a, x: torch.any(x, a.dims, a.keepdim), empty=True)
ALL_ = _row("all", BOOL, lambda a, x: torch.all(x, a.dims, a.keepdim), empty=True)


def _infer_arg(attrs: ArgAttrs, x: Type) -> TensorType:
    t = admit(x, NUMBERS)
    require(len(attrs.dims) <= 1, "one dim or none expected")
    dims = check_dims(attrs.dims, t.rank) or tuple(range(t.rank))
    require(all(t.shape[d] != 0 for d in dims), "no elements to search")
    return TensorType(dtypes.i64, reduced(t.shape, dims, attrs.keepdim))


def _arg_row(name: str, function: Callable[..., torch.Tensor]) -> Op:
    """The first of equal extremes; NaN counts as the extreme."""

    def eager(attrs: ArgAttrs, x: torch.Tensor) -> torch.Tensor:
        return function(x, attrs.dims[0] if attrs.dims else None, attrs.keepdim)

    return Op(name, Family.REDUCE, _infer_arg, eager, ArgAttrs, arity=1, dtypes=NUMBERS)


ARGMAX = _arg_row("argmax", torch.argmax)
ARGMIN = _arg_row("argmin", torch.argmin)

ROWS = (SUM, PROD, AMAX, AMIN, ANY_, ALL_, ARGMAX, ARGMIN)
