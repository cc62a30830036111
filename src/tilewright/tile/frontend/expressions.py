"""Arithmetic of the kernel language: Python's operators on scalars of different types.

In: Python numbers and `Expr`s. Out: typed `Expr`s. Types are brought together as torch does it: a Python number takes the
other operand's type, integers become floats beside a float, the 16- and 8-bit floats are computed in float32. Must not know
statements or buffers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from ...base import dtypes, scalar
from ...base.dtypes import DType
from ...base.scalar import Const, Expr, const

Value: TypeAlias = Expr | int | float | bool

_NUMBERS = (int, float)


def is_scalar(value: Any) -> bool:
    return isinstance(value, (Expr, *_NUMBERS))


def widened(e: Expr) -> Expr:
    """The value in the type that it is computed in."""
    return scalar.cast(e, e.dtype.compute)


def expr(value: Value, dtype: DType | None = None) -> Expr:
    """The value as an expression; of `dtype`, if given, else a Python number is an i64, f32 or b1. Raises TypeError."""
    if isinstance(value, Expr):
        return value if dtype is None else scalar.cast(value, dtype)
    if not isinstance(value, _NUMBERS):
        raise TypeError(f"a scalar expected, got {type(value).__name__}")
    return const(value, dtype if dtype is not None else _type_of(value))


def _type_of(value: int | float) -> DType:
    if isinstance(value, bool):
        return dtypes.b1
    return dtypes.i64 if isinstance(value, int) else dtypes.f32


def together(x: Value, y: Value) -> tuple[Expr, Expr]:
    """Both operands in one type."""
    if not isinstance(x, Expr) and not isinstance(y, Expr):
        return together(expr(x), expr(y))
    if not isinstance(x, Expr):
        b, a = together(y, x)
        return a, b
    x = widened(x)
    if not isinstance(y, Expr):
        if isinstance(y, float) and not x.dtype.is_float:
            x = scalar.cast(x, dtypes.f32)
        elif x.dtype.kind == "bool" and not isinstance(y, bool):
            x = scalar.cast(x, dtypes.i32)
        return x, const(y, x.dtype)
    y = widened(y)
    common = _common(x.dtype, y.dtype)
    return scalar.cast(x, common), scalar.cast(y, common)


def _common(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.is_float or b.is_float:
        floats = [d for d in (a, b) if d.is_float]
        return max(floats, key=lambda d: d.bytes)
    if "bool" in (a.kind, b.kind):
        return b if a.kind == "bool" else a
    if a.bytes != b.bytes:
        return a if a.bytes > b.bytes else b
    return a if a.kind == "int" else b


def arithmetic(op: str, x: Value, y: Value) -> Value:
    """`x op y`, where op is one of `scalar.BINARY`; of two Python numbers by Python."""
    if not isinstance(x, Expr) and not isinstance(y, Expr):
        return _PYTHON[op](x, y)
    a, b = together(x, y)
    if op == "div" and not a.dtype.is_float:
        a, b = scalar.cast(a, dtypes.f32), scalar.cast(b, dtypes.f32)
    if op == "floordiv" and a.dtype.is_float:
        return scalar.unary("floor", scalar.binary("div", a, b))
    if op == "sub" and isinstance(b, Const) and b.dtype is dtypes.i64:
        return scalar.binary("add", a, -int(b.value))
    if op in _ON_NUMBERS and a.dtype.kind == "bool":
        a, b = scalar.cast(a, dtypes.i32), scalar.cast(b, dtypes.i32)
    return scalar.binary(op, a, b)


_ON_NUMBERS = frozenset(("add", "sub", "mul", "floordiv", "mod", "shl", "shr"))
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "floordiv": operator.floordiv,
    "mod": operator.mod, "pow": operator.pow, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "min": min, "max": max, "atan2": math.atan2, "copysign": math.copysign,
}  # fmt: skip


def negated(x: Value) -> Value:
    return scalar.unary("neg", widened(x)) if isinstance(x, Expr) else -x


def inverted(x: Value) -> Value:
    return scalar.unary("not", x) if isinstance(x, Expr) else ~int(x)


def truth(x: Value) -> Expr:
    """The value as a condition."""
    e = expr(x)
    return e if e.dtype is dtypes.b1 else scalar.binary("ne", e, const(0, e.dtype))


def chosen(cond: Value, x: Value, y: Value) -> Value:
    """`x` where `cond`, else `y`."""
    if not isinstance(cond, Expr):
        return x if cond else y
    a, b = together(x, y)
    return scalar.select(truth(cond), a, b)


def mathematical(op: str, x: Value) -> Expr:
    """A function of one float, of `scalar.UNARY`; an integer becomes a float32."""
    e = widened(expr(x))
    return scalar.unary(op, e if e.dtype.is_float else scalar.cast(e, dtypes.f32))
