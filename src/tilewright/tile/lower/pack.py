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
from ...graph.ops.index import CAT, DimAttrs
from ...graph.ops.view import PERMUTE, PermuteAttrs
from ..fuse import Group
from ..ir import Copy, Region
from ..program import View
from .context import Context, Draft, Lowered
from .space import shape_of, static

Strided = Callable[[Node], tuple[View, Node] | None]


def lower_pack(group: Group, context: Context, strided: Strided) -> list[Lowered] | None:
    """`strided` gives a node's strided view and whose memory that is, where it has one."""
    node = group.members[0]
    width = shape_of(node)[-1]
    found: list[Lowered] = []
    start = 0
    for piece in _side_by_side(node.args[0], group):
        seen = strided(piece)
        if seen is None or start % width:
            return None
        found.append(_kernel(node, seen, start // width, context))
        start += shape_of(piece)[-1]
    return found


def _side_by_side(b: Node, group: Group) -> list[Node]:
    """The matrices whose columns make up `b`."""
    last = len(b.shape) - 1
    if b in group.inlined and _joined(b) == last:
        return [p for a in b.args for p in _side_by_side(a, group)]
    if isinstance(b.attrs, PermuteAttrs) and b.args[0] in group.inlined:
        dims = b.attrs.dims
        if _joined(b.args[0]) == dims[last]:
            return [p for a in b.args[0].args for p in _side_by_side(PERMUTE(a, dims=dims), group)]
    return [b]


def _joined(n: Node) -> int | None:
    """The dimension along which `n` is a concatenation."""
    return n.attrs.dim if n.op is CAT and isinstance(n.attrs, DimAttrs) else None


def _kernel(node: Node, seen: tuple[View, Node], panel: int, context: Context) -> Lowered:
    """A block copies one panel: K rows of `width` columns, the columns behind the last one zero."""
    view, memory = seen
    *batch, k, n = static(*view.shape)
    *steps, k_step, n_step = static(*view.strides)
    width = shape_of(node)[-1]
    panels = math.ceil(n / width)
    turned = n_step != 1 and n > 1
    draft = Draft("pack")
    last = (n, k) if turned else (k, n)
    last_steps = (n_step, k_step) if turned else (k_step, n_step)
    src = draft.params.get(memory, (*batch, *last), (*steps, *last_steps), static(view.offset)[0])
    target = context.targets[node]
    strides = static(*target.strides)
    dst = draft.params.get(node, (*batch, panels, k, width), strides, panel * strides[-3], write=True)
    grid: list[tuple[Var, Expr]] = [(scalar.var(f"b{i}"), const(e)) for i, e in enumerate(batch)]
    at = tuple(v for v, _ in grid)
    p = scalar.var("p")
    grid.append((p, const(panels)))
    column, zero, point = p * const(width), const(0), (None,) * len(batch)
    corner = (column, zero) if turned else (zero, column)
    box = (const(width), const(k)) if turned else (const(k), const(width))
    body = Copy(
        Region(src, (*at, *corner), (*point, *box)),
        Region(dst, (*at, p, zero, zero), (*point, None, const(k), const(width))),
        turned,
    )
    moved = 2 * math.prod(batch) * panels * k * width * node.dtype.bytes
    return draft.finish(grid, body, moved / context.machine.bandwidth * (2 if turned else 1))
