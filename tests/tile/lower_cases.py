"""Graphs for the tests of lowering, and their runs through the simulator.

Out: `check(graph)`, which lowers, simulates and compares with the reference interpreter; `random_graph(seed)`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from tilewright.base import dims, dtypes
from tilewright.base.dims import Size
from tilewright.base.dtypes import DType
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import INPUT, Effect, Graph, InputKind, Node, Output, TensorType
from tilewright.graph.ops import composite, contract, index, pointwise, reduce, scan, view
from tilewright.graph.ops.torch_dtypes import to_torch
from tilewright.tile.lower.space import row_major, shape_of
from tilewright.tile.memory import Memory
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Program
from tilewright.tile.schedule import Machine
from tilewright.tile.simulate import run_program

MACHINE = Machine()
USER, PARAMETER = InputKind.USER, InputKind.PARAMETER


class Builder:
    """Collects inputs while a graph is written."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []

    def input(self, *shape: Size, dtype: DType = dtypes.f32, kind: InputKind = USER) -> Node:
        i = len(self.inputs)
        n = INPUT(index=i, name=f"a{i}", kind=kind, type=TensorType(dtype, shape))
        self.inputs.append(n)
        return n

    def parameter(self, *shape: Size) -> Node:
        return self.input(*shape, kind=PARAMETER)

    def graph(self, *outputs: Node, effects: Sequence[Effect] = (), strides: Sequence[tuple[Size, ...]] | None = None) -> Graph:
        """Row-major outputs and, unless `strides` says otherwise, inputs."""
        given = tuple(strides) if strides is not None else tuple(row_major(shape_of(n)) for n in self.inputs)
        return Graph(tuple(self.inputs), tuple(Output(o, row_major(shape_of(o))) for o in outputs), given, tuple(effects))


def tensors(graph: Graph, sizes: Mapping[str, int] | None = None) -> list[torch.Tensor]:
    """Deterministic inputs with the graph's strides; integers are small and not negative. `sizes`: its symbols' values."""
    torch.manual_seed(0)
    found = []
    for n, steps in zip(graph.inputs, graph.strides, strict=True):
        shape, strides = (tuple([dims.evaluate(s, sizes or {}) for s in given]) for given in (n.shape, steps))
        size = max(0, 1 + sum((s - 1) * k for s, k in zip(shape, strides, strict=True)))
        values = torch.randn(size) if n.dtype.is_float else torch.randint(0, 2 if n.dtype is dtypes.b1 else 4, (size,))
        found.append(values.to(to_torch(n.dtype)).as_strided(shape, strides))
    return found


def array(t: torch.Tensor) -> np.ndarray:
    """The memory of a tensor from its first element on, as the simulator keeps it."""
    size = 1 + sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    flat = t.as_strided((size,), (1,)).clone()
    return (flat.view(torch.uint16) if t.dtype is torch.bfloat16 else flat).numpy()


