"""Reads integer arithmetic written as a Python expression.

In: text, and what its names stand for. Out: the value that `+ - * // %` and the given functions make of them, whatever its
type. Must not know what the values are.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def read(text: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """The value of `text`. Raises ValueError for anything but integers, known names, `+ - * // %` and the functions."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        raise ValueError(f"{text!r} cannot be read: {e.msg}") from None
    return _value(tree, names, functions, text)


def _value(tree: ast.expr, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], text: str) -> Any:
    match tree:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"unknown symbol {name!r} in {text!r}")
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_value(x, names, functions, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names, functions, text), _value(right, names, functions, text))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args and name in functions:
            return functions[name](*(_value(a, names, functions, text) for a in args))
    raise ValueError(f"{text!r} cannot be read: only + - * // % and {', '.join(functions)} of integers and symbols are allowed")
