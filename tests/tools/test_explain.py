"""tw.explain: what the report says of small programs, each fact where it can be wrong."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import tilewright as tw
from tilewright import errors
from tilewright.tools import explain as module


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(functional.gelu(self.up(x))), -1)


@pytest.fixture(scope="module")
def report() -> module.Report:
    with torch.no_grad():
        return tw.explain(Small().eval(), torch.randn(32, 64))


def test_inputs(report: module.Report) -> None:
    assert [i.name for i in report.inputs] == ["0", "up.weight", "up.bias", "norm.weight", "norm.bias"]
    assert [i.kind for i in report.inputs] == ["user", *["parameter"] * 4]
    assert report.inputs[1].bytes == 64 * 128 * 4
    text = str(report)
    assert "argument 0: f32[32, 64], strides (64, 1)" in text
    assert "4 parameters and buffers, 33.5 KiB: up.weight f32[128, 64]" in text
    assert "argument 0: its type, dtype, shape, strides or device changed" in text
    assert "metadata of a parameter or buffer changed: 4 of them" in text


def test_kernels(report: module.Report) -> None:
    packing, product, rows = report.kernels
    assert packing.folded
    assert packing.share == 0
    assert product.members[-2:] == ("add", "gelu")
    assert {"sum", "rsqrt", "amax", "exp", "div"} <= set(rows.members)
    assert product.share + rows.share == pytest.approx(1)
    assert (product.kind, rows.kind, rows.launches) == ("contract", "rows", 1)
    assert str(report).startswith("Small: 2 kernel launches, 0 eager calls\n")
    assert report.packed_bytes == 64 * 128 * 4
    assert report.arena_bytes == 32 * 128 * 4
    assert {"record", "optimise", "lower", "plan", "generate", "assemble", "load", "guards"} <= set(report.seconds)
    assert not report.calls
    assert not report.eager_backward


def test_it_says_the_same_as_stats() -> None:
    m, x = Small().eval(), torch.randn(32, 64)
    with torch.no_grad():
        compiled = tw.compile(m)
        compiled(x)
        report = tw.explain(compiled, x)
    stats = compiled.stats
    assert sum(k.launches for k in report.kernels if not k.folded) == stats.kernels
    assert (report.arena_bytes, report.packed_bytes) == (stats.arena_bytes, stats.packed_bytes)
    assert stats == compiled.stats
    assert stats.compiles == 1


def test_boundaries(report: module.Report) -> None:
    once, whole = report.boundaries
    assert "weights only" in once.reason
    assert "a row is reduced whole" in whole.reason
    assert (whole.producer, whole.value) == (report.kernels[1].name, "f32[32, 128]")
    assert f"{whole.producer} → {whole.consumer}" in str(report)


def f32(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


CASES = {
    "an operand of a product": (lambda x, y: (x.exp() @ y.sin()) @ y, (f32(64, 64), f32(64, 64)), "an operand of a product"),
    "scan": (lambda x: x.cumsum(1).exp(), (f32(8, 64),), "a scan takes no operators behind it"),
    "scan reads": (lambda x: x.sum(0, keepdim=True).cumsum(1), (f32(8, 64),), "a scan reads its operand"),
    "rows": (lambda x: x.softmax(0).softmax(1), (f32(256, 256),), "reductions over other dimensions: 256 × 256 reduced over 0"),
    "call": (lambda x: torch.fft.fft(x.exp()).real + 1, (f32(8, 64),), "an eager call"),
    "effect": (lambda x: x.add_(x.sum()), (f32(300, 300),), "written in place"),
    "attention": (functional.scaled_dot_product_attention, (f32(1, 2, 8, 16),) * 3, ""),
    "places": (lambda x, i: (x @ x)[i], (f32(32, 32), torch.tensor([1, 2])), "read at other places"),
}


@pytest.mark.parametrize("name", list(CASES))
def test_reasons(name: str) -> None:
    fn, args, expected = CASES[name]
    before = [a.clone() for a in args]
    report = tw.explain(fn, *args)
    reasons = [b.reason for b in report.boundaries]
    assert any(expected in r for r in reasons) if expected else not reasons, (reasons, str(report))
    torch.testing.assert_close(args, tuple(before))  # nothing was run


def test_recomputed_members_are_named() -> None:
    report = tw.explain(lambda x: (x.exp() + 1).t().contiguous() + x.exp().sum(1), f32(64, 64))
    assert any("exp" in k.again for k in report.kernels) or sum("exp" in k.members for k in report.kernels) == 1
    assert isinstance(str(report), str)


def test_eager_calls_and_their_reasons() -> None:
    report = tw.explain(lambda x: torch.fft.fft(x).real + torch.rand(8), f32(8, 8))
    calls = {c.operator: c for c in report.calls}
    assert "no row" in calls["aten._fft_r2c.default"].reason
    assert "random numbers" in calls["aten.rand.default"].reason
    assert calls["aten.rand.default"].count == 1
    assert "aten.rand.default × 1: it draws random numbers" in str(report)


async def later(x: torch.Tensor) -> torch.Tensor:
    return -x


def test_fallbacks_say_why() -> None:
    report = tw.explain(later, f32(4))
    text = str(report)
    assert text.startswith("later: runs in eager\n")
    assert "coroutines are not captured" in text
    assert "hint: compile the functions that they call" in text
    assert not report.kernels


def test_gradients() -> None:
    report = tw.explain(Small(), f32(2, 64))
    assert report.eager_backward
    assert "backward runs the function again in eager" in str(report)


def test_errors() -> None:
    with pytest.raises(errors.NotCallable, match=r"tilewright\.explain takes a function"):
        tw.explain(3)
    with pytest.raises(ZeroDivisionError):
        tw.explain(lambda x: x / (1 // 0), f32(2))


def test_options_of_a_compiled_function_apply() -> None:
    compiled = tw.compile(lambda x: x.exp(), options={"cpu": "x86-64-v3"})
    assert tw.explain(compiled, f32(64)).kernels[0].members == ("exp",)


def test_long_sections_are_cut() -> None:
    report = module.Report("f", guards=tuple(f"argument {i}: changed" for i in range(100)))
    assert "... and 60 more" in str(report)
    assert "Guards (100)" in str(report)


def test_copies_are_named_as_such() -> None:
    report = tw.explain(lambda x: torch.special.i0(x), f32(8, 8))  # its result is copied to memory of the caller's
    assert all(k.members == ("copy",) for k in report.kernels)


def test_graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x.exp()
        print(x.sum().item())
        return x + 1

    report = tw.explain(tw.compile(broken), f32(64))
    assert len(report.breaks) == 1
    assert "test_explain.py" in report.breaks[0].at
    assert any("exp" in k.members for k in report.kernels)
    assert "+ 1" not in report.breaks[0].line and "x.sum().item()" in report.breaks[0].line
    assert f"Graph breaks\n  {report.breaks[0]}\n      print(x.sum().item())\n      hint: compute with" in str(report)
    assert len(report.graphs) == 2 and report.graphs[0].operators == 2
    assert sum(k.launches for k in report.kernels) >= 2
    with pytest.raises(ZeroDivisionError):
        tw.explain(tw.compile(lambda x: x / (1 // 0)), f32(2))
    nothing = tw.explain(tw.compile(lambda x: 3), f32(2))
    assert not nothing.kernels
    assert str(nothing)


def test_it_prints_what_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    report = tw.explain(lambda x: x.exp(), f32(8))
    assert capsys.readouterr().out == f"{report}\n"
    assert "graphs" in repr(report) and len(repr(report)) < 120


def test_pieces_of_callees_and_loops_are_shown() -> None:
    def callee(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x * 3

    def loop(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        for i in range(2):
            x = callee(x.abs() + i)
            log.append(i)
        return x.cos()

    x, log = f32(300, 300), [7]
    before, state = x.clone(), torch.get_rng_state()
    report = tw.explain(loop, x, log)
    assert len(report.graphs) >= 3 and sum(g.kernels for g in report.graphs) == sum(k.launches for k in report.kernels)
    assert torch.equal(x, before) and torch.equal(state, torch.get_rng_state()) and log == [7]
    assert {"cos", "abs"} <= {m for k in report.kernels for m in k.members}
    assert "Graphs\n" in str(report)
    assert report.advice[0].startswith(f"The graph breaks at {report.breaks[0].at}")


def test_recompiles_are_told_with_their_guard() -> None:
    fast = tw.compile(lambda x, text: x * len(text), options={"recompile_limit": 3})
    x = f32(300, 300)
    for k in range(3):
        fast(x, "abc"[: k + 1])
    report = tw.explain(fast, x, "a")
    assert [t for _, t in report.recompiles] == ["argument 1 is no longer 'a'", "argument 1 is no longer 'ab'"]
    assert "compiled 3 times, its limit" in report.advice[0] and "pass a number" in report.advice[0]
    assert "Recompiles so far" in str(report)


ADVICE = {
    "small": (lambda x: x + 1, (f32(4),), {}, "Too small to gain much"),
    "opaque": (lambda x: torch.special.i0(x) + 1, (f32(400, 400),), {}, "without a row run in eager.*aten.i0"),
    "products": (lambda x: x @ x, (f32(256, 256),), {"options": {"library": False}}, "Matrix products and attention take"),
    "mode": (lambda x: x.exp(), (f32(400, 400),), {"mode": "reduce-overhead"}, "changes nothing on a CPU"),
    "search": (lambda x: x.exp(), (f32(400, 400),), {"mode": "max-autotune"}, "changes nothing yet"),
    "nothing": (lambda x: x.exp() * 2, (f32(400, 400),), {}, "Nothing stands out. Most time goes to exp"),
    "eager": (later, (f32(4),), {}, "Nothing is compiled: compile the functions"),
}


@pytest.mark.parametrize("name", list(ADVICE))
def test_advice(name: str) -> None:
    fn, args, asked, expected = ADVICE[name]
    with torch.no_grad():
        report = tw.explain(tw.compile(fn, **asked), *args)
    assert any(re.match(f".*{expected}", a, re.DOTALL) for a in report.advice), report.advice
    assert f"Advice\n  1. {report.advice[0]}" in str(report)


def test_advice_on_gradients_comes_after_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        if y.sum() > 0:
            return y * 2
        return y

    report = tw.explain(f, f32(300, 300).requires_grad_())
    assert ["breaks" in report.advice[0], "backward" in report.advice[1]] == [True, True]
