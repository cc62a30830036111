"""Random graphs over symbolic sizes, and their runs at many sizes. Out: `random_symbolic(seed)`, `check_sizes(graph)`."""

from __future__ import annotations

from collections.abc import Iterable

from tile.lower_cases import MACHINE, RandomGraph, agree, is_moderate, tensors
from tilewright.base import dims, dtypes
from tilewright.base.dims import Size
from tilewright.graph.ir import Graph, Node
from tilewright.graph.ops import index, pointwise, view
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Program

S0, S1 = dims.symbol("s0"), dims.symbol("s1")
HINTS = ((16, 24), (2, 2), (5000, 3), (7, 4096), (512, 512))  # none of which may make a result wrong
SIZES = ((2, 3), (5, 2), (17, 33), (64, 16), (8, 100), (3, 300))


def check_sizes(graph: Graph, sizes: Iterable[tuple[int, ...]] = SIZES, error: float = 1e-4) -> Program:
    """Lower once, and simulate with several values of the symbols: the interpreter's results at each."""
    program = lower(graph, MACHINE)
    for values in sizes:
        known = dict(zip([name for name, _ in graph.hints], values, strict=False))
        agree(graph, program, tensors(graph, known), error, sizes=known)
    return program


class _Symbolic(RandomGraph):
    """Shapes of symbols, of sums and products of them, and of numbers. The first input gives the symbols their values."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.b.inputs.clear()
        self.pool = [self.b.input(S0, S1)]
        base = [self.random.choice((S0, S1, S0, S1, 2, 3, 8, 2 * S0, S0 + S1)) for _ in range(self.random.randint(1, 3))]
        self.pool += [self.fresh(*(s if self.random.random() < 0.8 else 1 for s in base)) for _ in range(2)]

    def fresh(self, *shape: Size) -> Node:
        return super().fresh(*shape) if all(isinstance(s, int) for s in shape) else self.b.input(*shape)

    def part(self, size: Size) -> tuple[Size, Size]:
        start = self.random.choice([s for s in (0, 1, S0, S1 - 1) if dims.provably_lt(s, size)])
        stops = [s for s in (1, S0, S1, size - 1, size) if dims.provably_lt(start, s) and dims.provably_le(s, size)]
        return start, self.random.choice(stops)

    def reshape(self, x: Node, rank: int) -> Node:
        """Split a dimension where something divides it, or join two."""
        d = self.dim(rank)
        if rank > 1 and self.random.random() < 0.5:
            d = self.dim(rank - 1)
            return view.RESHAPE(x, shape=(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :]))
        inner = self.random.choice([s for s in (2, 4, S0, S1) if dims.divides(s, x.shape[d])])
        outer = dims.quotient(x.shape[d], inner)
        return view.RESHAPE(x, shape=(*x.shape[:d], outer, inner, *x.shape[d + 1 :]))

    def expand(self, x: Node, rank: int) -> Node:
        return view.EXPAND(x, shape=(self.random.choice((1, 2, S0)), *x.shape))

    def pad(self, x: Node, rank: int) -> Node:
        pads = tuple((self.random.choice((0, 0, 1, S0)), self.random.choice((0, 2, S1 - 1))) for _ in range(rank))
        return index.PAD(x, pads=pads, value=1.5)

    def take(self, x: Node, rank: int) -> Node:
        d = self.dim(rank)
        most = pointwise.FULL(value=x.shape[d] - 1, dtype=dtypes.i64)
        at = pointwise.MINIMUM(self.b.input(self.random.choice((2, S0)), dtype=dtypes.i64), most)
        return index.TAKE(x, at, dim=d)

    def strided_scatter(self, x: Node, rank: int) -> Node:
        count = self.random.choice([s for s in (1, S0, S1) if dims.provably_le(s, x.tensor.numel)])
        source = view.SLICE(view.RESHAPE(x, shape=(x.tensor.numel,)), dim=0, start=0, stop=count, step=1)
        return index.AS_STRIDED_SCATTER(x, pointwise.NEG(source), strides=(1,), offset=x.tensor.numel - count)

    def is_small(self, shape: tuple[Size, ...]) -> bool:
        count = 1
        for s in shape:
            count *= dims.evaluate(s, {"s0": 17, "s1": 33})
        return count <= 60_000


def random_symbolic(seed: int, matmul: bool = True) -> Graph | None:
    """A graph of a few operators, or None where the seed gives none."""
    made = _Symbolic(seed)
    made.with_matmul = matmul
    graph = made.graph()
    if graph is None:
        return None
    hints = HINTS[seed % len(HINTS)]
    graph = Graph(graph.inputs, graph.outputs, graph.strides, hints=tuple(zip(("s0", "s1"), hints, strict=True)))
    return graph if all(is_moderate(graph, {"s0": a, "s1": b}) for a, b in SIZES[:3]) else None
