"""The graph's text: readable, complete, canonical, and read back into the same graph."""

from __future__ import annotations

import math
import random
import time

import pytest
import torch

from graph.op_cases import cases, draw, graph_of, input_node
from graph.symbolic_graphs import SYMBOLIC
from tilewright.base import dims, dtypes
from tilewright.base.errors import ParseError
from tilewright.graph import ir
from tilewright.graph.ir import Alias, Effect, Graph, InputKind, Node, Output, TensorType
from tilewright.graph.ops import OPS, opaque
from tilewright.graph.ops import composite as cp
from tilewright.graph.ops import contract as ct
from tilewright.graph.ops import pointwise as pw
from tilewright.graph.ops import view as vw
from tilewright.graph.text import node_line, parse_graph, print_graph
from tilewright.graph.verify import verify

BLOCK = """\
%0 = input(index=0, name="x", kind=user) : f32[4, 8], strides=(8, 1)
%1 = input(index=1, name="proj.weight", kind=parameter) : f32[16, 8], strides=(8, 1)
%2 = permute(%1, dims=(1, 0)) : f32[8, 16]
%3 = matmul(%0, %2) : f32[4, 16]
%4 = full(value=-0.0, dtype=f32, shape=()) : f32[]
%5 = maximum(%3, %4) : f32[4, 16]
%6 = layer_norm(%5, ndims=1, eps=1e-05, affine="none") : f32[4, 16]
%7 = sum(%6, dims=(1,), keepdim=False) : f32[4]
%8 = slice(%6, dim=1, start=0, stop=8, step=1) : f32[4, 8]
return %6, strides=(16, 1)
return %7, strides=(1,)
return %8, strides=(16, 1), alias=output 0, offset=0
write %8, index=0
"""


def block() -> Graph:
    x = ir.INPUT(index=0, name="x", kind=InputKind.USER, type=TensorType(dtypes.f32, (4, 8)))
    w = ir.INPUT(index=1, name="proj.weight", kind=InputKind.PARAMETER, type=TensorType(dtypes.f32, (16, 8)))
    h = pw.MAXIMUM(ct.MATMUL(x, vw.PERMUTE(w, dims=(1, 0))), pw.FULL(value=-0.0, dtype=dtypes.f32))
    y = cp.LAYER_NORM(h)
    part = vw.SLICE(y, dim=1, start=0, stop=8)
    outputs = (Output(y, (16, 1)), Output(OPS["sum"](y, dims=(1,)), (1,)), Output(part, (16, 1), Alias("output", 0)))
    return Graph((x, w), outputs, ((8, 1), (8, 1)), (Effect(0, part),))


def round_trip(graph: Graph) -> str:
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text
    return text


def test_prints_and_reads_a_block() -> None:
    assert print_graph(block()) == BLOCK
    assert parse_graph(BLOCK) == block()
    assert parse_graph(f"# a remark\n\n{BLOCK}") == block()


@pytest.mark.parametrize("name", [n for n in OPS if n not in ("input", "call", "getitem", "kernel")])
def test_every_row_round_trips(name: str) -> None:
    for case in cases(name):
        round_trip(graph_of(case))


def test_calls_round_trip() -> None:
    x = torch.zeros(2, 3)
    arguments = (x, None, True, 1, -7, 2**70, 1.0, -0.0, 1e-300, math.inf, -math.inf, math.nan, 1 + 2j, [], [x, [1, 2], None], "")
    objects = (torch.bfloat16, torch.float8_e4m3fn, torch.strided, torch.sparse_coo, torch.channels_last, torch.device("cuda:1"))
    named = {"mode": 'say "%1" : (f32[2]), \\ π\n', "dtype": torch.bool, "out": x}
    (args, kwargs), _ = opaque.spec_of((*arguments, *objects), named)
    type_ = ir.TupleType((TensorType(dtypes.c64, (2,)), TensorType(dtypes.f16, ())))
    node = opaque.CALL(input_node(0, x), overload="aten.f.g", args=args, kwargs=kwargs, type=type_, seq=4)
    empty = opaque.CALL(input_node(0, x), overload="aten.h.i", args=args[:1], kwargs=(), type=ir.TupleType(()), seq=9)
    results = tuple(Output(opaque.GETITEM(node, index=i), s) for i, s in enumerate(((1,), ())))
    text = round_trip(Graph((input_node(0, x),), (*results, Output(empty, ())), ((3, 1),)))
    assert "seq=4) : (c64[2], f16[])\n" in text


