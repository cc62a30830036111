"""Composite operators written out: softmax, norms and means become reductions and pointwise operators.

In: a graph after every pass that looks for whole composites. Out: the same graph without any. Must not know which
composites exist: each brings its own `expand`.
"""

from __future__ import annotations

from ..ir import Family, Graph, Node, over, rewrite_nodes


def expand_composites(graph: Graph) -> Graph:
    return rewrite_nodes(graph, _expanded)


def _expanded(n: Node, args: tuple[Node, ...]) -> Node | None:
    """`n` written out, the composites in its own expansion too; `args` are free of composites already."""
    if n.op.family is not Family.COMPOSITE or n.op.expand is None:
        return None
    new = n.op.expand(n.attrs, *args)
    done: dict[Node, Node] = {a: a for a in args}
    for m in _between(new, args):
        operands = tuple(done[a] for a in m.args)
        done[m] = _expanded(m, operands) or over(m, operands)
    return done[new]


def _between(root: Node, leaves: tuple[Node, ...]) -> list[Node]:
    """The nodes under `root`, operands first, that are neither in nor below `leaves`."""
    stop = set(leaves)
    seen: set[Node] = set()
    todo = [root]
    while todo:
        n = todo.pop()
        if n not in seen and n not in stop:
            seen.add(n)
            todo += n.args
    return sorted(seen, key=lambda n: n.serial)
