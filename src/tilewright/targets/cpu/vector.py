"""Parallel nests: which variable runs along the lanes, in what order the others loop, and where the ragged end goes.

In: a `Parallel`. Out: loops around copies of its body. Must not know operators or the layout of registers.

The choice is by cost: each access costs what its step along the candidate variable makes it (a broadcast, a row, a
gather), times the share of lanes that the extent leaves idle. A nest may also keep its variables scalar and leave the
vectors to the reductions and nests inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...base import dtypes, scalar
from ...base.scalar import Expr, Var
from ...tile import ir
from ...tile.ir import Atomic, Block, Buffer, For, If, Let, Load, Parallel, Reduce, Stmt, Store
from . import expr, prepare, transposed
from .context import Axis, Context
from .indexing import Linear

UNROLL = 4
_UNKNOWN_EXTENT = 64
_HORIZONTAL = 16  # what combining the lanes of a reduction costs, in instructions
_ACCESS = {0: 0.25, 1: 1.0, -1: 2.0}
_GATHER, _SCATTER = 12.0, 24.0


def parallel(ctx: Context, s: Parallel) -> None:
    s = _merged(s)
    axes: list[Axis] = []
    for v, e in zip(s.vars, s.extents, strict=True):
        n = expr.size(ctx, e)
        if n == 0 or (isinstance(n, int) and n < 0):
            return
        ctx.ends(v, e)
        axes.append(Axis(v, n))
    ctx.enter(False)
    single = [a for a in axes if a.extent == 1]
    for a in single:
        ctx.bind(a.var, 0)
    axes = [a for a in axes if a.extent != 1]
    if ctx.lanes > 1 or len(ctx.copies) > 1:
        _scalar_loops(ctx, axes, lambda: _emit(ctx, s.body), s.body)
    else:
        nest(ctx, axes, s.body, lambda: _emit(ctx, s.body))
    ctx.leave()


def _merged(s: Parallel) -> Parallel:
    """A nest right inside a nest is one nest."""
    while isinstance(s.body, Parallel):
        s = Parallel(s.vars + s.body.vars, s.extents + s.body.extents, s.body.body)
    return s


def _emit(ctx: Context, s: Stmt) -> None:
    from . import statements

    statements.emit(ctx, s)


def nest(ctx: Context, axes: list[Axis], body: Stmt, inside: Callable[[], None], together: int = 1) -> None:
    """Loops over `axes` around `inside`, chosen by what `body`, which it writes, does.

    `together`: so many scalar copies are written at a time where no axis can run along the lanes.
    """
    for a in axes:
        ctx.suppose(a.var, extent_range(a.extent))
    turned = transposed.found(ctx, axes, body)
    if turned is not None:
        rest = _ordered(ctx, [a for a in axes if a not in (turned.rows, turned.columns)], body)
        _scalar_loops(ctx, rest, lambda: transposed.emit(ctx, turned), body)
        return
    lane = choose(ctx, axes, body, together > 1) if is_nest(body) else None
    trusted = ctx.in_bounds
    if lane is not None:
        axes, lane = collapsed(ctx, axes, lane, body)
    order = _ordered(ctx, [a for a in axes if a is not lane], body)
    writes = ir.written(body)
    if lane is None and together > 1 and order:
        last = order.pop()
        _scalar_loops(ctx, order, lambda: strip(ctx, last, 1, together, inside, writes), body)
    elif lane is None:
        _scalar_loops(ctx, order, inside, body)
    else:
        chosen, unroll = lane, _unroll(body)
        _scalar_loops(ctx, order, lambda: strip(ctx, chosen, ctx.isa.lanes, unroll, inside, writes), body)
    ctx.in_bounds = trusted


def extent_range(extent: int | str) -> tuple[int, float]:
    return 0, extent - 1 if isinstance(extent, int) else float("inf")


def _scalar_loops(ctx: Context, axes: Sequence[Axis], inside: Callable[[], None], body: Stmt) -> None:
    if not axes:
        inside()
        return
    axis, *rest = axes

    def turn(i: str) -> None:
        ctx.bind(axis.var, i, extent_range(axis.extent))
        _scalar_loops(ctx, rest, inside, body)

    ctx.loop(0, axis.extent, 1, turn, writes=ir.written(body))


# -- the choice


def is_nest(s: Stmt) -> bool:
    """Whether `s` holds only what can run on several iterations at once."""
    match s:
        case Block(body):
            return all(map(is_nest, body))
        case Store() | Reduce() | Atomic():
            return True
        case If(_, then, orelse):
            return is_nest(then) and (orelse is None or is_nest(orelse))
        case Let() | Parallel() | For():
            return is_nest(s.body)
    return False


def choose(ctx: Context, axes: Sequence[Axis], body: Stmt, only_rows: bool = False) -> Axis | None:
    """The axis to run along the lanes, or None to keep all scalar. `only_rows`: scattered accesses are no choice."""
    best, least = None, inner_cost(ctx, body)
    for a in axes if only_rows else ():
        if any(step_along(ctx, a.var, buffer, index) not in (0, 1) for buffer, index in accesses(body)):
            axes = [b for b in axes if b is not a]
    for a in reversed(axes):
        if not _may_spread(ctx, a.var, body):
            continue
        cost = lane_cost(ctx, a.var, body) * waste(ctx, a.extent) / ctx.isa.lanes
        if least is None or cost < least:
            best, least = a, cost
    return best


def waste(ctx: Context, extent: int | str) -> float:
    """Lanes computed for each one wanted."""
    n = extent if isinstance(extent, int) else _UNKNOWN_EXTENT
    return -(-n // ctx.isa.lanes) * ctx.isa.lanes / n


def _may_spread(ctx: Context, v: Var, body: Stmt) -> bool:
    """Loops inside must turn equally often in all lanes."""
    for s in ir.statements(body):
        if isinstance(s, For | Parallel | Reduce):
            extents = (s.extent,) if isinstance(s, For) else s.extents
            if any(v in ctx.facts.variables(e) for e in extents):
                return False
    return True


def lane_cost(ctx: Context, v: Var, s: Stmt) -> float:
    """The cost of `s` for a vector of values of `v`."""
    match s:
        case Block(body):
            return sum(lane_cost(ctx, v, k) for k in body)
        case Store(buffer, index, value):
            return value_cost(ctx, v, value) + access_cost(ctx, v, buffer, index, _SCATTER)
        case Atomic():
            return value_cost(ctx, v, s.value) + 20.0 * ctx.isa.lanes
        case If(cond, then, orelse):
            other = 0.0 if orelse is None else lane_cost(ctx, v, orelse)
            return value_cost(ctx, v, cond) + 2 + lane_cost(ctx, v, then) + other
        case Let(_, value, body):
            return value_cost(ctx, v, value) + lane_cost(ctx, v, body)
        case For():
            return _turns(ctx, (s.extent,)) * lane_cost(ctx, v, s.body)
        case Parallel():
            return _turns(ctx, s.extents) * lane_cost(ctx, v, s.body)
        case Reduce():
            _assume(ctx, s.vars, s.extents)
            turns = _turns(ctx, s.extents)
            return turns * (1 + value_cost(ctx, v, s.value)) + access_cost(ctx, v, s.dst, s.index, _SCATTER)
    return 0.0


def inner_cost(ctx: Context, s: Stmt) -> float | None:
    """The cost of one iteration where the vectors are left to what is inside `s`; None where nothing inside has any."""
    found = False
    total = 0.0
    for k in _own(s):
        match k:
            case Reduce():
                found = True
                _assume(ctx, k.vars, k.extents)
                total += _turns(ctx, k.extents) * reduce_cost(ctx, k)[1] + _HORIZONTAL
            case Parallel():
                found = True
                _assume(ctx, k.vars, k.extents)
                ways = [lane_cost(ctx, v, k.body) * waste(ctx, _known(ctx, e)) for v, e in zip(k.vars, k.extents, strict=True)]
                total += _turns(ctx, k.extents) * min(ways) / ctx.isa.lanes
            case For():
                inner = inner_cost(ctx, k.body)
                found = found or inner is not None
                total += _turns(ctx, (k.extent,)) * (inner or 10.0)
            case Store() | Atomic():
                total += 2.0 + prepare.weight(k.value)
    return total if found else None


def reduce_cost(ctx: Context, s: Reduce) -> tuple[Var | None, float]:
    """The variable of a reduction to run along the lanes, and the cost of an element then."""
    best: tuple[Var | None, float] = (None, 4.0 * (1 + prepare.weight(s.value)))
    for v, e in reversed(list(zip(s.vars, s.extents, strict=True))):
        cost = (1 + value_cost(ctx, v, s.value)) * waste(ctx, _known(ctx, e)) / ctx.isa.lanes
        if cost < best[1]:
            best = (v, cost)
    return best


def _own(s: Stmt) -> Iterator[Stmt]:
    """The statements of `s` outside loops, and the loops themselves."""
    match s:
        case Block() | If() | Let():
            for k in ir.bodies(s):
                yield from _own(k)
        case _:
            yield s


def _known(ctx: Context, e: Expr) -> int:
    x = ctx.facts.linear(e)
    return _UNKNOWN_EXTENT if x.terms else max(x.const, 1)


def _turns(ctx: Context, extents: Sequence[Expr]) -> int:
    total = 1
    for e in extents:
        total *= _known(ctx, e)
    return total


def _assume(ctx: Context, variables: Sequence[Var], extents: Sequence[Expr]) -> None:
    """Note the ranges of loop variables that are not bound yet, for the analysis of steps."""
    for v, e in zip(variables, extents, strict=True):
        ctx.suppose(v, (0, _known(ctx, e) - 1))


def value_cost(ctx: Context, v: Var, e: Expr) -> float:
    total = float(prepare.weight(e))
    for load in ir.loads(e):
        total += access_cost(ctx, v, load.buffer, load.index, _GATHER) - 1
    return total


def access_cost(ctx: Context, v: Var, buffer: Buffer, index: Sequence[Expr], scattered: float) -> float:
    step = step_along(ctx, v, buffer, index)
    if step is None:
        return 1.5 * scattered
    return _ACCESS.get(step, scattered)


def step_along(ctx: Context, v: Var, buffer: Buffer, index: Sequence[Expr]) -> int | None:
    """The distance between neighbours along `v`, if `v` were the variable of the lanes."""
    facts = ctx.facts
    saved = facts.lane, facts.lanes
    facts.lane, facts.lanes = v, ctx.isa.lanes
    step = facts.step(facts.address(buffer, index))
    facts.lane, facts.lanes = saved
    return step


# -- the order of loops


def accesses(s: Stmt) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    """Every element that `s` names: (buffer, index)."""
    found: dict[tuple[Buffer, tuple[Expr, ...]], None] = {}
    for k in ir.statements(s):
        for e in ir.expressions(k):
            for load in ir.loads(e):
                found[load.buffer, load.index] = None
        match k:
            case Store() | Atomic():
                found[k.buffer, k.index] = None
            case Reduce():
                found[k.dst, k.index] = None
    return list(found)


def _ordered(ctx: Context, axes: list[Axis], body: Stmt) -> list[Axis]:
    """The largest strides outermost, the given order where they are equal."""
    forms = [ctx.facts.address(buffer, index) for buffer, index in accesses(body)]

    def stride(a: Axis) -> int:
        return sum(abs(form.terms.get(a.var, 0)) for form in forms)

    return sorted(axes, key=stride, reverse=True)


def collapsed(ctx: Context, axes: list[Axis], lane: Axis, body: Stmt, also: Sequence[Linear] = ()) -> tuple[list[Axis], Axis]:
    """Let the lane's axis run on over others, where all accesses, and the forms in `also`, see them as one contiguous axis."""
    others = [a for a in axes if a is not lane]
    if not isinstance(lane.extent, int) or not others or not _only_indexes(ctx, [a.var for a in axes], body):
        return axes, lane
    all_accesses = accesses(body)
    pairs = [(i, n) for b, index in all_accesses for i, n in zip(index, b.shape, strict=True)]
    if not ctx.in_bounds and not all(ctx.facts.is_below(i, n) for i, n in pairs):
        return axes, lane
    forms = [*also, *(ctx.facts.address(buffer, index) for buffer, index in all_accesses)]
    extent = lane.extent
    merged: set[Var] = set()
    while True:
        for a in others:
            fits = all(form.terms.get(a.var, 0) == extent * form.terms.get(lane.var, 0) for form in forms)
            if a.var not in merged and isinstance(a.extent, int) and fits:
                extent *= a.extent
                merged.add(a.var)
                ctx.bind(a.var, 0)
                break
        else:
            break
    if not merged:
        return axes, lane
    ctx.in_bounds = True
    lane = Axis(lane.var, extent)
    return [*(a for a in others if a.var not in merged), lane], lane


