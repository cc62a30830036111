"""Views as functions of the index, and as strides.

In: a VIEW node of the graph. Out: the operand's index of a result's element (`backward`) and, for views that lose nothing,
the reverse (`forward`); or a strided view of the operand's strided view (`compose`). Must not know statements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ...graph.ir import Family, Node
from ..program import Value, View
from .space import ZERO, Index, Space, matched_groups, reshape_index, row_major


def is_view(n: Node) -> bool:
    return n.op.family is Family.VIEW


def source(n: Node) -> Node:
    """The node under a chain of views."""
    while n.op.family is Family.VIEW:
        n = n.args[0]
    return n


def broadcast(index: Index, shape: Sequence[int]) -> Index:
    """The index into an operand of `shape` that is broadcast, right aligned, to the rank of `index`."""
    skip = len(index) - len(shape)
    return tuple(ZERO if s == 1 else i for s, i in zip(shape, index[skip:], strict=True))


def backward(space: Space, view: Node, index: Index) -> Index:
    """Where element `index` of `view` lies in its operand."""
    shape, a = view.args[0].shape, view.attrs
    match view.op.name:
        case "permute":
            found = [ZERO] * len(index)
            for i, d in enumerate(a.dims):  # type: ignore[attr-defined]
                found[d] = index[i]
            return tuple(found)
        case "reshape":
            return reshape_index(space, index, view.shape, shape)
        case "expand":
            return broadcast(index, shape)
        case "slice":
            d = a.dim  # type: ignore[attr-defined]
            return (*index[:d], space.scale(index[d], a.step, a.start), *index[d + 1 :])  # type: ignore[attr-defined]
        case "flip":
            return _flipped(space, index, shape, a.dims)  # type: ignore[attr-defined]
        case "as_strided":
            flat = space.linear(index, a.strides, a.offset)  # type: ignore[attr-defined]
            return reshape_index(space, (flat,), (math.prod(shape),), shape)
    raise NotImplementedError(f"view {view.op.name}")


def forward(space: Space, view: Node, index: Index) -> Index | None:
    """Where element `index` of the operand lies in `view`, if every element of the operand is in it exactly once."""
    shape, a = view.args[0].shape, view.attrs
    match view.op.name:
        case "permute":
            return tuple(index[d] for d in a.dims)  # type: ignore[attr-defined]
        case "reshape":
            return reshape_index(space, index, shape, view.shape)
        case "flip":
            return _flipped(space, index, shape, a.dims)  # type: ignore[attr-defined]
    if math.prod(view.shape) != math.prod(shape) or view.op.name == "as_strided":
        return None
    if view.op.name == "expand":
        return (ZERO,) * (len(view.shape) - len(shape)) + index
    return index  # a slice of everything


def _flipped(space: Space, index: Index, shape: Sequence[int], dims: Sequence[int]) -> Index:
    return tuple(space.scale(i, -1, shape[d] - 1) if d in dims else i for d, i in enumerate(index))


def whole(value: Value) -> View:
    return View(value, value.shape, value.strides, 0)


def compose(view: Node, under: View) -> View | None:
    """`view` of a strided view as a strided view of the same memory, or None where strides cannot express it."""
    a = view.attrs
    shape, strides = under.shape, under.strides
    match view.op.name:
        case "permute":
            dims = a.dims  # type: ignore[attr-defined]
            return dataclasses.replace(under, shape=view.shape, strides=tuple(strides[d] for d in dims))
        case "reshape":
            new = reshape_strides(shape, strides, view.shape)
            return None if new is None else dataclasses.replace(under, shape=view.shape, strides=new)
        case "expand":
            skip = len(view.shape) - len(shape)
            kept = tuple(0 if s == 1 and t != 1 else st for s, t, st in zip(shape, view.shape[skip:], strides, strict=True))
            return dataclasses.replace(under, shape=view.shape, strides=(0,) * skip + kept)
        case "slice":
            d, start, step = a.dim, a.start, a.step  # type: ignore[attr-defined]
            steps = (*strides[:d], strides[d] * step, *strides[d + 1 :])
            return View(under.value, view.shape, steps, under.offset + start * strides[d])
        case "as_strided":
            if reshape_strides(shape, strides, (math.prod(shape),)) not in ((1,), (0,)):
                return None
            return View(under.value, view.shape, a.strides, under.offset + a.offset)  # type: ignore[attr-defined]
    return None


def reshape_strides(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a strided array seen in another shape of the same size, or None where it needs a copy.

    Dimensions of 1 get the stride of a contiguous neighbour, as torch gives them.
    """
    if 0 in shape:
        return row_major(target)
    out = [0] * len(target)
    for src, dst in matched_groups(shape, target):
        for i, j in zip(src, src[1:]):
            if strides[i] != strides[j] * shape[j]:
                return None
        step = strides[src[-1]]
        for j in reversed(dst):
            out[j] = step
            step *= target[j]
    for j in range(len(target) - 1, -1, -1):
        if target[j] == 1:
            out[j] = out[j + 1] * target[j + 1] if j + 1 < len(target) else 1
    return tuple(out)


def pull_back(view: Node, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the operand such that `view`, which loses nothing, has `strides`; None where there are none."""
    shape = view.args[0].shape
    match view.op.name:
        case "permute":
            found = [0] * len(strides)
            for i, d in enumerate(view.attrs.dims):  # type: ignore[attr-defined]
                found[d] = strides[i]
            return tuple(found)
        case "reshape":
            return reshape_strides(view.shape, strides, shape)
    if math.prod(shape) == math.prod(view.shape) and view.op.name in ("expand", "slice"):
        return strides[len(strides) - len(shape) :]
    return None
