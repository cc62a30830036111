"""`torch.compile(m, backend="tilewright")`: TorchDynamo captures, Tilewright compiles what it captured.

In: an FX graph module with example inputs, as the entry point `torch_dynamo_backends` hands them over. Out: a callable on the
same flat inputs. Dynamo passes parameters as inputs; here they count as parameters again, so that they are folded and packed.
The product itself never comes this way: `tw.compile` captures on its own.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from .. import native
from ..base import config, log
from ..base.errors import TilewrightError
from ..driver import build, checked_mode
from ..graph import torch_private as private
from ..graph.record import ArgSource, ParameterSource, Recorded
from ..program import eager_backward, torch_link
from .fx import recorded

MOST_BOUND = 4
"""Sets of parameters that one graph keeps folded values for: module instances of one class share a graph of Dynamo's."""
MOST_SIZES = 8
"""Sets of sizes that a graph of symbolic ones is compiled for; others run in eager."""


def tilewright(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend. `options` and `mode` are those of `tw.compile`. Raises UnknownOption, OptionError."""
    torch_link.connect()
    checked_mode(mode)
    parameters = frozenset(i for i, x in enumerate(example_inputs) if isinstance(x, nn.Parameter))
    symbolic = any(isinstance(x, int | torch.SymInt) for x in example_inputs)
    return _Backend(module, parameters, symbolic, config.Options.parse(options))


@dataclass(frozen=True)
class _Static:
    """What was compiled for inputs of one metadata. `bound`: an entry for each set of parameters."""

    recorded: Recorded
    executable: Any
    bound: dict[tuple[int, ...], tuple[tuple[Any, ...], Callable[..., Any]]] = dataclasses.field(default_factory=dict)


class _Backend:
    """The graph on flat inputs. `symbolic`: whether Dynamo may call it with several sizes; each is compiled for itself."""

    def __init__(self, module: fx.GraphModule, parameters: frozenset[int], symbolic: bool, options: config.Options) -> None:
        self._module, self._parameters, self._symbolic, self._options = module, parameters, symbolic, options
        self._made: dict[Any, _Static | None] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if not private.is_plain_call():
            return self._module(*inputs)
        key = (torch.is_grad_enabled(), *(map(_metadata, inputs) if self._symbolic else ()))
        static = self._made[key] if key in self._made else self._make(key, inputs)
        if static is None:
            return self._module(*inputs)
        run = static.bound.get(tuple([id(inputs[i]) for i in self._parameters]))
        run = run[1] if run is not None else self._bind(static, inputs)
        tensors = [_tensor(s, inputs) for s in static.recorded.inputs]
        try:
            outputs = run(tensors)
        except native.Failed:  # an assertion, such as an index out of range: eager raises its own error
            outputs = None
        if outputs is None:
            return self._module(*inputs)
        for i in static.recorded.identities:
            alias = static.recorded.graph.outputs[i].alias
            if alias is not None:
                outputs[i] = tensors[alias.index]
        return static.recorded.out_spec(outputs)

    def _make(self, key: Any, inputs: Sequence[Any]) -> _Static | None:
        """Compile for inputs like these; None where they are for eager, with a warning that says why."""
        with self._lock:
            if key in self._made:
                return self._made[key]
            if len(self._made) >= 2 * MOST_SIZES:
                return None
            try:
                found = recorded(self._module, inputs, self._parameters)
                if any(found.requires_grad) and (found.graph.effects or any(o.alias for o in found.graph.outputs)):
                    raise TilewrightError(reason="it writes into inputs, or returns views of them, while gradients are recorded")
                made: _Static | None = _Static(found, build(found.graph, self._options, log.Stages()))
            except TilewrightError as e:
                log.warn_once((id(self), str(e)), f"a graph of torch.compile runs in eager: {e}")
                made = None
            self._made[key] = made
            return made

    def _bind(self, static: _Static, inputs: Sequence[Any]) -> Callable[..., Any]:
        """An entry, with folded values of its own, for the parameters among the inputs."""
        weights = tuple([inputs[i] for i in self._parameters])
        forward = static.executable.forward().run
        if any(static.recorded.requires_grad):
            rerun = eager_backward.Rerun(forward, self._eager(static.recorded, inputs), static.recorded.requires_grad, _nothing)
            run = lambda tensors: eager_backward.run(rerun, tensors)  # noqa: E731
        else:
            run = lambda tensors: forward(*tensors)  # noqa: E731
        with self._lock:
            for old in list(static.bound)[: max(0, len(static.bound) - MOST_BOUND + 1)]:
                del static.bound[old]
            static.bound[tuple(map(id, weights))] = weights, run  # they are kept alive, so their ids stay theirs
        return run

    def _eager(self, found: Recorded, inputs: Sequence[Any]) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
        """The module as a function of the recording's inputs, giving the outputs of its graph."""
        places = {id(inputs[s.path[0]]): k for k, s in enumerate(found.inputs) if isinstance(s, ArgSource)}
        given = [(places[id(x)], None) if isinstance(x, torch.Tensor) else (-1, x) for x in inputs]

        def eager(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            leaves = private.tree_flatten(self._module(*[x if k < 0 else tensors[k] for k, x in given]))[0]
            outputs = [torch.empty(0)] * len(found.graph.outputs)
            for leaf, place in zip(leaves, found.out_spec.leaves):
                if isinstance(place, int):
                    outputs[place] = leaf
            return outputs

        return eager


def _tensor(source: Any, inputs: Sequence[Any]) -> torch.Tensor:
    if isinstance(source, ArgSource):
        return inputs[source.path[0]]
    if isinstance(source, ParameterSource):
        return getattr(source.module, source.kind)[source.key]
    return source.tensor


def _metadata(x: Any) -> Any:
    return (x.dtype, *x.shape, *x.stride()) if isinstance(x, torch.Tensor) else x


def _nothing() -> None:
    pass
