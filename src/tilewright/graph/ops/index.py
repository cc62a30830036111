"""Data movement that computes where to read or write. In: operands and integer indices. Out: rows of the INDEX family.

Indices are i64 or i32, never negative, and out of range is an error in eager. Must not know how gathers are emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...base import dtypes
from ...base.dims import Size
from ...base.dtypes import DType
from ...base.scalar import Expr, cast
from ..ir import Attrs, Family, Op, Shape, TensorType, Type
from .rules import FLOATS, INTS, STORED, NumberAttrs, admit, check_dim, in_range, one_dtype, require
from .torch_dtypes import moved, to_torch
from .view import check_slice, check_strided

INDICES = (dtypes.i64, dtypes.i32)


@dataclass(frozen=True, eq=False)
class IotaAttrs(NumberAttrs):
    """The elements `start + i * step`, i from 0 to `size` - 1."""

    size: Size
    dtype: DType = dtypes.i64
    start: float | int = 0
    step: float | int = 1


def _infer_iota(attrs: IotaAttrs) -> TensorType:
    require(attrs.dtype in FLOATS + INTS, f"no range of {attrs.dtype}")
    whole = isinstance(attrs.start, int) and isinstance(attrs.step, int)
    require(whole or attrs.dtype.is_float, f"start {attrs.start} and step {attrs.step} must be integers for {attrs.dtype}")
    return TensorType(attrs.dtype, (attrs.size,))


def _iota(attrs: IotaAttrs) -> torch.Tensor:
    wide = torch.float64 if attrs.dtype.is_float else torch.int64
    return (attrs.start + torch.arange(attrs.size, dtype=wide) * attrs.step).to(to_torch(attrs.dtype))


def _iota_body(attrs: IotaAttrs, i: Expr) -> Expr:
    """The element at index `i` (i64)."""
    if attrs.dtype.is_float:
        return cast(cast(i, dtypes.f64) * attrs.step + attrs.start, attrs.dtype.compute)
    return cast(i * attrs.step + attrs.start, attrs.dtype)


IOTA = Op("iota", Family.INDEX, _infer_iota, _iota, IotaAttrs, _iota_body, arity=0)


@dataclass(frozen=True)
class DimAttrs(Attrs):
    dim: int


def _infer_cat(attrs: DimAttrs, *types: Type) -> TensorType:
    require(len(types) > 0, "at least one operand expected")
    operands = tuple(admit(t, STORED) for t in types)
    dtype, first = one_dtype(operands), operands[0].shape
    check_dim(attrs.dim, len(first))
    total: Size = 0
    for t in operands:
        same = t.rank == len(first) and all(a == b for d, (a, b) in enumerate(zip(t.shape, first, strict=True)) if d != attrs.dim)
        require(same, f"shapes {first} and {t.shape} differ outside dim {attrs.dim}")
        total = total + t.shape[attrs.dim]
    return TensorType(dtype, first[: attrs.dim] + (total,) + first[attrs.dim + 1 :])


CAT = Op("cat", Family.INDEX, _infer_cat, lambda a, *tensors: torch.cat(tensors, a.dim), DimAttrs, dtypes=STORED)


def _infer_take(attrs: DimAttrs, x: Type, index: Type) -> TensorType:
    t, i = admit(x, STORED), admit(index, INDICES)
    check_dim(attrs.dim, t.rank)
    return TensorType(t.dtype, t.shape[: attrs.dim] + i.shape + t.shape[attrs.dim + 1 :])


def _take(attrs: DimAttrs, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    flat = torch.index_select(x, attrs.dim, index.reshape(-1))
    return flat.reshape(x.shape[: attrs.dim] + index.shape + x.shape[attrs.dim + 1 :])


TAKE = Op("take", Family.INDEX, _infer_take, _take, DimAttrs, arity=2, dtypes=STORED)


def _infer_gather(attrs: DimAttrs, x: Type, index: Type) -> TensorType:
    t, i = admit(x, STORED), admit(index, INDICES)
    check_dim(attrs.dim, t.rank)
    require(i.rank == t.rank, f"index of rank {t.rank} expected, got {i.rank}")
    for d, (a, b) in enumerate(zip(i.shape, t.shape, strict=True)):
        fits = d == attrs.dim or not (isinstance(a, int) and isinstance(b, int)) or a <= b
        require(fits, f"index size {a} exceeds {b} in dim {d}")
    return TensorType(t.dtype, i.shape)


def _gather(attrs: DimAttrs, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return moved(lambda bits: torch.gather(bits, attrs.dim, index.long()), x)


GATHER = Op("gather", Family.INDEX, _infer_gather, _gather, DimAttrs, arity=2, dtypes=STORED)


@dataclass(frozen=True)
class SliceScatterAttrs(Attrs):
    """As `slice`'s."""

    dim: int
    start: Size
    stop: Size
    step: Size = 1


