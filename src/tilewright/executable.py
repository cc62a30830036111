"""A compiled graph in this process: loaded code behind the native launcher.

In: a recipe and an object file, from the compiler or from the disk cache. Out: `Executable`, which makes native entries, runs
graphs that also call eager torch, and counts. Must not know how the code came about, or what guards mean.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from . import native
from .base.errors import CompileError
from .graph.ir import Node
from .graph.ops.contract import MATMUL
from .graph.ops.opaque import GetitemAttrs
from .graph.ops.torch_dtypes import to_torch
from .graph.text import parse_graph
from .program.guards import GuardTable
from .program.torch_link import dlpack_dtype, view
from .targets.cpu import compile as code
from .targets.recipe import CallRow, InputRow, NativeRow, OutputRow, Recipe, TensorRow

Rows = list[tuple[Any, ...]]


class Executable:
    """Loaded code, and the entries that run it.

    `text(level)` gives the program at a level; it may have to compile anew for that. With
    `freeze`, folded values are computed once and parameters are not looked at again.
    """

    def __init__(self, recipe: Recipe, object_file: bytes, text: Callable[[str], str], freeze: bool = False) -> None:
        self.recipe = recipe
        self.text = text
        self.freeze = freeze
        self._direct: native.Entry | None = None
        symbols = [s.symbol for s in (*recipe.run, *recipe.fold) if isinstance(s, NativeRow)]
        self._addresses: Mapping[str, int] = {}
        if symbols:
            image = code.load([object_file], symbols)
            self._addresses = dict(image)
            weakref.finalize(self, image.close)  # every entry that runs the code keeps this object, as its `data`
        if not all(isinstance(s, NativeRow) for s in recipe.fold) or len(recipe.fold) > 1:
            raise CompileError(reason="a folded value is computed by an eager call")
        self._entries: weakref.WeakSet[native.Entry] = weakref.WeakSet()
        self._calls = {s: _EagerCall.of(s) for s in recipe.run if isinstance(s, CallRow)}

    kernels = property(lambda self: self.recipe.launches)
    library_calls = property(lambda self: self.recipe.calls(library=True))
    opaque_calls = property(lambda self: self.recipe.calls(library=False))
    arena_bytes = property(lambda self: self.recipe.arena_bytes)
    packed_bytes = property(lambda self: self.recipe.folded_bytes)

    def entry(self, table: GuardTable, rebuild: Any, data: Any, identities: Set[int] = frozenset()) -> native.Entry:
        """The native entry that serves calls for which `table` holds.

        `rebuild` makes the result of the output list. Outputs in `identities` are an input object itself, not a view of it.
        """
        return self._entry(table.nargs, table.kwnames, table.rows, rebuild, data, identities)

    def forward(self) -> native.Entry:
        """An entry that takes the graph's inputs themselves and returns the list of outputs."""
        rows = [("tensor", i, (None, i, *_described(r), None, r.shape, r.strides)) for i, r in enumerate(self.recipe.inputs)]
        return self._entry(len(rows), (), rows, _same, self, frozenset())

    def execute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for the graph's inputs, of the recorded dtypes and shapes, in any strides."""
        if self._direct is None:
            self._direct = self.forward()
        return self._direct.run(*(t if t.stride() == r.strides else _laid_out(t, r) for t, r in zip(inputs, self.recipe.inputs)))

    def forget(self) -> None:
        """Compute folded values anew at the next call."""
        for e in self._entries:
            e.forget()

    def _entry(
        self, nargs: int, kwnames: tuple[str, ...], rows: Rows, rebuild: Any, data: Any, identities: Set[int]
    ) -> native.Entry:
        r = self.recipe
        fold = self._addresses[r.fold[0].symbol] if r.fold else 0  # type: ignore[union-attr]
        run = self._addresses[r.run[0].symbol] if r.is_native and r.run else 0  # type: ignore[union-attr]
        watch = [(i, _bytes(r.inputs[i])) for i in r.folded_inputs] if fold and not self.freeze else []
        runner = None if r.is_native else functools.partial(self._run, identities)
        outputs = [(3, o.of, None, None, None) if i in identities else _output(o) for i, o in enumerate(r.outputs)]
        entry = native.Entry(
            nargs, kwnames, rows, len(r.inputs), outputs, rebuild, runner, data,
            run, fold, r.folded_bytes, r.arena_bytes, r.scratch_bytes, r.cost, watch, list(r.written_inputs),
        )  # fmt: skip
        self._entries.add(entry)
        return entry

    def _run(self, identities: Set[int], inputs: Sequence[torch.Tensor | None], folded: int) -> list[torch.Tensor]:
        """The steps in order, eager calls among them, on memory of torch's own."""
        memory = _Memory(self.recipe, inputs, folded)
        for step in self.recipe.run:
            if isinstance(step, NativeRow):
                pointers = memory.input_addresses(), memory.output_addresses()
                native.run_segment(
                    self._addresses[step.symbol], *pointers, folded, memory.arena_address, self.recipe.scratch_bytes
                )
            elif self.recipe.written_inputs:
                self._calls[step].run(memory)
            else:
                try:
                    self._calls[step].run(memory)
                except Exception as e:  # the program's own error may be another: it is found by running all of it in eager
                    raise native.Failed(str(e)) from e
        memory.bump_versions()
        return memory.results(identities)


