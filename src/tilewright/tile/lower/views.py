"""Views as functions of the index, and as strides.

In: a VIEW node of the graph. Out: the operand's index of a result's element (`backward`) and, for views that lose nothing,
the reverse (`forward`); or a strided view of the operand's strided view (`compose`). Must not know statements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...base.dims import Size
from ...graph.ir import Family, Node
from ...graph.ops.view import AsStridedAttrs, ExpandAttrs, FlipAttrs, PermuteAttrs, ReshapeAttrs, SliceAttrs
from ..program import Value, View
from .space import ZERO, Index, Space, matched_groups, reshape_index, row_major, shape_of


def is_view(n: Node) -> bool:
    return n.op.family is Family.VIEW


def source(n: Node) -> Node:
    """The node under a chain of views."""
    while n.op.family is Family.VIEW:
        n = n.args[0]
    return n


def broadcast(index: Index, shape: Sequence[Size]) -> Index:
    """The index into an operand of `shape` that is broadcast, right aligned, to the rank of `index`."""
    skip = len(index) - len(shape)
    return tuple(ZERO if s == 1 else i for s, i in zip(shape, index[skip:], strict=True))


def backward(space: Space, view: Node, index: Index) -> Index:
    """Where element `index` of `view` lies in its operand."""
    shape = shape_of(view.args[0])
    match view.attrs:
        case PermuteAttrs(dims):
            found = [ZERO] * len(index)
            for i, d in enumerate(dims):
                found[d] = index[i]
            return tuple(found)
        case ReshapeAttrs():
            return reshape_index(space, index, shape_of(view), shape)
        case ExpandAttrs():
            return broadcast(index, shape)
        case SliceAttrs(d):
            return (*index[:d], space.scale(index[d], view.attrs.step, view.attrs.start), *index[d + 1 :])
        case FlipAttrs(dims):
            return _flipped(space, index, shape, dims)
        case AsStridedAttrs(_, strides, offset):
            flat = space.linear(index, strides, offset)
            return reshape_index(space, (flat,), (math.prod(shape),), shape)
    raise NotImplementedError(f"view {view.op.name}")


def forward(space: Space, view: Node, index: Index) -> Index | None:
    """Where element `index` of the operand lies in `view`, if every element of the operand is in it exactly once."""
    shape, target = shape_of(view.args[0]), shape_of(view)
    match view.attrs:
        case PermuteAttrs(dims):
            return tuple([index[d] for d in dims])
        case ReshapeAttrs():
            return reshape_index(space, index, shape, target)
        case FlipAttrs(dims):
            return _flipped(space, index, shape, dims)
        case ExpandAttrs() if math.prod(target) == math.prod(shape):
            return (ZERO,) * (len(target) - len(shape)) + index
        case SliceAttrs() if target == shape:
            return index
    return None


def _flipped(space: Space, index: Index, shape: Sequence[Size], dims: Sequence[int]) -> Index:
    return tuple(space.scale(i, -1, shape[d] - 1) if d in dims else i for d, i in enumerate(index))


def whole(value: Value) -> View:
    return View(value, value.shape, value.strides, 0)


def compose(view: Node, under: View) -> View | None:
    """`view` of a strided view as a strided view of the same memory, or None where strides cannot express it."""
    shape, strides, target = under.shape, under.strides, shape_of(view)
    match view.attrs:
        case PermuteAttrs(dims):
            return View(under.value, target, tuple([strides[d] for d in dims]), under.offset)
        case ReshapeAttrs():
            new = reshape_strides(shape, strides, target)
            return None if new is None else View(under.value, target, new, under.offset)
        case ExpandAttrs():
            skip = len(target) - len(shape)
            kept = tuple([0 if s == 1 and t != 1 else st for s, t, st in zip(shape, target[skip:], strides, strict=True)])
            return View(under.value, target, (0,) * skip + kept, under.offset)
        case SliceAttrs(d):
            steps = (*strides[:d], strides[d] * view.attrs.step, *strides[d + 1 :])
            return View(under.value, target, steps, under.offset + view.attrs.start * strides[d])
        case AsStridedAttrs(_, wanted, offset):
            flat = reshape_strides(shape, strides, (math.prod(shape),))
            if flat is None:
                return None
            first, *apart = [n * flat[0] for n in (offset, *wanted)]
            return View(under.value, target, tuple(apart), under.offset + first)
    return None


def reshape_strides(shape: Sequence[Size], strides: Sequence[Size], target: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides of a strided array seen in another shape of the same size, or None where it needs a copy.

    Dimensions of 1 get the stride of a contiguous neighbour, as torch gives them.
    """
    if 0 in shape:
        return row_major(target)
    out: list[Size] = [0] * len(target)
    for src, dst in matched_groups(shape, target):
        for i, j in zip(src, src[1:]):
            if strides[i] != strides[j] * shape[j]:
                return None
        step = strides[src[-1]]
        for j in reversed(dst):
            out[j] = step
            step = step * target[j]
    for j in range(len(target) - 1, -1, -1):
        if target[j] == 1:
            out[j] = out[j + 1] * target[j + 1] if j + 1 < len(target) else 1
    return tuple(out)


def pull_back(view: Node, strides: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Strides of the operand such that `view`, which loses nothing, has `strides`; None where there are none."""
    shape, target = shape_of(view.args[0]), shape_of(view)
    match view.attrs:
        case PermuteAttrs(dims):
            found: list[Size] = [0] * len(strides)
            for i, d in enumerate(dims):
                found[d] = strides[i]
            return tuple(found)
        case ReshapeAttrs():
            return reshape_strides(target, strides, shape)
        case ExpandAttrs() if math.prod(target) == math.prod(shape):
            return strides[len(strides) - len(shape) :]
        case SliceAttrs() if target == shape:
            return strides
    return None
