"""Rewrites of the graph that only a lowering wants.

In: a graph after its own passes. Out: the same graph without composites, with large reductions in two steps, and right sides of
matmuls packed where they are constant or large. Must not know groups or kernels.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ...base.dims import divides, quotient
from ...graph.ir import Family, Graph, Node, rewrite_nodes, users
from ...graph.ops.contract import ATTENTION, MATMUL
from ...graph.ops.pointwise import ADD, BITAND, BITOR, FULL, MAXIMUM, MINIMUM, MUL
from ...graph.ops.reduce import ReduceAttrs
from ...graph.ops.view import RESHAPE, SLICE
from ...graph.passes.composites import expand_composites
from ...graph.passes.folded import fixed_nodes
from ..hints import Hints
from ..schedule import Machine
from .packing import packed, pair_of
from .space import shape_of

SPLIT_ELEMENTS = 1 << 16
"""A reduction to fewer results than twice the threads, over more elements than this, is worth several blocks."""

_COMBINED = {"sum": ADD, "prod": MUL, "amax": MAXIMUM, "amin": MINIMUM, "any": BITOR, "all": BITAND}
_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True}


def prepare(graph: Graph, machine: Machine, hints: Hints, library: bool = False) -> Graph:
    """`library`: a library may compute what `for_library` says."""
    graph = expand_composites(rewrite_nodes(graph, _attention))
    graph = rewrite_nodes(graph, lambda n, args: _reduction(n, args, machine, hints))
    fixed = fixed_nodes(graph)
    readers = users(graph) if library else {}
    left = {n for n in readers if for_library(n, machine, hints) and n.args[1] not in fixed and not any(map(_fuses, readers[n]))}
    return rewrite_nodes(graph, lambda n, args: None if n in left else _packed(n, args, fixed, machine, hints))


def _attention(n: Node, args: tuple[Node, ...]) -> Node | None:
    """Attention written out where its template lacks a number that it needs: how many features there are."""
    if n.op is not ATTENTION or ATTENTION.expand is None or all(isinstance(a.shape[-1], int) for a in args[:3]):
        return None
    return ATTENTION.expand(n.attrs, *args)


def for_library(n: Node, machine: Machine, hints: Hints) -> bool:
    """Whether `n` is a product that the library computes faster where both sides change and nothing is fused to it."""
    if n.op is not MATMUL or any(len(a.shape) != 2 for a in n.args):
        return False
    rows, k, columns = hints.all((*shape_of(n.args[0]), shape_of(n)[-1]))
    return machine.library_wins(n.dtype, rows, columns, k)


def _fuses(reader: Node) -> bool:
    """Whether a product's reader can be computed on its way out."""
    return reader.op.family in (Family.POINTWISE, Family.VIEW)


def _reduction(n: Node, args: tuple[Node, ...], machine: Machine, hints: Hints) -> Node | None:
    if n.op.family is not Family.REDUCE:
        return None
    x, sizes = args[0], shape_of(args[0])
    total = hints.product(sizes)
    if 0 in sizes and n.op.name in _EMPTY:
        return FULL(value=_EMPTY[n.op.name], dtype=n.dtype, shape=n.shape)
    if not isinstance(n.attrs, ReduceAttrs):  # the place of an extreme
        return FULL(value=0, dtype=n.dtype, shape=n.shape) if math.prod(sizes) == 1 else None
    dims = n.attrs.dims
    if not dims:
        return x
    rows = hints.product(s for i, s in enumerate(sizes) if i not in dims)
    if rows >= 2 * machine.threads or total < SPLIT_ELEMENTS:
        return None
    return _in_two(n, x, dims, 8 * machine.threads, hints)


def _in_two(n: Node, x: Node, dims: tuple[int, ...], parts: int, hints: Hints) -> Node | None:
    """The reduction over parts of one dimension, then over the parts; None where no dimension divides.

    A symbolic dimension may leave a rest, fewer elements than there are parts, which is reduced by itself.
    """
    sizes = shape_of(x)
    for d in dims:
        count = next((p for p in range(parts, 4 * parts) if divides(p, sizes[d])), None)
        if count is not None and hints(sizes[d]) // count >= 8:
            return _parts(n, x, dims, d, count)
        if not isinstance(sizes[d], int) and hints(sizes[d]) // parts >= 8:
            whole = sizes[d] // parts * parts
            first = SLICE(x, dim=d, start=0, stop=whole, step=1)
            rest = SLICE(x, dim=d, start=whole, stop=sizes[d], step=1)
            last = n.op(rest, dims=dims, keepdim=len(n.shape) == len(sizes))
            return _COMBINED[n.op.name](_parts(n, first, dims, d, parts), last)
    return None


def _parts(n: Node, x: Node, dims: tuple[int, ...], d: int, count: int) -> Node:
    """`count`, which divides dimension d, parts of it reduced, then these."""
    sizes = shape_of(x)
    length = quotient(sizes[d], count)
    assert length is not None
    inner = tuple(e + (e >= d) for e in dims)
    first = n.op(RESHAPE(x, shape=(*sizes[:d], count, length, *sizes[d + 1 :])), dims=inner)
    at = sum(1 for e in range(d) if e not in dims)
    second = n.op(first, dims=(at,))
    return second if second.shape == n.shape else RESHAPE(second, shape=n.shape)


def _packed(n: Node, args: tuple[Node, ...], fixed: Collection[Node], machine: Machine, hints: Hints) -> Node | None:
    if n.op is not MATMUL or n.tensor.numel == 0:
        return None
    a, b = args
    depth = shape_of(b)[-2]
    left, (*batch, k, columns) = hints.all(shape_of(a)), hints.all(shape_of(b))
    rows = math.prod(left[:-1]) if not batch else left[-2]
    if n.args[1] not in fixed:
        if not machine.packs_ahead(n.dtype, rows, columns, k):
            return None
    elif n.args[0] in fixed:
        return None
    wide = isinstance(depth, int) and machine.widens(n.dtype, k, math.prod(left[:-1]))
    return packed(n, a, b, machine.nr, pair_of(machine, n.dtype, depth), wide)
