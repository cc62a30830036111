"""Transcendental functions on registers: own polynomials for fp32, calls of libm a lane for fp64.

In: a function's name, operands as text. Out: instructions. Must not know expressions or memory.
"""

from __future__ import annotations

from .lanes import Lanes

_LIBM = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "asin", "acos", "atan", "sinh", "cosh",
    "erf", "erfc", "pow", "atan2",
)  # fmt: skip


def unary(o: Lanes, op: str, x: str) -> str:
    return libm(o, op, x)


def binary(o: Lanes, op: str, x: str, y: str) -> str:
    return libm(o, op, x, y)


def libm(o: Lanes, name: str, *args: str) -> str:
    """The C library's function, lane by lane."""
    if name not in _LIBM:
        raise TypeError(f"{name} on {o.dtype}")
    symbol = name if o.element == "double" else name + "f"
    result = "poison"
    for k in range(o.lanes):
        one = o.f.call(o.element, symbol, [o.element] * len(args), [o.lane(x, k) for x in args])
        result = o.with_lane(result, k, one)
    return result
