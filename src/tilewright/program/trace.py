"""`tw.trace`: one recording of a function, without guards, as a callable.

In: a callable, example inputs, and what makes a recording executable. Out: `Traced`. Must not know how a graph becomes code.

A tensor that becomes a Python value keeps the value that the examples give, with a `TracerWarning` at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from ..base.errors import ArgumentError, NotCallable
from ..graph.interpret import interpret
from ..graph.record import ArgSource, ParameterSource, Recorded, Source, TracerWarning, record

__all__ = ["Execute", "Traced", "TracerWarning", "trace"]

Execute: TypeAlias = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]  # inputs in the graph's order -> its outputs


@dataclass(frozen=True)
class Traced:
    """What was recorded, run on arguments of the same form and metadata as the examples: `traced(*args)`.

    Raises ArgumentError for a tensor of another dtype, shape or device, or none at all.
    """

    recorded: Recorded
    execute: Execute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = [self._input(i, source, args, kwargs) for i, source in enumerate(self.recorded.inputs)]
        with torch.no_grad():
            outputs = self.execute(inputs)
        for i in self.recorded.identities:
            alias = self.recorded.graph.outputs[i].alias
            if alias is not None:
                outputs[i] = inputs[alias.index]
        rebuild = self.recorded.rebuild
        return outputs[0] if rebuild is None else rebuild(outputs)

    def _input(self, index: int, source: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        if isinstance(source, ParameterSource):
            return getattr(source.module, source.kind)[source.key]
        if not isinstance(source, ArgSource):
            return source.tensor
        node = self.recorded.graph.inputs[index]
        name = "argument " + "".join(str(p) if i == 0 else f"[{p!r}]" for i, p in enumerate(source.path))
        expected = f"a tensor of type {node.type}, as in the example"
        try:
            value = _at(source.path, args, kwargs)
        except (LookupError, TypeError) as e:
            raise ArgumentError(function="a traced function", argument=name, expected=expected, got="nothing") from e
        if not isinstance(value, torch.Tensor):
            raise ArgumentError(function="a traced function", argument=name, expected=expected, got=type(value).__name__)
        if tuple(value.shape) != node.shape or str(value.dtype) != f"torch.{node.dtype.name}":
            raise ArgumentError(
                function="a traced function", argument=name, expected=expected, got=f"{value.dtype}{list(value.shape)}"
            )
        return value


def _at(path: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, *rest = path
    value = args[first] if isinstance(first, int) else kwargs[first]
    for step in rest:
        value = value[step]
    return value


def trace(
    fn: Callable[..., Any], example_inputs: Any, example_kwargs: dict[str, Any] | None = None, *,
    executable: Callable[[Recorded], Execute] | None = None,
) -> Traced:  # fmt: skip
    """Record `fn` on example inputs (a tensor or a tuple of arguments) as it runs once.

    Python's control flow is frozen as the examples take it, with a `TracerWarning` where it depended on a tensor's data.
    `executable` makes a recording runnable (default: the reference interpreter). Raises RecordError where the program
    cannot be recorded.
    """
    if not callable(fn):
        raise NotCallable(function="tw.trace", got=type(fn).__name__)
    args = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    recorded = record(fn, args, example_kwargs, module=fn if isinstance(fn, nn.Module) else None, concrete=True)
    return Traced(recorded, _interpreted(recorded) if executable is None else executable(recorded))


def _interpreted(recorded: Recorded) -> Execute:
    return lambda inputs: interpret(recorded.graph, inputs)
