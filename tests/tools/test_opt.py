"""The opt tool: passes by name, levels, errors."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import golden
from tilewright import errors
from tilewright.graph.pipeline import PIPELINE
from tilewright.targets.target import target_named
from tilewright.tile.parse import parse_kernels
from tilewright.tools import opt

GRAPH = """\
# a comment
%0 = input(index=0, name="x", kind=user) : f32[4, 64], strides=(64, 1)
%1 = full(value=1.0, dtype=f32, shape=()) : f32[]
%2 = mul(%0, %1) : f32[4, 64]
%3 = softmax(%2, dim=1) : f32[4, 64]
return %3, strides=(64, 1)
"""
CASE_FILES = {"expand": "composites"}


def test_without_passes_the_text_is_checked_and_printed() -> None:
    assert opt.run(GRAPH) == GRAPH.split("\n", 1)[1]


def test_passes_run_in_the_order_named() -> None:
    assert "mul" not in opt.run(GRAPH, "algebra")
    text = opt.run(GRAPH, "expand,algebra")
    assert "softmax" not in text
    assert "mul" not in text
    assert opt.run(GRAPH, "all") == opt.run(GRAPH, ",".join(p.name.removeprefix("late ") for p in PIPELINE))


@pytest.mark.parametrize("name", list(opt.passes()))
def test_each_pass_does_what_its_golden_cases_say(name: str) -> None:
    case = golden.read(golden.FOLDER / f"{CASE_FILES.get(name, name)}.txt")[0]
    assert opt.run(case.input, name).strip() == case.expected


def test_every_pass_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for name in opt.passes():
        assert name in listed
    assert len(opt.passes()) == len({p.run for p in PIPELINE})
    assert all(line.rstrip().endswith(".") for line in listed.splitlines())


def test_levels() -> None:
    tile = opt.run(GRAPH, to="tile")
    (kernel,) = parse_kernels(tile.split("plan:")[0])
    assert kernel.cost > 0
    assert "plan: 1 launches" in tile
    llvm = opt.run(GRAPH, to="llvm", target=target_named("cpu:x86-64-v3"))
    assert "<8 x float>" in llvm
    assert "tw_run" in llvm
    assert "ymm" in opt.run(GRAPH, to="asm", target=target_named("cpu:x86-64-v3"))


def test_kernels_go_down_too() -> None:
    text = opt.run(GRAPH, to="tile")  # with the plan behind it, as a dump has it
    assert opt.is_tile(text)
    assert opt.run(text).strip() == text.split("plan:")[0].strip()
    assert "define void @k0_" in opt.run(text, to="llvm")
    assert "k0_" in opt.run(text, to="asm", target=target_named("cpu:aarch64"))


@pytest.mark.parametrize(
    ("text", "names", "to", "message"),
    [
        ("x = 1\n", "", None, "cannot read the graph: a line cannot start with 'x'"),
        (GRAPH, "algebra,nope", None, "--passes: expected all, or some of dead"),
        (GRAPH, "", "ptx", "--to: expected graph, tile, llvm, asm"),
        ("kernel k:\n    out y: f32[4]\n    z[0] = 1.0\n", "", None, "cannot read the kernel"),
        ("kernel k:\n    out y: f32[4]\n    y[0] = 1.0\n", "algebra", None, "only --to tile, llvm or asm"),
        (GRAPH.replace("dim=1", "dim=2"), "", None, "dim 2 is out of range"),
    ],
)
def test_errors(text: str, names: str, to: str | None, message: str) -> None:
    with pytest.raises(errors.TilewrightError, match=message):
        opt.run(text, names, to)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.txt"
    path.write_text(GRAPH)
    assert opt.main([str(path), "--passes", "algebra"]) == 0
    assert "mul" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(GRAPH))
    assert opt.main(["--to", "llvm", "--cpu", "x86-64-v3"]) == 0
    assert "<8 x float>" in capsys.readouterr().out
    assert opt.main([str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err
    path.write_text("x\n")
    assert opt.main([str(path)]) == 1
    assert "-->" in capsys.readouterr().err
