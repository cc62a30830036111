"""Which nodes share a kernel, and what is recomputed rather than kept."""

from __future__ import annotations

import pytest

from tile.lower_cases import MACHINE, Builder, check, random_graph
from tilewright.base import dtypes
from tilewright.graph.ir import Graph, Node
from tilewright.graph.ops import composite, contract, index, pointwise, reduce, view
from tilewright.graph.passes.folded import folded_nodes
from tilewright.tile.fuse import Partition, partition
from tilewright.tile.hints import Hints
from tilewright.tile.lower.inline import Inliner, external_reads
from tilewright.tile.lower.prepare import prepare
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Launch, Storage


def kernels(graph: Graph) -> list[str]:
    """The names of the kernels launched in each call; and everything is right."""
    return [s.kernel.name for s in check(graph, error=1e-3).steps if isinstance(s, Launch)]


def temps(graph: Graph) -> int:
    return sum(v.storage is Storage.TEMP for v in lower(graph, MACHINE).values)


def parts(graph: Graph) -> Partition:
    hints = Hints()
    ready = prepare(graph, MACHINE, hints)
    found = partition(ready, folded_nodes(ready), MACHINE)
    Inliner(found, MACHINE, hints).run()
    return found


def linear(b: Builder, x: Node, n: int) -> Node:
    return pointwise.ADD(contract.MATMUL(x, view.PERMUTE(b.parameter(n, x.shape[-1]), dims=(1, 0))), b.parameter(n))


# --- contractions -----------------------------------------------------------------------------------------------------


def test_epilogue() -> None:
    b = Builder()
    x = b.input(2, 9, 24)
    assert kernels(b.graph(pointwise.GELU(linear(b, x, 40)))) == ["matmul_add_gelu"]


def test_epilogue_that_reads_the_product_many_times() -> None:
    b = Builder()
    y = linear(b, b.input(9, 24), 40)
    cube = pointwise.MUL(pointwise.MUL(y, y), y)
    assert kernels(b.graph(pointwise.MUL(y, pointwise.TANH(pointwise.ADD(y, cube))))) == ["matmul_add_mul_tanh"]


def test_epilogue_in_another_shape() -> None:
    """A 1x1 convolution: the bias is added to an image, the product is a matrix."""
    b = Builder()
    y = contract.MATMUL(b.parameter(3, 24), view.RESHAPE(b.input(2, 24, 8, 20), shape=(2, 24, 160)))
    image = view.RESHAPE(y, shape=(2, 3, 8, 20))
    assert kernels(b.graph(pointwise.RELU(pointwise.ADD(image, b.input(3, 1, 1))))) == ["matmul_add_relu"]


def test_residual_and_several_results() -> None:
    b = Builder()
    x = b.input(9, 24)
    y = pointwise.ADD(linear(b, x, 24), x)
    assert kernels(b.graph(y, pointwise.TANH(y))) == ["matmul_add_tanh"]


def test_second_product_takes_the_sum() -> None:
    """Of two operands of a sum the later one is computed with it."""
    b = Builder()
    x = b.input(9, 24)
    y = pointwise.MUL(pointwise.SILU(linear(b, x, 40)), linear(b, x, 40))
    assert kernels(b.graph(y)) == ["matmul_add_silu", "matmul_add_mul"]


def test_heads_are_views() -> None:
    """Splitting into heads and back moves nothing."""
    b = Builder()
    x = b.input(1, 12, 32)
    q, k, v = (view.PERMUTE(view.RESHAPE(linear(b, x, 32), shape=(1, 12, 2, 16)), dims=(0, 2, 1, 3)) for _ in range(3))
    a = view.PERMUTE(contract.ATTENTION(q, k, v, scale=0.25), dims=(0, 2, 1, 3))
    names = kernels(b.graph(linear(b, view.RESHAPE(a, shape=(1, 12, 32)), 32)))
    assert names == ["matmul_add"] * 3 + ["attention", "matmul_add"]


def test_rotation_reads_the_product_once() -> None:
    """What a product's other readers need anyway is not accompanied by a second result."""
    b = Builder()
    q = view.PERMUTE(view.RESHAPE(linear(b, b.input(1, 6, 32), 32), shape=(1, 6, 2, 16)), dims=(0, 2, 1, 3))
    half = index.CAT(pointwise.NEG(view.SLICE(q, dim=3, start=8, stop=16)), view.SLICE(q, dim=3, start=0, stop=8), dim=3)
    turned = pointwise.ADD(pointwise.MUL(q, b.input(6, 16)), pointwise.MUL(half, b.input(6, 16)))
    graph = b.graph(turned)
    assert len(kernels(graph)) == 2
    assert temps(graph) == 1


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax(dim: int) -> None:
    b = Builder()
    scores, mask = b.input(5, 6, 33), b.input(6, 33)
    y = composite.SOFTMAX(pointwise.ADD(pointwise.MUL(scores, pointwise.FULL(value=0.5, dtype=dtypes.f32)), mask), dim=dim)
    assert len(kernels(b.graph(y))) == 1


def test_norm_with_residual_gives_both() -> None:
    b = Builder()
    x, r = b.input(4, 7, 33), b.input(4, 7, 33)
    h = pointwise.ADD(x, r)
    assert len(kernels(b.graph(composite.LAYER_NORM(h, b.input(33), b.input(33), affine="both"), h))) == 1


