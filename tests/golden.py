"""Golden cases: what a pass makes of a text, kept in `tests/cases/<pass>.txt` as documentation and as test.

    === name of the case
    input text
    ---
    expected text

Blank lines around the texts do not count, nor does anything above the first case. A test is

    @golden.cases("algebra")
    def test_algebra(case):
        case.check(print_graph(algebra(parse_graph(case.input))))

and `pytest --update-golden` writes what the passes make now; read the diff before you commit it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "cases"
_HEADER = re.compile(r"^=== (.+)$", re.MULTILINE)
_RULE = re.compile(r"^---$", re.MULTILINE)

update = False
"""Whether `--update-golden` was given."""


@dataclass(frozen=True)
class Case:
    path: Path
    name: str
    input: str
    expected: str

    def check(self, got: str) -> None:
        """Fail, with a diff, unless `got` is the expected text; with --update-golden make it so."""
        __tracebackhide__ = True
        got = _clean(got)
        if update and got != self.expected:
            _replace(self.path, self.name, got)
        elif got != self.expected:
            pytest.fail(f"{self.path.name}, {self.name}:\n{_difference(self.expected, got)}", pytrace=False)


def cases(name: str, folder: Path = FOLDER) -> Callable[[Any], Any]:
    """Run a test once a case of the file, as its argument `case`."""
    return pytest.mark.parametrize("case", read(folder / f"{name}.txt"), ids=lambda c: c.name)


def read(path: Path) -> list[Case]:
    """The cases of a file. Raises ValueError for a case without `---`, or two of one name."""
    found: list[Case] = []
    for name, body in _sections(path.read_text())[1]:
        parts = _RULE.split(body)
        if len(parts) != 2:
            raise ValueError(f"{path.name}: {name!r} needs one line '---' between input and expected text, has {len(parts) - 1}")
        if any(c.name == name for c in found):
            raise ValueError(f"{path.name}: two cases are named {name!r}")
        found.append(Case(path, name, _clean(parts[0]), _clean(parts[1])))
    if not found:
        raise ValueError(f"{path.name} has no case")
    return found


def _sections(text: str) -> tuple[str, list[tuple[str, str]]]:
    """What stands above the first header, and (name, body) of each case."""
    head, *rest = _HEADER.split(text)
    return head, [(name.strip(), body) for name, body in zip(rest[::2], rest[1::2], strict=True)]


def _replace(path: Path, name: str, expected: str) -> None:
    head, sections = _sections(path.read_text())
    new = []
    for other, body in sections:
        source, old = _RULE.split(body)
        lines = (f"=== {other}", _clean(source), "---", expected if other == name else _clean(old))
        new.append("\n".join(line for line in lines if line) + "\n")
    path.write_text((head.rstrip() + "\n\n" if head.strip() else "") + "\n".join(new))


def _clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n")).strip("\n")


def _difference(expected: str, got: str) -> str:
    import difflib

    lines = difflib.unified_diff(expected.split("\n"), got.split("\n"), "expected", "got", lineterm="", n=100)
    return "\n".join(lines)