def tensor(a: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    t = torch.from_numpy(np.ascontiguousarray(a))
    if like.dtype is torch.bfloat16 and t.dtype is torch.uint16:
        t = t.view(torch.bfloat16)
    return t.reshape(like.shape).to(like.dtype)


def check(
    graph: Graph,
    inputs: Sequence[torch.Tensor] | None = None,
    error: float = 1e-4,
    machine: Machine = MACHINE,
    call: Callable[..., object] | None = None,
) -> Program:
    """Lower and simulate; outputs and effects must be the interpreter's."""
    program = lower(graph, machine)
    agree(graph, program, list(inputs) if inputs is not None else tensors(graph), error, call)
    return program


def agree(
    graph: Graph,
    program: Program,
    given: Sequence[torch.Tensor],
    error: float = 1e-4,
    call: Callable[..., object] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """The simulated outputs and effects of `program`, which `graph` was lowered to, are the interpreter's."""
    memories = [Memory(array(t)) for t in given]
    outputs = run_program(program, memories, call, sizes=sizes)  # type: ignore[arg-type]
    expected = interpret(graph, given)
    for got, want in zip(outputs, expected, strict=False):
        if got is not None:
            torch.testing.assert_close(tensor(got, want), want, rtol=error, atol=error, equal_nan=True)
    for e in graph.effects:
        flat = torch.from_numpy(memories[e.index].flat)
        torch.testing.assert_close(flat, torch.from_numpy(array(given[e.index])), rtol=error, atol=error, equal_nan=True)


# --- random graphs ----------------------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 20)
LARGEST = 20000


class RandomGraph:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.b = Builder()
        base = [self.random.choice(SIZES) for _ in range(self.random.randint(1, 4))]
        count = self.random.randint(1, 3)
        self.pool = [self.fresh(*(s if self.random.random() < 0.8 else 1 for s in base)) for _ in range(count)]
        self.made: list[Node] = []
        self.with_matmul = True

    def fresh(self, *shape: Size) -> Node:
        return self.b.input(*shape, kind=self.random.choice((USER, USER, PARAMETER)))

    def graph(self) -> Graph | None:
        for _ in range(self.random.randint(3, 14)):
            x = self.random.choice(self.pool[-5:])
            try:
                y = self.random.choices(*zip(*self.steps(), strict=True))[0](x, len(x.shape))
            except (ValueError, IndexError):  # the operator does not take this operand
                continue
            if y.dtype is dtypes.f32 and self.is_small(y.shape):
                self.pool.append(y)
                self.made.append(y)
        if not self.made:
            return None
        outputs = [self.made[-1], *(n for n in self.made[:-1] if self.random.random() < 0.2)]
        self.random.shuffle(outputs)
        return self.b.graph(*outputs)

    def steps(self) -> list[tuple[Callable[[Node, int], Node], float]]:
        return [
            (self.unary, 2), (self.binary, 4), (self.permute, 1), (self.reshape, 1), (self.slice, 1), (self.flip, 0.3),
            (self.expand, 0.4), (self.reduce, 1.2), (self.softmax, 0.5), (self.norm, 0.4), (self.cat, 0.5), (self.pad, 0.3),
            (self.matmul, 0.5 * self.with_matmul), (self.scan, 0.3), (self.take, 0.4), (self.scatter, 0.3),
            (self.strided_scatter, 0.1),
        ]  # fmt: skip

    def is_small(self, shape: tuple[Size, ...]) -> bool:
        return all(isinstance(s, int) for s in shape) and 0 < math.prod(shape) <= LARGEST

    def dim(self, rank: int) -> int:
        return self.random.randrange(rank)

    def part(self, size: Size) -> tuple[Size, Size]:
        size = dims.as_int(size)
        start = self.random.randrange(size)
        return start, self.random.randint(start + 1, size)

    def unary(self, x: Node, rank: int) -> Node:
        return self.random.choice((pointwise.NEG, pointwise.TANH, pointwise.SIGMOID, pointwise.ABS, pointwise.SIN))(x)

    def binary(self, x: Node, rank: int) -> Node:
        op = self.random.choice((pointwise.ADD, pointwise.MUL, pointwise.SUB, pointwise.MAXIMUM))
        return op(x, self.random.choice(self.pool))

    def permute(self, x: Node, rank: int) -> Node:
        return view.PERMUTE(x, dims=tuple(self.random.sample(range(rank), rank)))

    def reshape(self, x: Node, rank: int) -> Node:
        rest, shape = x.tensor.numel, []
        while rest > 1:
            shape.append(self.random.choice([d for d in range(2, rest + 1) if rest % d == 0]))
            rest //= shape[-1]
        self.random.shuffle(shape)
        return view.RESHAPE(x, shape=tuple(shape))

    def slice(self, x: Node, rank: int) -> Node:
        d = self.dim(rank)
        start, stop = self.part(x.shape[d])
        return view.SLICE(x, dim=d, start=start, stop=stop, step=self.random.choice((1, 1, 2)))

    def flip(self, x: Node, rank: int) -> Node:
        return view.FLIP(x, dims=(self.dim(rank),))

    def expand(self, x: Node, rank: int) -> Node:
        return view.EXPAND(x, shape=(self.random.choice((1, 2, 3)), *x.shape))

    def reduce(self, x: Node, rank: int) -> Node:
        dims = tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))
        return self.random.choice((reduce.SUM, reduce.AMAX, reduce.AMIN))(x, dims=dims, keepdim=self.random.random() < 0.5)

    def softmax(self, x: Node, rank: int) -> Node:
        return composite.SOFTMAX(x, dim=self.dim(rank))

    def norm(self, x: Node, rank: int) -> Node:
        return composite.LAYER_NORM(x, ndims=self.random.randint(1, rank))

    def cat(self, x: Node, rank: int) -> Node:
        d = self.dim(rank)
        return index.CAT(view.SLICE(x, dim=d, start=0, stop=1, step=1), x, pointwise.NEG(x), dim=d)

    def pad(self, x: Node, rank: int) -> Node:
        pads = tuple((self.random.choice((0, 0, 1)), self.random.choice((0, 2))) for _ in range(rank))
        return index.PAD(x, pads=pads, value=1.5)

    def matmul(self, x: Node, rank: int) -> Node:
        if self.random.random() < 0.5:
            return contract.MATMUL(x, view.PERMUTE(x, dims=(*range(rank - 2), rank - 1, rank - 2)))
        return contract.MATMUL(x, self.fresh(x.shape[-1], self.random.choice((1, 3, 33, 40))))

    def scan(self, x: Node, rank: int) -> Node:
        return scan.CUMSUM(x, dim=self.dim(rank))

    def take(self, x: Node, rank: int) -> Node:
        d = self.dim(rank)
        most = pointwise.FULL(value=x.shape[d] - 1, dtype=dtypes.i64)
        at = pointwise.MINIMUM(self.b.input(self.random.choice((2, 5)), dtype=dtypes.i64), most)
        return index.TAKE(x, at, dim=d)

    def scatter(self, x: Node, rank: int) -> Node:
        d = self.dim(rank)
        start, stop = self.part(x.shape[d])
        source = pointwise.NEG(view.SLICE(x, dim=d, start=start, stop=stop, step=1))
        return index.SLICE_SCATTER(x, source, dim=d, start=start, stop=stop, step=1)

    def strided_scatter(self, x: Node, rank: int) -> Node:
        count = self.random.randint(1, x.tensor.numel)
        source = view.SLICE(view.RESHAPE(x, shape=(x.tensor.numel,)), dim=0, start=0, stop=count, step=1)
        return index.AS_STRIDED_SCATTER(x, pointwise.NEG(source), strides=(1,), offset=x.tensor.numel - count)


def random_graph(seed: int) -> Graph | None:
    """A graph of a few operators whose results are finite and of moderate size, or None where the seed gives none."""
    graph = RandomGraph(seed).graph()
    if graph is None:
        return None
    return graph if is_moderate(graph) else None


def is_moderate(graph: Graph, sizes: Mapping[str, int] | None = None) -> bool:
    """Whether its results are finite and of moderate size, so that they can be compared."""
    results = interpret(graph, tensors(graph, sizes))
    return all(r.isfinite().all() and r.numel() and r.abs().max() < 1e4 for r in results)