def test_embeddings_and_norm() -> None:
    b = Builder()
    ids, words, places = b.input(2, 7, dtype=dtypes.i64), b.input(50, 24), b.input(64, 24)
    e = pointwise.ADD(index.TAKE(words, ids, dim=0), index.TAKE(places, index.IOTA(size=7), dim=0))
    checked, _ = kernels(b.graph(composite.LAYER_NORM(e)))
    assert checked == "check_index"


def test_rms_norm_of_bfloat16() -> None:
    b = Builder()
    x, w = b.input(4, 40, dtype=dtypes.bf16), b.input(40, dtype=dtypes.bf16)
    graph = b.graph(composite.RMS_NORM(x, w))
    check(graph, error=2e-2)
    assert len(lower(graph, MACHINE).steps) == 1


def test_reductions_over_the_same_rows_share_a_kernel() -> None:
    b = Builder()
    x = b.input(6, 50)
    assert kernels(b.graph(reduce.SUM(x, dims=(1,)), reduce.AMAX(x, dims=(1,), keepdim=True))) == ["sum_amax"]


def test_reductions_over_other_axes_do_not() -> None:
    b = Builder()
    x = b.input(6, 50)
    assert len(kernels(b.graph(reduce.SUM(x, dims=(1,)), reduce.SUM(x, dims=(0,))))) == 2


def test_a_large_sum_takes_two_steps() -> None:
    b = Builder()
    x = b.input(2, 1 << 15)
    assert kernels(b.graph(reduce.SUM(x, dims=(0, 1)))) == ["sum", "sum"]


# --- recomputing ------------------------------------------------------------------------------------------------------


def test_cheap_producers_are_recomputed() -> None:
    b = Builder()
    x, w = b.input(40, 50), b.input(50)
    scale = pointwise.ADD(w, pointwise.FULL(value=1.0, dtype=dtypes.f32))
    assert len(kernels(b.graph(pointwise.MUL(pointwise.TANH(x), scale)))) == 1


def test_costly_producers_are_kept() -> None:
    """A function of few elements, read by many, is computed once an element."""
    b = Builder()
    x, w = b.input(400, 500), b.input(500)
    graph = b.graph(pointwise.ADD(x, pointwise.ERF(pointwise.TANH(w))))
    assert [s.kernel.name for s in lower(graph, MACHINE).steps if isinstance(s, Launch)] == ["tanh_erf", "add"]


def test_no_node_is_recomputed_without_bound() -> None:
    """A chain in which every link is read twice, at two places, must not grow like a power of two."""
    b = Builder()
    x = b.input(64, 65)
    for _ in range(24):
        x = pointwise.ADD(pointwise.TANH(x), view.FLIP(x, dims=(1,)))
    found = parts(b.graph(x))
    assert sum(len(g.members) + len(g.inlined) for g in found.groups) < 200


def test_masks_of_ranges_take_no_memory() -> None:
    b = Builder()
    x = b.input(3, 8, 8)
    causal = pointwise.LE(index.IOTA(size=8), view.RESHAPE(index.IOTA(size=8), shape=(8, 1)))
    graph = b.graph(pointwise.WHERE(causal, x, pointwise.FULL(value=0.0, dtype=dtypes.f32)))
    assert len(kernels(graph)) == 1
    assert {v.storage for v in lower(graph, MACHINE).values} == {Storage.INPUT, Storage.OUTPUT}


# --- what is computed ahead -------------------------------------------------------------------------------------------


def test_packing_is_done_ahead() -> None:
    b = Builder()
    program = check(b.graph(linear(b, b.input(9, 24), 40)))
    assert [s.kernel.name for s in program.folded if isinstance(s, Launch)] == ["pack"]


def test_weights_side_by_side_are_packed_from_where_they_are() -> None:
    b = Builder()
    x = b.input(9, 24)
    w = index.CAT(b.parameter(32, 24), b.parameter(64, 24), b.parameter(20, 24), dim=0)
    program = check(b.graph(contract.MATMUL(x, view.PERMUTE(w, dims=(1, 0)))))
    assert [s.kernel.name for s in program.folded if isinstance(s, Launch)] == ["pack"] * 3
    assert sum(v.storage is Storage.FOLDED for v in program.values) == 1


def test_run_time_weights_are_not_packed_ahead() -> None:
    b = Builder()
    program = check(b.graph(contract.MATMUL(b.input(9, 24), b.input(24, 40))))
    assert not program.folded and len(program.steps) == 1


def test_tables_of_parameters_are_folded() -> None:
    b = Builder()
    x, w = b.input(9, 24), b.parameter(24)
    program = check(b.graph(pointwise.ADD(x, pointwise.TANH(pointwise.EXP(w)))))
    assert len(program.folded) == 1 and len(program.steps) == 1


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [2000, 2030, 2060])
def test_groups_read_only_what_ran_before(first: int) -> None:
    for seed in range(first, first + 30):
        graph = random_graph(seed)
        if graph is None:
            continue
        found = parts(graph)
        for g in found.groups:
            for n in external_reads(found, g):
                before = found.group_of.get(n)
                assert before is None or before.order < g.order or (before.folded and not g.folded), (seed, g, n)


def test_siblings_share_a_kernel() -> None:
    b = Builder()
    x = b.input(40, 50)
    assert kernels(b.graph(pointwise.COS(x), pointwise.SIN(x))) == ["cos_sin"]
