"""The dump tool: what it finds in a folder, and comparisons that a renumbering does not disturb."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tilewright as tw
from tilewright.base import config
from tilewright.graph.pipeline import PIPELINE
from tilewright.tools import dump

BEFORE = """\
%0 = input(index=0, name="x", kind=user) : f32[4], strides=(1,)
%1 = exp(%0) : f32[4]
%2 = neg(%1) : f32[4]
%3 = neg(%2) : f32[4]
%4 = sin(%3) : f32[4]
%5 = add(%4, %1) : f32[4]
return %5, strides=(1,)
"""


def test_a_node_that_goes_is_all_that_differs() -> None:
    after = """\
%0 = input(index=0, name="x", kind=user) : f32[4], strides=(1,)
%1 = exp(%0) : f32[4]
%2 = sin(%1) : f32[4]
%3 = add(%2, %1) : f32[4]
return %3, strides=(1,)
"""
    assert dump.changes(BEFORE, after) == [
        "- %2 = neg(%1) : f32[4]", "- %3 = neg(%2) : f32[4]", "- %4 = sin(%3) : f32[4]", "+ %2 = sin(%1) : f32[4]",
    ]  # fmt: skip


def test_other_operands_are_seen() -> None:
    changed = dump.changes(BEFORE, BEFORE.replace("add(%4, %1)", "add(%1, %4)"))
    assert changed == ["- %5 = add(%4, %1) : f32[4]", "+ %5 = add(%1, %4) : f32[4]"]
    assert dump.changes(BEFORE, BEFORE) == []


def test_a_node_in_another_s_place_stands_for_it() -> None:
    assert dump.changes(BEFORE, BEFORE.replace("sin", "cos")) == ["- %4 = sin(%3) : f32[4]", "+ %4 = cos(%3) : f32[4]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with config.override(dump=tmp_path):
        f = tw.compile(lambda x: torch.softmax(x * 1.0, -1))
        f(torch.randn(4, 64))
        f(torch.randn(2, 64))
    return tmp_path


def test_stages(folder: Path) -> None:
    first, second = dump.compilations(folder)
    assert dump.compilations(first) == [first]
    names = [s.name for s in dump.stages(second)]
    assert names == ["graph recorded", *(f"graph {p.name}" for p in PIPELINE), "tile", "llvm", "asm"]
    text = "\n".join(dump.overview(first))
    assert "05 graph algebra: " in text
    assert "    - %2 = mul(%0, %1) : f32[4, 64]" in text
    assert "02 graph dead: no change" in text
    assert "\n15 tile: " in text
    assert "define" not in text
    assert "define void @" in "\n".join(dump.overview(first, full=True))


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump.main([str(folder)]) == 0
    assert capsys.readouterr().out.count("graph recorded") == 2
    assert dump.main([str(folder), "--stage", "tile"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("kernel ") == 2
    assert "%0 = input" not in shown
    assert dump.main([str(folder / "missing")]) == 1
    assert "no stages" in capsys.readouterr().err
    assert dump.main([str(folder), "--stage", "ptx"]) == 1
    assert "'ptx'" in capsys.readouterr().err
