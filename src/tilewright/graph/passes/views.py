"""View composition: chains of views become the shortest equal chain.

In: a graph. Out: the same graph, where no view reads a view it could be merged with, and views that change nothing are
gone. The constructors below (`reshape`, `permute`, ...) build views in that form; other passes use them. Must not know
memory: a view here is only a renaming of indices.
"""

from __future__ import annotations

import math

from ...base.dims import Size
from ..ir import Graph, Node, Shape, rewrite_nodes
from ..ops.index import CAT, IOTA, DimAttrs, IotaAttrs
from ..ops.pointwise import FULL, FullAttrs
from ..ops.view import AS_STRIDED, EXPAND, FLIP, PERMUTE, RESHAPE, SLICE, AsStridedAttrs, FlipAttrs, PermuteAttrs, SliceAttrs


def compose_views(graph: Graph) -> Graph:
    return rewrite_nodes(graph, rebuild_view)


def reshape(x: Node, shape: Shape) -> Node:
    if x.shape == shape:
        return x
    if x.op is RESHAPE:
        return reshape(x.args[0], shape)
    return full_like(x, shape) if x.op is FULL else RESHAPE(x, shape=shape)


def permute(x: Node, dims: tuple[int, ...]) -> Node:
    """Dimension i of the result is dimension `dims[i]` of `x`. One that moves only dimensions of size 1 is a reshape."""
    if dims == tuple(range(len(dims))):
        return x
    if isinstance(x.attrs, PermuteAttrs):
        return permute(x.args[0], tuple(x.attrs.dims[d] for d in dims))
    shape = tuple(x.shape[d] for d in dims)
    if x.op is FULL:
        return full_like(x, shape)
    moved = [d for d in dims if x.shape[d] != 1]
    if moved == sorted(moved):
        return reshape(x, shape)
    if x.op is RESHAPE and _without_ones(x.args[0].shape) == _without_ones(x.shape):
        return reshape(_permute_below(x, moved), shape)
    return PERMUTE(x, dims=dims)


def _permute_below(x: Node, moved: list[int]) -> Node:
    """`x` only adds or removes dimensions of size 1 on its operand: the operand with the others in the order `moved`."""
    y = x.args[0]
    solid = [d for d, s in enumerate(x.shape) if s != 1]
    below = [d for d, s in enumerate(y.shape) if s != 1]
    place = dict(zip(solid, below, strict=True))
    units = tuple(d for d, s in enumerate(y.shape) if s == 1)
    return permute(y, units + tuple(place[d] for d in moved))


def expand(x: Node, shape: Shape) -> Node:
    """`x` repeated along its dimensions of size 1 and along new leading ones, to `shape`."""
    if x.shape == shape:
        return x
    if x.op is EXPAND:
        return expand(x.args[0], shape)
    if x.op is FULL:
        return full_like(x, shape)
    if shape[len(shape) - len(x.shape) :] == x.shape and all(s == 1 for s in shape[: len(shape) - len(x.shape)]):
        return reshape(x, shape)
    return EXPAND(x, shape=shape)


def take_slice(x: Node, dim: int, start: Size, length: Size, step: Size = 1) -> Node:
    """Elements start, start + step, ... of dimension `dim`, `length` of them."""
    if length == x.shape[dim] and start == 0 and step == 1:
        return x
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    if x.op is FULL:
        return full_like(x, shape)
    if length != 0:
        inner = _slice_below(x, dim, start, length, step)
        if inner is not None:
            return inner
    stop = start + (length - 1) * step + 1 if length != 0 else start
    return SLICE(x, dim=dim, start=start, stop=stop, step=step)


def _slice_below(x: Node, dim: int, start: Size, length: Size, step: Size) -> Node | None:
    """The slice taken of x's operand, where `x` is a slice, an expand, an iota or a cat that allows it."""
    if isinstance(x.attrs, SliceAttrs) and x.attrs.dim == dim:
        return take_slice(x.args[0], dim, x.attrs.start + start * x.attrs.step, length, step * x.attrs.step)
    if isinstance(x.attrs, IotaAttrs) and x.dtype.is_integer and isinstance(start, int) and isinstance(step, int):
        a = x.attrs
        return IOTA(size=length, dtype=a.dtype, start=a.start + start * a.step, step=a.step * step)
    if x.op is EXPAND:
        y = x.args[0]
        own = dim - (len(x.shape) - len(y.shape))
        below = y if own < 0 or y.shape[own] == 1 else take_slice(y, own, start, length, step)
        return expand(below, (*x.shape[:dim], length, *x.shape[dim + 1 :]))
    if x.op is CAT and x.attrs == DimAttrs(dim) and isinstance(start, int):
        return _slice_of_piece(x, dim, start, length, step)
    return None


