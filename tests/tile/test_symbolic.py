"""Graphs with symbolic sizes: lowered once, right at every size."""

from __future__ import annotations

import pytest

from graph.symbolic_graphs import SYMBOLIC
from tile.symbolic_cases import SIZES, check_sizes, random_symbolic


@pytest.mark.parametrize("name", [name for name in SYMBOLIC if name not in ("linear", "attention")])
def test_every_size(name: str) -> None:
    check_sizes(SYMBOLIC[name])


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 20):
        graph = random_symbolic(seed, matmul=False)
        if graph is not None:
            check_sizes(graph, SIZES[:3], error=1e-3)
