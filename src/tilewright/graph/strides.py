"""The strides that eager gives its results. In: shapes and strides of operands, in elements. Out: strides of the result.

The elementwise rule is TensorIterator's (aten/src/ATen/TensorIterator.cpp: fast set-up, else a stable sort of the dims by the
operands' strides). Values inside a graph have no strides: these matter for views, outputs and contiguity tests only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import symbolic

Sizes = tuple[Any, ...]
"""Ints; while a recording decides about them (`base.dims.deciding`) Dims behave as ints too, and may be among these."""
F = TypeVar("F", bound=Callable[..., Any])
Operand = tuple[Sizes, Sizes]  # shape, strides


def _cached(function: F) -> F:
    """Answers are remembered, but for recordings with symbolic sizes: each makes its own assumptions."""
    remembered = functools.lru_cache(maxsize=4096)(function)

    def answer(*args: Any) -> Any:
        return function(*args) if symbolic.is_open() else remembered(*args)

    return answer  # type: ignore[return-value]


@_cached
def contiguous(shape: Sizes) -> Sizes:
    """Row-major strides, as torch gives them: a size of 0 counts as 1."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@_cached
def channels_last(shape: Sizes) -> Sizes:
    """Strides of a 4-D or 5-D tensor whose second dim is innermost."""
    order = (1, *range(len(shape) - 1, 1, -1), 0)
    return _packed(shape, order)


def is_contiguous(shape: Sizes, strides: Sizes) -> bool:
    if strides == contiguous(shape):
        return True
    expected = 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1:
            if s != expected and 0 not in shape:
                return False
            expected *= n
    return True


def is_channels_last(shape: Sizes, strides: Sizes) -> bool:
    """As torch's `is_contiguous(memory_format=torch.channels_last)` (or `_3d`)."""
    if len(shape) not in (4, 5):
        return False
    expected = 1
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] != 1:
            if strides[d] != expected:
                return False
            expected *= shape[d]
    return True


@_cached
def suggests_channels_last(shape: Sizes, strides: Sizes) -> bool:
    """Whether `suggest_memory_format` says channels last: the strides order the dims so, ambiguous ones excepted."""
    if len(shape) not in (4, 5) or strides[1] == 0:
        return False
    smallest = 0
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] == 0 or strides[d] < smallest:
            return False
        if d == 0 and smallest == strides[1]:
            return False
        smallest = strides[d] * max(shape[d], 1)
    return True


@_cached
def is_dense(shape: Sizes, strides: Sizes) -> bool:
    """Whether the elements fill an interval of memory, each place once; dims of size 0 and 1 have any stride."""
    if is_contiguous(shape, strides):
        return True
    expected = 1
    for s, n in sorted((s, n) for n, s in zip(shape, strides) if n > 1):
        if s != expected:
            return False
        expected *= n
    return True


