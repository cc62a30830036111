"""The torch functions that a captured program called, in order: so that they can be called again, on real tensors, under
autograd.

In: calls as the function mode sees them. Out: `Replay`. Must not know the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..base import dims
from ..base.dims import Dim
from ..graph.fake import Fake
from ..graph.refine import Refined
from ..graph.symbolic import size_of


@dataclass(frozen=True, slots=True)
class _Ref:
    number: int


@dataclass(frozen=True, slots=True)
class _Int:
    size: Dim


@dataclass(slots=True)
class _Entry:
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any
    modes: tuple[Any, ...]


def _modes() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _copied(v: Any) -> Any:
    """Containers as they are now."""
    if type(v) is list or type(v) is tuple:
        return type(v)([_copied(x) for x in v])
    return {k: _copied(x) for k, x in v.items()} if type(v) is dict else v


class Tape:
    def __init__(self) -> None:
        self.entries: list[_Entry] = []

    def before(self, function: Callable[..., Any], args: Any, kwargs: Any) -> _Entry:
        return _Entry(function, _copied(args), _copied(kwargs), None, _modes())

    def after(self, entry: _Entry, result: Any) -> None:
        entry.result = _copied(result)
        self.entries.append(entry)

    def replay(
        self, inputs: Sequence[Fake], outputs: Sequence[Fake | None], real: Callable[[torch.Tensor], Fake | None], sizes: Refined
    ) -> Replay:
        """`inputs` and `outputs`: the graph's. `real` gives the fake that stands for a real tensor. `sizes`: what stands for
        the symbols."""
        numbers: dict[int, int] = {}

        def refer(v: Any) -> Any:
            if isinstance(v, torch.Tensor):
                fake = v if type(v) is Fake else real(v)
                return v if fake is None else _Ref(numbers.setdefault(id(fake), len(numbers)))
            if type(v) is torch.SymInt:
                size = sizes.size(size_of(v))
                return size if isinstance(size, int) else _Int(size)
            if type(v) is slice:
                return slice(refer(v.start), refer(v.stop), refer(v.step))
            if isinstance(v, list | tuple):
                items = [refer(x) for x in v]
                return items if isinstance(v, list) else type(v)(items) if type(v) is tuple else tuple(items)
            return {k: refer(x) for k, x in v.items()} if type(v) is dict else v

        starts = tuple(refer(f).number for f in inputs)
        steps = [_Entry(e.function, refer(e.args), refer(e.kwargs), refer(e.result), e.modes) for e in self.entries]
        ends = tuple(None if f is None else refer(f).number for f in outputs)
        return Replay(steps, starts, ends, tuple(name for name, _ in sizes.hints))


@dataclass(frozen=True)
class Replay:
    """Calls again what was called, on other tensors."""

    steps: list[_Entry]
    starts: tuple[int, ...]
    ends: tuple[int | None, ...]
    symbols: tuple[str, ...] = ()

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        """`sizes`: the values of the symbols."""
        values: dict[Any, Any] = {**dict(zip(self.starts, tensors, strict=True)), **dict(zip(self.symbols, sizes))}
        before = _modes()
        current = before
        try:
            for step in self.steps:
                if step.modes != current:
                    _set_modes(step.modes)
                    current = step.modes
                result = step.function(*_filled(step.args, values), **_filled(step.kwargs, values))
                _assign(step.result, result, values)
        finally:
            _set_modes(before)
        return [torch.empty(0) if n is None else values[n] for n in self.ends]


def _set_modes(modes: tuple[Any, ...]) -> None:
    grad, enabled, dtype = modes
    torch.set_grad_enabled(grad)
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)


def _filled(v: Any, values: dict[Any, Any]) -> Any:
    if type(v) is _Ref:
        return values[v.number]
    if type(v) is _Int:
        return dims.evaluate(v.size, values)
    if type(v) is slice:
        return slice(_filled(v.start, values), _filled(v.stop, values), _filled(v.step, values))
    if type(v) is list or type(v) is tuple:
        return type(v)([_filled(x, values) for x in v])
    return {k: _filled(x, values) for k, x in v.items()} if type(v) is dict else v


def _assign(pattern: Any, result: Any, values: dict[int, Any]) -> None:
    if type(pattern) is _Ref:
        values[pattern.number] = result
    elif isinstance(pattern, list | tuple):
        for p, r in zip(pattern, result):
            _assign(p, r, values)
