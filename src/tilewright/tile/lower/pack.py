"""Packing of constant right sides into panels, by block copies.

In: a pack group whose operand is in memory, perhaps several weights side by side. Out: one kernel a weight, each writing its
own panels, or None where the operand is anything else (`lower_pointwise` then does it element by element).
Must not know what multiplies the panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...base import scalar
from ...base.scalar import Expr, Var, const
from ...graph.ir import Node
from ...graph.ops.index import CAT
from ...graph.ops.view import PERMUTE
from ..fuse import Group
from ..ir import Copy, Region
from ..program import View
from .context import Context, Draft, Lowered

Strided = Callable[[Node], tuple[View, Node] | None]


def lower_pack(group: Group, context: Context, strided: Strided) -> list[Lowered] | None:
    """`strided` gives a node's strided view and whose memory that is, where it has one."""
    node = group.members[0]
    width = int(node.shape[-1])
    found: list[Lowered] = []
    start = 0
    for piece in _side_by_side(node.args[0], group):
        seen = strided(piece)
        if seen is None or start % width:
            return None
        found.append(_kernel(node, seen, start // width, context))
        start += int(piece.shape[-1])
    return found


def _side_by_side(b: Node, group: Group) -> list[Node]:
    """The matrices whose columns make up `b`."""
    last = len(b.shape) - 1
    if b.op is CAT and b in group.inlined and b.attrs.dim == last:  # type: ignore[attr-defined]
        return [p for a in b.args for p in _side_by_side(a, group)]
    if b.op is PERMUTE and b.args[0].op is CAT and b.args[0] in group.inlined:
        dims = b.attrs.dims  # type: ignore[attr-defined]
        if dims[last] == b.args[0].attrs.dim:  # type: ignore[attr-defined]
            return [p for a in b.args[0].args for p in _side_by_side(PERMUTE(a, dims=dims), group)]
    return [b]


def _kernel(node: Node, seen: tuple[View, Node], panel: int, context: Context) -> Lowered:
    """A block copies one panel: K rows of `width` columns, the columns behind the last one zero."""
    view, memory = seen
    *batch, k, n = (int(s) for s in view.shape)
    *steps, k_step, n_step = (int(s) for s in view.strides)
    width, panels = int(node.shape[-1]), math.ceil(n / int(node.shape[-1]))
    turned = n_step != 1 and n > 1
    draft = Draft("pack")
    last = (n, k) if turned else (k, n)
    last_steps = (n_step, k_step) if turned else (k_step, n_step)
    src = draft.params.get(memory, (*batch, *last), (*steps, *last_steps), int(view.offset))
    target = context.targets[node]
    strides = tuple(int(s) for s in target.strides)
    dst = draft.params.get(node, (*batch, panels, k, width), strides, panel * strides[-3], write=True)
    grid: list[tuple[Var, Expr]] = [(scalar.var(f"b{i}"), const(e)) for i, e in enumerate(batch)]
    at = tuple(v for v, _ in grid)
    p = scalar.var("p")
    grid.append((p, const(panels)))
    column, zero, point = p * const(width), const(0), (None,) * len(batch)
    offsets, extents = (zero, column), (const(k), const(width))
    if turned:
        offsets, extents = offsets[::-1], extents[::-1]
    body = Copy(
        Region(src, (*at, *offsets), (*point, *extents)),
        Region(dst, (*at, p, zero, zero), (*point, None, const(k), const(width))),
        turned,
    )
    moved = 2 * math.prod(batch) * panels * k * width * node.dtype.bytes
    return draft.finish(grid, body, moved / context.machine.bandwidth * (2 if turned else 1))
