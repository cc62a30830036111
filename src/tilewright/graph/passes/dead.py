"""Dead effects: writes that nobody can see are dropped, and with them what only they needed.

In: a graph. Out: the same graph without the effects that write an input's own value back or that a later effect on the
same input overwrites. Nodes that no root needs are not part of a graph in the first place. Must not know operators.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import Effect, Graph


def drop_dead(graph: Graph) -> Graph:
    last = {e.index: i for i, e in enumerate(graph.effects)}
    kept: list[Effect] = []
    for i, e in enumerate(graph.effects):
        # Inputs may share memory, so writing an input's own value is a write unless nothing was written before.
        own = e.node is graph.inputs[e.index] and not kept
        if last[e.index] == i and not own:
            kept.append(e)
    if len(kept) == len(graph.effects):
        return graph
    return replace(graph, effects=tuple(kept))
