"""DTypes to torch's and back. In: either. Out: the other. The only table of the two."""

from __future__ import annotations

import torch

from ...base import dtypes
from ...base.dtypes import DType

TO_TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.name) for d in dtypes.ALL}
FROM_TORCH: dict[torch.dtype, DType] = {t: d for d, t in TO_TORCH.items()}


def to_torch(dtype: DType) -> torch.dtype:
    return TO_TORCH[dtype]


def from_torch(dtype: torch.dtype) -> DType:
    """Raises KeyError for a torch dtype without a counterpart (quantised and sub-byte types)."""
    return FROM_TORCH[dtype]
