"""Graphs with symbolic sizes: lowered once, right at every size."""

from __future__ import annotations

import pytest

from graph.symbolic_graphs import SYMBOLIC
from tile.lower_cases import MACHINE, agree, tensors
from tilewright.graph.ir import Graph
from tilewright.tile.pipeline import lower

SIZES = (
    {"s0": 2, "s1": 3},
    {"s0": 5, "s1": 2},
    {"s0": 17, "s1": 33},
    {"s0": 64, "s1": 16},
    {"s0": 100, "s1": 31},
    {"s0": 3, "s1": 300},
)


def check_sizes(graph: Graph) -> None:
    program = lower(graph, MACHINE)
    names = [name for name, _ in graph.hints]
    for sizes in SIZES:
        known = {name: sizes[name] for name in names}
        agree(graph, program, tensors(graph, known), sizes=known)


@pytest.mark.parametrize("name", [name for name in SYMBOLIC if name not in ("linear", "attention")])
def test_every_size(name: str) -> None:
    check_sizes(SYMBOLIC[name])