def _slice_of_piece(x: Node, dim: int, start: int, length: Size, step: Size) -> Node | None:
    last = start + (length - 1) * step
    for piece in x.args:
        size = piece.shape[dim]
        if not isinstance(size, int) or not isinstance(last, int):
            return None
        if start < size:
            return take_slice(piece, dim, start, length, step) if last < size else None
        start, last = start - size, last - size
    return None


def flip(x: Node, dims: tuple[int, ...]) -> Node:
    dims = tuple(d for d in dims if x.shape[d] != 1)
    if not dims or x.op is FULL:
        return x
    if isinstance(x.attrs, FlipAttrs):
        return flip(x.args[0], tuple(sorted(set(dims) ^ set(x.attrs.dims))))
    return FLIP(x, dims=dims)


def as_strided(x: Node, shape: Shape, strides: Shape, offset: Size) -> Node:
    """`x` as its row-major memory, seen through `strides` and `offset`, in elements."""
    numel = math.prod(shape)
    if offset == 0 and numel == math.prod(x.shape) and strides == row_major(shape):
        return reshape(x, shape)
    if x.op is RESHAPE:
        return as_strided(x.args[0], shape, strides, offset)
    return AS_STRIDED(x, shape=shape, strides=strides, offset=offset)


def cat(pieces: tuple[Node, ...], dim: int) -> Node:
    """The pieces joined along `dim`: empty ones dropped, neighbouring slices of one tensor taken as one."""
    kept: list[Node] = []
    for p in pieces:
        if p.shape[dim] == 0 and len(pieces) > 1:
            continue
        joined = _joined(kept[-1], p, dim) if kept else None
        if joined is None:
            kept.append(p)
        else:
            kept[-1] = joined
    kept = kept or [pieces[0]]
    return kept[0] if len(kept) == 1 else CAT(*kept, dim=dim)


def _joined(a: Node, b: Node, dim: int) -> Node | None:
    """`a` and `b` joined without a copy: two equal fills, or slices of one tensor that follow each other."""
    shape = (*a.shape[:dim], a.shape[dim] + b.shape[dim], *a.shape[dim + 1 :])
    if a.op is FULL and b.op is FULL and full_like(a, shape) is full_like(b, shape):
        return full_like(a, shape)
    if not (isinstance(a.attrs, SliceAttrs) and isinstance(b.attrs, SliceAttrs)) or a.args != b.args:
        return None
    follows = (dim, a.attrs.start + a.shape[dim] * a.attrs.step, a.attrs.step)
    if a.attrs.dim != dim or (b.attrs.dim, b.attrs.start, b.attrs.step) != follows:
        return None
    return take_slice(a.args[0], dim, a.attrs.start, shape[dim], a.attrs.step)


def full_like(x: Node, shape: Shape) -> Node:
    """The `full` node `x` in another shape."""
    if x.shape == shape:
        return x
    assert isinstance(x.attrs, FullAttrs)
    return FULL(value=x.attrs.value, dtype=x.dtype, shape=shape)


def row_major(shape: Shape) -> Shape:
    """Contiguous strides, in elements."""
    strides: list[Size] = []
    step: Size = 1
    for s in reversed(shape):
        strides.append(step)
        step = step * s
    return tuple(reversed(strides))


def rebuild_view(n: Node, args: tuple[Node, ...]) -> Node | None:
    """View (or cat) `n` over other operands, composed with them; None for any other operator."""
    if n.op is CAT and isinstance(n.attrs, DimAttrs):
        return cat(args, n.attrs.dim)
    if n.op is RESHAPE:
        return reshape(args[0], n.shape)
    if n.op is EXPAND:
        return expand(args[0], n.shape)
    match n.attrs:
        case PermuteAttrs(dims):
            return permute(args[0], dims)
        case SliceAttrs(dim, start, _, step):
            return take_slice(args[0], dim, start, n.shape[dim], step)
        case FlipAttrs(dims):
            return flip(args[0], dims)
        case AsStridedAttrs(shape, strides, offset):
            return as_strided(args[0], shape, strides, offset)
    return None


def _without_ones(shape: Shape) -> list[Size]:
    return [s for s in shape if s != 1]
