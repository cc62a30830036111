"""Composite operators: kept whole for pattern matching, and written in simpler rows by `expand`.

In: float operands. Out: rows with both. An expansion works in the compute type (float32 for 16-bit floats) and casts back at the
end, as eager's kernels do. Must not know which of them a target fuses into one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...base.dims import Size, maximum
from ...base.dtypes import DType
from ..ir import Attrs, Family, Node, Op, TensorType, Type
from .pointwise import ADD, CAST, DIV, EXP, FULL, LOG, MUL, RSQRT, SUB
from .reduce import AMAX, SUM, ReduceAttrs
from .rules import FLOATS, NumberAttrs, admit, check_dim, check_dims, one_dtype, reduced, require

functional = torch.nn.functional


def widened(x: Node) -> Node:
    """`x` in its compute type."""
    return narrowed(x, x.dtype.compute)


def narrowed(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else CAST(x, dtype=dtype)


def _constant(value: Size | float, like: Node) -> Node:
    return FULL(value=value, dtype=like.dtype)


def _average(x: Node, dims: tuple[int, ...], keepdim: bool = True) -> Node:
    return DIV(SUM(x, dims=dims, keepdim=keepdim), _constant(_count(x, dims), x))


def _count(x: Node, dims: tuple[int, ...]) -> Size:
    return math.prod(x.shape[d] for d in dims)


# --- mean and variance ------------------------------------------------------------------------------------------------


def _infer_mean(attrs: ReduceAttrs, x: Type) -> TensorType:
    t = admit(x, FLOATS)
    check_dims(attrs.dims, t.rank)
    return TensorType(t.dtype, reduced(t.shape, attrs.dims, attrs.keepdim))


def _mean(attrs: ReduceAttrs, x: torch.Tensor) -> torch.Tensor:
    return torch.mean(x, attrs.dims, attrs.keepdim) if attrs.dims else x.clone()


def _expand_mean(attrs: ReduceAttrs, x: Node) -> Node:
    return narrowed(_average(widened(x), attrs.dims, attrs.keepdim), x.dtype)


MEAN = Op("mean", Family.COMPOSITE, _infer_mean, _mean, ReduceAttrs, expand=_expand_mean, arity=1, dtypes=FLOATS)


@dataclass(frozen=True, eq=False)
class VarAttrs(NumberAttrs):
    """The sum of squared deviations is divided by max(0, count - correction), so too few elements give NaN or infinity."""

    dims: tuple[int, ...]
    correction: float | int = 1
    keepdim: bool = False


def _infer_var(attrs: VarAttrs, x: Type) -> TensorType:
    t = admit(x, FLOATS)
    require(len(attrs.dims) > 0, "at least one dim expected")
    check_dims(attrs.dims, t.rank)
    return TensorType(t.dtype, reduced(t.shape, attrs.dims, attrs.keepdim))


def _var(attrs: VarAttrs, x: torch.Tensor) -> torch.Tensor:
    return torch.var(x, attrs.dims, correction=attrs.correction, keepdim=attrs.keepdim)


def _expand_var(attrs: VarAttrs, x: Node) -> Node:
    wide = widened(x)
    centred = SUB(wide, _average(wide, attrs.dims))
    squares = SUM(MUL(centred, centred), dims=attrs.dims, keepdim=attrs.keepdim)
    return narrowed(DIV(squares, _constant(_freedom(_count(x, attrs.dims), attrs.correction), wide)), x.dtype)


def _freedom(count: Size, correction: float | int) -> Size | float:
    """max(0, count - correction)"""
    if isinstance(count, int):
        return max(0, count - correction)
    require(int(correction) == correction, f"a correction of {correction} with a symbolic count")
    return maximum(0, count - int(correction))


VAR = Op("var", Family.COMPOSITE, _infer_var, _var, VarAttrs, expand=_expand_var, arity=1, dtypes=FLOATS)

# --- softmax ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SoftmaxAttrs(Attrs):
    dim: int


def _infer_softmax(attrs: SoftmaxAttrs, x: Type) -> TensorType:
    t = admit(x, FLOATS)
    check_dim(attrs.dim, t.rank)
    return t


def _shifted(x: Node, dim: int) -> Node:
    return SUB(x, AMAX(x, dims=(dim,), keepdim=True))


def _expand_softmax(attrs: SoftmaxAttrs, x: Node) -> Node:
    if x.shape[attrs.dim] == 0:
        return x
    e = EXP(_shifted(widened(x), attrs.dim))
    return narrowed(DIV(e, SUM(e, dims=(attrs.dim,), keepdim=True)), x.dtype)


def _expand_log_softmax(attrs: SoftmaxAttrs, x: Node) -> Node:
    if x.shape[attrs.dim] == 0:
        return x
    shifted = _shifted(widened(x), attrs.dim)
    return narrowed(SUB(shifted, LOG(SUM(EXP(shifted), dims=(attrs.dim,), keepdim=True))), x.dtype)


SOFTMAX = Op(
    "softmax", Family.COMPOSITE, _infer_softmax, lambda a, x: torch.softmax(x, a.dim), SoftmaxAttrs,
    expand=_expand_softmax, arity=1, dtypes=FLOATS,
)  # fmt: skip
LOG_SOFTMAX = Op(
    "log_softmax", Family.COMPOSITE, _infer_softmax, lambda a, x: torch.log_softmax(x, a.dim), SoftmaxAttrs,
    expand=_expand_log_softmax, arity=1, dtypes=FLOATS,
)  # fmt: skip

# --- normalisation ----------------------------------------------------------------------------------------------------

AFFINE = {"none": 0, "weight": 1, "both": 2}  # operands after x


@dataclass(frozen=True, eq=False)
class LayerNormAttrs(NumberAttrs):
    """`ndims` trailing dims are normalised. `affine`: "none", "weight" (x, w) or "both" (x, w, b)."""

    ndims: int = 1
    eps: float = 1e-5
    affine: str = "none"


@dataclass(frozen=True, eq=False)
class RmsNormAttrs(NumberAttrs):
    """`ndims` trailing dims are normalised; a weight operand may follow x."""

    ndims: int = 1
    eps: float = 1e-6


def _infer_norm(ndims: int, types: tuple[Type, ...]) -> TensorType:
    operands = tuple(admit(t, FLOATS) for t in types)
    one_dtype(operands)
    x = operands[0]
    require(1 <= ndims <= x.rank, f"{ndims} normalised dims of rank {x.rank}")
    for t in operands[1:]:
        require(t.shape == x.shape[-ndims:], f"weight and bias of shape {x.shape[-ndims:]} expected, got {t.shape}")
    return x


def _infer_layer_norm(attrs: LayerNormAttrs, *types: Type) -> TensorType:
    require(attrs.affine in AFFINE, f"unknown affine {attrs.affine!r}")
    require(len(types) == 1 + AFFINE[attrs.affine], f"{1 + AFFINE[attrs.affine]} operands expected, got {len(types)}")
    return _infer_norm(attrs.ndims, types)


def _infer_rms_norm(attrs: RmsNormAttrs, *types: Type) -> TensorType:
    require(1 <= len(types) <= 2, f"one or two operands expected, got {len(types)}")
    return _infer_norm(attrs.ndims, types)


def _trailing(x: Node, ndims: int) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - ndims, len(x.shape)))


def _scaled(y: Node, affine: tuple[Node, ...]) -> Node:
    if len(affine) > 0:
        y = MUL(y, widened(affine[0]))
    if len(affine) > 1:
        y = ADD(y, widened(affine[1]))
    return y


def _expand_layer_norm(attrs: LayerNormAttrs, x: Node, *affine: Node) -> Node:
    """Two passes: the variance is of the centred values."""
    dims = _trailing(x, attrs.ndims)
    wide = widened(x)
    centred = SUB(wide, _average(wide, dims))
    variance = _average(MUL(centred, centred), dims)
    normal = MUL(centred, RSQRT(ADD(variance, _constant(attrs.eps, wide))))
    return narrowed(_scaled(normal, affine), x.dtype)


def _expand_rms_norm(attrs: RmsNormAttrs, x: Node, *affine: Node) -> Node:
    wide = widened(x)
    square = _average(MUL(wide, wide), _trailing(x, attrs.ndims))
    normal = MUL(wide, RSQRT(ADD(square, _constant(attrs.eps, wide))))
    return narrowed(_scaled(normal, affine), x.dtype)


def _layer_norm(attrs: LayerNormAttrs, x: torch.Tensor, *affine: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-attrs.ndims :], *affine, eps=attrs.eps)


def _rms_norm(attrs: RmsNormAttrs, x: torch.Tensor, *affine: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-attrs.ndims :], *affine, eps=attrs.eps)


LAYER_NORM = Op(
    "layer_norm", Family.COMPOSITE, _infer_layer_norm, _layer_norm, LayerNormAttrs, expand=_expand_layer_norm, dtypes=FLOATS
)
RMS_NORM = Op("rms_norm", Family.COMPOSITE, _infer_rms_norm, _rms_norm, RmsNormAttrs, expand=_expand_rms_norm, dtypes=FLOATS)

ROWS = (MEAN, VAR, SOFTMAX, LOG_SOFTMAX, LAYER_NORM, RMS_NORM)
