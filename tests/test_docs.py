"""README.md and docs/ run: their Python blocks, the tour, and the `make` commands they name.

The blocks of one file run in order in one namespace and in an empty folder, as a reader would paste them. A block whose
fence says `python no-run` is only compiled. In `>>>` blocks the output shown is compared.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SCRIPTS = sorted((ROOT / "docs").glob("*.py"))
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    info: str
    text: str
    line: int  # of the first line of text, from 1


def blocks(text: str, language: str) -> list[Block]:
    """The fenced blocks of a page whose fence names the language."""
    found = []
    for fence in _FENCE.finditer(text):
        words = fence["info"].split()
        if words and words[0] == language:
            indent = len(fence["indent"])
            body = "".join(line[indent:] for line in fence["body"].splitlines(keepends=True))
            found.append(Block(fence["info"].strip(), body, text.count("\n", 0, fence.start("body")) + 1))
    return found


def run(block: Block, path: Path, namespace: dict[str, Any]) -> None:
    """Run a block; errors carry the page's name and line."""
    if block.text.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.text, namespace, path.name, str(path), block.line - 1)
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        result = runner.run(test, out=report.append, clear_globs=False)
        assert not result.failed, "".join(report)
        namespace.update(test.globs)
        return
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    if "no-run" not in block.info:
        exec(code, namespace)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": path.stem}
    for block in blocks(path.read_text(), "python"):
        run(block, path, namespace)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.strip(), "the script shows nothing"


def test_make_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "test", "demo", "bench"} <= targets
    for path in PAGES:
        named = {
            t
            for shell in ("sh", "bash", "console")
            for b in blocks(path.read_text(), shell)
            for t in re.findall(r"\bmake ([a-z]+)", b.text)
        }
        assert named <= targets, f"{path.name} names {named - targets}"


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_blocks_are_found_and_can_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nx = 1\n```\n  ```python no-run\n  y = undefined\n  ```\n```sh\nls\n```\n```python\n>>> x + 1\n3\n```\n"
    )
    first, second, third = blocks(page.read_text(), "python")
    assert (first.text, first.line, second.text, second.info) == ("x = 1\n", 3, "y = undefined\n", "python no-run")
    namespace: dict[str, Any] = {}
    run(first, page, namespace)
    run(second, page, namespace)
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        run(third, page, namespace)
    with pytest.raises(SyntaxError):
        run(Block("python no-run", "x =", 1), page, namespace)
