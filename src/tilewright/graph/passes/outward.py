"""Views move outward: past matmuls, pointwise operators and row-wise composites, towards the users of their results.

In: a graph with composed views. Out: the same graph, where a matmul and what is computed from its result element by
element stand in one shape, so that they fuse, and where broadcasts happen as late as they can. `linear` on any rank is
`matmul(x, w)` with x's own rank and w of rank 2. Must not know which fusions follow.

Every rule takes a view off an operand and puts one on the result, so one operands-first sweep suffices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir import Attrs, Family, Graph, Node, Op, Shape, make, rewrite_nodes
from ..ops.composite import LayerNormAttrs, RmsNormAttrs, SoftmaxAttrs
from ..ops.contract import MATMUL
from ..ops.pointwise import FULL
from ..ops.rules import broadcast
from ..ops.view import EXPAND, PERMUTE, RESHAPE, PermuteAttrs
from .views import expand, full_like, permute, rebuild_view, reshape


def move_views_outward(graph: Graph) -> Graph:
    def rule(n: Node, args: tuple[Node, ...]) -> Node | None:
        if n.op.family is Family.POINTWISE:
            return pointwise(n.op, args, n.attrs, n.shape) if any(map(_is_movable, args)) else None
        if n.op is MATMUL:
            return matmul(*args)
        return _past_rows(n, args) or rebuild_view(n, args)

    return rewrite_nodes(graph, rule)


def _is_movable(x: Node) -> bool:
    return x.op in (RESHAPE, PERMUTE, EXPAND) or (x.op is FULL and x.shape != ())


def pointwise(op: Op, args: Sequence[Node], attrs: Attrs, shape: Shape) -> Node:
    """The operator on operands without their views, and the views on its result."""
    args = tuple(_unexpanded(a) for a in args)
    new = _past_reshape(op, args, attrs) or _past_permute(op, args, attrs) or make(op, args, attrs)
    return expand(new, shape)


def _unexpanded(x: Node) -> Node:
    if x.op is FULL:
        return full_like(x, ())
    return x.args[0] if x.op is EXPAND else x


def _past_reshape(op: Op, args: tuple[Node, ...], attrs: Attrs) -> Node | None:
    shape = broadcast(*(a.shape for a in args))
    for x in args:
        if x.op is not RESHAPE or x.shape != shape:
            continue
        source = x.args[0]
        below = [_in_source_shape(a, shape, source) for a in args]
        operands = [b for b in below if b is not None]
        if len(operands) == len(args):
            return reshape(pointwise(op, operands, attrs, source.shape), shape)
    return None


def _in_source_shape(a: Node, shape: Shape, source: Node) -> Node | None:
    """Operand `a` as it is read when the result has the shape of `source` in place of `shape`; None where that is no view."""
    if a.op is RESHAPE and a.shape == shape and a.args[0].shape == source.shape:
        return a.args[0]
    if math.prod(a.shape) == 1:
        return reshape(a, ())
    tail = _without_leading_ones(a.shape)
    n = len(tail)
    if n <= len(source.shape) and source.shape[len(source.shape) - n :] == shape[len(shape) - n :]:
        return reshape(a, tail)
    under = a.args[0] if a.op is RESHAPE else a
    if a.shape == shape and source.op.family is Family.CONTRACT and a.op not in (PERMUTE, EXPAND):
        if under.op.family is not Family.CONTRACT:  # else each product would be put in the other's shape, for ever
            return reshape(a, source.shape)
    return None


def _without_leading_ones(shape: Shape) -> Shape:
    first = next((i for i, s in enumerate(shape) if s != 1), len(shape))
    return shape[first:]


def _past_permute(op: Op, args: tuple[Node, ...], attrs: Attrs) -> Node | None:
    shape = broadcast(*(a.shape for a in args))
    for x in args:
        if not isinstance(x.attrs, PermuteAttrs) or x.shape != shape:
            continue
        below = [_unpermuted(a, x, x.attrs) for a in args]
        operands = [b for b in below if b is not None]
        if len(operands) == len(args):
            return permute(pointwise(op, operands, attrs, x.args[0].shape), x.attrs.dims)
    return None


def _unpermuted(a: Node, x: Node, order: PermuteAttrs) -> Node | None:
    """Operand `a` as it is read when the result has the order of `x`'s operand; None where that moves elements."""
    if a.attrs == order and a.args[0].shape == x.args[0].shape:
        return a.args[0]
    if sum(s != 1 for s in a.shape) > 1:
        return None
    shape = [*x.shape]
    for d, s in zip(order.dims, (1,) * (len(x.shape) - len(a.shape)) + a.shape, strict=True):
        shape[d] = s
    return reshape(a, _without_leading_ones(tuple(shape)))


def _past_rows(n: Node, args: tuple[Node, ...]) -> Node | None:
    """softmax and norms read whole rows: a reshape that keeps the rows may come after them."""
    if not args or args[0].op is not RESHAPE:
        return None
    x, source = args[0], args[0].args[0]
    attrs = n.attrs
    match attrs:
        case LayerNormAttrs() | RmsNormAttrs():
            rows = attrs.ndims
        case SoftmaxAttrs() if attrs.dim == len(x.shape) - 1:
            rows = 1
            attrs = SoftmaxAttrs(len(source.shape) - 1)
        case _:
            return None
    if len(source.shape) < rows or source.shape[len(source.shape) - rows :] != x.shape[len(x.shape) - rows :]:
        return None
    return reshape(make(n.op, (source, *args[1:]), attrs), n.shape)


def matmul(a: Node, b: Node) -> Node:
    """The product, with reshapes and repeats of leading dimensions moved from the operands to the result."""
    shape = MATMUL(a, b).shape
    a, b = _unrepeated(a), _unrepeated(b)
    if len(b.shape) > 2 and len(a.shape) >= len(b.shape) and math.prod(b.shape[:-2]) == 1:
        b = reshape(b, b.shape[-2:])
    if a.op is RESHAPE and len(b.shape) == 2:
        x = _with_own_rows(a)
        if x is not a:
            return expand(reshape(matmul(x, b), MATMUL(a, b).shape), shape)
    if a.op is RESHAPE and b.op is RESHAPE and a.shape[:-2] == b.shape[:-2]:
        x, y = a.args[0], b.args[0]
        same_rank = len(x.shape) == len(y.shape) > 2
        if same_rank and x.shape[:-2] == y.shape[:-2] and x.shape[-2:] == a.shape[-2:] and y.shape[-2:] == b.shape[-2:]:
            return expand(reshape(matmul(x, y), MATMUL(a, b).shape), shape)
    return expand(MATMUL(a, b), shape)


def _with_own_rows(a: Node) -> Node:
    """`a`, a reshape, with its leading dimensions as they are below the reshape, where its last one is made of whole ones."""
    source = a.args[0]
    rows, columns = math.prod(a.shape[:-1]), a.shape[-1]
    for p in range(1, len(source.shape)):
        if math.prod(source.shape[:p]) == rows and math.prod(source.shape[p:]) == columns:
            return reshape(source, (*source.shape[:p], columns))
    return a


def _unrepeated(x: Node) -> Node:
    """`x` without repeats of its leading dimensions: a matmul broadcasts those itself."""
    if x.op is EXPAND and len(x.args[0].shape) >= 2 and x.args[0].shape[-2:] == x.shape[-2:]:
        return x.args[0]
    return x
