"""Error messages, their carets, and that every class can be made, copied and caught as its built-in kin."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest

from tilewright.base import errors
from tilewright.base.errors import Location, TilewrightError

CLASSES = [
    c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TilewrightError) and c is not TilewrightError
]


def made(cls: type[TilewrightError], **extra: Any) -> TilewrightError:
    fields = {name: name.upper() for name in errors.field_names(cls.template) if name != "suggestion"}
    if cls in (errors.UnknownOption, errors.UnknownBackend):
        fields["choices"] = ["one", "two"]  # type: ignore[assignment]
    return cls(**fields, **extra)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class(cls: type[TilewrightError]) -> None:
    e = made(cls, at=Location("f.py", 3, 2, 4, "ab cd"), hint="do it")
    text = str(e)
    assert "{" not in text and text.endswith("hint: do it") and "f.py:3:2" in text
    for twin in (copy.copy(e), pickle.loads(pickle.dumps(e))):
        assert str(twin) == text and twin.fields == e.fields and twin.at == e.at and type(twin) is cls


def test_kin() -> None:
    assert issubclass(errors.NotCallable, TypeError) and issubclass(errors.UnknownOption, ValueError)
    assert issubclass(errors.CompileError, RuntimeError) and issubclass(errors.ParseError, ValueError)


@pytest.mark.parametrize("fields", [{}, {"reason": "x", "more": 1}])
def test_wrong_fields_are_the_callers_fault(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="has the fields"):
        errors.CompileError(**fields)


def test_rendering() -> None:
    text = "%0 = input()\n%1 = ad(%0, %0)\nreturn %1"
    at = Location.in_text(text, text.index("ad("), 2, "graph.txt")
    e = errors.ParseError(what="a graph", reason="unknown operator 'ad'", at=at, hint="did you mean 'add'?")
    assert str(e) == (
        "cannot read a graph: unknown operator 'ad'\n"
        "  --> graph.txt:2:6\n"
        "  2 | %1 = ad(%0, %0)\n"
        "    |      ^^\n"
        "hint: did you mean 'add'?"
    )
    assert e.message == "cannot read a graph: unknown operator 'ad'"


def test_in_text_at_the_edges() -> None:
    assert (Location.in_text("", 0).line, Location.in_text("", 0).column) == (1, 1)
    at = Location.in_text("ab\ncd", 5)
    assert (at.line, at.column, at.text) == (2, 3, "cd")
    assert at.render().endswith("    |   ^")


def test_of_instruction_points_at_the_expression() -> None:
    try:
        wide = "é" and {}["größe"]  # a byte column is not a character column
        raise AssertionError(wide)
    except KeyError:
        trace = sys.exc_info()[2]
        assert trace is not None
        at = Location.of_instruction(trace.tb_frame.f_code, trace.tb_lasti)
    source = at.source_line()
    assert source[at.column - 1 : at.end - 1] == '{}["größe"]'
    shown = at.render().split("\n")
    assert shown[2].index("^") == shown[1].index("{}[") and shown[2].count("^") == len('{}["größe"]')


def test_unknown_file_and_unknown_column() -> None:
    assert Location("nowhere.py", 4).render() == "  --> nowhere.py:4"
    assert "^" not in Location("a.py", 1, text="x = 1").render()


def test_located_keeps_the_first_place() -> None:
    e = errors.CompileError(reason="r").located(Location("a.py", 1))
    assert e.located(Location("b.py", 2)).at == Location("a.py", 1)


def test_suggestions() -> None:
    assert str(errors.UnknownOption(option="libary", choices=["rng", "library"])) == (
        "unknown option 'libary'; did you mean 'library'? (the options are library, rng)"
    )
    assert "did you mean" not in str(errors.UnknownBackend(backend="zzz", choices=["tilewright", "eager"]))
    assert errors.did_you_mean(3, ["a"]) == ""


def test_class_hints_give_way() -> None:
    e = errors.UnsupportedTensor(argument="x", kind="sparse")
    assert "hint: the call runs in eager" in str(e)
    assert "runs in eager" not in str(errors.UnsupportedTensor(argument="x", kind="sparse", hint="other"))