def _only_indexes(ctx: Context, variables: Sequence[Var], body: Stmt) -> bool:
    """Whether the variables occur only as plain terms of addresses."""
    wanted = set(variables)

    def hidden(e: Expr) -> bool:
        if isinstance(e, Load):
            form = ctx.facts.address(e.buffer, e.index)
            return any(a not in wanted and not wanted.isdisjoint(ctx.facts.variables(a)) for a in form.terms)
        return e in wanted or any(hidden(c) for c in scalar.children(e))

    for s in ir.statements(body):
        match s:
            case Store(buffer, index, value):
                if hidden(Load(buffer, index)) or hidden(value):
                    return False
            case If() | Let():
                if any(hidden(e) for e in ir.expressions(s)):
                    return False
            case Block():
                pass
            case _:
                return False
    return True


def _unroll(body: Stmt) -> int:
    total = sum(prepare.weight(*ir.expressions(s)) for s in ir.statements(body))
    return UNROLL if total <= 12 else 2 if total <= 80 else 1


# -- the lanes


def strip(ctx: Context, axis: Axis, lanes: int, unroll: int, body: Callable[[], None], writes: frozenset[Buffer]) -> None:
    """Run `body` over the axis: `unroll` vectors of `lanes` a turn, then single vectors, then what does not fill one.

    The rest is a masked vector where the target has masks, and a scalar loop where it does not.
    """
    if isinstance(axis.extent, int):
        full, rest = divmod(axis.extent, lanes)
        turns = full // unroll if full > 2 * unroll else 0
        done = turns * unroll
        if turns:
            end = done * lanes
            ctx.loop(0, end, unroll * lanes, lambda b: part(ctx, axis, b, lanes, unroll, None, body), writes=writes)
        while done < full:
            count = min(unroll, full - done)
            inline(ctx, lambda d=done, c=count: part(ctx, axis, d * lanes, lanes, c, None, body))  # type: ignore[misc]
            done += count
        if rest and ctx.isa.has_masks:
            mask = ctx.ops(dtypes.b1, lanes).listed([int(k < rest) for k in range(lanes)])
            inline(ctx, lambda: part(ctx, axis, full * lanes, lanes, 1, mask, body))
        elif rest:
            ctx.loop(full * lanes, axis.extent, 1, lambda i: part(ctx, axis, i, 1, 1, None, body), writes=writes)
        return
    whole = ctx.f.let(f"and i64 {axis.extent}, {-lanes * unroll}")
    ctx.loop(0, whole, unroll * lanes, lambda b: part(ctx, axis, b, lanes, unroll, None, body), writes=writes)
    if not ctx.isa.has_masks or lanes == 1:
        ctx.loop(whole, axis.extent, 1, lambda i: part(ctx, axis, i, 1, 1, None, body), writes=writes)
        return
    ctx.loop(
        whole, axis.extent, lanes, lambda b: part(ctx, axis, b, lanes, 1, tail_mask(ctx, b, axis.extent), body), writes=writes
    )


