"""What is computed once: nodes that depend on parameters and constants only.

In: a graph. Out: a set of its nodes, which changes nothing in the graph. A lowering computes them ahead and keeps the results
until a parameter changes. Must not know how results are kept, nor that weights are packed besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from ...base.dims import Dim
from ..ir import Family, Graph, InputAttrs, InputKind, Node, users
from ..ops.index import IOTA
from ..ops.pointwise import FULL

_ROOM = 64 << 20  # bytes that one result may take; more only where the parameters together take more
_CHEAP = {
    "add", "sub", "mul", "minimum", "maximum", "bitand", "bitor", "bitxor", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs",
    "not", "cast", "where", "clamp",
}  # fmt: skip


class Work(IntEnum):
    """What computing a fixed node takes."""

    NONE = 0  # an input, a constant or a range, or a view of one
    CHEAP = 1  # arithmetic on constants and ranges: as quick to repeat as to read back
    REAL = 2


def folded_nodes(graph: Graph) -> set[Node]:
    """The nodes worth computing ahead. With a node, all that it is computed from are in the set, down to inputs, constants,
    ranges and views of those, which never are.

    An output, and what is computed from one, is computed in each call. Cheap arithmetic on constants (a causal mask of two
    ranges) is left to the kernels that use it, unless an operator reads it that is not pointwise.
    """
    work = fixed_nodes(graph)
    by = users(graph)
    kept: set[Node] = set()
    for n in reversed(graph.nodes()):  # users before operands
        took = work.get(n, Work.NONE)
        if took is Work.NONE:
            continue
        outside = [u for u in by[n] if u not in work]
        wanted = any(u.op.family is not Family.POINTWISE for u in outside)
        if any(u in kept for u in by[n]) or (outside and (took is Work.REAL or wanted)):
            kept.add(n)
    return kept


def fixed_nodes(graph: Graph) -> dict[Node, Work]:
    """Each node that has one value as long as parameters and constants stay, and what it takes to compute."""
    work: dict[Node, Work] = {}
    made: set[Node] = set()  # of constants and ranges only
    roots = set(graph.roots)
    room = max(_ROOM, sum(_bytes(n) for n in graph.inputs if _is_fixed_input(n)))
    for n in graph.nodes():
        if _is_fixed_input(n):
            work[n] = Work.NONE
        elif n.op in (FULL, IOTA) and _is_static(n):
            work[n] = Work.NONE
            made.add(n)
        elif n.args and n not in roots and all(a in work for a in n.args) and _may_fold(n, room):
            if all(a in made for a in n.args):
                made.add(n)
            work[n] = _work(n, [work[a] for a in n.args], n in made)
    return work


def _is_fixed_input(n: Node) -> bool:
    return isinstance(n.attrs, InputAttrs) and n.attrs.kind is not InputKind.USER


def _may_fold(n: Node, room: int) -> bool:
    if n.op.family in (Family.OPAQUE, Family.RANDOM) or n.op.effectful or not _is_static(n):
        return False
    return n.op.family is Family.VIEW or _bytes(n) <= room


def _work(n: Node, operands: list[Work], made: bool) -> Work:
    if n.op.family is Family.VIEW:
        return operands[0]
    return Work.CHEAP if made and n.op.name in _CHEAP and Work.REAL not in operands else Work.REAL


def _bytes(n: Node) -> int:
    numel = n.tensor.numel
    return numel * n.dtype.bytes if isinstance(numel, int) else 0


def _is_static(n: Node) -> bool:
    """Whether no size symbol is in the node's shape or attributes."""
    fields = (getattr(n.attrs, name) for name in getattr(n.attrs, "__match_args__", ()))
    return not _has_symbol(n.shape) and not _has_symbol(fields)


def _has_symbol(values: Iterable[object]) -> bool:
    return any(isinstance(v, Dim) or (isinstance(v, tuple) and _has_symbol(v)) for v in values)
