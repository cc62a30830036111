"""Pointwise kernels: every element of the domain on its own, several results, any reading through index maps.

In: a pointwise, pack or copy group. Out: a kernel over flattened chunks: adjacent dimensions are merged where every access
allows it, the loops follow the first result's memory order. Concatenations and pads cut the domain into boxes, so that
inside a box each element has one source. Must not know what fusion decided.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...base import dims, scalar
from ...base.dims import Size, provably_le, to_expr
from ...base.scalar import Expr, Var, const
from ..fuse import Group
from ..hints import Hints
from ..ir import If, Parallel, Stmt, Store, block
from ..schedule import Machine, block_target, chunk, elementwise_ns, expression_cycles
from .context import Context, Draft, Lowered, kernel_name
from .domain import MOST_BOXES, Box, Domain, Run, axis, boxes, by_stride, cut_axis, extent, merged, refined
from .emit import Axis, Emitter, Params, Trace
from .space import ZERO, Space, at_least_one


def lower_pointwise(group: Group, context: Context) -> list[Lowered]:
    """One kernel, or one a box where the domain is cut along its outer dimensions."""
    return _Pointwise(group, context).lower()


@dataclass(frozen=True)
class _Probe:
    """The forms that the results depend on, the cuts that would simplify them, and the work of one vector of elements."""

    trace: Trace
    cuts: tuple[tuple[Var, Size], ...]
    cycles: float


class _Pointwise:
    def __init__(self, group: Group, context: Context) -> None:
        self.group, self.context, self.hints = group, context, context.hints
        self.members = [m for m in group.members if m in context.targets]
        self.probes: dict[tuple[Domain, tuple[object, ...]], _Probe] = {}
        self.here = set(group.inlined) if group.kind == "copy" else {*group.members, *group.inlined}

    def lower(self) -> list[Lowered]:
        domain = refined(self.group, lambda d: self._seen(d, {}))
        cuts = self._cuts(domain)
        all_boxes = boxes(cuts, dict(domain.vars))
        trace = Trace()
        for box in all_boxes:
            part = self._seen(domain, box).trace
            trace.forms.update(part.forms)
            trace.stores.update(part.stores)
        order = by_stride(domain.vars, next(iter(trace.stores), ZERO), self.hints)
        runs = merged(order, trace.forms, cuts)
        if len(all_boxes) == 1:
            return [self._kernel(domain, runs, all_boxes, kernel_name(self.group))]
        outer = next(i for i, run in enumerate(runs) if run[0][0] in cuts)
        blocks = self.hints.product(extent(run) for run in runs[:outer])
        if blocks >= 4 * self.context.machine.threads:
            return [self._kernel(domain, runs, all_boxes, kernel_name(self.group), outer)]
        return [self._kernel(domain, runs, [box], f"{kernel_name(self.group)}_part{i}") for i, box in enumerate(all_boxes)]

    # --- probing ---

    def _seen(self, domain: Domain, box: Box) -> _Probe:
        """What evaluating the kernel's results over the bare variables of the domain tells. Done once a box."""
        key = (domain, tuple(box.items()))
        found = self.probes.get(key)
        if found is None:
            trace, space = Trace(), _space(domain, box)
            stores = self._stores(domain, space, domain.own_axes(), Params(), trace)
            domain.space.splits.update(space.splits)
            found = self.probes[key] = _Probe(trace, tuple(space.cuts), expression_cycles(*(s.value for s in stores)))
        return found

    def _stores(self, domain: Domain, space: Space, axes: Sequence[Axis], params: Params, trace: Trace) -> list[Store]:
        emitter = Emitter(space, axes, params, self.context.values, self.context.targets, self.here, trace)
        found = []
        for m in self.members:
            buffer, at = emitter.store(m, domain.index[m])
            source = self.group.sources.get(m)
            value = emitter.value(m, domain.index[m]) if source is None else emitter.value(source, domain.domain)
            found.append(Store(buffer, at, value))
        return found

    def _cuts(self, domain: Domain) -> dict[Var, list[Size]]:
        """Where to cut which variables, so that no element's source depends on its place. Too many boxes: not at all."""
        cuts: dict[Var, list[Size]] = {}
        for _ in range(3):
            found = [cut for box in boxes(cuts, dict(domain.vars)) for cut in self._seen(domain, box).cuts]
            wanted = {v: _ascending([*cuts.get(v, ()), *(p for u, p in found if u is v)], e) for v, e in domain.vars}
            wanted = {v: points for v, points in wanted.items() if points}
            if wanted == cuts or math.prod(len(points) + 1 for points in wanted.values()) > MOST_BOXES:
                break
            cuts = wanted
        return cuts

    # --- emitting ---

    def _kernel(self, domain: Domain, runs: list[Run], parts: list[Box], name: str, outer: int | None = None) -> Lowered:
        """`outer`: how many runs all boxes share in the grid; None for a single box, which may split any run."""
        draft = Draft(name)
        machine = self.context.machine
        work = self._seen(domain, parts[0]).cycles
        loops_of = functools.partial(
            _loops, self.context, runs, cycles=work, outer=outer, turned=self._turned(domain, runs, parts[0])
        )
        first = loops_of(parts[0])
        bodies: list[Stmt] = []
        cost = 0.0
        for box in parts:
            loops = first if box is parts[0] else loops_of(box)
            stores = self._stores(domain, _space(domain, box), loops.axes, draft.params, Trace())
            bodies.append(loops.body(block(*stores)))
            elements = self.hints.product(box.get(v, (0, e))[1] for v, e in domain.vars)
            cycles = self._seen(domain, box).cycles
            moved = elements * sum(_bytes(s) for s in stores)
            cost += elementwise_ns(machine, elements, cycles, moved)
        return draft.finish(first.grid, block(*bodies), cost, bounded=True)

    def _turned(self, domain: Domain, runs: list[Run], box: Box) -> int | None:
        """A run that some access is contiguous along, but not along the last run, where the results are."""
        if not runs:
            return None
        last = runs[-1][-1][0]
        for form in self._seen(domain, box).trace.forms:
            if abs(self.hints(form.coefficient(last))) <= 1:
                continue
            for i, run in enumerate(runs[:-1]):
                if form.coefficient(run[-1][0]) == 1 and min(self.hints.all((extent(run), extent(runs[-1])))) >= 8:
                    return i
        return None


