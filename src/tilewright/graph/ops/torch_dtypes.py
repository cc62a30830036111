"""DTypes to torch's and back. In: either. Out: the other. The only table of the two."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...base import dtypes
from ...base.dtypes import DType

TO_TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.name) for d in dtypes.ALL}
FROM_TORCH: dict[torch.dtype, DType] = {t: d for d, t in TO_TORCH.items()}


_BITS = {
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def to_torch(dtype: DType) -> torch.dtype:
    return TO_TORCH[dtype]


def moved(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`function(x)`, which only moves elements, also for dtypes that eager's kernels of that kind do not know."""
    bits = _BITS.get(x.dtype)
    return function(x) if bits is None else function(x.view(bits)).view(x.dtype)


def from_torch(dtype: torch.dtype) -> DType:
    """Raises KeyError for a torch dtype without a counterpart (quantised and sub-byte types)."""
    return FROM_TORCH[dtype]
