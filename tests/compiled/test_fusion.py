"""Random graphs as machine code and by the simulator, against float64; graphs that were wrong once."""

from __future__ import annotations

import os
import time

import pytest
import torch

from compiled.random_graphs import sample
from compiled.reference import Sample, difference, meaning, tolerances
from compiled.shrink import shrink
from compiled.stages import Build
from graph.op_cases import values
from tilewright.graph.ir import InputKind
from tilewright.graph.text import parse_graph, print_graph
from tilewright.targets.cpu import isa as isas

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")

CHUNKS, CHUNK = 6, 20
SECONDS = 8.0  # of a chunk; what is left of it then stays out
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))  # another first seed, to look for more


def check(s: Sample, target: str = "cpu", simulate: bool = True) -> None:
    """Raises AssertionError for a wrong result, naming the root, and whatever a stage raises."""
    build = Build(s.graph, target)
    true = meaning(s)
    limits = tolerances(s, true)
    tensors = s.fresh()
    outputs = build.run(tensors)
    found = [*outputs, *(tensors[e.index] for e in s.graph.effects)]
    simulated = build.simulate(s.fresh()) if simulate else []
    for name, results in (("compiled", found), ("simulated", simulated)):
        for root, got, t, limit in zip(s.graph.roots, results, true, limits, strict=False):
            wrong = None if got is None else difference(got, t, limit)
            assert wrong is None, f"{name} {root}: {wrong}"
    for o, got in zip(s.graph.outputs, outputs, strict=True):
        assert got.numel() == 0 or tuple(got.stride()) == o.strides, f"{o.node}: strides {got.stride()} for {o.strides}"


def report(s: Sample, error: Exception, target: str) -> str:
    """The failing graph made small, as text."""

    def fails(candidate: Sample) -> bool:
        try:
            check(candidate, target)
        except Exception as other:  # of the same kind, or it is another bug
            return type(other) is type(error)
        return False

    small = shrink(s, fails)
    return f"{type(error).__name__}: {error}\n{print_graph(small.graph)}"


def run(first: int, count: int, target: str, simulate: bool) -> None:
    stop = time.perf_counter() + SECONDS
    done = 0
    for seed in range(first, first + count):
        if time.perf_counter() > stop:
            break
        s = sample(seed)
        try:
            check(s, target, simulate)
        except Exception as error:
            pytest.fail(f"seed {seed}: {report(s, error, target)}")
        done += 1
    assert done


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_graphs(chunk: int) -> None:
    run(FIRST + chunk * CHUNK, CHUNK, "cpu", simulate=True)


@pytest.mark.skipif(not isas.host_isa().is_x86, reason="needs an x86 processor")
@pytest.mark.parametrize("chunk", range(2))
def test_random_graphs_with_avx2(chunk: int) -> None:
    run(FIRST + 1000 + chunk * CHUNK, CHUNK, "cpu:x86-64-v3", simulate=False)


@pytest.mark.parametrize("seed", range(3000, 3006))
def test_large_values(seed: int) -> None:
    """Several blocks and threads, panels and remainders; the simulator would take its time."""
    check(sample(seed, size=12, largest=200_000), simulate=False)


def test_parameters_that_change_are_seen() -> None:
    """What was folded from them is computed anew: after a write that moves their version counter, and after one that does not."""
    seen = 0
    for seed in range(4000, 4040):
        s = sample(seed, size=8)
        changing = [
            i for i, (n, t) in enumerate(zip(s.graph.inputs, s.tensors, strict=True))
            if n.attrs.kind is InputKind.PARAMETER and n.dtype.is_float and 0 not in t.stride()
        ]  # fmt: skip
        if not changing or s.graph.effects:
            continue
        tensors = s.fresh()
        entry = Build(s.graph).entry(tensors)
        for change in (lambda t: t, lambda t: t.mul_(0.5), lambda t: t.data.mul_(-1)):
            for i in changing:
                change(tensors[i])
            now = Sample(s.graph, tensors, s.exact)
            true = meaning(now)
            for root, got, t, limit in zip(s.graph.roots, entry.run(*tensors), true, tolerances(now, true), strict=True):
                wrong = difference(got, t, limit)
                assert wrong is None, f"seed {seed}: {root}: {wrong}"
        seen += 1
    assert seen > 10


def test_samples_are_repeatable_and_varied() -> None:
    graphs = [sample(seed).graph for seed in range(60)]
    assert [print_graph(g) for g in graphs[:5]] == [print_graph(sample(seed).graph) for seed in range(5)]
    used = {n.op.name for g in graphs for n in g.nodes()}
    assert used >= {
        "matmul",
        "softmax",
        "layer_norm",
        "reshape",
        "permute",
        "slice",
        "cat",
        "take",
        "sum",
        "where",
        "cast",
        "pad",
    }
    assert any(g.effects for g in graphs) and any(len(g.outputs) > 2 for g in graphs)
    assert {n.dtype.name for g in graphs for n in g.nodes()} >= {"float32", "float64", "bfloat16", "float16", "int64", "bool"}


