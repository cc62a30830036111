"""Every row of the op table against eager, over generated cases: types, interpretation, scalar bodies, expansions."""

from __future__ import annotations

import math

import pytest
import torch

from graph.compare import near, same, true_value
from graph.op_cases import OPAQUE_ROWS, cases, graph_of, input_node, node_of
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.scalar import Var, var
from tilewright.graph import ir
from tilewright.graph.interpret import evaluate_body, interpret
from tilewright.graph.ir import Node, make
from tilewright.graph.ops import OPS, composite, contract, opaque, pointwise, reduce, view
from tilewright.graph.ops.torch_dtypes import from_torch, to_torch

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")

ROWS = [n for n in OPS if n not in OPAQUE_ROWS]
BODIES = [n for n, op in OPS.items() if op.body is not None and op.arity]
EXPANDED = [n for n, op in OPS.items() if op.expand is not None]

DIVIDING = ("floordiv", "mod", "rem")  # discontinuous: float64 is no reference for a narrower type


def expanded(node: Node) -> Node:
    """The node with every composite below it written in simpler rows."""
    done: dict[Node, Node] = {}
    for n in ir.reachable([node]):
        new = make(n.op, tuple(done[a] for a in n.args), n.attrs)
        done[n] = new if new.op.expand is None else expanded(new.op.expand(new.attrs, *new.args))
    return done[node]


@pytest.mark.parametrize("name", ROWS)
def test_eager_gives_the_inferred_type_and_the_interpreter_eagers_values(name: str) -> None:
    count = 0
    for case in cases(name):
        count += 1
        node = node_of(case)
        result = case.op.eager(case.attrs, *case.tensors)
        assert from_torch(result.dtype) is node.dtype, case
        assert tuple(result.shape) == node.shape, case
        same(interpret(graph_of(case), case.tensors)[0], result, case)
    assert count >= 4


@pytest.mark.parametrize("name", [n for n in ROWS if OPS[n].arity != 0])
def test_every_admitted_dtype_has_a_case(name: str) -> None:
    op = OPS[name]
    seen = {case.dtype for case in cases(name)}
    assert set(op.dtypes) <= seen


@pytest.mark.parametrize("name", BODIES)
def test_body_is_eager(name: str) -> None:
    for case in cases(name):
        eager = case.op.eager(case.attrs, *case.tensors)
        operands: dict[Var, torch.Tensor] = {}
        for i, t in enumerate(case.tensors):
            dtype = from_torch(t.dtype).compute
            operands[var(f"x{i}", dtype)] = t.to(to_torch(dtype))
        body = case.op.body(case.attrs, *operands)
        assert body.dtype is from_torch(eager.dtype).compute, case
        result = evaluate_body(body, operands).to(eager.dtype).expand(eager.shape)
        if name in DIVIDING or not eager.dtype.is_floating_point or eager.element_size() == 1:
            same(result, eager, case)
        elif eager.dtype == torch.float64:
            same(result, eager, case, 1e-12, 1e-14)
        else:
            near(result, eager, true_value(case), case)


@pytest.mark.parametrize("name", EXPANDED)
def test_expansion_is_eager_in_float64(name: str) -> None:
    for case in cases(name):
        if case.dtype is not dtypes.f64:
            continue
        node = expanded(node_of(case))
        assert all(n.op.expand is None for n in ir.reachable([node]))
        expected = case.op.eager(case.attrs, *case.tensors)
        same(interpret(graph_of(case, node), case.tensors)[0], expected, case, 1e-10, 1e-10)


@pytest.mark.parametrize("name", EXPANDED)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=repr)
def test_expansion_is_as_near_to_float64_as_eager(name: str, dtype: DType) -> None:
    for case in cases(name):
        if case.dtype is not dtype:
            continue
        true = true_value(case)
        eager = case.op.eager(case.attrs, *case.tensors)
        ours = interpret(graph_of(case, expanded(node_of(case))), case.tensors)[0]
        near(ours, eager, true, case)


def test_full_and_iota_have_bodies() -> None:
    for case in cases("full"):
        body = case.op.body(case.attrs)
        expected = case.op.eager(case.attrs)
        result = evaluate_body(body, {}).to(expected.dtype)
        same(result.expand(expected.shape), expected, case)
    for case in cases("iota"):
        i = var("i")
        positions = {i: torch.arange(case.attrs.size)}
        expected = case.op.eager(case.attrs)
        same(evaluate_body(case.op.body(case.attrs, i), positions).to(expected.dtype), expected, case)


