"""Graphs with symbolic sizes as machine code: one executable, many sizes, the interpreter's results and strides."""

from __future__ import annotations

import random

import pytest
import torch

from graph.symbolic_graphs import SYMBOLIC
from tile.lower_cases import tensors
from tilewright import driver
from tilewright.base import config, log
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import Graph
from tilewright.program import torch_link

torch_link.connect()

VALUES = (2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)


def check_native(graph: Graph, runs: int, error: float = 1e-4) -> None:
    executable = driver.build(graph, config.Options(), log.Stages())
    rng = random.Random(0)
    for _ in range(runs):
        sizes = {name: rng.choice(VALUES) for name, _ in graph.hints}
        given = tensors(graph, sizes)
        expected = interpret(graph, [t.clone() for t in given])
        for got, want in zip(executable.execute(given), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=error, atol=error, equal_nan=True)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("name", SYMBOLIC)
def test_every_size(name: str) -> None:
    check_native(SYMBOLIC[name], 12)
