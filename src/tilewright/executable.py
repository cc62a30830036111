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
from .base import dims
from .base.dims import Size
from .base.errors import CompileError
from .base.postfix import postfix
from .graph.ir import Node
from .graph.ops.contract import MATMUL
from .graph.ops.opaque import GetitemAttrs
from .graph.ops.torch_dtypes import to_torch
from .graph.text import parse_graph
from .program.guards import GuardTable
from .program.torch_link import dlpack_dtype, view
from .targets.cpu import compile as code
from .targets.cpu.main import PLAN
from .targets.recipe import CallRow, InputRow, NativeRow, OutputRow, Recipe, TensorRow

Rows = list[tuple[Any, ...]]
Ints = tuple[int, ...]

MOST_SIZES = 16  # how many values of the size symbols eager calls are kept ready for


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
        symbols = [s.symbol for s in (*recipe.run, *recipe.fold) if isinstance(s, NativeRow)] + [PLAN] * bool(recipe.symbols)
        self._addresses: Mapping[str, int] = {}
        if symbols:
            image = code.load([object_file], symbols)
            self._addresses = dict(image)
            weakref.finalize(self, image.close)  # every entry that runs the code keeps this object, as its `data`
        if not all(isinstance(s, NativeRow) for s in recipe.fold) or len(recipe.fold) > 1:
            raise CompileError(reason="a folded value is computed by an eager call")
        self._entries: weakref.WeakSet[native.Entry] = weakref.WeakSet()
        self._at = functools.lru_cache(MOST_SIZES)(functools.partial(_Sized.of, recipe))
        if not recipe.symbols:
            self._at(())

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
        """An entry that takes the graph's inputs themselves, then a value of each size symbol that no input has, and returns the
        list of outputs."""
        given = sum(s.input < 0 for s in self.recipe.symbols)
        return self._entry(len(self.recipe.inputs) + given, (), direct_rows(self.recipe), _same, self, frozenset())

    def execute(self, inputs: Sequence[torch.Tensor], given: Sequence[int] = ()) -> list[torch.Tensor]:
        """The outputs for the graph's inputs, of the recorded dtypes and shapes, in any strides. `given`: the values of the size
        symbols that no input has."""
        if self._direct is None:
            self._direct = self.forward()
        rows = self.recipe.inputs
        if self.recipe.symbols:
            rows = self._at(self.recipe.sizes([t.shape for t in inputs], given)).recipe.inputs
        return self._direct.run(*(t if t.stride() == r.strides else _laid_out(t, r) for t, r in zip(inputs, rows)), *given)

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
        plan = self._addresses[PLAN] if r.symbols else 0
        scratch = r.scratch_bytes if isinstance(r.scratch_bytes, int) else 0  # else `plan` says
        runner = None if r.is_native else functools.partial(self._run, identities)
        outputs = [(3, o.of, None, None, None) if i in identities else _output(o) for i, o in enumerate(r.outputs)]
        entry = native.Entry(
            nargs, kwnames, rows, len(r.inputs), outputs, rebuild, runner, data,
            run, fold, r.folded_bytes, r.arena_bytes, scratch, r.cost, watch, list(r.written_inputs), plan, len(r.symbols),
        )  # fmt: skip
        self._entries.add(entry)
        return entry

    def _run(
        self, identities: Set[int], inputs: Sequence[torch.Tensor | None], folded: int, sizes: Ints = ()
    ) -> list[torch.Tensor]:
        """The steps in order, eager calls among them, on memory of torch's own."""
        sized = self._at(sizes)
        memory = _Memory(sized.recipe, inputs, folded)
        for step in sized.recipe.run:
            if isinstance(step, NativeRow):
                pointers = memory.input_addresses(), memory.output_addresses()
                scratch = dims.as_int(sized.recipe.scratch_bytes)
                native.run_segment(self._addresses[step.symbol], *pointers, folded, memory.arena_address, scratch, sizes)
            elif self.recipe.written_inputs:
                sized.calls[step].run(memory)
            else:
                try:
                    sized.calls[step].run(memory)
                except Exception as e:  # the program's own error may be another: it is found by running all of it in eager
                    raise native.Failed(str(e)) from e
        memory.bump_versions()
        return memory.results(identities)


