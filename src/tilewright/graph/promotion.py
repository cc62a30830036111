"""torch's type promotion, on nodes and Python numbers.

In: operands. Out: the dtype they compute in, and operands of that dtype. The rule is `c10::promoteTypes` by category:
tensors with dims, tensors without, and numbers; a lower category only counts where its kind is higher.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import torch

from ..base import dtypes
from ..base.dims import Dim
from ..base.dtypes import DType
from .ir import Node
from .ops.pointwise import CAST, FULL
from .ops.torch_dtypes import from_torch, to_torch

Number: TypeAlias = int | float | bool | Dim
"""A `Dim` is an int whose value is open."""

Operand: TypeAlias = Node | Number

_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


@functools.cache
def promote(a: DType, b: DType) -> DType:
    return a if a is b else from_torch(torch.promote_types(to_torch(a), to_torch(b)))


def default_float() -> DType:
    return from_torch(torch.get_default_dtype())


def of_number(value: Number) -> DType:
    if isinstance(value, bool):
        return dtypes.b1
    if isinstance(value, complex):
        return dtypes.c64 if default_float().bytes < 8 else dtypes.c128
    return dtypes.i64 if isinstance(value, int | Dim) else default_float()


def result_type(*operands: Operand) -> DType:
    """As `torch.result_type`, for any number of operands."""
    first = operands[0]
    if isinstance(first, Node) and first.shape and all(isinstance(o, Node) and o.dtype is first.dtype for o in operands):
        return first.dtype
    categories: list[DType | None] = [None, None, None]
    for o in operands:
        rank, dtype = (0 if o.shape else 1, o.dtype) if isinstance(o, Node) else (2, of_number(o))
        seen = categories[rank]
        categories[rank] = dtype if seen is None else promote(seen, dtype)
    found = _combine(categories[0], _combine(categories[1], categories[2]))
    assert found is not None
    return found


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    if _RANK[lower.kind] > _RANK[higher.kind]:
        return promote(higher, lower)
    return higher


def float_type(*operands: Operand) -> DType:
    """The promoted type, integers taken for the default float type."""
    dtype = result_type(*operands)
    return dtype if _RANK[dtype.kind] >= 2 else default_float()


def as_type(x: Operand, dtype: DType) -> Node:
    """The operand in that dtype. A number becomes a `full` without dims. Raises ValueError for one that the dtype lacks."""
    if isinstance(x, Node):
        return x if x.dtype is dtype else CAST(x, dtype=dtype)
    return full(x, dtype)


def full(x: Number, dtype: DType, shape: tuple[int, ...] = ()) -> Node:
    if isinstance(x, complex):
        raise ValueError("complex numbers have no row")
    if isinstance(x, Dim):
        return as_type(FULL(value=x, dtype=dtypes.i64, shape=shape), dtype)
    if dtype.kind == "bool":
        return FULL(value=bool(x), dtype=dtype, shape=shape)
    return FULL(value=float(x) if dtype.is_float else int(x), dtype=dtype, shape=shape)


def alike(*operands: Operand) -> list[Node]:
    """The operands, promoted to one type."""
    dtype = result_type(*operands)
    return [as_type(o, dtype) for o in operands]


def can_cast(source: DType, target: DType) -> bool:
    """Whether eager lets an in-place operation store `source` results in a `target` tensor."""
    return torch.can_cast(to_torch(source), to_torch(target))


def inexact(x: Operand, dtype: DType) -> bool:
    """Whether a number is changed by a 16-bit float type, which eager does not convert it to."""
    if isinstance(x, Node) or not dtype.is_float or dtype.bytes > 2:
        return False
    if isinstance(x, Dim):
        return True
    value = float(x)
    return value == value and float(torch.tensor(value, dtype=torch.float64).to(to_torch(dtype))) != value
