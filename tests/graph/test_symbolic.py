"""Recordings with symbolic sizes: one graph gives eager's values and strides at every size that its assumptions admit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tilewright.base import dims
from tilewright.graph import torch_private as private
from tilewright.graph.interpret import interpret
from tilewright.graph.record import _DispatchLevel, _FunctionLevel
from tilewright.graph.recorder import ArgSource, Recorder, recording
from tilewright.graph.strides import contiguous
from tilewright.graph.symbolic import Assumption, Symbols, to_symint
from tilewright.graph.text import parse_graph, print_graph
from tilewright.graph.verify import verify
from tilewright.program.capture import Finished, finish

T = torch.Tensor
SIZES = ((3, 7), (4, 9), (2, 2), (5, 16), (11, 3))
STILL = 1000  # added to a size: it is no symbol


def record(
    f: Callable[..., Any], tensors: list[T], shapes: list[tuple[int, ...]]
) -> tuple[Finished, list[Assumption], dict[str, int]]:
    """`shapes`: sizes to take for symbols, equal ones the same; STILL + n is n itself."""
    recorder = Recorder({})
    recorder.mode = _DispatchLevel(recorder)
    known: dict[int, Any] = {}
    with private.compiling(), recording(recorder), recorder.mode, _FunctionLevel(recorder):
        fakes = []
        for i, (t, shape) in enumerate(zip(tensors, shapes, strict=True)):
            sizes: list[Any] = []
            for n in shape:
                sizes.append(
                    n - STILL if n >= STILL else known[n] if n in known else known.setdefault(n, recorder.symbols.new(n))
                )
            fakes.append(recorder.input(t, ArgSource((i,)), (tuple(sizes), contiguous(tuple(sizes)))))
        made = f(*fakes)
        finished = finish(recorder, list(made) if isinstance(made, list | tuple) else [made])
    return finished, list(recorder.symbols.assumed), recorder.symbols.hints


def still(n: int) -> int:
    return STILL + n


def _setitem(x: T) -> T:
    y = x.clone()
    y[1:] = 0
    y[:, 0] = x.shape[0]
    return y


Shapes = Callable[[int, int], list[tuple[int, ...]]]
TWO: Shapes = lambda a, b: [(a, b)]  # noqa: E731
PAIR: Shapes = lambda a, b: [(a, b), (a, b)]  # noqa: E731
LAST: Shapes = lambda a, b: [(a, b, still(8))]  # noqa: E731
IMAGE: Shapes = lambda a, b: [(a, still(4), b, b)]  # noqa: E731

CASES: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "times a size": (lambda x: (x * x.shape[0]).reshape(-1, 1, 3).sum(0), lambda a, b: [(a, still(3))]),
    "add": (lambda x, y: x + y, PAIR),
    "broadcast": (lambda x, y: x + y, lambda a, b: [(a, b), (b,)]),
    "view": (lambda x: x.view(x.shape[0], x.shape[1], 4, 2).transpose(1, 2).contiguous(), LAST),
    "slices": (lambda x: (x[1:], x[:, :-1], x[0], x[-1], x[:, ::2], x[..., None]), TWO),
    "cat": (lambda x, y: torch.cat([x, y, x]), lambda a, b: [(a, still(8)), (b, still(8))]),
    "arange": (lambda x: (torch.arange(x.shape[0]) + x.shape[1], torch.arange(x.shape[0], x.shape[0] + x.shape[1])), TWO),
    "softmax": (lambda x: x.softmax(-1), TWO),
    "mean": (lambda x: (x.mean(1), x.var(0), x.std()), TWO),
    "matmul": (lambda x, y: x @ y, lambda a, b: [(a, b), (b, a)]),
    "linear": (F.linear, lambda a, b: [(a, b, still(8)), (still(6), still(8))]),
    "causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), lambda a, b: [(a, still(2), b, still(8))]),
    "mask": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), lambda a, b: [(a, still(2), b, still(8)), (b, b)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), lambda a, b: [(a, still(4), b, b), tuple(map(still, (4, 4, 3, 3)))]),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), IMAGE),
    "triangle": (lambda x: torch.ones(x.shape[0], x.shape[1]).tril() * x, TWO),
    "split": (lambda x: x.split(4, -1)[0] + x.chunk(2, -1)[1], LAST),
    "stack": (lambda x, y: torch.stack([x, y], 1), PAIR),
    "in place": (lambda x: x.clone().mul_(2)[1:].add_(1), TWO),
    "set items": (_setitem, TWO),
    "repeat": (lambda x: (x.repeat(2, 1), x.expand(4, -1, -1)), TWO),
    "flatten": (lambda x: (x.flatten(), x.flatten(0, 1), x.unflatten(-1, (2, -1))), LAST),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), TWO),
    "roll": (lambda x: x.roll(1, 0).flip(1), TWO),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), lambda a, b: [(a, b, still(4)), (a, still(4), b)]),
    "where": (lambda x: torch.where(x > 0, x, -x).masked_fill(x < -1, 0), TWO),
    "gather": (lambda x: x.gather(1, torch.zeros(x.shape[0], 1, dtype=torch.int64)), TWO),
    "embedding": (lambda x, w: F.embedding((x > 0).long(), w), lambda a, b: [(a, b), (still(10), still(8))]),
    "norms": (lambda x, w: (F.layer_norm(x, (8,), w), F.group_norm(x.mT, 2)), lambda a, b: [(a, b, still(8)), (still(8),)]),
    "batch norm": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), IMAGE),
    "scan": (lambda x: x.cumsum(0), TWO),
    "order": (lambda x: (x.sort(1)[0], x.topk(2, 1)[0]), TWO),
    "one hot": (lambda x: F.one_hot((x > 0).long(), 3), TWO),
    "factories": (lambda x: x.new_zeros(x.shape[0], 2) + torch.full((x.shape[0], 1), x.shape[1]), TWO),
    "transposed": (lambda x: (x.T @ x, x.mT.contiguous()), TWO),
    "grid": (lambda x: torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij")[1], TWO),
    "unfold": (lambda x: x.unfold(1, 2, 1).sum(-1), TWO),
    "numel": (lambda x: x + x.numel() - x.size(0) // 2, TWO),
    "half": (lambda x: x.half() * x.shape[0] + x.shape[1] % 2, TWO),
    "python": (lambda x: x + (1 if x.shape[0] < 100 else 2) + max(x.shape[0], 2) + min(*x.shape), TWO),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), IMAGE),
    "root": (lambda x: x / x.shape[-1] ** 0.5, TWO),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_many_sizes(name: str) -> None:
    f, shapes = CASES[name]

    def tensors(a: int, b: int) -> list[T]:
        return [torch.randn([n % STILL for n in shape]) for shape in shapes(a, b)]

    finished, assumed, hints = record(f, tensors(*SIZES[0]), shapes(*SIZES[0]))
    graph = finished.graph
    verify(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    served = 0
    for a, b in SIZES:
        values = {s: dict(zip(SIZES[0], (a, b)))[h] for s, h in hints.items()}
        if not all(_holds(x, values) for x in assumed):
            continue
        served += 1
        inputs = tensors(a, b)
        want = f(*[t.clone() for t in inputs])
        got = interpret(graph, inputs)
        for w, n in zip(want if isinstance(want, tuple | list) else [want], finished.numbers, strict=True):
            assert n is not None
            torch.testing.assert_close(got[n], w)
            assert got[n].stride() == w.stride()
    assert served >= (1 if name in ("interpolate", "root") else 3), [str(x) for x in assumed]


def _holds(x: Assumption, values: dict[str, int]) -> bool:
    a, b = dims.evaluate(x.left, values), dims.evaluate(x.right, values)
    return {"==": a == b, "<": a < b, "<=": a <= b}[x.op] is x.holds


def test_what_is_known_needs_no_assumption() -> None:
    symbols = Symbols()
    with symbols.active():
        a, b = symbols.new(3), symbols.new(7)
        x, y = to_symint(a), to_symint(b)
        assert x != 1 and x > 1 and x * y > x and 8 * x != x and x < 1 << 60 and 2 * y - y == y
        assert (x + 1) // 1 == x + 1 and x * y != x and x % 1 == 0
        assert not symbols.assumed
        assert x < y and x == 3
        assert [str(s) for s in symbols.assumed] == ["s0 < s1", "s0 == 3"]


def test_a_size_outlives_no_recording() -> None:
    with Symbols().active():
        x = to_symint(dims.symbol("s0"))
    with pytest.raises(RuntimeError, match="after the recording"):
        bool(x > 5)
