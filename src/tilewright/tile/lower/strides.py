"""Where the elements of a kept node lie: strides that make its readers' views free.

In: a node and its reads. Out: strides in elements. Must not know values or arenas.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...base.dims import Size, divides
from ...graph.ir import Family, Node
from .packing import PACKED_MATMUL
from .space import row_major, shape_of
from .views import pull_back

PADDING = 16  # elements
CONFLICT = 1024  # bytes: rows a multiple of this apart fall into few sets of a cache


def choose(n: Node, readers: Iterable[tuple[Node, Node]]) -> tuple[Size, ...]:
    """Strides for `n`, read by (consumer, operand) pairs: the left side of a matmul has its way first."""
    shape = shape_of(n)
    for consumer, operand in readers:
        if consumer.op.family is not Family.CONTRACT or not _is_matmul(consumer):
            continue
        left = operand is consumer.args[0]
        wanted = padded(operand) if left else row_major(shape_of(operand))
        found = _pulled(n, operand, wanted)
        if found is not None and _keeps_last(shape, found):
            return found
    return row_major(shape)


def padded(n: Node) -> tuple[Size, ...]:
    """Row-major strides, rows apart by no multiple of 1 KB."""
    shape = shape_of(n)
    if len(shape) < 2 or shape[-2] == 1 or not divides(CONFLICT, shape[-1] * n.dtype.bytes):
        return row_major(shape)
    row = shape[-1] + PADDING
    return (*(s * row for s in row_major(shape[:-1])), 1)


def _pulled(n: Node, operand: Node, strides: tuple[Size, ...]) -> tuple[Size, ...] | None:
    found: tuple[Size, ...] | None = strides
    while operand is not n and found is not None:
        found = pull_back(operand, found)
        operand = operand.args[0]
    return found


def _keeps_last(shape: tuple[Size, ...], strides: tuple[Size, ...]) -> bool:
    """Whether the producer, which writes along its last dimension, still writes contiguously."""
    return next((t == 1 for s, t in zip(reversed(shape), reversed(strides), strict=True) if s != 1), True)


def _is_matmul(n: Node) -> bool:
    return n.op is PACKED_MATMUL or n.op.name == "matmul"