def test_symbolic_sizes_round_trip() -> None:
    s, t = dims.symbol("s", divisor=8, hi=512), dims.symbol("t", lo=0)
    x = ir.INPUT(index=0, name="x", kind=InputKind.USER, type=TensorType(dtypes.f32, (s, t, 4)))
    y = vw.RESHAPE(x, shape=(s * t, 4))
    z = vw.SLICE(y, dim=0, start=0, stop=dims.minimum(s // 8 + 1, t % 5))
    graph = Graph((x,), (Output(z, (4, 1)),), ((4 * t, 4, 1),), constraints=(s - t, (s, "le", 5)))
    text = round_trip(graph)
    assert text.startswith("dim s >= 8 <= 512 % 8\ndim t >= 0\n%0 = input(")
    assert "f32[s*t, 4]" in text and "require ({s}, " in text


def test_text_depends_on_structure_alone() -> None:
    """Creation order and unrelated nodes change no number; what differs anywhere changes the text."""
    x = input_node(0, torch.zeros(3))

    def graph(order: int, value: float = 1.0) -> Graph:
        made = {}
        for name in ("left", "right")[:: -1 if order else 1]:
            made[name] = pw.EXP(pw.MUL(x, pw.FULL(value=value + (name == "left") + order * 0, dtype=dtypes.f32)))
        return Graph((x,), (Output(pw.SUB(made["left"], made["right"]), (1,)),), ((1,),))

    texts = []
    for order in (0, 1):
        g = graph(order)
        texts.append(print_graph(g))
        del g
    assert texts[0] == texts[1]
    assert print_graph(graph(0, 3.0)) != texts[0]


def test_effectful_calls_keep_their_order() -> None:
    x = input_node(0, torch.zeros(3))
    draws = [draw(x, i) for i in range(4)]
    g = Graph((x,), tuple(Output(n, (1,)) for n in reversed(draws)), ((1,),))
    again = parse_graph(round_trip(g))
    assert [n.attrs.seq for n in again.nodes() if n.op is opaque.CALL] == [0, 1, 2, 3]
    lines = [line for line in print_graph(g).splitlines() if "call" in line]
    assert [line.split("seq=")[1][0] for line in lines] == ["0", "1", "2", "3"]


def test_unused_inputs_are_kept() -> None:
    x, y = (input_node(i, torch.zeros(3)) for i in range(2))
    assert round_trip(Graph((x, y), (Output(y, (1,)),), ((1,), (1,)))).count("input(") == 2
    round_trip(Graph((), (), ()))


def random_graph(rng: random.Random, size: int) -> Graph:
    inputs = tuple(input_node(i, torch.zeros(4, 4)) for i in range(3))
    nodes: list[Node] = list(inputs)
    for _ in range(size):
        a, b = rng.choices(nodes[-12:], k=2)
        made = (
            pw.ADD,
            ct.MATMUL,
            lambda a, b: vw.PERMUTE(a, dims=(1, 0)),
            lambda a, b: pw.WHERE(pw.LT(a, b), a, b),
            lambda a, b: pw.MUL(a, pw.FULL(value=rng.random(), dtype=dtypes.f32)),
            lambda a, b: cp.SOFTMAX(a, dim=1),
        )
        nodes.append(rng.choice(made)(a, b))
    outputs = tuple(Output(n, (4, 1)) for n in rng.sample(nodes, 3))
    return Graph(inputs, outputs, ((4, 1),) * 3, (Effect(1, nodes[-1]),))


def test_random_graphs_round_trip() -> None:
    for seed in range(30):
        round_trip(random_graph(random.Random(seed), 40))


def test_deep_graphs_and_speed() -> None:
    """A chain deeper than Python's recursion limit; printing is the cache's key, so it has to be quick."""
    x = input_node(0, torch.zeros(4, 4))
    node = x
    for i in range(3000):
        node = pw.ADD(node, x) if i % 2 else vw.PERMUTE(node, dims=(1, 0))
    graph = Graph((x,), (Output(node, (4, 1)),), ((4, 1),))
    start = time.perf_counter()
    text = print_graph(graph)
    seconds = time.perf_counter() - start
    assert parse_graph(text) == graph
    assert seconds < 0.3  # about 0.03 s where nothing else runs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%1 = nothing()", "unknown name 'nothing'"),
        ("%1 = exp(%0)", "unknown name '%0'"),
        ("%0 = full(value=1.0, dtype=f32, shape=(2,)) : f32[3]", "the type is f32[2], not f32[3]"),
        ("%0 = full(value=1.0, dtype=f32, size=(2,)) : f32[2]", "full has no attribute 'size'"),
        ("%0 = full(value=1.0) : f32[2]", "missing 1 required positional argument: 'dtype'"),
        ("%0 = full(value=1.0, dtype=f31) : f32[2]", "unknown name 'f31'"),
        ("%0 = full(value=?) : f32[2]", "cannot read '?) : f32[2]'"),
        ("%0 = full(value=1 2) : f32[2]", "',' expected, got '2'"),
        ("%0 = full(value=1, dtype=f32, shape=()) : f32[] junk", "'junk' after the end"),
        ("%0 = full(value=1, dtype=f32, shape=({n},)) : f32[2]", "unknown symbol 'n'"),
        ("give %0", "a line cannot start with 'give'"),
        ("return %0, strides=(1,)", "unknown name '%0'"),
    ],
)
def test_says_what_it_cannot_read(text: str, reason: str) -> None:
    with pytest.raises(ParseError) as e:
        parse_graph(f"# first\n{text}\n")
    assert reason in str(e.value)
    assert "<graph>:2" in str(e.value) and text in str(e.value)


def test_a_node_alone_is_named_by_its_serial() -> None:
    x = input_node(0, torch.zeros(3))
    y = pw.CLAMP(x, lo=0.5)
    assert node_line(y) == f"%{y.serial} = clamp(%{x.serial}, lo=0.5, hi=None) : f32[3]"


def test_a_value_without_text_is_refused() -> None:
    x = input_node(0, torch.zeros(3))
    node = opaque.CALL(x, overload="aten.f.g", args=(opaque.TensorArg(0), frozenset()), kwargs=(), type=x.type)
    with pytest.raises(TypeError, match="has no text"):
        print_graph(Graph((x,), (Output(node, (1,)),), ((1,),)))


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_graphs_round_trip(name: str) -> None:
    graph = SYMBOLIC[name]
    assert parse_graph(print_graph(graph)) == graph
    assert [s for s, _ in graph.hints] == ["s0", "s1"][: len(graph.hints)]
    verify(graph)


def test_hints_keep_their_order_and_unused_symbols() -> None:
    text = (
        'dim s1 = 5\ndim s0 >= 2 = 3\n%0 = input(index=0, name="x", kind=user) : f32[s0], strides=(1,)\n'
        "return %0, strides=(1,), alias=input 0, offset=0\n"
    )
    assert parse_graph(text).hints == (("s1", 5), ("s0", 3))
    assert print_graph(parse_graph(text)) == text
