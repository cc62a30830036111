"""Interval arithmetic on integers: between which bounds a result lies, given those of its operands.

In and out: `Range`s (least, greatest), where a bound is an int or an infinity. Must not know what is bounded.
"""

from __future__ import annotations

import math
from typing import TypeAlias

Bound: TypeAlias = int | float  # an int, or an infinity
Range: TypeAlias = tuple[Bound, Bound]


def is_finite(r: Range) -> bool:
    return -math.inf < r[0] and r[1] < math.inf


def times(x: Range, y: Range) -> Range:
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


def _times(a: Bound, b: Bound) -> Bound:
    if a == 0 or b == 0:
        return 0
    if math.isinf(a) or math.isinf(b):
        return math.inf if (a > 0) == (b > 0) else -math.inf
    return a * b


def power(x: Range, n: int) -> Range:
    """x to the n-th, n >= 1: an even power is not negative."""
    result = x
    for _ in range(n - 1):
        result = times(result, x)
    return (max(result[0], 0), result[1]) if n % 2 == 0 else result


def floordiv(x: Range, y: Range) -> Range:
    """x // y, where y is not zero."""
    if y[1] < 0:
        x, y = (-x[1], -x[0]), (-y[1], -y[0])
    if y[0] <= 0:  # the divisor may be of either sign
        most = max(abs(x[0]), abs(x[1]))
        return -most, most
    return _floor(x[0], y[1] if x[0] >= 0 else y[0]), _floor(x[1], y[0] if x[1] >= 0 else y[1])


def _floor(a: Bound, b: Bound) -> Bound:
    if math.isinf(a):
        return a
    if math.isinf(b):
        return 0 if a >= 0 else -1
    return a // b


def mod(x: Range, y: Range) -> Range:
    """x % y, where y is not zero: of y's sign."""
    if y[0] > 0:
        return 0, (min(y[1] - 1, x[1]) if x[0] >= 0 else y[1] - 1)
    if y[1] < 0:
        return y[0] + 1, 0
    return min(y[0] + 1, 0), max(y[1] - 1, 0)


def minimum(*ranges: Range) -> Range:
    return min(r[0] for r in ranges), min(r[1] for r in ranges)


def maximum(*ranges: Range) -> Range:
    return max(r[0] for r in ranges), max(r[1] for r in ranges)
