"""Graphs with symbolic sizes: lowered once, right at every size."""

from __future__ import annotations

import pytest

from graph.symbolic_graphs import SYMBOLIC
from tile.lower_cases import MACHINE
from tile.symbolic_cases import SIZES, check_sizes, random_symbolic
from tilewright.base.scalar import const, var
from tilewright.graph.text import parse_graph
from tilewright.tile.simulate import SimulationFault


@pytest.mark.parametrize("name", SYMBOLIC)
def test_every_size(name: str) -> None:
    check_sizes(SYMBOLIC[name])


MAY_BE_EMPTY = {
    "columns": """
%3 = exp(%2) : f32[s0, s1 - 2]
return %3, strides=({s1 - 2}, 1)
""",
    "a piece of several": """
%3 = cat(%2, %0, dim=1) : f32[s0, 2*s1 - 2]
%4 = neg(%3) : f32[s0, 2*s1 - 2]
%5 = reshape(%4, shape=({2*s0*s1 - 2*s0},)) : f32[2*s0*s1 - 2*s0]
return %5, strides=(1,)
""",
    "what is summed": """
%3 = permute(%2, dims=(1, 0)) : f32[s1 - 2, s0]
%4 = matmul(%2, %3) : f32[s0, s0]
%5 = softmax(%2, dim=1) : f32[s0, s1 - 2]
%6 = sum(%5, dims=(1,), keepdim=False) : f32[s0]
return %4, strides=({s0}, 1)
return %6, strides=(1,)
""",
}


@pytest.mark.parametrize("name", MAY_BE_EMPTY)
def test_sizes_that_may_be_zero(name: str) -> None:
    text = """
dim s0 >= 2 = 16
dim s1 >= 2 = 24
%0 = input(index=0, name="x", kind=user) : f32[s0, s1], strides=({s1}, 1)
%2 = slice(%0, dim=1, start=2, stop={s1}, step=1) : f32[s0, s1 - 2]
"""
    check_sizes(parse_graph(text + MAY_BE_EMPTY[name].lstrip()), ((2, 2), (5, 2), (3, 3), (17, 40)))


def test_a_range_that_outgrows_a_table() -> None:
    graph = parse_graph("""
dim s0 >= 2 = 16
%0 = input(index=0, name="w", kind=user) : f32[20, 8], strides=(8, 1)
%1 = input(index=1, name="x", kind=user) : f32[s0, 8], strides=(8, 1)
%2 = iota(size={s0}, dtype=i64, start=0, step=1) : i64[s0]
%3 = take(%0, %2, dim=0) : f32[s0, 8]
%4 = add(%3, %1) : f32[s0, 8]
return %4, strides=(8, 1)
""")
    check_sizes(graph, ((2,), (20,)))
    with pytest.raises(SimulationFault, match="an index lies outside 0 to 19"):
        check_sizes(graph, ((21,),))


def test_large_reductions_in_parts() -> None:
    graph = parse_graph("""
dim s0 >= 2 = 4096
dim s1 >= 2 = 600
%0 = input(index=0, name="x", kind=user) : f32[s0, s1], strides=({s1}, 1)
%1 = sum(%0, dims=(0, 1), keepdim=False) : f32[]
%2 = amax(%0, dims=(0, 1), keepdim=True) : f32[1, 1]
%3 = gt(%0, %2) : b1[s0, s1]
%4 = any(%3, dims=(0, 1), keepdim=False) : b1[]
return %1, strides=()
return %2, strides=(1, 1)
return %4, strides=()
""")
    program = check_sizes(graph, ((2, 3), (15, 7), (16, 2), (200, 5)))
    assert sum(k.grid == ((var("r0"), const(8 * MACHINE.threads)),) for k in program.kernels()) == 2  # sum and amax are one


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 20):
        graph = random_symbolic(seed)
        if graph is not None:
            check_sizes(graph, SIZES[:3], error=1e-3)
