"""Running reductions along one dim. In: one operand. Out: rows that keep its type; 16-bit floats accumulate in float32.

As with `sum`, whoever wants torch's promotion of bool and small integers casts to i64 first. Must not know schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..ir import Attrs, Family, Op, TensorType, Type
from .rules import NUMBERS, admit, check_dim


@dataclass(frozen=True)
class ScanAttrs(Attrs):
    dim: int


def _infer(attrs: ScanAttrs, x: Type) -> TensorType:
    t = admit(x, NUMBERS)
    check_dim(attrs.dim, t.rank)
    return t


def _row(name: str, function: Callable[..., torch.Tensor]) -> Op:
    return Op(name, Family.SCAN, _infer, lambda a, x: function(x, a.dim, dtype=x.dtype), ScanAttrs, arity=1, dtypes=NUMBERS)


CUMSUM = _row("cumsum", torch.cumsum)
CUMPROD = _row("cumprod", torch.cumprod)

ROWS = (CUMSUM, CUMPROD)
