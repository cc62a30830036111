"""The graph passes: golden cases, and the same values before and after on generated graphs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import pytest
import torch

import golden
from tilewright.base import dtypes
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import INPUT, Family, Graph, InputKind, Node, Output, TensorType
from tilewright.graph.ops import OPS
from tilewright.graph.ops.torch_dtypes import to_torch
from tilewright.graph.passes.algebra import TABLE, keeps_values, simplify
from tilewright.graph.passes.attention import find_attention
from tilewright.graph.passes.composites import expand_composites
from tilewright.graph.passes.constants import fold_constants, known_value
from tilewright.graph.passes.cse import merge_common
from tilewright.graph.passes.dead import drop_dead
from tilewright.graph.passes.folded import folded_nodes
from tilewright.graph.passes.outward import move_views_outward
from tilewright.graph.passes.siblings import merge_siblings
from tilewright.graph.passes.views import compose_views, row_major
from tilewright.graph.pipeline import PIPELINE, optimise
from tilewright.graph.text import parse_graph, print_graph
from tilewright.graph.verify import verify

GOLDEN: dict[str, Callable[[Graph], Graph]] = {
    "views": compose_views,
    "constants": fold_constants,
    "algebra": simplify,
    "cse": merge_common,
    "dead": drop_dead,
    "outward": move_views_outward,
    "attention": find_attention,
    "siblings": merge_siblings,
    "composites": expand_composites,
}


def _check_golden(case: golden.Case, run: Callable[[Graph], Graph]) -> None:
    before = parse_graph(case.input)
    after = run(before)
    verify(after)
    case.check(print_graph(after))
    if not any(n.op.family is Family.OPAQUE or n.op.name == "floordiv" for n in before.nodes()):
        wide = parse_graph(case.input.replace("f32", "f64"))
        same_values(wide, run(wide))


@golden.cases("views")
def test_views(case: golden.Case) -> None:
    _check_golden(case, compose_views)


@golden.cases("constants")
def test_constants(case: golden.Case) -> None:
    _check_golden(case, fold_constants)


@golden.cases("algebra")
def test_algebra(case: golden.Case) -> None:
    _check_golden(case, simplify)


@golden.cases("cse")
def test_cse(case: golden.Case) -> None:
    _check_golden(case, merge_common)


@golden.cases("dead")
def test_dead(case: golden.Case) -> None:
    _check_golden(case, drop_dead)


@golden.cases("outward")
def test_outward(case: golden.Case) -> None:
    _check_golden(case, move_views_outward)


@golden.cases("attention")
def test_attention(case: golden.Case) -> None:
    _check_golden(case, find_attention)


@golden.cases("siblings")
def test_siblings(case: golden.Case) -> None:
    _check_golden(case, merge_siblings)


@golden.cases("composites")
def test_composites(case: golden.Case) -> None:
    _check_golden(case, expand_composites)


# --- generated graphs -------------------------------------------------------------------------------------------------


def make_input(index: int, shape: tuple[int, ...], dtype: dtypes.DType = dtypes.f64, kind: InputKind = InputKind.USER) -> Node:
    return INPUT(index=index, name=f"x{index}", kind=kind, type=TensorType(dtype, shape))


def make_graph(inputs: list[Node], results: list[Node]) -> Graph:
    outputs = tuple(Output(n, row_major(n.shape)) for n in results)
    return Graph(tuple(inputs), outputs, tuple(row_major(n.shape) for n in inputs))


def random_inputs(graph: Graph) -> list[torch.Tensor]:
    def one(n: Node) -> torch.Tensor:
        if n.dtype.is_float:
            return torch.randn(n.shape, dtype=to_torch(n.dtype))
        high = 2 if n.dtype is dtypes.b1 else 4
        return torch.randint(0, high, n.shape).to(to_torch(n.dtype))

    return [one(n) for n in graph.inputs]


def same_values(before: Graph, after: Graph) -> None:
    values = random_inputs(before)
    expected = interpret(before, [v.clone() for v in values])
    got = interpret(after, [v.clone() for v in values])
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-12, equal_nan=True)


def random_graph(seed: int) -> Graph:
    """Thirty operators on small tensors of many shapes: views, pointwise operators, products, rows, constants."""
    rng = random.Random(seed)
    shapes = [(2, 3, 4), (6, 4), (1, 4), (4,), (2, 1, 4), (4, 4), (1, 1)]
    kinds = [InputKind.USER, InputKind.PARAMETER]
    inputs = [make_input(i, s, kind=kinds[i % 2]) for i, s in enumerate(rng.sample(shapes, 5))]
    pool = list(inputs)
    while len(pool) < 35:
        try:
            made = rng.choice(MAKERS)(rng, pool)
        except ValueError:  # operands that do not fit
            continue
        if 0 < math.prod(made.shape) <= 600 and len(made.shape) <= 5:
            pool.append(made)
    return make_graph(inputs, pool[-4:])


def op(name: str) -> Callable[..., Node]:
    return OPS[name]


def _some_view(rng: random.Random, pool: list[Node]) -> Node:
    x = rng.choice(pool[-8:])
    kind = rng.choice(["permute", "split", "merge", "unit", "expand", "slice", "flip", "strided"])
    shape = x.shape
    d = rng.randrange(len(shape)) if shape else 0
    if kind == "permute":
        return op("permute")(x, dims=tuple(rng.sample(range(len(shape)), len(shape))))
    if kind == "split" and shape and shape[d] % 2 == 0:
        return op("reshape")(x, shape=(*shape[:d], shape[d] // 2, 2, *shape[d + 1 :]))
    if kind == "merge" and d + 1 < len(shape):
        return op("reshape")(x, shape=(*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]))
    if kind == "unit":
        return op("reshape")(x, shape=(*shape[:d], 1, *shape[d:]) if rng.random() < 0.5 else tuple(s for s in shape if s != 1))
    if kind == "expand":
        return op("expand")(x, shape=(*rng.choice([(), (2,)]), *(rng.choice([2, 4]) if s == 1 else s for s in shape)))
    if kind == "slice" and shape:
        start = rng.randrange(shape[d])
        stop = rng.randint(start + 1, shape[d])
        return op("slice")(x, dim=d, start=start, stop=stop, step=rng.choice([1, 1, 2]))
    if kind == "strided":
        return op("as_strided")(x, shape=(2, 2), strides=(rng.choice([1, 2]), 1), offset=rng.choice([0, 1]))
    return op("flip")(x, dims=(d,) if shape else ())


def _some_pointwise(rng: random.Random, pool: list[Node]) -> Node:
    x, y = rng.choice(pool[-8:]), rng.choice(pool[-12:])
    if rng.random() < 0.3:
        value = rng.choice([0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0])
        y = op("full")(value=value, dtype=dtypes.f64, shape=rng.choice([(), (), (1, 1), x.shape]))
    if rng.random() < 0.15:
        return op("where")(op("lt")(x, y), x, y)
    if rng.random() < 0.4:
        return op(rng.choice(["neg", "abs", "tanh", "relu", "sigmoid"]))(x)
    args = (x, y) if rng.random() < 0.7 else (y, x)
    return op(rng.choice(["add", "sub", "mul", "maximum", "minimum", "add"]))(*args)


def _some_matmul(rng: random.Random, pool: list[Node]) -> Node:
    x, w = rng.choice(pool[-8:]), rng.choice(pool)
    if len(x.shape) >= 2 and rng.random() < 0.3:
        x = op("reshape")(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))
    return op("tanh")(op("matmul")(x, w)) if rng.random() < 0.5 else op("matmul")(x, w)


def _some_rows(rng: random.Random, pool: list[Node]) -> Node:
    x = rng.choice(pool[-8:])
    if not x.shape:
        return op("tanh")(x)
    d = rng.choice([len(x.shape) - 1, rng.randrange(len(x.shape))])
    kind = rng.choice(["softmax", "layer_norm", "sum", "cat", "amax"])
    if kind == "softmax":
        return op("softmax")(x, dim=d)
    if kind == "layer_norm":
        return op("layer_norm")(x, ndims=rng.randint(1, len(x.shape)), eps=1e-5, affine="none")
    if kind == "cat":
        return op("cat")(x, rng.choice([x, op("neg")(x), rng.choice(pool)]), dim=d)
    return op(kind)(x, dims=(d,), keepdim=rng.random() < 0.5)


MAKERS = [_some_view, _some_view, _some_view, _some_pointwise, _some_pointwise, _some_pointwise, _some_matmul, _some_rows]


@pytest.mark.parametrize("name", GOLDEN)
def test_pass_keeps_values(name: str) -> None:
    for seed in range(40):
        before = random_graph(seed)
        after = GOLDEN[name](before)
        verify(after)
        same_values(before, after)


def test_pipeline_keeps_values() -> None:
    for seed in range(100, 180):
        before = random_graph(seed)
        same_values(before, optimise(before, debug=True))


def test_passes_are_idempotent() -> None:
    for seed in range(20):
        graph = random_graph(seed)
        for name, run in GOLDEN.items():
            once = run(graph)
            assert run(once) == once, name


# --- algebra keeps IEEE results ---------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, math.inf, -math.inf, math.nan, 1e-310, -1e300, 2.0]


def _algebra_graphs() -> list[Graph]:
    x, y = make_input(0, (12, 1)), make_input(1, (12,))
    graphs = []
    for name in ("add", "sub", "mul", "div", "maximum", "minimum"):
        for value in (0.0, -0.0, 1.0, -1.0, 4.0, -0.125, 3.0, math.inf, -math.inf, math.nan):
            c = op("full")(value=value, dtype=dtypes.f64)
            graphs.append(
                make_graph([x, y], [op(name)(x, c), op(name)(c, x), op(name)(op("neg")(x), y), op(name)(x, op("neg")(y))])
            )
    unary = [op("abs")(op("neg")(x)), op("abs")(op("abs")(x)), op("neg")(op("neg")(x)), op("relu")(op("relu")(x))]
    test = op("eq")(x, y)
    tests = [op("where")(op("not")(test), x, y), op("where")(test, x, x), op("not")(op("not")(test)), op("not")(test)]
    return [*graphs, make_graph([x, y], unary), make_graph([x, y], tests)]


def test_algebra_keeps_every_bit() -> None:
    values = [torch.tensor(SPECIAL, dtype=torch.float64).reshape(12, 1), torch.tensor(SPECIAL, dtype=torch.float64)]
    changed = 0
    for before in _algebra_graphs():
        after = simplify(before)
        changed += after != before
        for a, b in zip(interpret(before, values), interpret(after, values), strict=True):
            bits = (torch.int64, torch.int64) if a.dtype is torch.float64 else (a.dtype, b.dtype)
            nan = a.isnan()
            assert torch.equal(nan, b.isnan())
            assert torch.equal(a.view(bits[0]).masked_fill(nan, 0), b.view(bits[1]).masked_fill(nan, 0)), print_graph(before)
    assert changed > 20


def test_unsigned_numbers_have_no_sign_to_drop() -> None:
    x = make_input(0, (3,), dtypes.u8)
    graph = make_graph([x], [op("abs")(op("neg")(x))])
    assert simplify(graph) == graph


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.bf16, dtypes.f16])
@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5, -0.5, -2.0])
def test_powers_are_those_of_eager(dtype: dtypes.DType, exponent: float) -> None:
    x = make_input(0, (12,), dtype)
    graph = simplify(make_graph([x], [op("pow")(x, op("full")(value=exponent, dtype=dtype))]))
    value = torch.tensor(SPECIAL, dtype=to_torch(dtype))
    got, expected = interpret(graph, [value])[0], value**exponent
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_casts() -> None:
    kinds = [
        d for d in dtypes.ALL if (d.kind in ("float", "int", "bool") and d.bytes != 1) or d in (dtypes.u8, dtypes.i8, dtypes.b1)
    ]
    edge = torch.tensor([0.0, 1.0, -1.0, 127.0, -128.0, 255.0, 256.5, 2049.0, 40000.0, 1e9 + 1, -3e9, 0.1], dtype=torch.float64)
    for a in kinds:
        x = make_input(0, (12,), a)
        value = edge.to(to_torch(a))
        for b in kinds:
            kept = value.to(to_torch(b)).to(to_torch(a))
            assert not keeps_values(a, b) or torch.equal(kept, value), (a, b)
            for c in kinds:
                graph = make_graph([x], [op("cast")(op("cast")(x, dtype=b), dtype=c)])
                after = simplify(graph)
                if after != graph:
                    assert torch.equal(interpret(graph, [value])[0], interpret(after, [value])[0]), (a, b, c)


def test_every_rule_has_a_case() -> None:
    """Each row of the table is seen to apply, so that none is dead."""
    from tilewright.base.rewrite import Rewriter
    from tilewright.graph.passes.algebra import GraphLanguage

    graphs = [parse_graph(c.input) for c in golden.read(golden.FOLDER / "algebra.txt")] + _algebra_graphs() + [_logic_graph()]
    run = Rewriter(TABLE, GraphLanguage())
    for g in graphs:
        g.with_roots(run)
    assert {r.name for r in TABLE.rules} <= set(run.applied)


def _logic_graph() -> Graph:
    b, x = make_input(0, (3,), dtypes.b1), make_input(1, (3,), dtypes.i64)
    true, false = (op("full")(value=v, dtype=dtypes.b1) for v in (True, False))
    made = [op("bitand")(b, true), op("bitand")(false, b), op("bitor")(b, false), op("bitor")(true, b), op("eq")(b, true)]
    made += [op("eq")(b, false), op("ne")(b, false), op("bitand")(x, x), op("cast")(x, dtype=dtypes.i64), op("bitxor")(b, false)]
    other = op("eq")(x, op("full")(value=1, dtype=dtypes.i64))
    made += [op("not")(op("not")(b)), op("where")(op("not")(b), x, op("neg")(x)), op("not")(other)]
    return make_graph([b, x], made)


def test_logic() -> None:
    same_values(_logic_graph(), simplify(_logic_graph()))


# --- attention --------------------------------------------------------------------------------------------------------


def _attention_graph(dims: tuple[int, ...], mask: str, order: str, heads: int = 1) -> Graph:
    """Attention written out in one of many ways."""
    b, h, s, t, d, e = dims
    q, k, v = make_input(0, (b, h, s, d)), make_input(1, (b, h // heads, t, d)), make_input(2, (b, h // heads, t, e))
    m = make_input(3, (b, 1, 1, t)) if mask == "float" else make_input(3, (s, t), dtypes.b1)
    inputs = [q, k, v, m]
    if heads > 1:
        k, v = (_repeated(x, heads) for x in (k, v))
    scores = op("matmul")(q, op("permute")(k, dims=(0, 1, 3, 2)))
    scores = op("mul")(scores, op("full")(value=0.3, dtype=dtypes.f64))
    lowest = op("full")(value=-math.inf, dtype=dtypes.f64)
    if mask == "float":
        scores = op("add")(*((scores, m) if order == "after" else (m, scores)))
    elif mask == "bool":
        scores = op("where")(m, scores, lowest) if order == "after" else op("where")(m, lowest, scores)
    elif mask == "causal":
        row = op("reshape")(op("iota")(size=s), shape=(s, 1))
        late = op("gt")(op("iota")(size=t), row)
        bias = op("where")(late, lowest, op("full")(value=0.0, dtype=dtypes.f64))
        scores = op("where")(late, lowest, scores) if order == "after" else op("add")(scores, bias)
    return make_graph(inputs, [op("matmul")(op("softmax")(scores, dim=3), v)])


def _repeated(x: Node, times: int) -> Node:
    b, g, s, d = x.shape
    once = op("reshape")(x, shape=(b, g, 1, s, d))
    return op("reshape")(op("expand")(once, shape=(b, g, times, s, d)), shape=(b, g * times, s, d))


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("mask", ["none", "float", "bool", "causal"])
@pytest.mark.parametrize("dims", [(2, 4, 3, 3, 5, 5), (1, 2, 4, 7, 3, 2), (1, 4, 1, 6, 2, 3)])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_is_found(dims: tuple[int, ...], mask: str, order: str, heads: int) -> None:
    before = _attention_graph(dims, mask, order, heads)
    after = find_attention(compose_views(before))
    kinds = [n.op.name for n in after.nodes()]
    assert "attention" in kinds
    assert "softmax" not in kinds
    assert "expand" not in kinds
    (found,) = (n for n in after.nodes() if n.op.name == "attention")
    assert found.attrs.causal == (mask == "causal")
    same_values(before, after)


def test_a_row_without_keys_stays_nan() -> None:
    before = _attention_graph((1, 1, 2, 2, 3, 3), "bool", "after")
    values = random_inputs(before)
    values[3] = torch.tensor([[False, False], [True, False]])
    expected, got = interpret(before, values)[0], interpret(find_attention(before), values)[0]
    assert bool(expected[0, 0, 0].isnan().all())
    torch.testing.assert_close(got, expected, equal_nan=True)


# --- what is computed once --------------------------------------------------------------------------------------------


def test_folded() -> None:
    w = make_input(0, (8, 4), kind=InputKind.PARAMETER)
    x = make_input(1, (3, 4))
    turned = op("permute")(w, dims=(1, 0))
    doubled = op("add")(turned, turned)
    back = op("permute")(doubled, dims=(1, 0))
    row = op("iota")(size=4, dtype=dtypes.f64)
    cheap = op("add")(row, op("full")(value=1.0, dtype=dtypes.f64))
    sines = op("sin")(row)
    product = op("matmul")(op("add")(op("mul")(x, cheap), sines), op("permute")(back, dims=(1, 0)))
    output = op("exp")(w)
    graph = make_graph([w, x], [product, output, op("add")(op("neg")(output), w)])
    found = folded_nodes(graph)
    assert doubled in found
    assert back in found
    assert sines in found
    assert turned not in found  # a view of a parameter
    assert cheap not in found
    assert output not in found  # an output
    assert not any(n in found for n in (x, w, row, product))
    for n in found:
        assert all(a in found or a.op.family in (Family.INPUT, Family.VIEW) or not a.args for a in n.args)


def test_known_value() -> None:
    row = op("iota")(size=4)
    mask = op("le")(row, op("reshape")(row, shape=(4, 1)))
    assert torch.equal(known_value(mask), torch.ones(4, 4, dtype=torch.bool).tril())
    assert known_value(mask, limit=10) is None
    assert known_value(op("neg")(make_input(0, (3,)))) is None


# --- the pipeline -----------------------------------------------------------------------------------------------------


def _decoder(layers: int, s: int, e: int, h: int) -> Graph:
    """A transformer as a recorder leaves it: flattened linears, split heads, a mask of ranges."""
    inputs: list[Node] = []

    def parameter(*shape: int) -> Node:
        inputs.append(make_input(len(inputs), shape, kind=InputKind.PARAMETER))
        return inputs[-1]

    def linear(x: Node, n: int) -> Node:
        k = x.shape[-1]
        flat = op("reshape")(x, shape=(s, k))
        made = op("add")(op("matmul")(flat, op("permute")(parameter(n, k), dims=(1, 0))), parameter(n))
        return op("reshape")(made, shape=(1, s, n))

    inputs.append(make_input(0, (1, s, e)))
    x = inputs[0]
    for _ in range(layers):
        y = op("layer_norm")(x, parameter(e), parameter(e), ndims=1, eps=1e-5, affine="both")
        q, k, v = (op("permute")(op("reshape")(linear(y, e), shape=(1, s, h, e // h)), dims=(0, 2, 1, 3)) for _ in range(3))
        scores = op("matmul")(q, op("permute")(k, dims=(0, 1, 3, 2)))
        scores = op("div")(scores, op("full")(value=math.sqrt(e // h), dtype=dtypes.f64))
        test = op("le")(op("iota")(size=s), op("reshape")(op("iota")(size=s), shape=(1, 1, s, 1)))
        scores = op("where")(test, scores, op("full")(value=-math.inf, dtype=dtypes.f64))
        y = op("matmul")(op("softmax")(scores, dim=3), v)
        x = op("add")(x, linear(op("reshape")(op("permute")(y, dims=(0, 2, 1, 3)), shape=(1, s, e)), e))
        y = op("layer_norm")(x, parameter(e), parameter(e), ndims=1, eps=1e-5, affine="both")
        x = op("add")(x, linear(op("gelu")(linear(y, 4 * e)), e))
    return make_graph(inputs, [x])


def test_decoder() -> None:
    before = _decoder(2, 6, 8, 2)
    after = optimise(before, debug=True)
    same_values(before, after)
    names = [n.op.name for n in after.nodes()]
    assert names.count("attention") == 2
    assert names.count("matmul") == 2 * 4  # q, k and v are one
    assert not {"where", "iota", "softmax", "layer_norm"} & set(names)
    assert {n.shape[:2] for n in after.nodes() if n.op.name in ("matmul", "gelu")} == {(1, 6)}


SYMBOLIC = """
dim s0 >= 2
%0 = input(index=0, name="x", kind=user) : f64[2, s0, 8], strides=({8 * s0}, 8, 1)
%1 = input(index=1, name="w", kind=parameter) : f64[8, 8], strides=(8, 1)
%2 = input(index=2, name="u", kind=parameter) : f64[8, 8], strides=(8, 1)
%3 = permute(%1, dims=(1, 0)) : f64[8, 8]
%4 = reshape(%0, shape=({2 * s0}, 8)) : f64[2 * s0, 8]
%5 = matmul(%4, %3) : f64[2 * s0, 8]
%6 = reshape(%5, shape=(2, {s0}, 2, 4)) : f64[2, s0, 2, 4]
%7 = permute(%6, dims=(0, 2, 1, 3)) : f64[2, 2, s0, 4]
%8 = matmul(%0, %2) : f64[2, s0, 8]
%9 = reshape(%8, shape=(2, {s0}, 2, 4)) : f64[2, s0, 2, 4]
%10 = permute(%9, dims=(0, 2, 3, 1)) : f64[2, 2, 4, s0]
%11 = iota(size={s0}, dtype=i64, start=0, step=1) : i64[s0]
%12 = reshape(%11, shape=({s0}, 1)) : i64[s0, 1]
%13 = le(%11, %12) : b1[s0, s0]
%14 = full(value=-inf, dtype=f64, shape=()) : f64[]
%15 = matmul(%7, %10) : f64[2, 2, s0, s0]
%16 = where(%13, %15, %14) : f64[2, 2, s0, s0]
%17 = softmax(%16, dim=3) : f64[2, 2, s0, s0]
%18 = matmul(%17, %7) : f64[2, 2, s0, 4]
return %18, strides=({8 * s0}, {4 * s0}, 4, 1)
"""


def test_symbolic_sizes() -> None:
    before = parse_graph(SYMBOLIC)
    after = optimise(before, debug=True)
    names = [n.op.name for n in after.nodes()]
    assert names.count("attention") == 1
    assert names.count("matmul") == 1
    values = [torch.randn(2, 5, 8).double(), torch.randn(8, 8).double(), torch.randn(8, 8).double()]
    torch.testing.assert_close(interpret(after, values)[0], interpret(before, values)[0])
    fixed = folded_nodes(after)
    assert not any(n.op.name == "le" for n in fixed)  # its size changes from call to call


def test_a_broken_pass_is_named() -> None:
    from tilewright.base.errors import VerifyError
    from tilewright.graph.pipeline import Pass

    def breaks(graph: Graph) -> Graph:
        return Graph(graph.inputs, (Output(make_input(7, (3,)), (1,)),), graph.strides)

    with pytest.raises(VerifyError) as caught:
        optimise(_decoder(1, 4, 4, 1), debug=True, passes=(Pass("clumsy", breaks),))
    assert "'clumsy'" in "".join(caught.value.__notes__)


def test_watch_sees_every_pass() -> None:
    seen: list[str] = []
    optimise(_decoder(1, 4, 4, 1), watch=lambda name, graph: seen.append(name))
    assert seen == [p.name for p in PIPELINE]


def test_pipeline_time_is_linear() -> None:
    """Four times the layers take about four times as long; the bound leaves room for a busy machine."""

    def seconds(layers: int) -> float:
        graph = _decoder(layers, 128, 768, 12)
        start = time.perf_counter()
        optimise(graph)
        return time.perf_counter() - start

    seconds(1)
    small = min(seconds(6), seconds(6))
    assert seconds(24) < 12 * small + 0.5
