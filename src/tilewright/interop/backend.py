"""`torch.compile(m, backend="tilewright")`: TorchDynamo captures, Tilewright compiles what it captured.

In: an FX graph module with example inputs, as the entry point `torch_dynamo_backends` hands them over. Out: a callable on the
same flat inputs. Dynamo passes parameters as inputs; here they are bound to a module again, so that they are folded and packed.
The product itself never comes this way: `tw.compile` captures on its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..base import config
from ..driver import compile as compile_function

MOST_BOUND = 4
"""Sets of parameters that one graph keeps compiled code for: module instances of one class share a graph of Dynamo's."""


def tilewright(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend. `options` and `mode` are those of `tw.compile`. Raises UnknownOption, OptionError."""
    config.Options.parse(options)
    assert graph.code  # a lazy graph module writes its forward when this is read, and recording admits no change of state
    weights = [i for i, x in enumerate(example_inputs) if isinstance(x, nn.Parameter)]
    return _Backend(graph, weights, dict(options or {}), mode)


@dataclass(frozen=True)
class _Bound:
    """`call` takes the inputs that are no parameters; `weights` are kept alive, so their ids stay theirs."""

    weights: tuple[Any, ...]
    call: Callable[..., Any]


class _Backend:
    """The graph on flat inputs. `positions`: the inputs that are parameters."""

    def __init__(self, graph: torch.fx.GraphModule, positions: Sequence[int], options: dict[str, Any], mode: str | None) -> None:
        self._graph, self._positions, self._options, self._mode = graph, tuple(positions), options, mode
        self._rest: tuple[int, ...] | None = None
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        weights = tuple([inputs[i] for i in self._positions])
        bound = self._bound.get(tuple(map(id, weights)))
        if bound is None:
            bound = self._bind(weights, len(inputs))
        if self._rest is None:
            return bound.call(*inputs)
        return bound.call(*[inputs[i] for i in self._rest])

    def _bind(self, weights: tuple[Any, ...], count: int) -> _Bound:
        with self._lock:
            if weights:
                self._rest = tuple(i for i in range(count) if i not in self._positions)
            module = _Owner(self._graph, self._positions, weights, count)
            bound = _Bound(weights, compile_function(module, options=self._options, mode=self._mode))
            kept = list(self._bound.items())[1 - MOST_BOUND :]
            self._bound = {**dict(kept), tuple(map(id, weights)): bound}
            return bound


class _Owner(nn.Module):
    """The graph as a module that owns its parameters again: called with the inputs that are none."""

    def __init__(self, graph: torch.fx.GraphModule, positions: tuple[int, ...], weights: tuple[Any, ...], count: int) -> None:
        super().__init__()
        self.graph = graph
        self.count = count
        self.names = {i: f"weight{k}" for k, i in enumerate(positions)}
        for name, w in zip(self.names.values(), weights, strict=True):
            self.register_parameter(name, w)

    def forward(self, *rest: Any) -> Any:
        others = iter(rest)
        inputs = [getattr(self, self.names[i]) if i in self.names else next(others) for i in range(self.count)]
        return self.graph(*inputs)
