"""The reference interpreter: strides, shared memory and effects of a graph's outputs; symbolic sizes; scalar bodies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from graph.op_cases import draw, input_node
from tilewright.base import dims, dtypes, scalar
from tilewright.graph.interpret import BINARY, UNARY, evaluate_body, interpret
from tilewright.graph.ir import INPUT, Alias, Effect, Graph, InputKind, Output, TensorType
from tilewright.graph.ops import pointwise as pw
from tilewright.graph.ops import reduce as rd
from tilewright.graph.ops import view as vw


def test_outputs_have_the_stated_strides() -> None:
    t = torch.randn(3, 4)
    x = input_node(0, t)
    y = pw.EXP(x)
    outputs = (Output(y, (4, 1)), Output(y, (1, 3)), Output(y, (8, 2)))
    results = interpret(Graph((x,), outputs, ((4, 1),)), [t])
    assert [r.stride() for r in results] == [(4, 1), (1, 3), (8, 2)]
    assert all(torch.equal(r, t.exp()) for r in results)
    assert len({r.untyped_storage().data_ptr() for r in results}) == 3


def test_outputs_that_repeat_elements() -> None:
    t = torch.randn(3, 1)
    x = input_node(0, t)
    y = vw.EXPAND(pw.EXP(x), shape=(3, 4))
    window = vw.AS_STRIDED(pw.EXP(x), shape=(2, 2), strides=(1, 1))
    outputs = (Output(y, (1, 0)), Output(window, (1, 1)))
    a, b = interpret(Graph((x,), outputs, ((1, 1),)), [t])
    assert a.stride() == (1, 0) and torch.equal(a, t.exp().expand(3, 4)) and a.untyped_storage().nbytes() == 12
    assert b.stride() == (1, 1) and torch.equal(b, t.exp().flatten().unfold(0, 2, 1))


def test_outputs_share_memory() -> None:
    """Views of an output, also one that reaches before it, and of an input, are those views."""
    t = torch.randn(4, 6)
    x = input_node(0, t)
    y = pw.NEG(x)
    outputs = (
        Output(vw.SLICE(y, dim=0, start=1, stop=3), (6, 1)),
        Output(vw.PERMUTE(y, dims=(1, 0)), (1, 6), Alias("output", 0, -6)),
        Output(vw.SLICE(x, dim=1, start=2, stop=4), (6, 1), Alias("input", 0, 2)),
        Output(vw.SLICE(y, dim=0, start=2, stop=3), (6, 1), Alias("output", 0, 6)),
        Output(vw.SLICE(y, dim=0, start=2, stop=3), (6, 1)),
    )
    a, b, c, d, e = interpret(Graph((x,), outputs, ((6, 1),)), [t])
    for got, want in zip((a, b, c, d, e), (-t[1:3], -t.t(), t[:, 2:4], -t[2:3], -t[2:3]), strict=True):
        assert torch.equal(got, want)
    b.zero_()
    assert not a.any() and not d.any() and e.any()
    c.fill_(7)
    assert (t[:, 2:4] == 7).all()


def test_an_input_itself_is_returned_as_memory() -> None:
    base = torch.randn(40)
    t = base[5:17].view(3, 4)
    x = input_node(0, t)
    (out,) = interpret(Graph((x,), (Output(x, (4, 1), Alias("input", 0)),), ((4, 1),)), [t])
    assert out.data_ptr() == t.data_ptr() and torch.equal(out, t)


def test_effects_are_written_after_everything_was_read() -> None:
    """A swap of two inputs; a fresh output keeps the old value and one that is the input's memory shows the new one."""
    a, b = torch.randn(3), torch.randn(3)
    old_a, old_b = a.clone(), b.clone()
    x, y = input_node(0, a), input_node(1, b)
    outputs = (Output(vw.FLIP(x, dims=()), (1,)), Output(x, (1,), Alias("input", 0)))
    fresh, seen = interpret(Graph((x, y), outputs, ((1,), (1,)), (Effect(0, y), Effect(1, x))), [a, b])
    assert torch.equal(a, old_b) and torch.equal(b, old_a)
    assert torch.equal(fresh, old_a) and torch.equal(seen, old_b) and seen.data_ptr() == a.data_ptr()


def test_a_later_effect_on_shared_memory_wins() -> None:
    t = torch.zeros(3)
    x, y = input_node(0, t), input_node(1, t)
    one, two = (pw.FULL(value=v, dtype=dtypes.f32, shape=(3,)) for v in (1, 2))
    interpret(Graph((x, y), (), ((1,), (1,)), (Effect(1, one), Effect(0, two))), [t, t])
    assert (t == 2).all()


def test_random_draws_are_eagers() -> None:
    t = torch.zeros(5)
    x = input_node(0, t)
    draws = [draw(x, i) for i in (0, 1)]
    torch.manual_seed(3)
    got = interpret(Graph((x,), tuple(Output(n, (1,)) for n in draws), ((1,),)), [t])
    torch.manual_seed(3)
    assert all(torch.equal(g, torch.rand_like(t)) for g in got)


def test_symbolic_sizes_are_read_off_the_inputs() -> None:
    s = dims.symbol("s")
    x = INPUT(index=0, name="x", kind=InputKind.USER, type=TensorType(dtypes.f32, (s, 2 * s)))
    y = vw.RESHAPE(x, shape=(s * s * 2,))
    count = pw.DIV(rd.SUM(y, dims=(0,)), pw.FULL(value=s * s * 2, dtype=dtypes.f32))
    graph = Graph((x,), (Output(y, (1,)), Output(count, ())), ((2 * s, 1),))
    for n in (3, 5):
        t = torch.randn(n, 2 * n)
        flat, mean = interpret(graph, [t])
        assert torch.equal(flat, t.flatten())
        torch.testing.assert_close(mean, t.mean())
    with pytest.raises(ValueError, match=r"expected, got torch.float32\[3, 5\]"):
        interpret(graph, [torch.zeros(3, 5)])
    assert scalar.Var in {type(e) for e in scalar.walk(count.args[1].op.body(count.args[1].attrs))}


def test_inputs_are_checked() -> None:
    x = input_node(0, torch.zeros(2))
    graph = Graph((x,), (Output(x, (1,)),), ((1,),))
    with pytest.raises(ValueError, match="1 inputs expected, got 2"):
        interpret(graph, [torch.zeros(2)] * 2)
    for wrong in (torch.zeros(3), torch.zeros(2).double(), torch.zeros(2, 1)):
        with pytest.raises(ValueError, match="expected, got"):
            interpret(graph, [wrong])
    assert interpret(replace(graph, outputs=()), [torch.zeros(2)]) == []


def test_every_scalar_operation_is_evaluated() -> None:
    assert set(UNARY) == set(scalar.UNARY) and set(BINARY) == set(scalar.BINARY)
    x, i = scalar.var("x", dtypes.f32), scalar.var("i")
    values = {x: torch.tensor([0.5, 2.0]), i: torch.tensor([1, 0])}
    e = scalar.select(scalar.cast(i, dtypes.b1), scalar.unary("sqrt", x + 1), scalar.cast(i, dtypes.f32) - 3)
    assert torch.allclose(evaluate_body(e, values), torch.tensor([1.5**0.5, -3.0]))
    with pytest.raises(KeyError):
        evaluate_body(scalar.var("y", dtypes.f32) + 1, {})
