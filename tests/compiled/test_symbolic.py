"""Graphs with symbolic sizes as machine code: one executable, many sizes, the interpreter's results and strides."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from graph.symbolic_graphs import SYMBOLIC
from tile.lower_cases import Builder, tensors
from tile.symbolic_cases import S0, S1
from tilewright import driver
from tilewright.base import config, dims, dtypes, log
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import Graph, TensorType
from tilewright.graph.ops import composite, contract, index, opaque, pointwise, view
from tilewright.program import torch_link

torch_link.connect()

VALUES = (2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)


def check_native(graph: Graph, runs: int, error: float = 1e-4, values: Sequence[int] = VALUES) -> None:
    executable = driver.build(graph, config.Options(), log.Stages())
    rng = random.Random(0)
    for _ in range(runs):
        sizes = {name: rng.choice(values) for name, _ in graph.hints}
        given = tensors(graph, sizes)
        expected = interpret(graph, [t.clone() for t in given])
        for got, want in zip(executable.execute(given), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=error, atol=error, equal_nan=True)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("name", SYMBOLIC)
def test_every_size(name: str) -> None:
    check_native(SYMBOLIC[name], 12)


def test_convolution_by_eager() -> None:
    b = Builder()
    x, w, out = b.input(S0, 3, S1, S1), b.parameter(8, 3, 3, 3), (S1 - 1) // 2 + 1
    args = (opaque.TensorArg(0), opaque.TensorArg(1), None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1)
    given = TensorType(dtypes.f32, (S0, 8, out, out))
    y = opaque.CALL(pointwise.MUL(x, x), w, overload="aten.convolution.default", args=args, kwargs=(), type=given)
    z = pointwise.RELU(y)
    check_native(hinted(b.graph(z, composite.MEAN(z, dims=(2, 3)))), 4, 1e-3, (2, 3, 8, 17))


def test_a_step_of_decoding() -> None:
    b = Builder()
    past, new, query = b.input(1, 4, S1, 16), b.input(1, 4, 1, 16), b.input(1, 4, 1, 16)
    keys = index.CAT(past, new, dim=2)
    scores = contract.MATMUL(query, pointwise.TANH(view.PERMUTE(keys, dims=(0, 1, 3, 2))))
    check_native(hinted(b.graph(keys, contract.MATMUL(pointwise.EXP(scores), keys))), 8, 1e-2, (2, 3, 16, 31, 64))


def test_rotary_positions() -> None:
    b = Builder()
    x = b.input(S0, S1, 64)
    low, high = (view.SLICE(x, dim=2, start=k, stop=k + 32, step=1) for k in (0, 32))
    places, rates = (pointwise.CAST(index.IOTA(size=n), dtype=dtypes.f32) for n in (S1, 32))
    angles = pointwise.MUL(view.RESHAPE(places, shape=(S1, 1)), view.RESHAPE(rates, shape=(1, 32)))
    angles = index.CAT(angles, angles, dim=1)
    turned = pointwise.MUL(index.CAT(pointwise.NEG(high), low, dim=2), pointwise.SIN(angles))
    check_native(hinted(b.graph(pointwise.ADD(pointwise.MUL(x, pointwise.COS(angles)), turned))), 8, 1e-3, (2, 3, 16, 31))


def hinted(graph: Graph) -> Graph:
    names = {s.name for n in graph.inputs for s in dims.symbols(*n.shape)}
    return Graph(graph.inputs, graph.outputs, graph.strides, hints=tuple((n, 12) for n in sorted(names)))
