"""ATen's reductions, scans, softmaxes and norms as rows. In: nodes in ATen's argument order. Out: nodes.

torch sums bool and small integers in i64, which is a cast here. Must not know strides, memory or how a call was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..base import dtypes
from ..base.dtypes import DType
from .aten_pointwise import as_bool
from .ir import Node, Op
from .ops import composite, pointwise, reduce, scan, view
from .ops import pointwise as pw
from .promotion import as_type, full

Build = Callable[..., Any]


def dims_of(x: Node, dim: Any) -> tuple[int, ...]:
    """Sorted non-negative dims; None and an empty list mean all."""
    rank = len(x.shape)
    if dim is None or (isinstance(dim, list | tuple) and len(dim) == 0):
        return tuple(range(rank))
    return tuple(sorted({_wrap(d, rank) for d in ([dim] if isinstance(dim, int) else dim)})) if rank else ()


def _wrap(dim: int, rank: int) -> int:
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise ValueError(f"dim {dim} is out of range")
    return dim % max(rank, 1)


def _accumulated(x: Node, dtype: DType | None) -> Node:
    if dtype is not None:
        return as_type(x, dtype)
    return x if x.dtype.is_float else as_type(x, dtypes.i64)


def _total(row: Op, x: Node, dims: tuple[int, ...], keepdim: bool) -> Node:
    return row(x, dims=dims, keepdim=keepdim) if dims else x


def _sum(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return _total(reduce.SUM, _accumulated(x, dtype), dims_of(x, dim), keepdim)


def _prod(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return _total(reduce.PROD, _accumulated(x, dtype), dims_of(x, dim), keepdim)


def _mean(x: Node, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    x = x if dtype is None else as_type(x, dtype)
    return _total(composite.MEAN, x, dims_of(x, dim), keepdim)


def _var(x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    dims = dims_of(x, dim)
    if not dims:
        raise ValueError("no dim to reduce")
    return composite.VAR(x, dims=dims, correction=1 if correction is None else correction, keepdim=keepdim)


def _std(x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    wide = as_type(x, x.dtype.compute)
    return as_type(pw.SQRT(_var(wide, dim, correction=correction, keepdim=keepdim)), x.dtype)


def _var_mean(x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Node, Node]:
    return _var(x, dim, correction=correction, keepdim=keepdim), _mean(x, dim, keepdim)


def _std_mean(x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Node, Node]:
    return _std(x, dim, correction=correction, keepdim=keepdim), _mean(x, dim, keepdim)


def _extreme(row: Op) -> Build:
    def build(x: Node, dim: Any = (), keepdim: bool = False) -> Node:
        return _total(row, x, dims_of(x, dim), keepdim)

    return build


def _arg(row: Op) -> Build:
    def build(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if not x.shape:
            return full(0, dtypes.i64)
        if dim is None:
            flat = row(x, dims=())
            return view.RESHAPE(flat, shape=(1,) * len(x.shape)) if keepdim else flat
        return row(x, dims=dims_of(x, dim), keepdim=keepdim)

    return build


def _extreme_at(row: Op, arg: Op) -> Build:
    """`max(dim)` and `min(dim)`: values and the index of the first."""

    def build(x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        if not x.shape:
            return x, full(0, dtypes.i64)
        dims = dims_of(x, dim)
        return row(x, dims=dims, keepdim=keepdim), arg(x, dims=dims, keepdim=keepdim)

    return build


def _test(row: Op) -> Build:
    def build(x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        if isinstance(dim, list | tuple) and not dim:
            dims: tuple[int, ...] = ()
        else:
            dims = dims_of(x, dim)
        found = _total(row, as_bool(x), dims, keepdim)
        return as_type(found, dtypes.u8) if x.dtype is dtypes.u8 else found

    return build


def _scan(row: Op) -> Build:
    def build(x: Node, dim: int, *, dtype: DType | None = None) -> Node:
        x = _accumulated(x, dtype)
        return row(x, dim=_wrap(dim, len(x.shape))) if x.shape else x

    return build


def _softmax(row: Op) -> Build:
    def build(x: Node, dim: int, half_to_float: bool = False) -> Node:
        if half_to_float:
            x = as_type(x, dtypes.f32)
        if not x.shape:
            one = full(1.0 if row is composite.SOFTMAX else 0.0, x.dtype)
            return pw.WHERE(pw.ISNAN(pw.SUB(x, x)), pw.SUB(x, x), one)
        return row(x, dim=_wrap(dim, len(x.shape)))

    return build


def _safe_softmax(x: Node, dim: int, dtype: DType | None = None) -> Node:
    """Rows of nothing but -inf give zeros."""
    x = x if dtype is None else as_type(x, dtype)
    dim = _wrap(dim, len(x.shape))
    if x.shape[dim] == 0:
        return composite.SOFTMAX(x, dim=dim)
    highest = reduce.AMAX(x, dims=(dim,), keepdim=True)
    nothing = pw.EQ(highest, full(-math.inf, x.dtype))
    return pw.WHERE(nothing, full(0, x.dtype), composite.SOFTMAX(x, dim=dim))


def logsumexp(x: Node, dim: Any, keepdim: bool = False) -> Node:
    x = x if x.dtype.is_float else as_type(x, dtypes.f32)
    dims, wide = dims_of(x, dim), as_type(x, x.dtype.compute)
    if not dims or any(x.shape[d] == 0 for d in dims):
        raise ValueError("nothing to sum")
    highest = reduce.AMAX(wide, dims=dims, keepdim=True)
    finite = pw.WHERE(pw.ISINF(highest), full(0, wide.dtype), highest)
    total = pw.LOG(reduce.SUM(pw.EXP(pw.SUB(wide, finite)), dims=dims, keepdim=keepdim))
    shift = finite if keepdim else view.RESHAPE(finite, shape=total.shape)
    return as_type(pw.ADD(total, shift), x.dtype)


def _vector_norm(x: Node, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    x = x if dtype is None else as_type(x, dtype)
    if not x.dtype.is_float:
        raise ValueError("a float operand expected")
    dims, wide = dims_of(x, dim), pw.ABS(as_type(x, x.dtype.compute))
    if not dims:
        return pw.ABS(x)
    if order in (math.inf, -math.inf):
        return as_type((reduce.AMAX if order > 0 else reduce.AMIN)(wide, dims=dims, keepdim=keepdim), x.dtype)
    powers = {2: lambda: pw.MUL(wide, wide), 1: lambda: wide, 0: lambda: as_type(pw.NE(wide, full(0, wide.dtype)), wide.dtype)}
    terms = powers[order]() if order in powers else pw.POW(wide, full(order, wide.dtype))
    total = reduce.SUM(terms, dims=dims, keepdim=keepdim)
    if order == 2:
        total = pw.SQRT(total)
    elif order not in (0, 1):
        total = pw.POW(total, full(1.0 / order, wide.dtype))
    return as_type(total, x.dtype)


def _norm(x: Node, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    return _vector_norm(x, 2 if order is None else order, dim, keepdim, dtype=dtype)


# --- norms ------------------------------------------------------------------------------------------------------------


def layer_norm(x: Node, ndims: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """Parameters of a wider type than `x` are taken as they are."""
    wide = next((p.dtype for p in (weight, bias) if p is not None), x.dtype)
    if wide is not x.dtype and wide is x.dtype.compute:
        return as_type(layer_norm(as_type(x, wide), ndims, weight, bias, eps), x.dtype)
    if weight is None and bias is not None:
        return pointwise.ADD(composite.LAYER_NORM(x, ndims=ndims, eps=float(eps), affine="none"), bias)
    affine = [a for a in (weight, bias) if a is not None]
    kind = ("none", "weight", "both")[len(affine)]
    return composite.LAYER_NORM(x, *affine, ndims=ndims, eps=float(eps), affine=kind)


def _native_layer_norm(x: Node, shape: Any, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    dims = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    if not dims or x.shape[dims[0] :] != tuple(shape):
        raise ValueError("the normalised shape is not the operand's")
    out = layer_norm(x, len(shape), weight, bias, eps)
    wide = as_type(x, x.dtype.compute)
    mean = composite.MEAN(wide, dims=dims, keepdim=True)
    variance = composite.VAR(wide, dims=dims, correction=0, keepdim=True)
    rstd = pw.RSQRT(pw.ADD(variance, full(eps, wide.dtype)))
    kept = weight.dtype if weight is not None else x.dtype
    return out, as_type(mean, kept), as_type(rstd, kept)


def _channels(x: Node, per_channel: Node) -> Node:
    """A vector over dim 1, shaped to broadcast against `x`, in its compute type."""
    shape = (1, x.shape[1]) + (1,) * (len(x.shape) - 2)
    return view.RESHAPE(as_type(per_channel, x.dtype.compute), shape=shape)


def batch_norm(x: Node, weight: Node | None, bias: Node | None, mean: Node, variance: Node, eps: float) -> Node:
    """Normalised with given statistics: x * scale + shift, both per channel, as eager's CPU kernel."""
    wide = as_type(x, x.dtype.compute)
    scale = pw.RSQRT(pw.ADD(as_type(variance, wide.dtype), full(eps, wide.dtype)))
    if weight is not None:
        scale = pw.MUL(scale, as_type(weight, wide.dtype))
    shift = pw.NEG(pw.MUL(as_type(mean, wide.dtype), scale))
    if bias is not None:
        shift = pw.ADD(as_type(bias, wide.dtype), shift)
    return as_type(pw.ADD(pw.MUL(wide, _channels(x, scale)), _channels(x, shift)), x.dtype)


