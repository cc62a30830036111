"""What the rows of the op table share: groups of dtypes, checks of operands, broadcasting, attributes that hold numbers.

In: operand types. Out: result types, or `ValueError` with the reason, which `ir.make` prefixes with the operator.
Must not know torch or any particular operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base import dtypes
from ...base.dims import Dim, Size, provably_eq
from ...base.dtypes import DType
from ..ir import Attrs, Shape, TensorType, Type

FLOATS = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16)
INTS = (dtypes.i64, dtypes.i32, dtypes.i16, dtypes.i8, dtypes.u8)  # the integers that eager computes with
BOOL = (dtypes.b1,)
NUMBERS = FLOATS + INTS
ANY = NUMBERS + BOOL
STORED = tuple(d for d in dtypes.ALL if d.kind != "complex")  # what data movement and casts admit

Infer = Callable[..., Type]


@dataclass(frozen=True, eq=False)
class NumberAttrs(Attrs):
    """Base of attributes with Python numbers among them: `1`, `True` and `1.0` differ, and `0.0` and `-0.0`; NaN equals NaN.

    Subclasses are declared `@dataclass(frozen=True, eq=False)`.
    """

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and _key(self) == _key(other))

    def __hash__(self) -> int:
        return hash(_key(self))


def field_names(attrs: Attrs | type[Attrs]) -> tuple[str, ...]:
    """The names of an attribute class's fields, in order."""
    names: tuple[str, ...] = attrs.__match_args__
    return names


def _key(attrs: Attrs) -> tuple[Any, ...]:
    return tuple(exact(getattr(attrs, name)) for name in field_names(attrs))


def exact(value: Any) -> Any:
    """A key that is equal for equal values of equal types only, tuples included."""
    if isinstance(value, tuple):
        return tuple(exact(v) for v in value)
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, bool | complex):
        return (type(value).__name__, repr(value))
    return value


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def tensor(t: Type) -> TensorType:
    """The operand's type, where it is one tensor's."""
    if not isinstance(t, TensorType):
        raise ValueError("an operator with several results is no operand; take one with getitem")
    return t


def admit(t: Type, admitted: tuple[DType, ...]) -> TensorType:
    """The operand's type, checked to be a tensor's of an admitted dtype."""
    t = tensor(t)
    if t.dtype not in admitted:
        raise ValueError(f"{t.dtype} operands are not admitted, only {', '.join(map(repr, admitted))}")
    return t


def one_dtype(types: tuple[TensorType, ...]) -> DType:
    """The operands' common dtype: casts are explicit nodes."""
    first = types[0].dtype
    for t in types:
        if t.dtype is not first:
            raise ValueError(f"operands of one dtype expected, got {first} and {t.dtype}")
    return first


def broadcast(*shapes: Shape) -> Shape:
    """NumPy's rule: aligned on the right, each size equal or 1."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(_broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def _broadcast_size(sizes: tuple[Size, ...]) -> Size:
    result: Size = 1
    for s in sizes:
        if result == 1:
            result = s
        elif s != 1 and s != result and not provably_eq(s, result):
            raise ValueError(f"sizes {result} and {s} do not broadcast")
    return result


def check_dim(dim: int, rank: int) -> int:
    require(0 <= dim < rank, f"dim {dim} is out of range for rank {rank}")
    return dim


def check_dims(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Sorted, distinct, non-negative dims of a tensor of that rank."""
    require(list(dims) == sorted(set(dims)), f"dims {dims} must be sorted and distinct")
    for d in dims:
        check_dim(d, rank)
    return dims


def known(*sizes: Size) -> tuple[int, ...] | None:
    """The sizes, where none is symbolic: what can be checked now."""
    numbers = tuple([s for s in sizes if isinstance(s, int)])
    return numbers if len(numbers) == len(sizes) else None


def in_range(value: float | Size, dtype: DType) -> bool:
    """Whether a Python number is a value of the dtype; every number is one of a float type, and a symbolic size of i64."""
    if dtype.is_float:
        return True
    if isinstance(value, Dim):
        return dtype is dtypes.i64
    if dtype.kind == "bool":
        return value in (0, 1)
    low, high = (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    return not math.isnan(value) and low <= value <= high and int(value) == value


def reduced(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    """The shape after reducing `dims`."""
    if keepdim:
        return tuple(1 if i in dims else s for i, s in enumerate(shape))
    return tuple(s for i, s in enumerate(shape) if i not in dims)
