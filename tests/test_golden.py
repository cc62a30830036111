"""The golden helper itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import golden

TEXT = """Said above the cases.

=== first
a

b
---
c

=== second one
---
nothing in
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pass.txt"
    path.write_text(TEXT)
    return path


def test_read(path: Path) -> None:
    first, second = golden.read(path)
    assert (first.name, first.input, first.expected) == ("first", "a\n\nb", "c")
    assert (second.name, second.input, second.expected) == ("second one", "", "nothing in")


def test_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "update", False)
    case = golden.read(path)[0]
    case.check("c \n")
    with pytest.raises(pytest.fail.Exception, match=r"pass\.txt, first:\n(.|\n)*-c\n\+d"):
        case.check("d")
    assert path.read_text() == TEXT


def test_update(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "update", True)
    for case in golden.read(path):
        case.check("new\n" if case.name == "first" else "nothing in")
    assert path.read_text() == TEXT.replace("\nc\n", "\nnew\n")


@pytest.mark.parametrize("bad", ["", "=== a\nx\n", "=== a\n---\n---\n", "=== a\n---\n=== a\n---\n"])
def test_bad_files(tmp_path: Path, bad: str) -> None:
    (tmp_path / "bad.txt").write_text(bad)
    with pytest.raises(ValueError, match=r"bad\.txt"):
        golden.read(tmp_path / "bad.txt")