def batch_statistics(x: Node) -> tuple[Node, Node, Node]:
    """Per channel (dim 1), in the compute type: mean, variance, unbiased variance."""
    wide = as_type(x, x.dtype.compute)
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    variances = [composite.VAR(wide, dims=dims, correction=c, keepdim=False) for c in (0, 1)]
    return composite.MEAN(wide, dims=dims, keepdim=False), variances[0], variances[1]


def moved(old: Node, new: Node, momentum: float) -> Node:
    """The running average: (1 - momentum) * old + momentum * new."""
    wide = old.dtype.compute
    kept = pw.MUL(as_type(old, wide), full(1 - momentum, wide))
    return as_type(pw.ADD(kept, pw.MUL(as_type(new, wide), full(momentum, wide))), old.dtype)


def _group_norm(
    x: Node, weight: Node | None, bias: Node | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Node, Node, Node]:
    wide = as_type(x, x.dtype.compute)
    flat = view.RESHAPE(wide, shape=(n, groups, c // groups * hw))
    y = view.RESHAPE(composite.LAYER_NORM(flat, ndims=1, eps=float(eps), affine="none"), shape=x.shape)
    y = y if weight is None else pw.MUL(y, _channels(x, weight))
    y = y if bias is None else pw.ADD(y, _channels(x, bias))
    mean = composite.MEAN(flat, dims=(2,), keepdim=False)
    variance = composite.VAR(flat, dims=(2,), correction=0, keepdim=False)
    rstd = pw.RSQRT(pw.ADD(variance, full(eps, wide.dtype)))
    return as_type(y, x.dtype), as_type(mean, x.dtype), as_type(rstd, x.dtype)


BUILDS: dict[str, Build] = {
    "aten.sum.default": _sum, "aten.sum.dim_IntList": _sum, "aten.prod.default": _prod, "aten.prod.dim_int": _prod,
    "aten.mean.default": _mean, "aten.mean.dim": _mean,
    "aten.var.correction": _var, "aten.std.correction": _std, "aten.var_mean.correction": _var_mean,
    "aten.std_mean.correction": _std_mean,
    "aten.amax.default": _extreme(reduce.AMAX), "aten.amin.default": _extreme(reduce.AMIN),
    "aten.max.default": _extreme(reduce.AMAX), "aten.min.default": _extreme(reduce.AMIN),
    "aten.max.dim": _extreme_at(reduce.AMAX, reduce.ARGMAX), "aten.min.dim": _extreme_at(reduce.AMIN, reduce.ARGMIN),
    "aten.argmax.default": _arg(reduce.ARGMAX), "aten.argmin.default": _arg(reduce.ARGMIN),
    **{f"aten.any.{o}": _test(reduce.ANY_) for o in ("default", "dim", "dims")},
    **{f"aten.all.{o}": _test(reduce.ALL_) for o in ("default", "dim", "dims")},
    "aten.cumsum.default": _scan(scan.CUMSUM), "aten.cumprod.default": _scan(scan.CUMPROD),
    "aten._softmax.default": _softmax(composite.SOFTMAX), "aten._log_softmax.default": _softmax(composite.LOG_SOFTMAX),
    "aten._safe_softmax.default": _safe_softmax, "aten.logsumexp.default": logsumexp,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.norm.ScalarOpt_dim": _norm, "aten.norm.Scalar": _norm, "aten.norm.ScalarOpt_dim_dtype": _norm,
    "aten.norm.ScalarOpt_dtype": _norm,
    "aten.native_layer_norm.default": _native_layer_norm, "aten.native_group_norm.default": _group_norm,
}  # fmt: skip
