"""The check tool and its example inputs: right graphs pass, and the stage that breaks one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import golden
from tilewright import errors
from tilewright.base import dtypes
from tilewright.graph import pipeline
from tilewright.graph.ir import Graph, TensorType, rewrite_nodes
from tilewright.graph.ops import pointwise as pw
from tilewright.graph.text import parse_graph
from tilewright.tools import check
from tilewright.tools.inputs import example, examples, parse_type

GRAPH = """\
%0 = input(index=0, name="x", kind=user) : f32[8, 64], strides=(1, 8)
%1 = input(index=1, name="w", kind=parameter) : f32[64, 32], strides=(32, 1)
%2 = matmul(%0, %1) : f32[8, 32]
%3 = softmax(%2, dim=1) : f32[8, 32]
%4 = cast(%3, dtype=bf16) : bf16[8, 32]
return %3, strides=(32, 1)
return %4, strides=(1, 8)
"""


def test_all_stages_agree() -> None:
    graph = parse_graph(GRAPH)
    found = dict(check.check(graph, examples(graph)))
    assert list(found)[-2:] == ["simulator", "machine code"]
    assert set(found) >= {p.name for p in pipeline.PIPELINE}
    assert max(found.values()) < 1e-2  # bf16 outputs round
    assert found["late cse"] < 1e-6


def test_the_stage_that_breaks_a_graph_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(graph: Graph) -> Graph:
        return rewrite_nodes(graph, lambda n, args: pw.SIN(*args) if n.op is pw.COS else None)

    broken = pipeline.Pass("broken", wrong)
    monkeypatch.setattr("tilewright.graph.pipeline.optimise.__kwdefaults__", {"debug": False, "watch": None, "passes": (broken,)})
    path = tmp_path / "g.txt"
    path.write_text(
        '%0 = input(index=0, name="x", kind=user) : f32[64], strides=(1,)\n%1 = cos(%0) : f32[64]\nreturn %1, strides=(1,)\n'
    )
    assert check.main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("broken")
    assert lines[0].endswith("<- differs")
    monkeypatch.undo()
    assert check.main([str(path), "--cpu", "x86-64-v3"]) == 0
    assert check.main([str(tmp_path / "none")]) == 1


def test_run_graph_leaves_its_inputs_alone() -> None:
    graph = parse_graph(
        '%0 = input(index=0, name="x", kind=user) : f32[64], strides=(1,)\n'
        "%1 = exp(%0) : f32[64]\nreturn %1, strides=(1,)\nwrite %1, index=0\n"
    )
    x = torch.randn(64)
    before = x.clone()
    (result,) = check.run_graph(graph, [x])
    torch.testing.assert_close(result, before.exp())
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", ["attention", "siblings"])
def test_golden_graphs_keep_their_values(name: str) -> None:
    graph = parse_graph(golden.read(golden.FOLDER / f"{name}.txt")[0].input)
    assert max(e for _, e in check.check(graph, examples(graph))) < 1e-5


def test_opaque_calls_are_run_in_the_simulator_too() -> None:
    graph = parse_graph(
        '%0 = input(index=0, name="x", kind=user) : f32[64], strides=(1,)\n'
        '%1 = call(%0, overload="aten.i0.default", args=($0,), kwargs=(), seq=-1) : f32[64]\n'
        "%2 = exp(%1) : f32[64]\nreturn %2, strides=(1,)\n"
    )
    assert max(e for _, e in check.check(graph, examples(graph))) < 1e-5


def test_differences() -> None:
    one, nan = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert check.difference([nan], [nan]) == 0
    assert check.difference([one], [nan]) == float("inf")
    assert check.difference([one * 1.5], [one]) == pytest.approx(0.5)
    assert check.difference([torch.tensor([1])], [torch.tensor([2])]) == float("inf")
    assert check.difference([None], [one]) == 0


def test_examples() -> None:
    assert parse_type("bf16[2, 3]") == TensorType(dtypes.bf16, (2, 3))
    assert parse_type("f32[]").shape == ()
    assert example(parse_type("b1[4]")).dtype is torch.bool
    assert set(example(parse_type("i64[50]")).tolist()) <= {0, 1}
    assert example(parse_type("f32[4, 8]"), (1, 4)).stride() == (1, 4)
    wide = example(parse_type("f32[4, 8]"), (0, 1))
    assert wide.stride() == (0, 1)
    assert torch.equal(wide[0], wide[3])
    for wrong in ("f32", "f99[2]", "f32[a]"):
        with pytest.raises(errors.OptionError, match="a type such as"):
            parse_type(wrong)
