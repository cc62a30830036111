"""README.md: the tables that repeat what the program knows, and the markers of the generated one."""

from __future__ import annotations

import json
import linecache
import re
import sys
from pathlib import Path

import pytest
import torch

import tilewright as tw

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
sys.path.append(str(ROOT))  # bench is no part of the package

from bench import models, readme  # noqa: E402
from examples import demo  # noqa: E402


def test_the_folder_map_is_the_tree() -> None:
    shown = set(re.findall(r"^  ([a-z]+)/ ", README, re.MULTILINE))
    there = {p.name for p in (ROOT / "src" / "tilewright").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert shown == there


def test_the_error_shown_is_the_one_raised(capsys: pytest.CaptureFixture[str]) -> None:
    block, shown = re.findall(r"```python\n(def branch.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)[0]
    linecache.cache["example.py"] = (len(block), None, block.splitlines(keepends=True), "example.py")
    exec(compile(block, "example.py", "exec"), {"torch": torch, "tw": tw, "x": torch.randn(4)})
    assert capsys.readouterr().out == shown


def test_the_results_are_generated() -> None:
    table = README.split(readme.START)[1].split(readme.END)[0]
    assert table.lstrip().startswith("| model | first call, s |")
    assert "Measured on cpu" in table


def test_rewriting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"above\n{readme.START}\nold\n{readme.END}\nbelow\n")
    row = {"model": "m", "eager_ms": 2.0, "tilewright_ms": 1.0, "eager_over_tilewright": 2.0}
    figures = tmp_path / "f.json"
    figures.write_text(json.dumps({"machine": {"cpu": "x", "threads": 2}, "rows": [row, {**row, "eager_over_tilewright": 0.5}]}))
    monkeypatch.setattr(readme.rewrite, "__defaults__", (page,))
    monkeypatch.setattr("sys.argv", ["models", "--from", str(figures), "--readme"])
    models.main()
    text = page.read_text()
    assert text.startswith(f"above\n{readme.START}\n| model | eager, ms | Tilewright, ms | eager ÷ Tilewright |")
    assert "| m | 2.00 | 1.00 | 0.50 |" in text
    assert "Geometric mean: eager ÷ Tilewright 1.00. Measured on cpu x, threads 2." in text
    assert text.endswith(f"{readme.END}\nbelow\n")
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no lines"):
        readme.rewrite("x", page)


def test_the_demo_prints_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(name: str, rivals: bool) -> dict[str, object]:
        return {key: name if key == "model" else 1.25 for key in models.COLUMNS if rivals or "torch_compile" not in key}

    monkeypatch.setattr(demo, "measure", measure)
    monkeypatch.setattr("sys.argv", ["demo"])
    demo.main()
    shown = capsys.readouterr().out
    assert "bert-base" in shown
    assert "gpt2-small" in shown
    for key, (title, _) in models.COLUMNS.items():
        assert (title in shown) == (key != "model" and "torch_compile" not in key), title
