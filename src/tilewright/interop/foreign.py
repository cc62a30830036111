"""Graphs of our capture that somebody else runs: a backend as torch.compile takes one, or the reference interpreter.

In: a graph, and a backend `(FX graph module, example inputs) -> callable`, or none. Out: `Foreign`, which stands where a
compiled graph does. Must not know how programs are captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any, TypeAlias

import torch
from torch import fx

from .. import native
from ..base import config, log
from ..base.errors import CompileError
from ..graph.interpret import interpret
from ..graph.ir import Graph
from ..graph.ops.torch_dtypes import to_torch
from ..graph.text import print_graph
from ..program.guards import GuardTable
from ..program.torch_link import dlpack_dtype
from .fx import examples, to_fx

Backend: TypeAlias = Callable[[fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


def build(backend: Backend | None, graph: Graph, options: config.Options, stages: log.Stages) -> Foreign:
    """What `backend` makes of the graph; without one, the reference interpreter in eager torch."""
    with stages.stage("backend"):
        if backend is None:
            return Foreign(graph, functools.partial(_interpreted, graph))
        call = backend(to_fx(graph), examples(graph))
        if not callable(call):
            raise CompileError(reason=f"the backend {_name(backend)} returned a {type(call).__name__}, not a callable")
        return Foreign(graph, functools.partial(_called, call, _name(backend), len(graph.outputs)))


class Foreign:
    """A graph run by `call(*inputs)`, which returns the outputs and writes the effects. It launches no kernels of ours."""

    kernels = library_calls = opaque_calls = arena_bytes = packed_bytes = 0

    def __init__(self, graph: Graph, call: Callable[..., list[torch.Tensor]]) -> None:
        self.graph = graph
        self.call = call

    def entry(self, table: GuardTable, rebuild: Any, data: Any, identities: Set[int] = frozenset()) -> native.Entry:
        """As `Executable.entry`."""
        return self._entry(table.nargs, table.kwnames, table.rows, rebuild, data, identities)

    def forward(self) -> native.Entry:
        """As `Executable.forward`."""
        rows = [
            ("tensor", i, (None, i, *dlpack_dtype(to_torch(n.dtype)), 1, 0, None, n.shape, s))
            for i, (n, s) in enumerate(zip(self.graph.inputs, self.graph.strides, strict=True))
        ]
        return self._entry(len(rows), (), rows, _same, self, frozenset())

    def forget(self) -> None:
        """Nothing is packed."""

    def text(self, level: str) -> str:
        """The graph; there are no other levels. Raises ValueError for one."""
        if level == "graph":
            return print_graph(self.graph)
        raise ValueError(f"level: only 'graph' with a backend that is not Tilewright's, got {level!r}")

    def _entry(
        self, nargs: int, kwnames: tuple[str, ...], rows: list[Any], rebuild: Any, data: Any, identities: Set[int]
    ) -> native.Entry:
        shared = [(i, o.alias.index) for i, o in enumerate(self.graph.outputs) if i in identities and o.alias is not None]

        def runner(inputs: Sequence[torch.Tensor], folded: int) -> list[torch.Tensor]:
            made = self.call(*inputs)
            for output, source in shared:
                made[output] = inputs[source]
            return made

        written = [e.index for e in self.graph.effects]
        count = len(self.graph.inputs)
        return native.Entry(nargs, kwnames, rows, count, [], rebuild, runner, data, 0, 0, 0, 0, 0, 0, [], written)


def _interpreted(graph: Graph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return interpret(graph, inputs)


def _called(call: Callable[..., Any], name: str, outputs: int, *inputs: torch.Tensor) -> list[torch.Tensor]:
    made = call(*inputs)
    if not isinstance(made, list | tuple) or len(made) != outputs:
        got = f"{len(made)} results" if isinstance(made, list | tuple) else f"a {type(made).__name__}"
        raise CompileError(reason=f"the backend {name} promised a sequence of {outputs} tensors and returned {got}")
    return list(made)


def _name(backend: Any) -> str:
    return getattr(backend, "__qualname__", type(backend).__name__)


def _same(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return outputs