def _infer_slice_scatter(attrs: SliceScatterAttrs, x: Type, src: Type) -> TensorType:
    t, s = admit(x, STORED), admit(src, STORED)
    one_dtype((t, s))
    size = check_slice(t.shape, attrs.dim, attrs.start, attrs.stop, attrs.step)
    expected = t.shape[: attrs.dim] + (size,) + t.shape[attrs.dim + 1 :]
    require(s.shape == expected, f"source of shape {expected} expected, got {s.shape}")
    return t


def _slice_scatter(attrs: SliceScatterAttrs, x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, src, attrs.dim, attrs.start, attrs.stop, attrs.step)


SLICE_SCATTER = Op("slice_scatter", Family.INDEX, _infer_slice_scatter, _slice_scatter, SliceScatterAttrs, arity=2, dtypes=STORED)


@dataclass(frozen=True)
class AsStridedScatterAttrs(Attrs):
    """Where in `x`'s row-major memory each element of `src` goes, in elements. Places must not overlap."""

    strides: Shape
    offset: Size = 0


def _infer_as_strided_scatter(attrs: AsStridedScatterAttrs, x: Type, src: Type) -> TensorType:
    t, s = admit(x, STORED), admit(src, STORED)
    one_dtype((t, s))
    check_strided(t.numel, s.shape, attrs.strides, attrs.offset)
    return t


def _as_strided_scatter(attrs: AsStridedScatterAttrs, x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    out.as_strided(src.shape, attrs.strides, attrs.offset).copy_(src)
    return out


AS_STRIDED_SCATTER = Op(
    "as_strided_scatter", Family.INDEX, _infer_as_strided_scatter, _as_strided_scatter,
    AsStridedScatterAttrs, arity=2, dtypes=STORED,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PadAttrs(NumberAttrs):
    """`pads[d]`: elements of `value` before and after dim d, both non-negative."""

    pads: tuple[tuple[Size, Size], ...]
    value: float | int | bool = 0


def _infer_pad(attrs: PadAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    require(len(attrs.pads) == t.rank, f"{t.rank} pads expected, got {len(attrs.pads)}")
    require(all(not isinstance(n, int) or n >= 0 for pair in attrs.pads for n in pair), "negative pad")
    require(in_range(attrs.value, t.dtype), f"{attrs.value} is no value of {t.dtype}")
    return TensorType(t.dtype, tuple(lo + n + hi for n, (lo, hi) in zip(t.shape, attrs.pads, strict=True)))


def _pad(attrs: PadAttrs, x: torch.Tensor) -> torch.Tensor:
    out = torch.full(tuple(lo + n + hi for n, (lo, hi) in zip(x.shape, attrs.pads, strict=True)), attrs.value, dtype=x.dtype)
    out[tuple(slice(lo, lo + n) for n, (lo, _) in zip(x.shape, attrs.pads, strict=True))].copy_(x)
    return out


PAD = Op("pad", Family.INDEX, _infer_pad, _pad, PadAttrs, arity=1, dtypes=STORED)

ROWS = (IOTA, CAT, TAKE, GATHER, SLICE_SCATTER, AS_STRIDED_SCATTER, PAD)