def test_a_wrong_result_is_found_and_made_small() -> None:
    s = sample(7)
    small = shrink(s, lambda c: any(n.op.name == s.graph.outputs[0].node.op.name for n in c.graph.nodes()))
    assert sum(n.op.name != "input" for n in small.graph.nodes()) == 1
    true = meaning(s)
    assert difference(true[0] + 0.5, true[0], tolerances(s, true)[0]) is not None


ONCE_WRONG = {
    "an input reversed in place": """
        %0 = input(index=0, name="x0", kind=user) : f32[3, 7], strides=(7, 1)
        %1 = flip(%0, dims=(0,)) : f32[3, 7]
        write %1, index=0""",
    "a mean of one repeated element": """
        %0 = input(index=0, name="x0", kind=parameter) : f32[33], strides=(0,)
        %1 = mean(%0, dims=(0,), keepdim=False) : f32[]
        return %1, strides=()""",
    "elements by strides of a repeated element": """
        %0 = input(index=0, name="x0", kind=user) : f32[5], strides=(0,)
        %1 = input(index=1, name="x1", kind=parameter) : f32[4, 31], strides=(31, 1)
        %2 = as_strided(%0, shape=(1, 4), strides=(1, 0), offset=3) : f32[1, 4]
        %3 = matmul(%2, %1) : f32[1, 31]
        return %3, strides=(31, 1)""",
    "a reshape without elements": """
        %0 = input(index=0, name="x0", kind=user) : f32[31, 7, 0], strides=(7, 1, 1)
        %1 = input(index=1, name="x1", kind=user) : b1[31, 7, 0], strides=(27, 3, 2)
        %2 = input(index=2, name="x2", kind=user) : f32[1], strides=(1,)
        %3 = neg(%0) : f32[31, 7, 0]
        %4 = reshape(%3, shape=(0,)) : f32[0]
        %5 = where(%1, %4, %2) : f32[31, 7, 0]
        return %5, strides=(7, 1, 1)""",
    "two products that are each other's reshape": """
        %0 = input(index=0, name="x0", kind=user) : f32[4, 1, 1], strides=(1, 1, 1)
        %1 = input(index=1, name="x1", kind=user) : f32[4, 1, 8], strides=(8, 32, 1)
        %2 = input(index=2, name="x2", kind=user) : f32[1, 8], strides=(8, 1)
        %3 = input(index=3, name="x3", kind=user) : f32[8, 32], strides=(32, 1)
        %4 = matmul(%0, %1) : f32[4, 1, 8]
        %5 = permute(%4, dims=(1, 0, 2)) : f32[1, 4, 8]
        %6 = matmul(%2, %3) : f32[1, 32]
        %7 = reshape(%6, shape=(1, 4, 8)) : f32[1, 4, 8]
        %8 = maximum(%5, %7) : f32[1, 4, 8]
        return %8, strides=(32, 8, 1)""",
    "a repeated operand that is also reshaped": """
        %0 = input(index=0, name="x0", kind=parameter) : f32[8, 2], strides=(2, 1)
        %1 = input(index=1, name="x1", kind=user) : f32[2, 1, 8], strides=(8, 8, 1)
        %2 = permute(%1, dims=(1, 0, 2)) : f32[1, 2, 8]
        %3 = expand(%2, shape=(3, 3, 2, 8)) : f32[3, 3, 2, 8]
        %4 = matmul(%3, %0) : f32[3, 3, 2, 2]
        return %4, strides=(12, 4, 2, 1)""",
    "extremes of reversed rows without elements": """
        %0 = input(index=0, name="x0", kind=user) : f16[1, 17, 0], strides=(17, 1, 1)
        %1 = flip(%0, dims=(0, 1)) : f16[1, 17, 0]
        %2 = amax(%1, dims=(1,), keepdim=False) : f16[1, 0]
        return %2, strides=(1, 1)""",
    "the magnitude of a negated unsigned number": """
        %0 = input(index=0, name="x0", kind=user) : u8[5, 33], strides=(33, 1)
        %1 = neg(%0) : u8[5, 33]
        %2 = abs(%1) : u8[5, 33]
        return %2, strides=(33, 1)""",
}


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_was_wrong_once(name: str) -> None:
    text = "\n".join(line.strip() for line in ONCE_WRONG[name].strip().splitlines())
    graph = parse_graph(text + "\n")
    tensors = []
    for n, strides in zip(graph.inputs, graph.strides, strict=True):
        room = torch.zeros(
            1 + sum((size - 1) * step for size, step in zip(n.shape, strides, strict=True) if size), dtype=torch.float64
        )
        memory = values(n.dtype, max(1, room.numel()))
        tensors.append(memory.as_strided(n.shape, strides))
    check(Sample(graph, tensors, frozenset(graph.nodes()) if not graph.nodes()[-1].dtype.is_float else frozenset()))