@dataclass(frozen=True)
class _Sized:
    """A recipe without symbols, and its eager calls."""

    recipe: Recipe
    calls: Mapping[CallRow, _EagerCall]

    @staticmethod
    def of(recipe: Recipe, sizes: Ints) -> _Sized:
        known = {s.name: n for s, n in zip(recipe.symbols, sizes)}
        made = recipe.at(sizes)
        return _Sized(made, {s: _EagerCall.of(s, known) for s in made.run if isinstance(s, CallRow)})


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
    def of(row: CallRow, sizes: Mapping[str, int]) -> _EagerCall:
        graph = parse_graph(row.graph, sizes=sizes)
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
            result, target = made if k is None else made[k], memory.tensor(row)
            if result.shape != target.shape:  # torch's meta kernel said otherwise
                raise native.Failed(f"{self.node.op} gave {list(result.shape)}, not {list(target.shape)}")
            target.copy_(result)


class _Memory:
    """The tensors of one call: inputs, new outputs, the arena, and views of them."""

    def __init__(self, recipe: Recipe, inputs: Sequence[torch.Tensor | None], folded: int) -> None:
        self.recipe = recipe
        self.inputs = inputs
        self.outputs = [
            None if o.alias else torch.empty_strided(_ints(o.shape), _ints(o.strides), dtype=to_torch(o.dtype))
            for o in recipe.outputs
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
        start = base.storage_offset() * base.element_size() + dims.as_int(row.offset)
        if base.dtype is not to_torch(row.dtype):
            base = torch.empty(0, dtype=to_torch(row.dtype)).set_(base.untyped_storage())  # type: ignore[call-overload]
        return base.as_strided(_ints(row.shape), _ints(row.strides), start // row.dtype.bytes)

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
            made.append(base if i in identities else view(base, _ints(o.shape), _ints(o.strides), dims.as_int(o.offset)))
        return made


def _described(row: InputRow) -> tuple[int, int, int, int]:
    """DLPack's dtype, and its device: the CPU."""
    return *dlpack_dtype(to_torch(row.dtype)), 1, 0


def _laid_out(t: torch.Tensor, row: InputRow) -> torch.Tensor:
    return torch.empty_strided(_ints(row.shape), _ints(row.strides), dtype=t.dtype).copy_(t)


def direct_rows(recipe: Recipe) -> Rows:
    """Guards on the inputs of a graph: what the recording of its caller established holds of the sizes."""
    rows: Rows = []
    number = {s.name: k for k, s in enumerate(recipe.symbols)}
    for i, r in enumerate(recipe.inputs):
        shape, strides = ([n if isinstance(n, int) else None for n in sizes] for sizes in (r.shape, r.strides))
        rows.append(("tensor", i, (None, i, *_described(r), None, tuple(shape), tuple(strides))))
    rows += [("symbol", s.input, s.dim, k) for k, s in enumerate(recipe.symbols) if s.input >= 0]
    outside = [k for k, s in enumerate(recipe.symbols) if s.input < 0]
    rows += [("int_symbol", len(recipe.inputs) + j, k) for j, k in enumerate(outside)]
    for i, r in enumerate(recipe.inputs):
        for kind, sizes in (("size", r.shape), ("stride", r.strides)):
            rows += [(kind, i, d, postfix(n, number)) for d, n in enumerate(sizes) if not isinstance(n, int)]
    for k, s in enumerate(recipe.symbols):
        rows += [("holds", (s.lo, f"${k}", "<="))] if s.lo is not None else []
        rows += [("holds", (f"${k}", s.hi, "<="))] if s.hi is not None else []
        rows += [("holds", (f"${k}", s.divisor, "%", 0, "=="))] if s.divisor > 1 else []
    return rows


def _ints(sizes: Sequence[Size]) -> Ints:
    return dims.as_ints(sizes)


def _same(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return outputs


def _over(address: int, size: int) -> torch.Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _output(o: OutputRow) -> tuple[Any, ...]:
    """The launcher's description of an output."""
    if not o.alias:
        return 0, -1, *_planned(o), to_torch(o.dtype)
    return 1 if o.alias == "input" else 2, o.of, *_planned(o), o.offset if isinstance(o.offset, int) else 0


def _planned(o: OutputRow) -> tuple[Any, Any]:
    """Shape and strides; the rank alone where the sizes of a call decide them."""
    return (o.shape, o.strides) if all(map(dims.is_static, (*o.shape, *o.strides, o.offset))) else (len(o.shape), None)


def _bytes(row: InputRow) -> int:
    if 0 in row.shape:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(_ints(row.shape), _ints(row.strides), strict=True))) * row.dtype.bytes
