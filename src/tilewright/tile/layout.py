"""Layouts: where the elements of a buffer live. In: sizes. Out: `ir.Layout`s, equal ones being one object.

A layout names its index variables `d0, d1, ...`. Rank-2 packings are of a matrix [k, n] that a `Gemm` reads as its `b`.
Must not know targets: a target asks for the panel width and the pairing that its instructions want.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ir import Expr, Layout, as_expr, const, var

Extent = Expr | int


def row_major_strides(shape: Sequence[Extent]) -> tuple[Expr, ...]:
    """The strides, in elements, of `shape` without gaps, the last dimension contiguous."""
    steps = [const(1)] if shape else []
    for n in reversed(shape[1:]):
        steps.append(steps[-1] * as_expr(n))  # type: ignore[arg-type]
    return tuple(reversed(steps))


def padded_strides(shape: Sequence[Extent], padding: int) -> tuple[Expr, ...]:
    """Row-major strides with `padding` elements behind each row (the last dimension).

    Rows a multiple of 1 KB apart would all fall into one set of a cache.
    """
    if not shape:
        return ()
    return row_major_strides((*shape[:-1], as_expr(shape[-1]) + padding))


def row_major(shape: Sequence[Extent]) -> Layout:
    """No gaps, the last dimension contiguous."""
    return strided("row_major", shape, row_major_strides(shape))


def padded(shape: Sequence[Extent], padding: int) -> Layout:
    """Row-major with `padding` elements behind each row."""
    return strided(f"padded{padding}", shape, padded_strides(shape, padding))


def column_major(shape: Sequence[Extent]) -> Layout:
    """No gaps, the first dimension contiguous."""
    return strided("column_major", shape, tuple(reversed(row_major_strides(tuple(reversed(shape))))))


def strided(name: str, shape: Sequence[Extent], strides: Sequence[Extent]) -> Layout:
    """Any non-negative strides, in elements; the size ends with the last element."""
    variables = tuple(var(f"d{k}") for k in range(len(shape)))
    address: Expr = const(0)
    size: Expr = const(1)
    for v, n, step in zip(variables, shape, strides, strict=True):
        address = address + v * as_expr(step)
        size = size + (as_expr(n) - 1) * as_expr(step)
    return Layout(name, variables, address, size)


def panels(k: Extent, n: Extent, width: int, pair: int = 1) -> Layout:
    """A matrix [k, n] in panels of `width` columns: [ceil(n / width)][ceil(k / pair)][width][pair].

    A panel is read front to back by a micro-kernel `width` columns wide. `pair` > 1 keeps that many consecutive rows of a
    column together, as dot-product instructions want them (bfloat16: 2, int8: 4). Where `n` or `k` is ragged the buffer's
    shape is `padded_extent` of it: the producer that packs must write zeros there, a micro-kernel reads them.
    """
    _check(width, pair)
    i, j = var("d0"), var("d1")
    rows = _ceildiv(k, pair)
    address = (j // width) * (rows * (width * pair)) + (i // pair) * (width * pair) + (j % width) * pair + i % pair
    name = f"panels{width}" if pair == 1 else f"panels{width}x{pair}"
    return Layout(name, (i, j), address, _ceildiv(n, width) * (rows * (width * pair)))


def pairs(k: Extent, n: Extent, pair: int = 2) -> Layout:
    """A matrix [k, n] with `pair` consecutive rows interleaved: [ceil(k / pair)][n][pair]."""
    _check(1, pair)
    i, j = var("d0"), var("d1")
    row = as_expr(n) * pair
    return Layout(f"pairs{pair}", (i, j), (i // pair) * row + j * pair + i % pair, _ceildiv(k, pair) * row)


def paired(shape: Sequence[Extent], leading: Sequence[Extent], pair: int = 2) -> Layout:
    """Matrices `shape` = [..., k, n], `leading` strides in elements apart, each with `pair` consecutive rows interleaved.

    Panels side by side are such matrices: [panels, k, width].
    """
    _check(1, pair)
    *before, k, n = shape
    variables = tuple(var(f"d{i}") for i in range(len(shape)))
    *lead, i, j = variables
    row = as_expr(n) * pair
    address = (i // pair) * row + j * pair + i % pair
    size = _ceildiv(k, pair) * row
    for v, extent, step in reversed(list(zip(lead, before, leading, strict=True))):
        address = v * as_expr(step) + address
        size = size + (as_expr(extent) - 1) * as_expr(step)
    return Layout(f"paired{pair}", variables, address, size)


def padded_extent(n: Extent, multiple: int) -> Expr:
    """`n` rounded up to a multiple: the logical extent to which a packed matrix must be written."""
    return _ceildiv(n, multiple) * multiple


def _ceildiv(n: Extent, d: int) -> Expr:
    return (as_expr(n) + (d - 1)) // d


def _check(width: int, pair: int) -> None:
    if width < 1 or pair < 1:
        raise ValueError(f"a panel's width and pairing must be positive, got {width} and {pair}")
