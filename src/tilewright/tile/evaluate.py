"""Scalar expressions over NumPy arrays: the exact meaning of `base.scalar`, element by element.

In: an `Expr`, and a function that gives the values of its leaves (variables, loads). Out: an array or NumPy scalar of
the expression's type. Must not know statements, buffers or torch.

Held values: float16 as float16; bfloat16 and the 8-bit floats as float32 already rounded to the type; all others as
themselves. Arithmetic on floats under 32 bits is done in float32 and rounded. Float32 transcendentals are computed in
float64 and rounded once. Run under `np.errstate(all="ignore")`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base import dtypes
from ..base.dtypes import DType
from ..base.scalar import Binary, Cast, Const, Expr, Select, Unary

Array = Any
"""A NumPy array or NumPy scalar."""

_STORED: dict[DType, np.dtype[Any]] = {
    dtypes.bf16: np.dtype(np.uint16), dtypes.f8e4m3: np.dtype(np.uint8), dtypes.f8e5m2: np.dtype(np.uint8),
    dtypes.b1: np.dtype(np.bool_), dtypes.c32: np.dtype(np.uint32),
}  # fmt: skip


@cache
def stored(dtype: DType) -> np.dtype[Any]:
    """How memory holds elements: bit patterns in uint16 and uint8 for the floats that NumPy lacks, else the type itself."""
    return _STORED[dtype] if dtype in _STORED else np.dtype(dtype.name)


@cache
def held(dtype: DType) -> np.dtype[Any]:
    """How a value is held while computing: float32 (rounded) for the floats that NumPy lacks."""
    return np.dtype(np.float32) if dtype.is_float and dtype in _STORED else stored(dtype)


def decode(raw: Array, dtype: DType) -> Array:
    """Memory to held values. Memory of a float that NumPy lacks may also be float32, which then holds rounded values."""
    if dtype not in _STORED or raw.dtype == held(dtype):
        return raw
    if dtype is dtypes.bf16:
        return (np.asarray(raw).astype(np.uint32) << np.uint32(16)).view(np.float32)[()]
    return _decoded8(dtype)[raw] if dtype.is_float else raw.astype(held(dtype))


def encode(value: Array, dtype: DType, storage: np.dtype[Any]) -> Array:
    """Held values to memory."""
    if dtype not in _STORED or storage == held(dtype):
        return value
    if dtype is dtypes.bf16:
        return (np.asarray(value).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return _encoded8(value, dtype) if dtype.is_float else value.astype(storage)


def rounded(value: Array, dtype: DType) -> Array:
    """A float array rounded to nearest even in `dtype`, as held. Halves go through float32, as in torch."""
    if not dtype.is_float or dtype.bytes >= 4:
        return value.astype(held(dtype), copy=False)
    value = np.asarray(value).astype(np.float32, copy=False)
    if dtype is dtypes.f16:
        return value.astype(np.float16)[()]
    if dtype is dtypes.bf16:
        bits = value.view(np.uint32)
        near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(value), np.uint32(0x7FC00000), near).view(np.float32)[()]
    return _decoded8(dtype)[_encoded8(value, dtype)]


def convert(value: Array, source: DType, target: DType) -> Array:
    """C's conversion, as torch does it: towards zero from float to integer, `x != 0` to bool."""
    if source is target:
        return value
    if target.kind == "bool":
        return value != 0
    if target.is_float:
        return rounded(value, target)
    return value.astype(held(target))


def constant(value: float, dtype: DType) -> Array:
    """A Python number as a held value; integers wrap."""
    if dtype.is_float:
        return rounded(np.float64(value), dtype)
    if dtype.kind == "bool":
        return np.bool_(value)
    bits = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "int" and bits >> (dtype.bits - 1):
        bits -= 1 << dtype.bits
    return held(dtype).type(bits)


_CONSTANTS: weakref.WeakKeyDictionary[Expr, Array] = weakref.WeakKeyDictionary()


def evaluate(e: Expr, leaf: Callable[[Expr], Array], memo: dict[Expr, Array] | None = None) -> Array:
    """The value of `e`, broadcast as its leaves require; `leaf` gives the value of every node that is not base.scalar's own.

    `memo` shares values among expressions evaluated in one state of memory. Raises ZeroDivisionError where an integer is
    divided by zero, TypeError for an operation that its type does not have.
    """
    return _evaluate(e, leaf, {} if memo is None else memo)


