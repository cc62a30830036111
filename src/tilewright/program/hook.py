"""Functions that C code calls while a graph is broken: run compiled as well.

In: calls that the native hook offers during a native segment. Out: the compiled function that is called in a frame's place.
Must not know frames, or how functions are compiled.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import native
from . import control
from .trust import is_own_code, is_standard_code, is_torch_code, runs_as_is

if TYPE_CHECKING:
    from .units import Program

MOST_FUNCTIONS = 4  # made of one code object, beyond which it is left to Python: a function that is made anew at each call


class Hook:
    """Chooses for one program. Called with a function and its arguments. What reaches no tensor is left to Python."""

    def __init__(self, program: Program) -> None:
        self.program = weakref.ref(program)
        self.made: weakref.WeakKeyDictionary[types.CodeType, int] = weakref.WeakKeyDictionary()

    def __call__(self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        code, program = function.__code__, self.program()
        if program is None or control.stance() == "force_eager":
            return None
        if _is_left_alone(function):
            native.skip(code)
            return None
        cells = [c.cell_contents for c in function.__closure__ or () if c != _EMPTY]
        if not any(map(_holds_tensors, (*args, *kwargs.values(), *cells))):
            return None
        first = args[0] if args else None
        bound = isinstance(first, nn.Module) and code.co_name == "forward"
        key = ("frame", function, id(first) if bound else 0)
        child = program.children.get(key)
        if child is None:
            self.made[code] = self.made.get(code, 0) + (not bound)
            if self.made[code] > MOST_FUNCTIONS:
                native.skip(code)
                return None
            child = program.children[key] = program.child(types.MethodType(function, first) if bound else function)
        elif not child.computes():
            native.skip(code)
            return None
        program.ran.append(child)
        return _Bound(child) if bound else child


class _Bound:
    """A compiled method, called with its object before the other arguments."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args[1:], **kwargs)


_EMPTY = types.CellType()


def _holds_tensors(value: Any, depth: int = 2) -> bool:
    """Whether a value is a tensor or module, or a small container of one."""
    if isinstance(value, torch.Tensor | nn.Module):
        return True
    if depth and type(value) in (list, tuple, dict):
        inner = value.values() if type(value) is dict else value
        return any(_holds_tensors(v, depth - 1) for v in itertools.islice(inner, 8))
    return False


def _is_left_alone(function: types.FunctionType) -> bool:
    code, module = function.__code__, function.__module__ or ""
    if is_own_code(code) or is_standard_code(code) or is_torch_code(code) or runs_as_is(code, module):
        return True
    return control.is_disabled(function) or code.co_filename.startswith("<frozen") or module in ("", "<tilewright>")
