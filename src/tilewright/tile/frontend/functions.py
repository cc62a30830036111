"""Kernels as their users write them: `@T.prim_func`, and the functions of `@tw.kernel`.

In: Python functions with annotated parameters. Out: `Traced` kernels. Must not know how a kernel is compiled or called.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from ...base import scalar
from . import interpreter
from .source import source_of
from .trace import Trace, Traced, tracing
from .values import Conversion, LanguageError, TensorAnnotation, dtype_of


class PrimFunc:
    """A kernel's source, its parameters annotated. `trace` makes the tile program of it."""

    def __init__(self, function: types.FunctionType, names: Mapping[str, Any]) -> None:
        self.function = function
        self.annotations = _annotations(function, names)
        functools.update_wrapper(self, function)

    def trace(self) -> Traced:
        """The tile program. Raises LanguageError, with the line, for what is not in the language."""
        source = source_of(self.function.__code__, self.function)
        made = Trace(self.function.__name__)
        arguments: dict[str, Any] = {}
        with tracing(made), made.made_at(source.place(source.tree)):
            for name, a in self.annotations.items():
                arguments[name] = parameter(made, name, a, source.place(source.tree))
            _scalars(made, self.annotations.values())
            interpreter.call(self.function, (), arguments)
            return made.finish()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LanguageError(
            reason=f"{self.function.__name__} is a kernel's source, not yet compiled",
            hint="return it from a function under @tw.jit and call what that gives",
        )


def parameter(made: Trace, name: str, annotation: Any, at: Any) -> Any:
    """A parameter of the kernel, as the source names it."""
    if isinstance(annotation, TensorAnnotation):
        return made.param(name, annotation.dtype, annotation.shape, annotation.strides)
    if isinstance(annotation, Conversion) or annotation in (int, float, bool) or isinstance(annotation, str):
        dtype = dtype_of(annotation)
        return made.param(name, dtype, (1,))[0]
    raise LanguageError(
        reason=f"parameter {name}: T.Tensor(shape, dtype) or a type such as T.int32 expected, got {annotation!r}", at=at,
        hint='annotate it: A: T.Tensor((M, N), "float32")',
    )  # fmt: skip


def _scalars(made: Trace, annotations: Any) -> None:
    """The sizes that the annotations leave open, each a run-time integer of the kernel."""
    found: dict[str, None] = {}
    for a in annotations:
        if isinstance(a, TensorAnnotation):
            for e in scalar.walk(*a.shape, *(a.strides or ())):
                if isinstance(e, scalar.Var):
                    found[e.name] = None
    for name in found:
        if made.scalar(name).name != name:
            raise LanguageError(reason=f"{name!r} names a size and a parameter")


def prim_func(function: Callable[..., Any]) -> PrimFunc:
    """A kernel's source: a function whose parameters are annotated with T.Tensor(shape, dtype).

    Raises LanguageError for a parameter without an annotation.
    """
    if not isinstance(function, types.FunctionType):
        raise LanguageError(reason=f"T.prim_func decorates a function, got {type(function).__name__}")
    return PrimFunc(function, sys._getframe(1).f_locals)


def _annotations(function: types.FunctionType, names: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters' annotations, evaluated where they are kept as text."""
    found: dict[str, Any] = {}
    for p in inspect.signature(function).parameters.values():
        if p.annotation is p.empty:
            raise LanguageError(
                reason=f"parameter {p.name} of {function.__name__} has no annotation", hint=f"{p.name}: T.Tensor((M, N), dtype)"
            )
        a = p.annotation
        if isinstance(a, str) and not (a.isidentifier() and a in _NAMES):
            a = eval(a, function.__globals__, dict(names))
        found[p.name] = a
    return found


_NAMES = frozenset(("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"))