def span(shape: Sizes, strides: Sizes) -> int:
    """The number of elements from the first place to the last, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))


@_cached
def may_overlap(shape: Sizes, strides: Sizes) -> bool:
    """Whether two elements share a place; true too where a search of bounded length does not tell."""
    if 0 in shape:
        return False
    dims = sorted((s, n) for n, s in zip(shape, strides) if n > 1)
    reach = 0
    for s, n in dims:
        if s <= reach:
            break
        reach += (n - 1) * s
    else:
        return False  # each dim steps over all that the smaller ones reach
    if dims[0][0] == 0:
        return True
    if symbolic.is_open():
        dims = [(symbolic.active().settle(s), symbolic.active().settle(n)) for s, n in dims]
    return _solvable([(s, 1 - n, n - 1) for s, n in reversed(dims)], 0, True)


Geometry = tuple[Sizes, Sizes, int]  # shape, strides, offset


def _settled(g: Geometry) -> Geometry:
    settle = symbolic.active().settle
    return tuple(map(settle, g[0])), tuple(map(settle, g[1])), settle(g[2])


def intersect(a: Geometry, b: Geometry) -> bool:
    """Whether two tensors in one memory have a place in common; true where a search of bounded length does not tell.

    A common place solves sum(stride * step) = distance, the steps of `a` forward and those of `b` backward.
    """
    if symbolic.is_open():
        a, b = _settled(a), _settled(b)
    if 0 in a[0] or 0 in b[0]:
        return False
    steps: dict[int, tuple[int, int]] = {}
    for sign, (shape, strides, _) in ((1, a), (-1, b)):
        for n, s in zip(shape, strides):
            if n > 1 and s:
                low, high = steps.get(s, (0, 0))
                steps[s] = (low, high + n - 1) if sign > 0 else (low - n + 1, high)
    return _solvable(sorted(((s, *bounds) for s, bounds in steps.items()), reverse=True), b[2] - a[2], False)


def _solvable(terms: list[tuple[int, int, int]], distance: int, moving: bool, budget: int = 10_000) -> bool:
    """Whether sum(s * step) = distance for steps within bounds, given as (s, lowest, highest), s falling.

    `moving`: the solution of no steps does not count. A depth-first search; true where it exceeds the budget.
    """
    rest = [(sum(s * low for s, low, _ in terms[k:]), sum(s * high for s, _, high in terms[k:])) for k in range(len(terms) + 1)]
    todo = [(0, distance, not moving)]
    while todo:
        k, left, moved = todo.pop()
        if not rest[k][0] <= left <= rest[k][1]:
            continue
        if k == len(terms):
            if moved:
                return True
            continue
        s, low, high = terms[k]
        first = max(low, -((rest[k + 1][1] - left) // s))
        last = min(high, (left - rest[k + 1][0]) // s)
        budget -= max(0, last - first + 1)
        if budget < 0:
            return True
        todo += [(k + 1, left - s * step, moved or step != 0) for step in range(first, last + 1)]
    return False


def overlaps_itself(shape: Sizes, strides: Sizes) -> bool:
    """What eager refuses to write into: a repeated dim (stride 0)."""
    return any(n > 1 and s == 0 for n, s in zip(shape, strides)) and 0 not in shape


def elementwise(shape: Sizes, operands: Sequence[Operand]) -> Sizes:
    """Strides of a pointwise result of that shape; operands with shape () stand for numbers too."""
    if all(s == shape and is_contiguous(s, t) for s, t in operands):
        return contiguous(shape)
    return _elementwise(shape, tuple(operands))


@_cached
def _elementwise(shape: Sizes, operands: tuple[Operand, ...]) -> Sizes:
    if all(s == shape for s, _ in operands):
        if all(is_channels_last(s, t) for s, t in operands):
            return channels_last(shape)
        first = operands[0][1]
        if is_dense(shape, first) and all(t == first for _, t in operands):
            return first
    order = _order(shape, [_broadcast_strides(shape, s, t) for s, t in operands])
    if order == list(range(len(shape) - 1, -1, -1)):
        return contiguous(shape)
    return _packed(shape, tuple(order))


def like(shape: Sizes, strides: Sizes) -> Sizes:
    """Strides of a copy that preserves the format (`clone`, `empty_like`)."""
    if is_dense(shape, strides):
        return strides
    return _elementwise(shape, ((shape, strides),))


def _broadcast_strides(shape: Sizes, own: Sizes, strides: Sizes) -> list[int]:
    extra = len(shape) - len(own)
    return [0] * extra + [0 if n == 1 and shape[extra + d] != 1 else s for d, (n, s) in enumerate(zip(own, strides))]


def _order(shape: Sizes, operands: list[list[int]]) -> list[int]:
    """Dims from innermost to outermost: an insertion sort by the operands' strides that keeps ambiguous pairs."""

    def compare(inner: int, outer: int) -> int:
        for strides in operands:
            a, b = strides[inner], strides[outer]
            if a == 0 or b == 0:
                continue
            if a != b:
                return -1 if a < b else 1
            if shape[inner] > shape[outer]:
                return 1
        return 0

    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            c = compare(order[j], order[at])
            if c > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif c < 0:
                break
    return order


def _packed(shape: Sizes, order: tuple[int, ...]) -> Sizes:
    """Strides without gaps, dims given from innermost to outermost."""
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def memory_order(shape: Sizes, strides: Sizes) -> tuple[int, ...]:
    """The dims by falling stride: permuted so, a dense tensor is row-major."""
    return tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d], d)))


def numel(shape: Sizes) -> int:
    return math.prod(shape)
