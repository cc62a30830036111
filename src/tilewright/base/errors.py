"""Every error that a user may see: a class each, with one template, its fields, and where in the source it arose.

In: the template's fields, and optionally a `Location` and a hint. Out: an exception that prints the message, the user's line
with a caret under it, and the hint. Must not know what raises it.
"""

from __future__ import annotations

import copyreg
import difflib
import linecache
import string
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class Location:
    """A place in a source text. Lines and columns count from 1; a column of 0 is unknown; `end` is the column behind the
    last one meant. `text` is the line itself, where it is not to be found in the file."""

    file: str
    line: int
    column: int = 0
    end: int = 0
    text: str | None = None

    @staticmethod
    def of_instruction(code: CodeType, offset: int) -> Location:
        """Where the instruction at a byte offset of a code object was written."""
        positions = list(code.co_positions())
        line, _, start, end = positions[offset // 2] if offset // 2 < len(positions) else (None, None, None, None)
        at = Location(code.co_filename, line or code.co_firstlineno)
        return at if start is None or end is None else at._with_bytes(start, end)

    @staticmethod
    def in_text(source: str, index: int, length: int = 1, file: str = "<text>") -> Location:
        """The place of character `index` of a text."""
        before = source[:index]
        line = before.count("\n")
        column = index - (before.rfind("\n") + 1)
        lines = source.split("\n")
        return Location(file, line + 1, column + 1, column + 1 + max(length, 1), lines[line])

    def source_line(self) -> str:
        """The line's text, or "" where the file cannot be read."""
        return self.text if self.text is not None else linecache.getline(self.file, self.line).rstrip("\n")

    def _with_bytes(self, start: int, end: int) -> Location:
        """Columns from the byte offsets that CPython keeps."""
        raw = self.source_line().encode()
        column, last = len(raw[:start].decode(errors="replace")) + 1, len(raw[:end].decode(errors="replace")) + 1
        return Location(self.file, self.line, column, last, self.text)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")

    def render(self) -> str:
        """The place, and below it the line with carets under the columns meant."""
        line = self.source_line()
        if not line.strip():
            return f"  --> {self}"
        number = str(self.line)
        shown = f"  --> {self}\n  {number} | {line.expandtabs(1)}"
        if not self.column:
            return shown
        carets = "^" * max(1, min(self.end, len(line) + 1) - self.column)
        return f"{shown}\n  {' ' * len(number)} | {' ' * (self.column - 1)}{carets}"


class TilewrightError(Exception):
    """Base of all errors raised for what a user wrote. A subclass has a `template`, whose fields are its arguments."""

    template = "{reason}"
    hint = ""

    def __init__(self, *, at: Location | None = None, hint: str = "", **fields: object) -> None:
        expected = field_names(self.template)
        if fields.keys() != expected:
            raise TypeError(f"{type(self).__name__} has the fields {sorted(expected)}, got {sorted(fields)}")
        self.fields = fields
        self.at = at
        self.hint = hint or type(self).hint
        super().__init__(self.template.format(**fields))

    @property
    def message(self) -> str:
        """The filled template alone: one line unless a field has more."""
        return str(self.args[0])

    def __str__(self) -> str:
        parts = [self.message]
        if self.at is not None:
            parts.append(self.at.render())
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return copyreg.__newobj_ex__, (type(self), self.args, {}), {**self.__dict__}  # type: ignore[attr-defined]

    def located(self, at: Location) -> TilewrightError:
        """The same error; where it has no place yet, at this one."""
        self.at = self.at or at
        return self


def field_names(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """ "; did you mean 'x'?" where one of the choices is close to the name, else ""."""
    close = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


# Calling Tilewright.


class NotCallable(TilewrightError, TypeError):
    template = "{function} takes a function, a method or a module, got {got}"


class ArgumentError(TilewrightError, TypeError):
    template = "{function}: {argument} must be {expected}, got {got}"


class UnknownOption(TilewrightError, ValueError):
    template = "unknown option {option!r}{suggestion} (the options are {choices})"

    def __init__(self, *, option: object, choices: Iterable[str], at: Location | None = None, hint: str = "") -> None:
        names = sorted(choices)
        super().__init__(option=option, suggestion=did_you_mean(option, names), choices=", ".join(names), at=at, hint=hint)


class OptionError(TilewrightError, ValueError):
    template = "option {option}: expected {choices}, got {value!r}"


class UnknownBackend(TilewrightError, ValueError):
    template = "unknown backend {backend!r}{suggestion} (the backends are {choices})"

    def __init__(self, *, backend: object, choices: Iterable[str], at: Location | None = None, hint: str = "") -> None:
        names = sorted(choices)
        super().__init__(backend=backend, suggestion=did_you_mean(backend, names), choices=", ".join(names), at=at, hint=hint)


class SettingError(TilewrightError, ValueError):
    template = "environment variable {name}: expected {expected}, got {value!r}"


# Tensors.


class WrongDevice(TilewrightError, RuntimeError):
    template = "{argument}: expected a tensor on {expected}, got one on {device}"


class UnsupportedTensor(TilewrightError, TypeError):
    template = "{argument}: {kind} tensors are not compiled"
    hint = "the call runs in eager; pass an ordinary dense tensor to have it compiled"


# Recording and compiling.


class RecordError(TilewrightError):
    template = "{what} cannot be recorded: {reason}"


class GraphBreak(RecordError):
    """What `fullgraph=True` raises where the graph would end before the function does."""

    template = "the graph breaks: {reason}"


class RecompileError(TilewrightError, RuntimeError):
    """What the stance "fail_on_recompile" raises, and `fullgraph=True` at the recompile limit."""

    template = "{function} is not compiled for this call: {reason}"


class VerifyError(TilewrightError):
    template = "{what} is not valid: {reason}"


class ParseError(TilewrightError, ValueError):
    template = "cannot read {what}: {reason}"


class CompileError(TilewrightError, RuntimeError):
    template = "compilation failed: {reason}"


class StepLimit(TilewrightError, RuntimeError):
    template = "rewriting by the rule {rule!r} does not end: {reason} (applied {count} times)"
