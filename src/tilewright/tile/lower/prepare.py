"""Rewrites of the graph that only a lowering wants.

In: a graph after its own passes. Out: the same graph without composites, with large reductions in two steps and constant
right sides of matmuls packed. Must not know groups or kernels.
"""

from __future__ import annotations

import math

from ...graph.ir import Family, Graph, Node, make, rewrite_nodes
from ...graph.ops.contract import MATMUL
from ...graph.ops.pointwise import FULL
from ...graph.ops.view import RESHAPE
from ...graph.passes.composites import expand_composites
from ...graph.passes.folded import fixed_nodes
from ..schedule import Machine
from .packing import packed

SPLIT_ELEMENTS = 1 << 16
"""A reduction to fewer results than twice the threads, over more elements than this, is worth several blocks."""

_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True}


def prepare(graph: Graph, machine: Machine) -> Graph:
    graph = expand_composites(graph)
    graph = rewrite_nodes(graph, lambda n, args: _reduction(n, args, machine))
    fixed = fixed_nodes(graph)
    return rewrite_nodes(graph, lambda n, args: _packed(n, args, fixed, machine))


def _reduction(n: Node, args: tuple[Node, ...], machine: Machine) -> Node | None:
    if n.op.family is not Family.REDUCE:
        return None
    x = args[0]
    if x.tensor.numel == 0 and n.op.name in _EMPTY:
        return FULL(value=_EMPTY[n.op.name], dtype=n.dtype, shape=n.shape)
    dims = n.attrs.dims  # type: ignore[attr-defined]
    if n.op.name.startswith("arg") and x.tensor.numel == 1:
        return FULL(value=0, dtype=n.dtype, shape=n.shape)
    if not dims and not n.op.name.startswith("arg"):
        return x
    rows = math.prod(s for i, s in enumerate(x.shape) if i not in dims)
    if n.op.name.startswith("arg") or not dims or rows >= 2 * machine.threads or x.tensor.numel < SPLIT_ELEMENTS:
        return None
    return _in_two(n, x, dims, 8 * machine.threads)


def _in_two(n: Node, x: Node, dims: tuple[int, ...], parts: int) -> Node | None:
    """The reduction over parts of one dimension, then over the parts; None where no dimension divides."""
    for d in dims:
        count = next((p for p in range(parts, 4 * parts) if x.shape[d] % p == 0), None)
        if count is None or x.shape[d] // count < 8:
            continue
        shape = (*x.shape[:d], count, x.shape[d] // count, *x.shape[d + 1 :])
        inner = tuple(e + (e >= d) for e in dims)
        first = make(n.op, (RESHAPE(x, shape=shape),), type(n.attrs)(inner, False))
        at = sum(1 for e in range(d) if e not in dims)
        second = make(n.op, (first,), type(n.attrs)((at,), False))
        return second if second.shape == n.shape else RESHAPE(second, shape=n.shape)
    return None


def _packed(n: Node, args: tuple[Node, ...], fixed: object, machine: Machine) -> Node | None:
    if n.op is not MATMUL or n.args[1] not in fixed or n.args[0] in fixed or n.tensor.numel == 0:  # type: ignore[operator]
        return None
    return packed(n, args[0], args[1], machine.nr)
