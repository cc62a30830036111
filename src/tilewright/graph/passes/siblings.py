"""Sibling matmuls: products of one operand with several weights become one product with the weights side by side.

In: a graph where attention has been found and views have moved outward. Out: the same graph, where such groups (q, k and v of
a transformer) are one matmul and one bias, read through slices. Weights and biases must depend on parameters and constants
only, so that joining them is done ahead. Must not know how wide a product a target likes.

A product that pointwise operators go on to change stays alone: there they are its epilogue, which costs nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass
from itertools import pairwise

from ...base.dims import Size
from ..ir import Family, Graph, Node, over, users
from ..ops.contract import ATTENTION, MATMUL
from ..ops.index import CAT
from ..ops.pointwise import ADD, FULL
from ..ops.view import PermuteAttrs
from .folded import fixed_nodes
from .views import cat, expand, permute, reshape, take_slice

_NARROW = 64  # columns; a narrower product gains more from company than its users cost
_REACH = 2  # contractions of others that may stand between two siblings in the order of computation


@dataclass(frozen=True)
class Sibling:
    """`product` = a @ weight, and `result`, which is the product or its sum with `bias`."""

    product: Node
    result: Node
    weight: Node
    bias: Node | None
    place: int  # among the graph's contractions, in the order of computation


def merge_siblings(graph: Graph) -> Graph:
    group_of = {s.result: group for group in _groups(graph) for s in group}
    new: dict[Node, Node] = {}
    for n in graph.nodes() if group_of else ():
        group = group_of.get(n)
        if group is None:
            new[n] = over(n, tuple([new[a] for a in n.args]))
        elif n not in new:
            new |= _merged(group, new[group[0].product.args[0]])
    return graph.with_roots(new.__getitem__) if new else graph


def _merged(group: list[Sibling], a: Node) -> dict[Node, Node]:
    """Each sibling's result as a slice of the joint one. Weights and biases hold no sibling, so they stay as they are."""
    joint = MATMUL(a, _side_by_side([s.weight for s in group]))
    if any(s.bias is not None for s in group):
        joint = ADD(joint, cat(tuple(_bias(s) for s in group), 0))
    last = len(joint.shape) - 1
    slices: dict[Node, Node] = {}
    start: Size = 0
    for s in group:
        width = s.weight.shape[1]
        slices[s.result] = take_slice(joint, last, start, width)
        start = start + width
    return slices


def _side_by_side(weights: list[Node]) -> Node:
    """[K, N1 + N2 + ...]; transposed weights are joined where they are contiguous."""
    swap = PermuteAttrs((1, 0))
    if all(w.attrs == swap for w in weights):
        return permute(cat(tuple(w.args[0] for w in weights), 0), swap.dims)
    return cat(tuple(weights), 1)


def _bias(s: Sibling) -> Node:
    """[N]. A missing bias is -0.0, which changes no number, zeros included."""
    width = s.weight.shape[1]
    if s.bias is None:
        return FULL(value=-0.0, dtype=s.weight.dtype, shape=(width,))
    return expand(reshape(s.bias, s.bias.shape[-1:]), (width,))


def _groups(graph: Graph) -> list[list[Sibling]]:
    """Siblings of one operand that are computed one soon after the other, in lists of two and more."""
    by_operand: dict[Node, list[Sibling]] = defaultdict(list)
    for s in _siblings(graph):
        by_operand[s.product.args[0]].append(s)
    groups: list[list[Sibling]] = []
    for siblings in by_operand.values():
        groups.append(siblings[:1])
        for before, s in pairwise(siblings):
            if s.place - before.place > 1 + _REACH:
                groups.append([])
            groups[-1].append(s)
    return [g for g in groups if len(g) > 1]


def _siblings(graph: Graph) -> list[Sibling]:
    fixed = fixed_nodes(graph)
    by = users(graph)
    roots = set(graph.roots)
    contractions = [n for n in _computation_order(graph) if n.op.family is Family.CONTRACT]
    found: list[Sibling] = []
    for place, n in enumerate(contractions):
        if n.op is not MATMUL or n in fixed or n.args[1] not in fixed or len(n.args[1].shape) != 2:
            continue
        bias = _bias_of(n, by[n], fixed) if n not in roots else None
        result = by[n][0] if bias is not None else n
        if result not in roots and _may_join(result, by[result]):
            found.append(Sibling(n, result, n.args[1], bias, place))
    return found


def _bias_of(product: Node, readers: list[Node], fixed: Container[Node]) -> Node | None:
    """What the only reader of `product` adds to each of its rows."""
    if len(readers) != 1 or readers[0].op is not ADD or readers[0].shape != product.shape:
        return None
    x, y = readers[0].args
    bias = y if x is product else x
    row = bias in fixed and bias is not product and len(bias.shape) > 0 and math.prod(bias.shape) == bias.shape[-1]
    return bias if row else None


def _may_join(result: Node, readers: list[Node]) -> bool:
    narrow = isinstance(result.shape[-1], int) and result.shape[-1] <= _NARROW
    return narrow or all(u.op.family is Family.VIEW or u.op in (ATTENTION, CAT) for u in readers)


def _computation_order(graph: Graph) -> list[Node]:
    """Operands first, each just before its first use, whatever order the nodes were made in."""
    order: dict[Node, None] = {}
    todo = [(n, False) for n in reversed(graph.roots)]
    while todo:
        n, ready = todo.pop()
        if n in order:
            continue
        if ready:
            order[n] = None
        else:
            todo.append((n, True))
            todo += [(a, False) for a in reversed(n.args)]
    return list(order)
