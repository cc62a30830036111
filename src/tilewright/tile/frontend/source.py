"""The source of a kernel: its syntax tree, and where each part of it stands in the file.

In: a Python function. Out: `Source`. Must not know what the source means.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass

from ...base.errors import Location
from .values import LanguageError


@dataclass(frozen=True)
class Source:
    """The syntax tree of a function, and where it stands."""

    tree: ast.FunctionDef | ast.Lambda
    file: str
    line: int  # of the tree's line 1, less one
    indent: int

    def place(self, node: ast.AST) -> Location:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        last = getattr(node, "end_col_offset", None) if getattr(node, "end_lineno", line) == line else None
        start = column + self.indent + 1
        return Location(self.file, self.line + line, start, last + self.indent + 1 if last is not None else start + 1)


@functools.lru_cache(1024)
def source_of(code: types.CodeType, function: types.FunctionType) -> Source:
    """Raises LanguageError where the source is not to be found."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise LanguageError(
            reason=f"the source of {function.__qualname__} cannot be found", hint="write kernels in a file or a notebook cell"
        ) from None
    text = "".join(lines)
    plain = textwrap.dedent(text)
    indent = len(lines[0]) - len(lines[0].lstrip())
    try:
        tree = ast.parse(plain)
    except SyntaxError:
        raise LanguageError(reason=f"the source of {function.__qualname__} is no statement of its own") from None
    found = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function.__name__), None)
    if found is None:
        raise LanguageError(reason=f"{function.__qualname__} is no function that is defined by `def`")
    return Source(found, code.co_filename, first - 1, indent)
