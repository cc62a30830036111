"""Exact functionalisation: writes and views of memory as pure values.

In: the memory that each recorded tensor stands in, and how it views it. Out: the value of a view at any time, the value of
the memory after a write through a view, and at the end the graph's outputs and effects. Must not know torch.

A `Memory` is one storage: the node that its base holds now, and how often it was written. A `View` is a chain of view
rows from the base; reading replays the chain, writing runs it backwards with scatters, so every other view sees the write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from . import strides as st
from .ir import Alias, Effect, Node, Op, Output, make
from .ops import view
from .ops.index import AS_STRIDED_SCATTER, SLICE_SCATTER
from .ops.pointwise import FULL, FullAttrs
from .strides import Sizes


class Unsupported(Exception):
    """A write or view that has no exact form; the recorder says where it happened."""


@dataclass(frozen=True, slots=True)
class Step:
    """One view row of a chain, and the shape it is applied to."""

    op: Op
    attrs: view.ReshapeAttrs | view.PermuteAttrs | view.ExpandAttrs | view.SliceAttrs | view.AsStridedAttrs
    before: Sizes

    def apply(self, x: Node) -> Node:
        return make(self.op, (x,), self.attrs)

    def invert(self, x: Node, new: Node) -> Node:
        """`x` with `new` in the places that the view shows."""
        if isinstance(new.attrs, FullAttrs) and self.op in (view.RESHAPE, view.PERMUTE, view.EXPAND):
            return FULL(value=new.attrs.value, dtype=new.attrs.dtype, shape=self.before)  # one value in every place
        match self.attrs:
            case view.ReshapeAttrs():
                return view.RESHAPE(new, shape=self.before)
            case view.PermuteAttrs(dims):
                return view.PERMUTE(new, dims=tuple(dims.index(d) for d in range(len(dims))))
            case view.SliceAttrs(dim, start, stop, step):
                return SLICE_SCATTER(x, new, dim=dim, start=start, stop=stop, step=step)
            case view.ExpandAttrs(shape) if math.prod(shape) == math.prod(self.before):
                return view.RESHAPE(new, shape=self.before)
            case view.AsStridedAttrs(shape, strides, offset) if not st.may_overlap(shape, strides):
                return AS_STRIDED_SCATTER(x, new, strides=strides, offset=offset)
        raise Unsupported("it writes through a view in which several elements share one place")


Chain: TypeAlias = tuple[Step, ...]


class Builder:
    """Extends a chain; rows that change nothing are left out."""

    def __init__(self, chain: Chain, shape: Sizes) -> None:
        self.steps = list(chain)
        self.shape = shape

    @property
    def chain(self) -> Chain:
        return tuple(self.steps)

    def _add(
        self,
        op: Op,
        attrs: view.ReshapeAttrs | view.PermuteAttrs | view.ExpandAttrs | view.SliceAttrs | view.AsStridedAttrs,
        shape: Sizes,
    ) -> Builder:
        self.steps.append(Step(op, attrs, self.shape))
        self.shape = shape
        return self

    def reshape(self, shape: Sizes) -> Builder:
        return self if shape == self.shape else self._add(view.RESHAPE, view.ReshapeAttrs(shape), shape)

    def permute(self, dims: tuple[int, ...]) -> Builder:
        if dims == tuple(range(len(dims))):
            return self
        return self._add(view.PERMUTE, view.PermuteAttrs(dims), tuple([self.shape[d] for d in dims]))

    def expand(self, shape: Sizes) -> Builder:
        return self if shape == self.shape else self._add(view.EXPAND, view.ExpandAttrs(shape), shape)

    def slice(self, dim: int, start: int, stop: int, step: int = 1) -> Builder:
        size = self.shape[dim]
        if start == 0 and stop == size and step == 1:
            return self
        shape = (*self.shape[:dim], view.slice_size(start, stop, step), *self.shape[dim + 1 :])
        return self._add(view.SLICE, view.SliceAttrs(dim, start, stop, step), shape)

    def strided(self, shape: Sizes, strides: Sizes, offset: int) -> Builder:
        """As `as_strided` of the view so far, taken as row-major memory."""
        return self._add(view.AS_STRIDED, view.AsStridedAttrs(shape, strides, offset), shape)


def is_split(memories: Iterable[Memory]) -> bool:
    """Whether two of them, or one and an input of the graph, are parts of one memory that are not known to be."""
    distinct = list({id(m): m for m in memories}.values())
    roots = [m.root() for m in distinct]
    return any(m is not r and (r.source is not None or roots.count(r) > 1) for m, r in zip(distinct, roots))


@dataclass(eq=False, slots=True)
class Memory:
    """One storage: `value` fills its base, a tensor of `shape` and `strides` at `offset`.

    `source` is the graph input it belongs to, `initial` what that held at first. `opaque` says why it cannot be written
    (another dtype's view shares it, ...); `foreign`: the other memory that it is really a part of. `tracked`: whether eager's
    tensor would require grad; `leaf`: that it is a leaf of autograd's graph.
    """

    value: Node
    shape: Sizes
    strides: Sizes
    offset: int
    source: int | None = None
    version: int = 0
    opaque: str = ""
    foreign: Memory | None = None
    tracked: bool = False
    leaf: bool = False
    initial: Node | None = field(default=None)

    def root(self) -> Memory:
        """The memory that it is really in."""
        return self if self.foreign is None else self.foreign.root()

    def read(self, chain: Chain) -> Node:
        value = self.value
        for step in chain:
            value = step.apply(value)
        return value

    def write(self, chain: Chain, new: Node) -> None:
        """Raises Unsupported where the write has no exact form."""
        if self.opaque:
            raise Unsupported(self.opaque)
        values = [self.value]
        for step in chain[:-1]:
            values.append(step.apply(values[-1]))
        for step, before in zip(reversed(chain), reversed(values)):
            new = step.invert(before, new)
        self.value = new
        self.version += 1

    def flat(self) -> Builder:
        """The chain that sees the whole base as its row-major memory, in the order of its places.

        Raises Unsupported where the base leaves gaps: what lies in them is not recorded.
        """
        if not st.is_dense(self.shape, self.strides):
            raise Unsupported("it looks at the memory between the elements of a strided tensor")
        order = st.memory_order(self.shape, self.strides)
        return Builder((), self.shape).permute(order)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Place:
    """How one result lies in memory."""

    memory: Memory
    chain: Chain
    shape: Sizes
    strides: Sizes
    offset: int

    @property
    def is_base(self) -> bool:
        """Whether it shows the whole base without gaps, from its first place."""
        m = self.memory
        return (
            self.offset == m.offset
            and math.prod(self.shape) == m.numel
            and st.is_dense(self.shape, self.strides)
            and st.is_dense(m.shape, m.strides)
        )


class Results:
    """The graph's outputs: results that share memory become aliases, of an input or of the output that holds it all."""

    def __init__(self, input_offsets: Callable[[int], int]) -> None:
        self.outputs: list[Output] = []
        self._offset_of = input_offsets

    def add(self, places: Sequence[Place]) -> list[int]:
        """The number of the output that holds each place. Outputs that no place names may be added to hold shared memory."""
        groups: dict[int, list[int]] = {}
        for i, p in enumerate(places):
            groups.setdefault(id(p.memory), []).append(i)
        found: dict[int, int] = {}
        for members in groups.values():
            found.update(zip(members, self._group([places[i] for i in members])))
        return [found[i] for i in range(len(places))]

    def _group(self, places: list[Place]) -> list[int]:
        memory = places[0].memory
        if memory.source is not None:
            base = self._offset_of(memory.source)
            return [self._output(p, Alias("input", memory.source, p.offset - base)) for p in places]
        if _independent(places):
            return [self._output(p, None) for p in places]
        whole = next((i for i, p in enumerate(places) if p.is_base), None)
        if whole is None:
            holder = self._output(Place(memory, (), memory.shape, memory.strides, memory.offset), None)
        else:
            holder = self._output(places[whole], None)
        return [
            holder if i == whole else self._output(p, Alias("output", holder, p.offset - memory.offset))
            for i, p in enumerate(places)
        ]

    def _output(self, p: Place, alias: Alias | None) -> int:
        self.outputs.append(Output(p.memory.read(p.chain), p.strides, alias))
        return len(self.outputs) - 1


def _independent(places: list[Place]) -> bool:
    """Whether memory of their own serves the results as well: no place is shared, and none would have gaps for the others."""
    if any(st.may_overlap(p.shape, p.strides) for p in places):
        return False
    intervals = sorted((p.offset, p.offset + st.span(p.shape, p.strides)) for p in places)
    return all(a[1] <= b[0] for a, b in zip(intervals, intervals[1:]))


def effects(memories: Sequence[Memory]) -> tuple[Effect, ...]:
    """What is written back into the inputs, in their order."""
    return tuple(Effect(m.source, m.value) for m in memories if m.source is not None and m.value is not m.initial)
