"""Packing of constant right sides into panels, by block copies.

In: a pack group whose operand is in memory, perhaps several weights side by side. Out: one kernel a weight, each writing its
own panels, or None where the operand is anything else (`lower_pointwise` then does it element by element).
Must not know what multiplies the panels.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base import scalar
from ...base.dims import Size, ceildiv, divides, provably_le, quotient, to_expr
from ...base.scalar import Expr, Var, const
from ...graph.ir import Node
from ...graph.ops.index import CAT, DimAttrs
from ...graph.ops.view import PERMUTE, PermuteAttrs
from ..fuse import Group
from ..ir import Alloc, Buffer, Copy, For, Region, Scope, Stmt, block
from ..layout import paired
from ..program import View
from .context import Context, Draft, Lowered
from .packing import PackAttrs
from .space import shape_of

_ROWS = 64  # of K that are packed at a time where panels are packed side by side

Strided = Callable[[Node], tuple[View, Node] | None]


def lower_pack(group: Group, context: Context, strided: Strided) -> list[Lowered] | None:
    """`strided` gives a node's strided view and whose memory that is, where it has one."""
    node = group.members[0]
    width = _attrs(node).nr
    found: list[Lowered] = []
    start: Size = 0
    for piece in _side_by_side(node.args[0], group):
        seen = strided(piece)
        panel = quotient(start, width)
        if seen is None or panel is None:
            return None
        found.append(_kernel(node, seen, panel, context))
        start = start + shape_of(piece)[-1]
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


def converted_copy(src: Region, dst: Region, turned: bool) -> Stmt:
    """A copy of a matrix to another type: where it is transposed as well, one step after the other."""
    if src.buffer.dtype is dst.buffer.dtype or not turned:
        return Copy(src, dst, turned)
    step = Buffer("narrow", src.buffer.dtype, dst.shape, Scope.SHARED)
    whole = Region(step, (const(0), const(0)), step.shape)
    return Alloc(step, block(Copy(src, whole, True), Copy(whole, dst)))


def _attrs(node: Node) -> PackAttrs:
    assert isinstance(node.attrs, PackAttrs)
    return node.attrs


def _joined(n: Node) -> int | None:
    """The dimension along which `n` is a concatenation."""
    return n.attrs.dim if n.op is CAT and isinstance(n.attrs, DimAttrs) else None


def _kernel(node: Node, seen: tuple[View, Node], panel: Size, context: Context) -> Lowered:
    """A block copies one panel: K rows of `width` columns, what is behind the last one zero."""
    view, memory = seen
    *batch, k, n = view.shape
    *steps, k_step, n_step = view.strides
    width, pair = _attrs(node).nr, _attrs(node).pair
    panels, deep = ceildiv(n, width), ceildiv(k, pair) * pair
    turned = n_step != 1 and not provably_le(n, 1)
    draft = Draft("pack")
    last = (n, k) if turned else (k, n)
    last_steps = (n_step, k_step) if turned else (k_step, n_step)
    src = draft.params.get(memory, (*batch, *last), (*steps, *last_steps), view.offset)
    target = context.targets[node]
    strides = target.strides
    if pair > 1:
        strides = strides[:-1]
    shape = (*batch, panels, deep, width)
    layout = paired([to_expr(s) for s in shape], [to_expr(s) for s in strides[:-2]], pair) if pair > 1 else None
    dst = draft.params.get(node, shape, strides, panel * strides[-3], write=True, layout=layout)
    grid: list[tuple[Var, Expr]] = [(scalar.var(f"b{i}"), to_expr(e)) for i, e in enumerate(batch)]
    at = tuple(v for v, _ in grid)
    p = scalar.var("p")
    zero, point = const(0), (None,) * len(batch)

    def copy(panel: Expr, first: Expr, count: Size) -> Stmt:
        """Rows `first`.. of a panel."""
        corner, box = (first, panel * const(width)), (to_expr(count), const(width))
        source = Region(src, (*at, *(corner[::-1] if turned else corner)), (*point, *(box[::-1] if turned else box)))
        return converted_copy(source, Region(dst, (*at, panel, first, zero), (*point, None, *box)), turned)

    side = 1 if turned or not divides(_ROWS, deep) else next(c for c in (8, 4, 2, 1) if divides(c, panels))
    grid.append((p, to_expr(panels // side)))
    body = copy(p, zero, deep)
    if side > 1:  # rows of b lie far apart: what is near in one of them is read together
        r = scalar.var("r")
        parts = [copy(p * const(side) + const(q), r * const(_ROWS), _ROWS) for q in range(side)]
        body = For(r, to_expr(deep // _ROWS), block(*parts))
    moved = 2 * context.hints.product((*batch, panels, k)) * width * node.dtype.bytes
    return draft.finish(grid, body, moved / context.machine.bandwidth * (2 if turned else 1))