def _ascending(points: Sequence[Size], end: Size) -> list[Size]:
    """The distinct points that are known to follow each other within [0, end]; where that is not known of one, it is left out."""
    found: list[Size] = []
    for p in dict.fromkeys(points):
        at = sum(provably_le(q, p) for q in found)
        if provably_le(0, p) and provably_le(p, end) and all(provably_le(p, q) for q in found[at:]):
            found.insert(at, p)
    return found


def _bytes(s: Store) -> int:
    """Memory moved by one element of a store, broadcast operands counted as free."""
    loads = [e for e in scalar.walk(s.value) if hasattr(e, "buffer")]
    return s.buffer.dtype.bytes + sum(e.dtype.bytes for e in loads)


def _space(domain: Domain, box: Box) -> Space:
    space = domain.space
    for v, (low, size) in box.items():
        space = space.narrowed(v, low, low + size - 1)
    return space


@dataclass(frozen=True)
class _Inner:
    """A variable of a block's Parallel; in blocks where `full`, if any, does not hold it has only `rest` values."""

    var: Var
    size: Expr
    full: Expr | None = None
    rest: Expr = const(0)


@dataclass
class _Loops:
    """Grid variables, the variables of a block's Parallel, and the axes that they count through."""

    grid: list[tuple[Var, Expr]]
    inner: list[_Inner]
    axes: list[Axis]

    def body(self, stmt: Stmt) -> Stmt:
        return self._ragged(stmt, [], self.inner)

    def _ragged(self, stmt: Stmt, done: list[tuple[Var, Expr]], left: list[_Inner]) -> Stmt:
        if left:
            v = left[0]
            whole = self._ragged(stmt, [*done, (v.var, v.size)], left[1:])
            return whole if v.full is None else If(v.full, whole, self._ragged(stmt, [*done, (v.var, v.rest)], left[1:]))
        if not done:
            return stmt
        return Parallel(tuple([v for v, _ in done]), tuple([e for _, e in done]), stmt)


TURN = 64
"""The side of a block where memory is read in another order than written."""


def _loops(context: Context, runs: list[Run], box: Box, cycles: float, outer: int | None, turned: int | None) -> _Loops:
    """How the runs become grid and block loops: whole runs from the inside until a block is large enough, one chunked.

    `turned`: a run along which memory is read while the last one is written; a block is then a square of these two.
    """
    machine, hints = context.machine, context.hints
    cuts = [box.get(run[0][0]) for run in runs]
    sizes = [extent(run) if cut is None else cut[1] for run, cut in zip(runs, cuts, strict=True)]
    extents = sizes if outer is None else [extent(run) for run in runs]  # all boxes of a kernel must agree on its grid
    whole = hints.all(extents)
    room = block_target(machine, math.prod(whole), cycles)
    loops = _Loops([], [], [])
    taken: Size = 1  # elements of a block so far
    for i in reversed(range(len(runs))):
        if outer is not None and i >= outer:
            length: Size = sizes[i]
        elif turned is not None and outer is None:
            length = _at_most(sizes[i], TURN) if i in (turned, len(runs) - 1) else 1
        else:
            length = _block_length(machine, sizes[i], hints, room, taken, i)
        _place(loops, i, runs[i], sizes[i], cuts[i], length)
        room = room // max(whole[i], 1) if length == sizes[i] else 0
        taken = taken * (extents[i] if length == sizes[i] else length)
    return loops


def _at_most(size: Size, limit: int) -> int:
    return size if isinstance(size, int) and size <= limit else limit


def _block_length(machine: Machine, size: Size, hints: Hints, room: int, taken: Size, i: int) -> Size:
    """How much of run i a block takes, which so far has `taken` elements and room for `room` times as many.

    A symbolic run is taken whole only where it is short by its hint and there are others to make blocks of. The runs around one
    that is taken whole fill blocks by what it turns out to be.
    """
    short = hints(size) <= room
    if isinstance(taken, dims.Dim) and room > 1:
        return dims.maximum(hints(taken) * min(room, hints(size)) // at_least_one(taken), 1)
    if isinstance(size, int) or not short:
        return size if short else chunk(hints(size), room, 1 if taken != 1 else machine.lanes) if room > 1 else 1
    return size if i > 0 else room


def _place(loops: _Loops, i: int, run: Run, size: Size, cut: tuple[Size, Size] | None, length: Size) -> None:
    """Loops for one run, of which a block takes `length`, put outside those there are."""

    def add(expr: Expr) -> None:
        loops.axes.insert(0, axis(run, expr) if cut is None else cut_axis(run, expr, *cut))

    g, v = scalar.var(f"g{i}"), scalar.var(f"i{i}")
    if length == size or (isinstance(length, int) and isinstance(size, int) and length >= size):
        loops.inner.insert(0, _Inner(v, to_expr(size)))
        add(v)
        return
    loops.grid.insert(0, (g, to_expr(dims.ceildiv(size, length))))
    if length == 1:
        add(g)
        return
    step, rest = to_expr(length), size % length
    loops.inner.insert(0, _Inner(v, step, None if rest == 0 else g < to_expr(size // length), to_expr(rest)))
    add(g * step + v)
