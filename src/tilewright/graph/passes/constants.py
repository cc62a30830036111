"""Constant folding: operators on `full` become one `full`, arithmetic on `iota` another `iota`.

In: a graph. Out: the same graph with fewer operators. Larger constant tensors stay programs, since a kernel computes
them in place; `known_value` evaluates one for passes that ask what it holds. Must not know tensors of the caller.
"""

from __future__ import annotations

import torch

from ...base import dtypes
from ...base.dims import Dim
from ...base.scalar import Number
from ..ir import Family, Graph, Node, Shape, make, rewrite_nodes
from ..ops.index import IOTA, IotaAttrs
from ..ops.pointwise import FULL, WHERE, FullAttrs
from ..ops.reduce import ALL_, AMAX, AMIN, ANY_
from ..ops.scan import CUMSUM, ScanAttrs
from .views import expand, full_like, reshape

_KEEPS_EQUAL = (AMAX, AMIN, ANY_, ALL_)  # of equal elements: that element


def fold_constants(graph: Graph) -> Graph:
    return rewrite_nodes(graph, _folded)


def scalar_of(n: Node) -> Number | None:
    """The value that every element of `n` has, where that is plain to see."""
    return n.attrs.value if isinstance(n.attrs, FullAttrs) and not isinstance(n.attrs.value, Dim) else None


def full(value: Number, like: Node, shape: Shape = ()) -> Node:
    """`value` in the dtype of `like`."""
    return FULL(value=value, dtype=like.dtype, shape=shape)


def _folded(n: Node, args: tuple[Node, ...]) -> Node | None:
    if not args:
        return None
    value = scalar_of(args[0])
    if n.op.family is Family.POINTWISE:
        if all(scalar_of(a) is not None for a in args):
            return _pointwise(n, args)
        if n.op is WHERE and value is not None:
            return expand(args[1] if value else args[2], n.shape)
        return _moved_iota(n, args) if n.op.name in ("add", "sub", "mul") else None
    if value is None:
        return None
    if n.op in _KEEPS_EQUAL and args[0].tensor.numel != 0:
        return full(value, n, n.shape)
    if n.op is CUMSUM and isinstance(n.attrs, ScanAttrs) and n.dtype is dtypes.i64 and n.shape:
        return _ramp(args[0], int(value), n.attrs.dim)
    return None


def _pointwise(n: Node, args: tuple[Node, ...]) -> Node | None:
    """What eager computes on one element; None where eager refuses (an integer divided by zero)."""
    operands = [make(FULL, (), FullAttrs(v, a.dtype)) for a in args if (v := scalar_of(a)) is not None]
    try:
        value = n.op.eager(n.attrs, *(o.op.eager(o.attrs) for o in operands)).item()
    except (RuntimeError, ZeroDivisionError):
        return None
    return full(value, n, n.shape)


def _moved_iota(n: Node, args: tuple[Node, ...]) -> Node | None:
    """iota (+ - *) constant and constant (+ *) iota, in 64-bit integers, which cannot round."""
    x, y = args if args[0].op is IOTA or n.op.name == "sub" else (args[1], args[0])
    c = scalar_of(y)
    if not isinstance(x.attrs, IotaAttrs) or c is None or n.dtype is not dtypes.i64 or n.shape != x.shape:
        return None
    c, start, step = int(c), int(x.attrs.start), int(x.attrs.step)
    match n.op.name:
        case "add":
            start += c
        case "sub":
            start -= c
        case "mul":
            start, step = start * c, step * c
    if step == 0 or abs(start) + abs(step) * _bound(x) >= 1 << 62:
        return None
    return IOTA(size=x.shape[0], dtype=dtypes.i64, start=start, step=step)


def _bound(x: Node) -> int:
    """At least the number of elements, for a check of overflow."""
    return x.shape[0] if isinstance(x.shape[0], int) else 1 << 31


def _ramp(x: Node, value: int, dim: int) -> Node:
    """The running sum of equal integers."""
    if value == 0:
        return full_like(x, x.shape)
    line = IOTA(size=x.shape[dim], dtype=dtypes.i64, start=value, step=value)
    return expand(reshape(line, tuple(s if d == dim else 1 for d, s in enumerate(x.shape))), x.shape)


def known_value(node: Node, limit: int = 1 << 22) -> torch.Tensor | None:
    """`node` computed, where it depends on no input, draws nothing, and no step has more than `limit` elements."""
    done: dict[Node, torch.Tensor] = {}
    order = _constant_order(node, limit)
    for n in order or ():
        done[n] = n.op.eager(n.attrs, *(done[a] for a in n.args))
    return done.get(node)


def _constant_order(node: Node, limit: int) -> list[Node] | None:
    seen: set[Node] = set()
    todo = [node]
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op.family in (Family.INPUT, Family.OPAQUE, Family.RANDOM) or n.op.effectful:
            return None
        size = n.tensor.numel
        if not isinstance(size, int) or size > limit or len(seen) > 256:
            return None
        todo += n.args
    return sorted(seen, key=lambda n: n.serial)
