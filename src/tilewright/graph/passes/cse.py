"""Common subexpressions: operators that compute the same value become one node.

In: a graph. Out: the same graph. Interning already merges equal nodes (an effectful call carries a serial number, so two
are never equal); this pass adds the pairs that differ in the order of a commutative operator's operands.
"""

from __future__ import annotations

from ..ir import Graph, Node, over, rewrite_nodes

COMMUTATIVE = {"add", "mul", "minimum", "maximum", "bitand", "bitor", "bitxor", "eq", "ne"}


def merge_common(graph: Graph) -> Graph:
    seen: dict[tuple[str, frozenset[Node]], Node] = {}

    def rule(n: Node, args: tuple[Node, ...]) -> Node | None:
        if n.op.name not in COMMUTATIVE or args[0] is args[1]:
            return None
        return seen.setdefault((n.op.name, frozenset(args)), over(n, args))

    return rewrite_nodes(graph, rule)
