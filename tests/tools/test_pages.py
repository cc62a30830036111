"""What README.md and docs/ say of IR, passes and settings is so: texts parse, grammars are the modules', examples golden cases.

`pytest --update-golden` rewrites the examples of passes.md from the cases, and the tables of settings, options and levels.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import golden
from tilewright.base import config
from tilewright.graph.pipeline import PIPELINE
from tilewright.graph.text import parse_graph, print_graph
from tilewright.graph.verify import verify as verify_graph
from tilewright.program import breaks, control
from tilewright.tile.parse import parse_kernels
from tilewright.tile.text import kernel_text
from tilewright.tile.verify import verify as verify_kernel
from tilewright.tools import check, opt
from tilewright.tools.environment import shown
from tilewright.tools.inputs import examples

DOCS = Path(__file__).parents[2] / "docs"
_MARKED = re.compile(r"<!-- (\w+): (.+?) -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def marked(page: str, kind: str) -> list[tuple[str, str]]:
    """(argument, text) of the marked blocks of a page."""
    return [(m[2], m[3]) for m in _MARKED.finditer((DOCS / page).read_text()) if m[1] == kind]


@pytest.mark.parametrize(("module", "text"), marked("ir.md", "grammar"))
def test_grammars_are_the_modules(module: str, text: str) -> None:
    lines = [line.strip() for line in (importlib.import_module(module).__doc__ or "").splitlines()]
    at = lines.index(text.splitlines()[0].strip())
    shown = [line.strip() for line in text.splitlines()]
    assert lines[at : at + len(shown)] == shown
    assert not "".join(lines[at + len(shown) :][:1]), "the module's grammar goes on"


@pytest.mark.parametrize(("level", "text"), marked("ir.md", "text"))
def test_texts_are_read_back(level: str, text: str) -> None:
    if level == "graph":
        graph = parse_graph(text)
        verify_graph(graph)
        assert print_graph(graph) == text
    else:
        kernels = parse_kernels(text)
        for k in kernels:
            verify_kernel(k)
        assert "\n".join(map(kernel_text, kernels)) == text
        assert "define void" in opt.run(text, to="llvm")


def test_the_first_graph_becomes_the_kernels_shown() -> None:
    (_, graph), *_ = marked("ir.md", "text")
    (_, kernels) = next((level, text) for level, text in marked("ir.md", "text") if level == "tile")
    lowered = opt.run(graph, to="tile")
    assert [k.name for k in parse_kernels(lowered.split("plan:")[0])] == [k.name for k in parse_kernels(kernels)]
    parsed = parse_graph(graph)
    assert max(e for _, e in check.check(parsed, examples(parsed))) < 1e-5


def test_there_are_examples_of_both() -> None:
    assert {level for level, _ in marked("ir.md", "text")} == {"graph", "tile"}
    assert len(marked("ir.md", "grammar")) == 2


def test_every_pass_has_a_section_in_order() -> None:
    titles = re.findall(r"^## (.+)$", (DOCS / "passes.md").read_text(), re.MULTILINE)
    assert titles[:-1] == list(opt.passes())
    assert len(marked("passes.md", "case")) == len(opt.passes())
    assert {p.name.removeprefix("late ") for p in PIPELINE} == set(opt.passes())


@pytest.mark.parametrize(("place", "text"), marked("passes.md", "case"), ids=lambda v: v.split("\n")[0][:40])
def test_examples_are_golden_cases(place: str, text: str) -> None:
    name, case_name = place.split(" / ", 1)
    case = next(c for c in golden.read(golden.FOLDER / f"{name}.txt") if c.name == case_name)
    now = f"{case.input}\n---\n{case.expected}\n"
    if golden.update and text != now:
        path = DOCS / "passes.md"
        path.write_text(path.read_text().replace(text, now))
    else:
        assert text == now, "run pytest --update-golden"


def test_descriptions_are_the_modules() -> None:
    page = (DOCS / "passes.md").read_text()
    for name, p in opt.passes().items():
        assert f"## {name}\n\n{opt.describe(p)}" in page


TABLES = {
    "settings": [
        f"| `{f.metadata['variable']}` | {shown(f.default)} | {f.metadata['meaning']} |"
        for f in dataclasses.fields(config.Settings)
    ],
    "levels": [f"| {level} | {meaning} |" for level, meaning in config.DEBUG_LEVELS.items()],
    "breaks": [f"| {id} | {row.explanation} | {row.hint} |" for id, row in breaks.REASONS.items()],
    "stances": [f"| `{name}` | {meaning} |" for name, meaning in control.STANCES.items()],
    "options": [f"| `{f.name}` | `{f.default!r}` | {f.metadata['meaning']} |" for f in config.Options.table()],
}


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("docs/debugging.md", "settings"), ("docs/debugging.md", "levels"), ("README.md", "levels"), ("README.md", "options"),
        ("docs/capture.md", "breaks"), ("docs/capture.md", "stances"),
    ],
)
def test_tables_are_the_programs(page: str, name: str) -> None:
    path = DOCS.parent / page
    head, rest = path.read_text().split(f"<!-- {name} -->\n")
    table, tail = rest.split("<!-- end -->", 1)
    rows = table.splitlines(keepends=True)
    now = "".join([*rows[:2], *(row + "\n" for row in TABLES[name])])
    if golden.update:
        path.write_text(f"{head}<!-- {name} -->\n{now}<!-- end -->{tail}")
    else:
        assert table == now, "run pytest --update-golden"


def test_every_row_of_the_break_table_is_a_reason_somewhere() -> None:
    sources = "".join(p.read_text() for p in Path(breaks.__file__).parent.glob("*.py") if p.name != "breaks.py")
    raised = set(re.findall(r'Break\(\s*"([^"]*)"', sources)) | {"branch", "value"}
    assert raised == set(breaks.REASONS)
    assert all(row.hint for row in breaks.REASONS.values())
