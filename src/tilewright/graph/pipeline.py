"""The graph passes in order.

In: a graph as recorded. Out: the graph that the tile layer lowers, and on the way each stage to whoever asks. Must not know
what a pass does, nor targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..base.errors import VerifyError
from .ir import Graph
from .passes.algebra import simplify
from .passes.attention import find_attention
from .passes.composites import expand_composites
from .passes.constants import fold_constants
from .passes.cse import merge_common
from .passes.dead import drop_dead
from .passes.outward import move_views_outward
from .passes.siblings import merge_siblings
from .passes.views import compose_views
from .verify import verify


@dataclass(frozen=True)
class Pass:
    name: str
    run: Callable[[Graph], Graph]


PIPELINE = (
    # Writes that nobody sees keep whole subgraphs alive; without them everything below has less to do.
    Pass("dead", drop_dead),
    # A recorder leaves chains of views and constants shaped like tensors; later patterns are written for the short forms.
    Pass("views", compose_views),
    Pass("constants", fold_constants),
    Pass("algebra", simplify),
    # Operators that rules made equal are one node from here on, so counts of users mean what they say.
    Pass("cse", merge_common),
    # Matmuls, biases and activations come to stand in one shape; softmax comes to stand beside its matmuls.
    Pass("outward", move_views_outward),
    # Needs softmax whole, and scales and masks in plain sight.
    Pass("attention", find_attention),
    # Needs attention found: what reads q, k and v tells whether they may be joined.
    Pass("siblings", merge_siblings),
    # Nothing below looks for composites; fusion wants reductions and pointwise operators.
    Pass("expand", expand_composites),
    # Expansions bring constants and casts of their own, and joined siblings leave views of views.
    Pass("late views", compose_views),
    Pass("late constants", fold_constants),
    Pass("late algebra", simplify),
    Pass("late cse", merge_common),
)

Watch: TypeAlias = Callable[[str, Graph], None]
"""Told of each pass that ran: its name and what it gave."""


def optimise(graph: Graph, *, debug: bool = False, watch: Watch | None = None, passes: tuple[Pass, ...] = PIPELINE) -> Graph:
    """The graph after all passes. With `debug` it is verified after each one.

    Raises what `verify` raises, with the pass named, where a pass broke the graph.
    """
    for p in passes:
        graph = p.run(graph)
        if debug:
            _verify(p, graph)
        if watch is not None:
            watch(p.name, graph)
    return graph


def _verify(after: Pass, graph: Graph) -> None:
    try:
        verify(graph)
    except VerifyError as e:
        e.add_note(f"after the pass {after.name!r}")
        raise