@dataclass(frozen=True)
class _EagerCall:
    """An operator that eager torch runs: its operands' numbers among the row's arguments, and which results are kept.

    `kept` holds None where the operator has one result.
    """

    row: CallRow
    node: Node
    operands: tuple[int, ...]
    kept: tuple[int | None, ...]

    @staticmethod
    def of(row: CallRow) -> _EagerCall:
        graph = parse_graph(row.graph)
        taken = [o.node for o in graph.outputs]
        kept = tuple(n.attrs.index if isinstance(n.attrs, GetitemAttrs) else None for n in taken)
        node = taken[0].args[0] if kept[0] is not None else taken[0]
        return _EagerCall(row, node, tuple(map(graph.inputs.index, node.args)), kept)

    def run(self, memory: _Memory) -> None:
        given = [memory.tensor(a) for a in self.row.args]
        if self.row.library and self.node.op is MATMUL:
            torch.mm(*(given[i] for i in self.operands), out=memory.tensor(self.row.results[0]))
            return
        made = self.node.op.eager(self.node.attrs, *(given[i] for i in self.operands))
        for k, row in zip(self.kept, self.row.results, strict=True):
            memory.tensor(row).copy_(made if k is None else made[k])


class _Memory:
    """The tensors of one call: inputs, new outputs, the arena, and views of them."""

    def __init__(self, recipe: Recipe, inputs: Sequence[torch.Tensor | None], folded: int) -> None:
        self.recipe = recipe
        self.inputs = inputs
        self.outputs = [
            None if o.alias else torch.empty_strided(o.shape, o.strides, dtype=to_torch(o.dtype)) for o in recipe.outputs
        ]
        arena = torch.empty(recipe.arena_bytes + 64, dtype=torch.uint8)
        self.arena = arena[-arena.data_ptr() % 64 :]
        self.arena_address = self.arena.data_ptr()
        self.folded = _over(folded, recipe.folded_bytes)

    def input_addresses(self) -> tuple[int, ...]:
        return tuple(0 if t is None else t.data_ptr() for t in self.inputs)

    def output_addresses(self) -> tuple[int, ...]:
        return tuple(0 if t is None else t.data_ptr() for t in self.outputs)

    def tensor(self, row: TensorRow) -> torch.Tensor:
        """The view that a row describes."""
        tables = {"inputs": self.inputs, "outputs": self.outputs, "arena": [self.arena], "folded": [self.folded]}
        base = tables[row.base][max(row.index, 0)]
        assert base is not None, f"{row.base}[{row.index}] owns no memory"
        start = base.storage_offset() * base.element_size() + row.offset
        if base.dtype is not to_torch(row.dtype):
            base = torch.empty(0, dtype=to_torch(row.dtype)).set_(base.untyped_storage())  # type: ignore[call-overload]
        return base.as_strided(row.shape, row.strides, start // row.dtype.bytes)

    def bump_versions(self) -> None:
        for i in self.recipe.written_inputs:
            torch.autograd.graph.increment_version(self.inputs[i])  # type: ignore[arg-type]

    def results(self, identities: Set[int]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        for i, (own, o) in enumerate(zip(self.outputs, self.recipe.outputs, strict=True)):
            if own is not None:
                made.append(own)
                continue
            base = self.inputs[o.of] if o.alias == "input" else made[o.of]
            assert base is not None
            made.append(base if i in identities else view(base, o.shape, o.strides, o.offset))
        return made


def _described(row: InputRow) -> tuple[int, int, int, int]:
    """DLPack's dtype, and its device: the CPU."""
    return *dlpack_dtype(to_torch(row.dtype)), 1, 0


def _laid_out(t: torch.Tensor, row: InputRow) -> torch.Tensor:
    return torch.empty_strided(row.shape, row.strides, dtype=t.dtype).copy_(t)


def _same(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return outputs


def _over(address: int, size: int) -> torch.Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _output(o: OutputRow) -> tuple[Any, ...]:
    """The launcher's description of an output."""
    if not o.alias:
        return 0, -1, o.shape, o.strides, to_torch(o.dtype)
    return 1 if o.alias == "input" else 2, o.of, o.shape, o.strides, o.offset


def _bytes(row: InputRow) -> int:
    if 0 in row.shape:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(row.shape, row.strides, strict=True))) * row.dtype.bytes