def _evaluate(e: Expr, leaf: Callable[[Expr], Array], memo: dict[Expr, Array]) -> Array:
    known = memo.get(e)
    if known is not None:
        return known
    match e:
        case Const(value, dtype):
            result = _CONSTANTS.get(e)
            if result is None:
                result = _CONSTANTS[e] = constant(value, dtype)
        case Unary(op, x):
            result = unary(op, _evaluate(x, leaf, memo), x.dtype)
        case Binary(op, x, y):
            result = binary(op, _evaluate(x, leaf, memo), _evaluate(y, leaf, memo), x.dtype)
        case Select(cond, x, y):
            result = np.where(*(_evaluate(k, leaf, memo) for k in (cond, x, y)))[()]
        case Cast(x, dtype):
            result = convert(_evaluate(x, leaf, memo), x.dtype, dtype)
        case _:
            result = leaf(e)
    memo[e] = result
    return result


def unary(op: str, x: Array, dtype: DType) -> Array:
    """One operation on held values of type `dtype`."""
    if not dtype.is_float:
        return _unary_integer(op, x, dtype)
    if op == "isnan":
        return np.isnan(x)
    wide = x.astype(held(dtype.compute), copy=False)
    if op in _EXACT:
        return rounded(_EXACT[op](wide), dtype)
    return rounded(_TRANSCENDENTAL[op](wide.astype(np.float64, copy=False)), dtype)


def binary(op: str, x: Array, y: Array, dtype: DType) -> Array:
    """One operation on held values of type `dtype`, broadcast."""
    if op in _COMPARE:
        return _COMPARE[op](x, y)
    if not dtype.is_float:
        return _binary_integer(op, x, y, dtype)
    wide = held(dtype.compute)
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    if op in _FLOAT:
        return rounded(_FLOAT[op](x, y), dtype)
    if op in ("pow", "atan2"):
        x, y = x.astype(np.float64, copy=False), y.astype(np.float64, copy=False)
        return rounded(np.power(x, y) if op == "pow" else np.arctan2(x, y), dtype)
    raise TypeError(f"{op} on {dtype}")


def _each(f: Callable[[float], float]) -> Callable[[Array], Array]:
    """A scalar function of the math module over float64 arrays."""
    over = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(over(x), dtype=np.float64)


_EXACT: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "recip": np.reciprocal,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
}  # fmt: skip
_TRANSCENDENTAL: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x), "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "erf": _each(math.erf), "erfc": _each(math.erfc),
}  # fmt: skip
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide, "mod": np.mod,
    "quot": lambda x, y: np.trunc(x / y), "rem": np.fmod, "min": np.minimum, "max": np.maximum, "copysign": np.copysign,
}  # fmt: skip
_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,  # a count outside [0, bits) shifts everything out
}  # fmt: skip
_BOOL: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "min": np.logical_and, "max": np.logical_or,
    "add": np.logical_or, "mul": np.logical_and,
}  # fmt: skip


def _unary_integer(op: str, x: Array, dtype: DType) -> Array:
    if op == "isnan":
        return np.zeros_like(x, dtype=np.bool_)[()]
    if op == "not":
        return np.invert(x)
    if op in ("floor", "ceil", "trunc", "round"):
        return x
    if op in ("neg", "abs") and dtype.is_integer:
        return np.negative(x) if op == "neg" else np.abs(x)
    if op == "abs":
        return x
    raise TypeError(f"{op} on {dtype}")


def _binary_integer(op: str, x: Array, y: Array, dtype: DType) -> Array:
    table = _BOOL if dtype.kind == "bool" else _INTEGER
    if op in table:
        return table[op](x, y)
    if dtype.kind == "bool" or op not in ("floordiv", "mod", "quot", "rem", "pow"):
        raise TypeError(f"{op} on {dtype}")
    if op == "pow":
        return _integer_power(x, y)
    if np.any(y == 0):
        raise ZeroDivisionError(f"{op} by zero on {dtype}")
    if op in ("floordiv", "mod"):
        return np.floor_divide(x, y) if op == "floordiv" else np.mod(x, y)
    rest = np.fmod(x, y)
    return rest if op == "rem" else np.floor_divide(x - rest, y)


