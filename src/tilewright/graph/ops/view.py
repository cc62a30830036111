"""Views: the same elements in another arrangement. In: one operand. Out: rows that only move indices.

Values have no strides inside a graph, so `as_strided` sees its operand as row-major contiguous memory.
Must not know which views are free in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...base.dims import Size
from ..ir import Attrs, Family, Op, Shape, TensorType, Type
from .rules import STORED, admit, check_dim, check_dims, known, require
from .torch_dtypes import moved


@dataclass(frozen=True)
class ReshapeAttrs(Attrs):
    shape: Shape


@dataclass(frozen=True)
class PermuteAttrs(Attrs):
    """`dims[i]`: the operand's dim that becomes dim i."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class ExpandAttrs(Attrs):
    """The full result shape; operand dims of size 1 are repeated, new dims lead."""

    shape: Shape


@dataclass(frozen=True)
class SliceAttrs(Attrs):
    """0 <= start <= stop <= size, step >= 1."""

    dim: int
    start: Size
    stop: Size
    step: Size = 1


@dataclass(frozen=True)
class FlipAttrs(Attrs):
    dims: tuple[int, ...]


@dataclass(frozen=True)
class AsStridedAttrs(Attrs):
    """Strides and offset in elements of the operand's row-major memory."""

    shape: Shape
    strides: Shape
    offset: Size = 0


def _infer_reshape(attrs: ReshapeAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    require(math.prod(attrs.shape) == t.numel, f"{t.numel} elements do not fill shape {attrs.shape}")
    return TensorType(t.dtype, attrs.shape)


def _infer_permute(attrs: PermuteAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    require(sorted(attrs.dims) == list(range(t.rank)), f"dims {attrs.dims} are no permutation of rank {t.rank}")
    return TensorType(t.dtype, tuple([t.shape[d] for d in attrs.dims]))


def _infer_expand(attrs: ExpandAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    extra = len(attrs.shape) - t.rank
    require(extra >= 0, f"shape {attrs.shape} has fewer dims than {t.shape}")
    fits = all(a == b or a == 1 for a, b in zip(t.shape, attrs.shape[extra:], strict=True))
    require(fits, f"shape {t.shape} does not expand to {attrs.shape}")
    return TensorType(t.dtype, attrs.shape)


def slice_size(start: Size, stop: Size, step: Size) -> Size:
    """The number of elements of a slice."""
    return (stop - start + step - 1) // step


def check_slice(shape: Shape, dim: int, start: Size, stop: Size, step: Size) -> Size:
    """The slice's size; raises ValueError where it is not within the dim."""
    numbers = known(start, stop, shape[check_dim(dim, len(shape))], step)
    if numbers is not None:
        lo, hi, size, by = numbers
        require(0 <= lo <= hi <= size and by >= 1, f"slice {lo}:{hi}:{by} is not within size {size}")
    return slice_size(start, stop, step)


def _infer_slice(attrs: SliceAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    size = check_slice(t.shape, attrs.dim, attrs.start, attrs.stop, attrs.step)
    return TensorType(t.dtype, t.shape[: attrs.dim] + (size,) + t.shape[attrs.dim + 1 :])


def _infer_flip(attrs: FlipAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    check_dims(attrs.dims, t.rank)
    return t


def check_strided(numel: Size, shape: Shape, strides: Shape, offset: Size) -> None:
    """Raises ValueError for strides that leave `numel` elements of memory; symbolic sizes pass."""
    require(len(strides) == len(shape), f"{len(strides)} strides for {len(shape)} dims")
    numbers = known(numel, offset, *strides, *shape)
    if numbers is None or 0 in shape:
        return
    count, first, *rest = numbers
    steps, sizes = rest[: len(strides)], rest[len(strides) :]
    require(first >= 0 and all(s >= 0 for s in steps), "negative stride or offset")
    last = first + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    require(last < count, f"element {last} is outside the operand's {count}")


def _infer_as_strided(attrs: AsStridedAttrs, x: Type) -> TensorType:
    t = admit(x, STORED)
    check_strided(t.numel, attrs.shape, attrs.strides, attrs.offset)
    return TensorType(t.dtype, attrs.shape)


def _slice(attrs: SliceAttrs, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.slice(x, attrs.dim, attrs.start, attrs.stop, attrs.step)


def _flip(attrs: FlipAttrs, x: torch.Tensor) -> torch.Tensor:
    return moved(lambda bits: bits.flip(attrs.dims), x)


def _as_strided(attrs: AsStridedAttrs, x: torch.Tensor) -> torch.Tensor:
    memory = x.contiguous()
    return memory.as_strided(attrs.shape, attrs.strides, memory.storage_offset() + attrs.offset)


RESHAPE = Op("reshape", Family.VIEW, _infer_reshape, lambda a, x: x.reshape(a.shape), ReshapeAttrs, arity=1, dtypes=STORED)
PERMUTE = Op("permute", Family.VIEW, _infer_permute, lambda a, x: x.permute(a.dims), PermuteAttrs, arity=1, dtypes=STORED)
EXPAND = Op("expand", Family.VIEW, _infer_expand, lambda a, x: x.expand(a.shape), ExpandAttrs, arity=1, dtypes=STORED)
SLICE = Op("slice", Family.VIEW, _infer_slice, _slice, SliceAttrs, arity=1, dtypes=STORED)
FLIP = Op("flip", Family.VIEW, _infer_flip, _flip, FlipAttrs, arity=1, dtypes=STORED)
AS_STRIDED = Op(
    "as_strided", Family.VIEW, _infer_as_strided,
    _as_strided, AsStridedAttrs, arity=1, dtypes=STORED,
)  # fmt: skip

ROWS = (RESHAPE, PERMUTE, EXPAND, SLICE, FLIP, AS_STRIDED)
