"""Reductions: independent accumulators, what one step does to them, and how they end in one value.

In: a `Reduce`. Out: loops that carry accumulators in registers, and the store of the result. Must not know nests.

Inside a vectorised nest every lane reduces for itself. Elsewhere one variable of the reduction runs along the lanes of
several accumulators, which are combined pairwise at the end. Sums of floats start afresh every few dozen steps and add up
the parts, so that their error grows slowly. The order is fixed, so a result is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...base import dtypes, scalar
from ...base.dtypes import DType
from ...base.scalar import Expr
from ...tile.ir import Load, Reduce, Store, const
from . import expr, memory, operators, prepare, vector
from .context import Axis, Context, Value

State = list[str]
"""Registers of one accumulator: the value; for a float's extreme, also where a NaN was seen; for its position, that."""

_PLAIN = {"sum": "add", "prod": "mul", "any": "or", "all": "and", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_CHUNK = 64


class Reducer:
    """What an operation does to accumulators of some lanes. `dtype` is the values' type, `positions` that of positions."""

    def __init__(self, ctx: Context, s: Reduce, positions: DType) -> None:
        self.ctx = ctx
        self.dtype = s.value.dtype
        self.positions = positions
        self.extreme = {"max": "max", "argmax": "max", "min": "min", "argmin": "min"}.get(s.op, "")
        if self.dtype.kind == "bool" and self.extreme and not s.op.startswith("arg"):
            self.plain, self.extreme = "or" if s.op == "max" else "and", ""
        else:
            self.plain = _PLAIN.get(s.op, "")
        self.is_arg = s.op.startswith("arg")
        self.tracks_nan = bool(self.extreme) and self.dtype.is_float and not self.is_arg
        self.in_order = True  # each accumulator meets positions in growing order
        self.splits = s.op == "sum" and self.dtype.is_float

    def types(self, lanes: int) -> list[str]:
        own = [self.ctx.ops(self.dtype, lanes).type]
        if self.is_arg:
            return [*own, self.ctx.ops(self.positions, lanes).type]
        return [*own, self.ctx.ops(dtypes.b1, lanes).type] if self.tracks_nan else own

    def neutral(self) -> float:
        """What changes nothing."""
        d = self.dtype
        if not self.extreme:
            ones = -1 if d.kind == "int" else (1 << d.bits) - 1 if d.kind == "uint" else 1
            return {"add": 0, "mul": 1, "or": 0, "xor": 0, "and": ones}[self.plain]
        if d.is_float:
            least, most = -math.inf, math.inf
        elif d.kind == "int":
            least, most = -(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1
        else:
            least, most = 0, (1 << d.bits) - 1 if d.kind == "uint" else 1
        return least if self.extreme == "max" else most

    def start(self, lanes: int) -> State:
        first = self.ctx.ops(self.dtype, lanes).const(self.neutral())
        if self.is_arg:
            return [first, self.ctx.ops(self.positions, lanes).const(0)]
        return [first, self.ctx.ops(dtypes.b1, lanes).const(0)] if self.tracks_nan else [first]

    def step(self, lanes: int, state: State, x: str, position: str) -> State:
        """Take in one value a lane."""
        o = self.ctx.ops(self.dtype, lanes)
        if self.is_arg:
            if not self.in_order:
                return self.combine(lanes, state, [x, position])
            better = self._better(lanes, x, state[0])
            place = self.ctx.ops(self.positions, lanes).select(better, position, state[1])
            return [o.select(better, x, state[0]), place]
        if self.tracks_nan:
            nan = self.ctx.ops(dtypes.b1, lanes).op("or", state[1], o.compare("uno", x, x))
            return [o.select(o.compare("ogt" if self.extreme == "max" else "olt", x, state[0]), x, state[0]), nan]
        return [operators.binary(o, self.plain or self.extreme, state[0], x)]

    def _better(self, lanes: int, x: str, y: str) -> str:
        """Whether x comes before y: more extreme, or the first NaN."""
        o = self.ctx.ops(self.dtype, lanes)
        if self.dtype.kind == "bool":
            return o.op("and", *((x, o.op("xor", y, o.const(1))) if self.extreme == "max" else (y, o.op("xor", x, o.const(1)))))
        better = operators.binary(o, "gt" if self.extreme == "max" else "lt", x, y)
        if not self.dtype.is_float:
            return better
        first_nan = o.both(o.compare("uno", x, x), o.compare("ord", y, y))
        return o.either(better, first_nan)

    def combine(self, lanes: int, a: State, b: State) -> State:
        """Two accumulators in one."""
        o = self.ctx.ops(self.dtype, lanes)
        if self.tracks_nan:
            best = o.select(o.compare("ogt" if self.extreme == "max" else "olt", b[0], a[0]), b[0], a[0])
            return [best, *(self.ctx.ops(dtypes.b1, lanes).op("or", x, y) for x, y in zip(a[1:], b[1:], strict=True))]
        if not self.is_arg:
            return [operators.binary(o, self.plain or self.extreme, a[0], b[0])]
        p = self.ctx.ops(self.positions, lanes)
        worse = self._better(lanes, a[0], b[0])
        earlier = p.compare("slt", b[1], a[1])
        better = o.either(self._better(lanes, b[0], a[0]), o.both(earlier, o.f.let(f"xor {o.tests} {worse}, {_true(lanes)}")))
        return [o.select(better, b[0], a[0]), p.select(better, b[1], a[1])]

    def horizontal(self, lanes: int, state: State) -> State:
        """The lanes combined, halves by halves, to one."""
        if self.tracks_nan:
            seen = self.ctx.ops(dtypes.b1, lanes).any(state[1])
            return [self._halved(lanes, state[:1])[0], seen]
        return self._halved(lanes, state)

    def _halved(self, lanes: int, state: State) -> State:
        while lanes > 1:
            half = lanes // 2
            low, high = [], []
            for x, dtype in zip(state, self._dtypes(), strict=False):
                o = self.ctx.ops(dtype, lanes)
                low.append(o.shuffle(x, x, list(range(half))) if half > 1 else o.lane(x, 0))
                high.append(o.shuffle(x, x, list(range(half, lanes))) if half > 1 else o.lane(x, 1))
            state = self.combine(half, low, high)
            lanes = half
        return state

    def _dtypes(self) -> tuple[DType, DType]:
        return self.dtype, self.positions if self.is_arg else dtypes.b1

    def result(self, lanes: int, state: State) -> tuple[str, DType]:
        if self.is_arg:
            return state[1], self.positions
        if self.tracks_nan:
            o = self.ctx.ops(self.dtype, lanes)
            return o.select(state[1], o.const(math.nan), state[0]), self.dtype
        return state[0], self.dtype


def _true(lanes: int) -> str:
    return "true" if lanes == 1 else "splat (i1 true)"


def reduce(ctx: Context, s: Reduce) -> None:
    axes = [Axis(v, expr.size(ctx, e)) for v, e in zip(s.vars, s.extents, strict=True)]
    ctx.enter(False)
    for v, e in zip(s.vars, s.extents, strict=True):
        ctx.ends(v, e)
    for a in axes:
        ctx.suppose(a.var, vector.extent_range(a.extent))
        if a.extent == 1:
            ctx.bind(a.var, 0)
    axes = [a for a in axes if a.extent != 1]
    position = _position(s)
    total = math.prod(a.extent if isinstance(a.extent, int) else 1 << 40 for a in axes)
    r = Reducer(ctx, s, dtypes.i32 if total < 1 << 31 else dtypes.i64)
    if any(a.extent == 0 for a in axes):
        for _ in ctx.each_copy():
            _finish(ctx, s, r, ctx.lanes, r.start(ctx.lanes))
    elif ctx.lanes > 1 or len(ctx.copies) > 1:
        states = _each_lane(ctx, s, r, axes, position)
        for k in ctx.each_copy():
            _finish(ctx, s, r, ctx.lanes, states[k - ctx.copies.start])
    else:
        trusted = ctx.in_bounds
        _finish(ctx, s, r, 1, _across(ctx, s, r, axes, position))
        ctx.in_bounds = trusted
    ctx.leave()


def _position(s: Reduce) -> Expr:
    """The flat position of an element, in the order of the reduction's variables."""
    total: Expr = const(0)
    for v, e in zip(s.vars, s.extents, strict=True):
        total = total * e + v
    return total


def _take(ctx: Context, s: Reduce, r: Reducer, states: list[State], position: Expr) -> list[State]:
    """One step of every copy's accumulator."""
    after = list(states)
    o = ctx.ops(s.value.dtype, ctx.lanes)

    def compute() -> Value:
        x = expr.vector(ctx, s.value)
        if ctx.mask is not None and not _is_zero_when_masked(ctx, s):
            x = o.select(ctx.mask, x, o.const(r.neutral()))
        return Value(x, ctx.lanes)

    values = ctx.interleaved(compute)
    for k in ctx.each_copy():
        where = ""
        if r.is_arg:
            small = r.positions is dtypes.i32 and ctx.lanes > 1
            where = expr.narrow(ctx, position) if small else expr.vector(ctx, scalar.cast(position, r.positions))
        slot = k - ctx.copies.start
        after[slot] = r.step(ctx.lanes, states[slot], values[k].text, where)
    return after


def _is_zero_when_masked(ctx: Context, s: Reduce) -> bool:
    """Whether inactive lanes change nothing by themselves: a masked load gives zero there, one for all lanes does not."""
    e = s.value
    if not isinstance(e, Load) or s.op not in ("sum", "any", "bitor", "bitxor"):
        return False
    return ctx.facts.step(ctx.facts.address(e.buffer, e.index)) != 0


def _each_lane(ctx: Context, s: Reduce, r: Reducer, axes: Sequence[Axis], position: Expr) -> list[State]:
    """Inside a vectorised nest: loops over the reduction's variables, one accumulator a copy."""
    states = [r.start(ctx.lanes) for _ in ctx.copies]
    return _loops(ctx, r, ctx.lanes, axes, states, lambda now: _take(ctx, s, r, now, position))


def _across(ctx: Context, s: Reduce, r: Reducer, axes: list[Axis], position: Expr) -> State:
    """One variable along the lanes, the others in loops around it."""
    lane_var, _ = vector.reduce_cost(ctx, s)
    lane = next((a for a in axes if a.var is lane_var), None)
    if lane is None:
        states = _loops(ctx, r, 1, axes, [r.start(1)], lambda now: _take(ctx, s, r, now, position))
        return states[0]
    also = [ctx.facts.linear(position)] if r.is_arg else []
    r.in_order = lane is axes[-1]
    axes, lane = vector.collapsed(ctx, axes, lane, Store(s.dst, s.index, s.value), also)
    strip = _Strip(ctx, s, r, lane, position)
    outer = [a for a in axes if a is not strip.axis]
    states = [r.start(strip.lanes) for _ in range(strip.copies)]
    states = _loops(ctx, r, strip.lanes, outer, states, strip.run, True)
    while len(states) > 1:
        states = [
            r.combine(strip.lanes, *states[k : k + 2]) if k + 1 < len(states) else states[k] for k in range(0, len(states), 2)
        ]
    return r.horizontal(strip.lanes, states[0])


class _Strip:
    """The variable along the lanes: several accumulators a turn, then what is left over, masked."""

    def __init__(self, ctx: Context, s: Reduce, r: Reducer, axis: Axis, position: Expr) -> None:
        self.ctx, self.s, self.r, self.axis, self.position = ctx, s, r, axis, position
        self.lanes = ctx.isa.lanes
        while isinstance(axis.extent, int) and self.lanes // 2 >= axis.extent:
            self.lanes //= 2
        heavy = prepare.weight(s.value) > 40
        vectors = axis.extent // self.lanes if isinstance(axis.extent, int) else 1 << 40
        self.copies = max(1, min(2 if heavy else vector.UNROLL, vectors))

    def run(self, states: list[State]) -> list[State]:
        ctx, extent, lanes, copies = self.ctx, self.axis.extent, self.lanes, self.copies
        if isinstance(extent, int):
            full = extent // lanes
            end: int | str = full // copies * copies * lanes
        else:
            full, end = 0, ctx.f.let(f"and i64 {extent}, {-lanes * copies}")
        states = _carried(ctx, self.r, lanes, 0, end, lanes * copies, states, lambda b, now: self._part(b, copies, None, now))
        if not isinstance(extent, int) or not isinstance(end, int):
            return _carried(
                ctx,
                self.r,
                lanes,
                end,
                extent,
                lanes,
                states,
                lambda b, now: self._part(b, 1, vector.tail_mask(ctx, b, extent), now),
            )
        if full % copies:
            states = self._inline(end, full % copies, None, states)
        rest = extent - full * lanes
        if rest:
            mask = ctx.ops(dtypes.b1, lanes).listed([int(k < rest) for k in range(lanes)])
            states = self._inline(full * lanes, 1, mask, states)
        return states

    def _inline(self, base: int, copies: int, mask: str | None, states: list[State]) -> list[State]:
        self.ctx.enter(False)
        states = self._part(base, copies, mask, states)
        self.ctx.leave()
        return states

    def _part(self, base: int | str, copies: int, mask: str | None, states: list[State]) -> list[State]:
        found: list[list[State]] = []

        def body() -> None:
            found.append(_take(self.ctx, self.s, self.r, states, self.position))

        vector.part(self.ctx, self.axis, base, self.lanes, copies, mask, body)
        return found[0]


def _loops(
    ctx: Context,
    r: Reducer,
    lanes: int,
    axes: Sequence[Axis],
    states: list[State],
    inside: Callable[[list[State]], list[State]],
    lanes_run: bool = False,
) -> list[State]:
    """Loops over `axes` around `inside`, which has a loop of its own if `lanes_run`."""
    if not axes:
        return inside(states)
    axis, *rest = axes

    def turn(i: str, now: list[State]) -> list[State]:
        ctx.bind(axis.var, i, vector.extent_range(axis.extent))
        if not (r.splits and (rest or lanes_run)):
            return _loops(ctx, r, lanes, rest, now, inside, lanes_run)
        own = _loops(ctx, r, lanes, rest, [r.start(lanes) for _ in now], inside, lanes_run)
        return [r.combine(lanes, a, b) for a, b in zip(now, own, strict=True)]

    return _carried(ctx, r, lanes, 0, axis.extent, 1, states, turn)


def _carried(
    ctx: Context,
    r: Reducer,
    lanes: int,
    lo: int | str,
    hi: int | str,
    step: int,
    states: list[State],
    turn: Callable[[str, list[State]], list[State]],
) -> list[State]:
    """A loop that carries accumulators; a long sum is split into chunks, and those into smaller ones, that are added up."""
    turns = 1 << 40
    if isinstance(lo, int) and isinstance(hi, int):
        if lo >= hi:
            return states
        turns = -(-(hi - lo) // step)
    return _chunks(ctx, r, lanes, lo, hi, step, states, turn, turns)


def _chunks(
    ctx: Context,
    r: Reducer,
    lanes: int,
    lo: int | str,
    hi: int | str,
    step: int,
    states: list[State],
    turn: Callable[[str, list[State]], list[State]],
    turns: int,
) -> list[State]:
    """`turns` is the most that there can be."""
    if not r.splits or turns <= _CHUNK:
        return _loop(ctx, r, lanes, lo, hi, step, states, turn)
    size = _CHUNK
    while size * _CHUNK < min(turns, _CHUNK**3):
        size *= _CHUNK

    def chunk(start: str, now: list[State]) -> list[State]:
        last = ctx.i64.intrinsic("smin", str(ctx.f.index("add", start, size * step)), str(hi))
        fresh = [r.start(lanes) for _ in now]
        fresh = _chunks(ctx, r, lanes, start, last, step, fresh, turn, size)
        return [r.combine(lanes, a, b) for a, b in zip(now, fresh, strict=True)]

    return _loop(ctx, r, lanes, lo, hi, size * step, states, chunk)


def _loop(
    ctx: Context,
    r: Reducer,
    lanes: int,
    lo: int | str,
    hi: int | str,
    step: int,
    states: list[State],
    turn: Callable[[str, list[State]], list[State]],
) -> list[State]:
    types = r.types(lanes)
    width = len(types)

    def body(i: str, *values: str) -> list[str]:
        now = [list(values[k : k + width]) for k in range(0, len(values), width)]
        return [x for state in turn(i, now) for x in state]

    flat = ctx.loop(lo, hi, step, body, [(t, x) for state in states for t, x in zip(types, state, strict=True)])
    return [flat[k : k + width] for k in range(0, len(flat), width)]


def _finish(ctx: Context, s: Reduce, r: Reducer, lanes: int, state: State) -> None:
    """Store the result of the current copy, combined with what was there unless `clear`."""
    text, dtype = r.result(lanes, state)
    if not s.clear:
        old = expr.value(ctx, scalar.cast(Load(s.dst, s.index), s.value.dtype))
        o = ctx.ops(s.value.dtype, lanes)
        wide = old.text if old.lanes == lanes else o.broadcast(old.text)
        text = operators.binary(o, r.plain or r.extreme, wide, text)
    text = operators.cast(ctx.ops(dtype, lanes), text, s.dst.dtype)
    memory.write(ctx, s.dst, s.index, Value(text, lanes))