def tail_mask(ctx: Context, base: str, extent: int | str) -> str:
    """The lanes of a vector at `base` that lie below `extent`."""
    lanes = ctx.isa.lanes
    left = ctx.i64.intrinsic("smin", str(ctx.f.index("sub", extent, base)), str(lanes))
    o = ctx.ops(dtypes.i32, lanes)
    wide = o.broadcast(ctx.i64.resized(left, ctx.ops(dtypes.i32, 1)))
    return o.compare("slt", o.listed(list(range(lanes))), wide)


def inline(ctx: Context, inside: Callable[[], None]) -> None:
    """A level of its own without a loop."""
    ctx.enter(False)
    inside()
    ctx.leave()


def part(ctx: Context, axis: Axis, base: int | str, lanes: int, copies: int, mask: str | None, body: Callable[[], None]) -> None:
    """`body` on `copies` vectors of the axis from `base` on."""
    ctx.lanes, ctx.copies, ctx.copy, ctx.mask = lanes, range(copies), 0, mask
    if lanes == 1 and copies == 1:
        ctx.bind(axis.var, base, extent_range(axis.extent))
    else:
        ctx.spread(axis.var, base, extent_range(axis.extent))
    body()
    ctx.lanes, ctx.copies, ctx.copy, ctx.mask = 1, range(1), 0, None
    ctx.facts.lane = None
    ctx.facts.changed()
