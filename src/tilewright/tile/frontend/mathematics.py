"""The scalar functions of the kernel language: arithmetic, comparisons, conversions, `if_then_else`.

In: scalars. Out: expressions; of Python numbers, Python numbers where that is exact. Must not know statements.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from ...base import dtypes, scalar
from ...base.scalar import Const, Expr, Var
from ..ir import Buffer, Load, Region, const
from . import expressions
from .expressions import Value, arithmetic, mathematical
from .values import Cell, LanguageError, View, cast, dtype_of

__all__ = [
    "And",
    "Cast",
    "Not",
    "Or",
    "Select",
    "abs",
    "acos",
    "all_of",
    "any_of",
    "asin",
    "atan",
    "atan2",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceil",
    "ceildiv",
    "clamp",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "exp10",
    "floor",
    "floordiv",
    "floormod",
    "fma",
    "if_then_else",
    "infinity",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "max",
    "max_value",
    "min",
    "min_value",
    "pow",
    "power",
    "round",
    "rsqrt",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "truncdiv",
    "truncmod",
]  # fmt: skip


def infinity(dtype: Any = "float32") -> Expr:
    return const(math.inf, dtype_of(dtype))


_LARGEST = {dtypes.f64: 1.7976931348623157e308, dtypes.f32: 3.4028234663852886e38, dtypes.f16: 65504.0,
            dtypes.bf16: 3.3895313892515355e38, dtypes.f8e4m3: 448.0, dtypes.f8e5m2: 57344.0}  # fmt: skip


def max_value(dtype: Any) -> Expr:
    """The largest finite value of a type."""
    d = dtype_of(dtype)
    if d.is_float:
        return const(_LARGEST[d], d)
    return const(True, d) if d.kind == "bool" else const(2 ** (d.bits - (d.kind == "int")) - 1, d)


def min_value(dtype: Any) -> Expr:
    """The least finite value of a type."""
    d = dtype_of(dtype)
    if d.is_float:
        return const(-_LARGEST[d], d)
    return const(-(2 ** (d.bits - 1)) if d.kind == "int" else 0, d)


def Cast(dtype: Any, value: Value) -> Expr:  # noqa: N802  # the language's name
    return cast(scalar_of(value), dtype)


# --- expressions ------------------------------------------------------------------------------------------------------


def if_then_else(condition: Value, x: Value, y: Value) -> Value:
    """`x` where the condition holds, else `y`. Elements that only the branch not taken reads are not read."""
    test = scalar_of(condition)
    if not isinstance(test, Expr):
        return scalar_of(x) if test else scalar_of(y)
    truth = expressions.truth(test)
    return expressions.chosen(truth, _within(x, truth), _within(y, scalar.unary("not", truth)))


def _within(x: Value, cond: Expr) -> Value:
    """The value with element 0 read where `cond` does not hold, and the index is not surely one of the buffer's."""
    x = scalar_of(x)
    if not isinstance(x, Expr):
        return x

    def safe(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or all(isinstance(i, (Const, Var)) for i in e.index):
            return None
        return Load(e.buffer, tuple([i if isinstance(i, (Const, Var)) else scalar.select(cond, i, const(0)) for i in e.index]))

    return scalar.transform(x, safe)


Select = if_then_else


def ceildiv(a: Value, b: Value) -> Value:
    """a / b rounded up, for a positive b."""
    a, b = scalar_of(a), scalar_of(b)
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return -(-a // b)
    return arithmetic("floordiv", arithmetic("add", a, arithmetic("sub", b, 1)), b)


def _two(op: str) -> Callable[[Value, Value], Value]:
    return lambda a, b: arithmetic(op, scalar_of(a), scalar_of(b))


floordiv, floormod, atan2, copysign = _two("floordiv"), _two("mod"), _two("atan2"), _two("copysign")
truncdiv, truncmod = _two("quot"), _two("rem")
shift_left, shift_right = _two("shl"), _two("shr")
bitwise_and, bitwise_or, bitwise_xor = _two("and"), _two("or"), _two("xor")


def bitwise_not(x: Value) -> Value:
    return expressions.inverted(scalar_of(x))


def max(a: Any, *rest: Any) -> Value:
    """The largest; a NaN wins."""
    return _several("max", a, rest)


def min(a: Any, *rest: Any) -> Value:
    """The least; a NaN wins."""
    return _several("min", a, rest)


def _several(op: str, a: Any, rest: Sequence[Any]) -> Value:
    values = [scalar_of(v) for v in ((a, *rest) if rest else a)]
    result = values[0]
    for v in values[1:]:
        result = arithmetic(op, result, v)
    return result


def pow(x: Value, y: Value) -> Value:
    x, y = scalar_of(x), scalar_of(y)
    if isinstance(x, Expr) and not isinstance(y, Expr) and y == int(y) and 0 < y <= 8 and not isinstance(y, bool):
        result: Value = x
        for _ in range(int(y) - 1):
            result = arithmetic("mul", result, x)
        return result
    return arithmetic("pow", x, y)


power = pow


def abs(x: Value) -> Any:
    x = scalar_of(x)
    return scalar.unary("abs", expressions.widened(x)) if isinstance(x, Expr) else builtins.abs(x)


def round(x: Value) -> Any:
    """To the nearest integer, halves to even."""
    x = scalar_of(x)
    return _rounded("round", x) if isinstance(x, Expr) else builtins.round(x)


def _rounded(op: str, x: Value) -> Any:
    x = scalar_of(x)
    if isinstance(x, Expr) and not x.dtype.is_float:
        return x
    return mathematical(op, x) if isinstance(x, Expr) else getattr(math, op)(x)


def floor(x: Value) -> Any:
    return _rounded("floor", x)


def ceil(x: Value) -> Any:
    return _rounded("ceil", x)


def trunc(x: Value) -> Any:
    return _rounded("trunc", x)


def _one(op: str) -> Callable[[Value], Expr]:
    def function(x: Value) -> Expr:
        return mathematical(op, scalar_of(x))

    function.__name__ = op
    function.__doc__ = f"{op} of a scalar."
    return function


exp, exp2, log, log2, log10, log1p, sqrt, rsqrt, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, erf, isnan = map(
    _one, ("exp", "exp2", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
           "cosh", "tanh", "erf", "isnan"),
)  # fmt: skip
isnan.__name__ = "isnan"


def exp10(x: Value) -> Value:
    return exp2(arithmetic("mul", scalar_of(x), math.log2(10)))


def sigmoid(x: Value) -> Value:
    return arithmetic("div", 1.0, arithmetic("add", exp(expressions.negated(scalar_of(x))), 1.0))


def clamp(x: Value, low: Value, high: Value) -> Value:
    return min(max(x, low), high)


def fma(a: Value, b: Value, c: Value) -> Value:
    return arithmetic("add", arithmetic("mul", scalar_of(a), scalar_of(b)), scalar_of(c))


def all_of(*conditions: Value) -> Value:
    return _joined("and", conditions)


def any_of(*conditions: Value) -> Value:
    return _joined("or", conditions)


def _joined(op: str, conditions: Sequence[Value]) -> Value:
    result: Value = expressions.truth(scalar_of(conditions[0]))
    for c in conditions[1:]:
        result = arithmetic(op, result, expressions.truth(scalar_of(c)))
    return result


And, Or = all_of, any_of


def Not(x: Value) -> Value:  # noqa: N802
    return expressions.inverted(expressions.truth(scalar_of(x)))


def scalar_of(value: Any) -> Value:
    if isinstance(value, Cell):
        return value.value
    if isinstance(value, (Buffer, Region, View)):
        raise LanguageError(reason="a scalar is expected, a whole tile is given", hint="name an element: x[i, j]")
    if not expressions.is_scalar(value):
        raise LanguageError(reason=f"a scalar is expected, got {type(value).__name__}")
    return value