def _integer_power(x: Array, y: Array) -> Array:
    """A negative exponent gives the integer part of the true power: 0, or ±1 for a base of ±1."""
    odd = np.where(y % 2 == 0, x * x, x)
    return np.where(y < 0, np.where(x * x == 1, odd, x.dtype.type(0)), np.power(x, np.maximum(y, y.dtype.type(0))))[()]


_UFUNC: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
}  # fmt: skip
_OF_BOOL = {"sum": "max", "prod": "min"}


def reduced(op: str, value: Array, dtype: DType) -> tuple[Array, DType]:
    """`value` (of type `dtype`) reduced over its last axis, and the result's type. Raises ValueError for argmax of nothing."""
    if op in ("argmax", "argmin"):
        if not value.shape[-1]:
            raise ValueError(f"{op} of nothing")
        return (np.argmax if op == "argmax" else np.argmin)(value, axis=-1), dtypes.i64
    if op in ("any", "all"):
        return (np.any if op == "any" else np.all)(value != 0, axis=-1), dtypes.b1
    if dtype.kind == "bool":
        op, value = _OF_BOOL.get(op, op), value.astype(np.uint8)
    result = _UFUNC[op].reduce(value, axis=-1, initial=_identity(op, value.dtype), dtype=value.dtype)
    return (rounded(result, dtype) if dtype.is_float else result.astype(held(dtype))), dtype


def combined(op: str, old: Array, new: Array, dtype: DType) -> Array:
    """One step of reduction `op`. Raises ValueError for argmax and argmin, which keep no value to compare with."""
    if op in ("argmax", "argmin"):
        raise ValueError(f"{op} cannot accumulate")
    if op in ("any", "all"):
        return ((old != 0) | (new != 0) if op == "any" else (old != 0) & (new != 0)).astype(held(dtype))
    return binary({"sum": "add", "prod": "mul"}.get(op, op.removeprefix("bit")), old, new, dtype)


def scanned(op: str, value: Array, axis: int) -> Array:
    """The inclusive scan along `axis`, in the array's own type."""
    return _UFUNC[op].accumulate(value, axis=axis, dtype=value.dtype)


def _identity(op: str, kind: np.dtype[Any]) -> Any:
    if op in ("sum", "prod"):
        return kind.type(op == "prod")
    if op in ("max", "min"):
        if kind.kind == "f":
            return kind.type(-np.inf if op == "max" else np.inf)
        return np.iinfo(kind).min if op == "max" else np.iinfo(kind).max
    return np.invert(kind.type(0)) if op == "bitand" else kind.type(0)


@cache
def _decoded8(dtype: DType) -> np.ndarray:
    """The float32 value of each 8-bit code."""
    exponent_bits, mantissa_bits = (4, 3) if dtype is dtypes.f8e4m3 else (5, 2)
    bias = (1 << (exponent_bits - 1)) - 1
    values = []
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        unit = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        values.append((mantissa + ((1 << mantissa_bits) if exponent else 0)) * unit)
    if dtype is dtypes.f8e4m3:
        values[127] = math.nan
    else:
        values[124:] = [math.inf, math.nan, math.nan, math.nan]
    half = np.array(values, dtype=np.float32)
    return np.concatenate([half, -half])


def _encoded8(value: Array, dtype: DType) -> Array:
    """The nearest code, ties to even. What exceeds the largest value becomes it in e4m3, which has no infinity, as in torch."""
    value = np.asarray(value, dtype=np.float32)
    largest = 126 if dtype is dtypes.f8e4m3 else 124
    steps = _decoded8(dtype)[: largest + 1].astype(np.float64)
    if dtype is dtypes.f8e5m2:
        steps[largest] = 65536.0  # where infinity stands
    size = np.abs(value).astype(np.float64)
    above = np.clip(np.searchsorted(steps, size), 1, largest)
    middle = (steps[above - 1] + steps[above]) / 2
    code = np.where((size > middle) | ((size == middle) & (above % 2 == 0)), above, above - 1)
    code = np.where(np.isnan(value), 127, code)
    return (code + np.where(np.signbit(value), 128, 0)).astype(np.uint8)[()]