def test_rows_say_why_they_refuse() -> None:
    f, h, i = (input_node(0, torch.zeros(2, 3, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.int64))
    with pytest.raises(ValueError, match=r"add\(f32\[2, 3\], bf16\[2, 3\]\): operands of one dtype expected, got f32 and bf16"):
        pointwise.ADD(f, h)
    with pytest.raises(ValueError, match="i64 operands are not admitted, only f64, f32, f16, bf16"):
        pointwise.EXP(i)
    with pytest.raises(ValueError, match="sizes 2 and 3 do not broadcast"):
        pointwise.ADD(f, view.PERMUTE(f, dims=(1, 0)))
    with pytest.raises(ValueError, match="add: 2 operands expected, got 1"):
        pointwise.ADD(f)
    with pytest.raises(ValueError, match="contracted sizes 3 and 2 differ"):
        contract.MATMUL(f, f)
    with pytest.raises(ValueError, match=r"dims \(1, 0\) must be sorted and distinct"):
        reduce.SUM(f, dims=(1, 0))
    with pytest.raises(ValueError, match="no elements to reduce"):
        reduce.AMAX(view.SLICE(f, dim=0, start=0, stop=0), dims=(0,))
    with pytest.raises(ValueError, match="slice 0:4:1 is not within size 3"):
        view.SLICE(f, dim=1, start=0, stop=4)
    with pytest.raises(ValueError, match="element 6 is outside the operand's 6"):
        view.AS_STRIDED(f, shape=(1,), strides=(1,), offset=6)
    with pytest.raises(ValueError, match="6 elements do not fill shape"):
        view.RESHAPE(f, shape=(7,))
    with pytest.raises(ValueError, match=r"bound 0.5 is no value of i64"):
        pointwise.CLAMP(i, lo=0.5)
    with pytest.raises(ValueError, match="300 is no value of u8"):
        pointwise.FULL(value=300, dtype=dtypes.u8)
    with pytest.raises(ValueError, match="unknown affine"):
        composite.LAYER_NORM(f, affine="bias")
    q = input_node(0, torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="a mask and causal exclude each other"):
        contract.ATTENTION(q, q, q, input_node(1, torch.zeros(2, 2).bool()), scale=1.0, causal=True)


def test_numbers_in_attributes_are_told_apart() -> None:
    def full(value: float, dtype: DType = dtypes.f32) -> Node:
        return pointwise.FULL(value=value, dtype=dtype, shape=(2,))

    assert full(0.0) is not full(-0.0)
    assert full(1) is full(1.0) is full(True)
    assert full(1, dtypes.i64) is not full(1)
    assert full(math.nan) is full(float("nan"))
    x = input_node(0, torch.zeros(2))
    assert pointwise.CLAMP(x, lo=0.0) is not pointwise.CLAMP(x, lo=-0.0)
    a, b = (opaque.CALL(x, overload="aten.add.Scalar", args=(opaque.TensorArg(0), n), kwargs=(), type=x.type) for n in (1, True))
    assert a is not b


def test_scalar_bodies_of_casts_round() -> None:
    x = var("x", dtypes.f32)
    body = pointwise.CAST.body(pointwise.CastAttrs(dtypes.bf16), x)
    assert body.dtype is dtypes.f32
    assert evaluate_body(body, {x: torch.tensor(1.001)}).item() == 1.0


# --- opaque calls -----------------------------------------------------------------------------------------------------


def call(overload: str, *args: object, **kwargs: object) -> tuple[Node, list[torch.Tensor]]:
    (spec, named), tensors = opaque.spec_of(args, kwargs)
    nodes = tuple(input_node(i, t) for i, t in enumerate(tensors))
    result = opaque.resolve(overload)(*args, **kwargs)
    many = isinstance(result, tuple | list)
    types = tuple(ir.TensorType(from_torch(t.dtype), tuple(t.shape)) for t in (result if many else [result]))
    type_ = ir.TupleType(types) if many else types[0]
    return opaque.CALL(*nodes, overload=overload, args=spec, kwargs=named, type=type_), tensors


def test_calls_run_the_overload() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for name, args, kwargs in [
        ("aten.add.Tensor", (x, y), {"alpha": 2}),
        ("aten.addcmul.default", (x, x, y), {"value": 0.5}),
        ("aten.index.Tensor", (x, [None, torch.tensor([3, 0])]), {}),
        ("aten.zeros.default", ([2, 3],), {"dtype": torch.float16, "device": torch.device("cpu"), "pin_memory": False}),
        ("aten.clone.default", (x,), {"memory_format": torch.contiguous_format}),
        ("aten.cat.default", ([x, y, x], 1), {}),
    ]:
        node, tensors = call(name, *args, **kwargs)
        result = node.op.eager(node.attrs, *tensors)
        assert torch.equal(result, opaque.resolve(name)(*args, **kwargs)), name
    node, tensors = call("aten.sort.default", x)
    second = opaque.GETITEM(node, index=1)
    graph = ir.Graph((input_node(0, x),), (ir.Output(second, (4, 1)),), ((4, 1),))
    assert torch.equal(interpret(graph, tensors)[0], x.sort().indices)
    node, tensors = call("aten.split.Tensor", x, 2)
    assert isinstance(node.type, ir.TupleType)
    assert torch.equal(node.op.eager(node.attrs, *tensors)[1], x[2:])


def test_specs_name_each_tensor_once() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    (args, kwargs), tensors = opaque.spec_of((x, [y, x], 3), {"b": y, "a": None})
    assert tensors[0] is x and tensors[1] is y and len(tensors) == 2
    assert args == (opaque.TensorArg(0), (opaque.TensorArg(1), opaque.TensorArg(0)), 3)
    assert kwargs == (("a", None), ("b", opaque.TensorArg(1)))
    filled, named = opaque.fill(args, kwargs, tensors)
    assert filled[0] is x and filled[1][0] is y and filled[1][1] is x and named["b"] is y


def test_calls_refuse_what_no_spec_holds() -> None:
    with pytest.raises(ValueError, match="generator"):
        opaque.spec_of((torch.Generator(),), {})
    with pytest.raises(ValueError, match=r"torch has no operator 'aten.nothing.default'"):
        opaque.resolve("aten.nothing.default")
    x = input_node(0, torch.zeros(1))
    with pytest.raises(ValueError, match="the spec does not name 1 operands"):
        opaque.CALL(x, overload="aten.neg.default", args=(), kwargs=(), type=x.type)
    node, _ = call("aten.sort.default", torch.zeros(3))
    with pytest.raises(ValueError, match="no result 2 of 2"):
        opaque.GETITEM(node, index=2)
