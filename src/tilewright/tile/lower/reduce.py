"""Row kernels: any number of reductions over the same dimensions, with the pointwise work before, between and after them.

In: a rows group. Out: one kernel, a block a row (or a block of adjacent columns where what is kept is contiguous). The row is
walked once a stage: a stage reduces what depends on the results of the stages before. What several stages need and costs
something is computed once into a buffer of the block. Must not know softmax or norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...base import dtypes, scalar
from ...base.dims import ceildiv, to_expr
from ...base.scalar import Expr, Var, const
from ...graph.ir import Family, Node
from ..fuse import Group
from ..ir import Alloc, Buffer, If, Let, Parallel, Reduce, Scope, Stmt, Store, block
from ..schedule import elementwise_ns, expression_cycles
from .context import Context, Draft, Lowered, kernel_name
from .domain import Domain, Run, axis, extent, merged, refined
from .emit import Axis, Emitter, Params, Provider, Trace
from .inline import cycles
from .space import Affine, Index, shape_of
from .views import backward, broadcast, forward, is_view

KEEP_CYCLES = 8
"""Work of an element from which on it is kept for later stages instead of computed again."""
LANES_WIDE = 8  # vectors of adjacent columns in a block

OPS = {
    "sum": "sum",
    "prod": "prod",
    "amax": "max",
    "amin": "min",
    "any": "any",
    "all": "all",
    "argmax": "argmax",
    "argmin": "argmin",
}


def lower_rows(group: Group, context: Context) -> list[Lowered]:
    return [_Rows(group, context).lower()]


@dataclass
class _Plan:
    """`level[n]` is "full", "row" or "reduce"; `stage[n]`: how many reductions one after another stand before it.

    `kept`: full members computed into a buffer, with the stage in which that is done.
    """

    level: dict[Node, str] = field(default_factory=dict)
    stage: dict[Node, int] = field(default_factory=dict)
    kept: dict[Node, int] = field(default_factory=dict)
    last: int = 0


class _Rows:
    def __init__(self, group: Group, context: Context) -> None:
        self.group, self.context = group, context
        _promote(group)
        self.order = sorted(group.index, key=lambda n: n.serial)
        self.plan = self._planned()
        self.here = {*group.members, *group.inlined}

    # --- planning ---

    def _planned(self) -> _Plan:
        plan = _Plan()
        inner = {t for d in self.group.reduced for t, _ in self.group.domain[d].terms}
        for n in self.order:
            stages = [plan.stage[s] for s in self._operands(n)]
            if n.op.family is Family.REDUCE:
                plan.level[n], plan.stage[n] = "reduce", max(stages, default=0) + 1
                continue
            full = any(_mentions(i, inner) for i in self.group.index[n]) or not inner
            plan.level[n], plan.stage[n] = "full" if full else "row", max(stages, default=0)
        plan.last = max(plan.stage.values())
        self._keep(plan)
        return plan

    def _operands(self, n: Node) -> list[Node]:
        """The nodes of the group that `n` reads at the point where they are computed."""
        found = []
        for a in n.args:
            while is_view(a) and a not in self.group.index:
                a = a.args[0]
            if a in self.group.index:
                found.append(a)
        return found

    def _keep(self, plan: _Plan) -> None:
        """Decide which members are kept: those that several stages need and that cost something."""
        needed = self._needed(plan)
        work: dict[Node, float] = {}
        loads: dict[Node, set[Node]] = {}
        for n in self.order:
            work[n], loads[n] = 0.0, set()
            if plan.level[n] != "full":
                continue
            inside = self._operands(n)
            loads[n] = self._loads(n).union(*(loads[s] for s in inside))
            own = KEEP_CYCLES if n.op.family is Family.INDEX else cycles(n)
            work[n] = own + sum(work[s] for s in inside)
            if len(needed[n]) > 1 and (work[n] >= KEEP_CYCLES or len(loads[n]) > 1):
                plan.kept[n] = min(needed[n])
                work[n], loads[n] = 0.0, {n}
        needed = self._needed(plan)
        for n in [n for n in plan.kept if len(needed[n]) < 2]:
            del plan.kept[n]

    def _needed(self, plan: _Plan) -> dict[Node, set[int]]:
        """The stages in which each member is computed or read from where it is kept."""
        needed: dict[Node, set[int]] = {n: set() for n in self.order}
        for n in reversed(self.order):
            if plan.level[n] == "row":
                continue
            if n in self.context.targets:
                needed[n].add(plan.stage[n])
            stages = {min(needed[n])} if n in plan.kept and needed[n] else needed[n]
            if plan.level[n] == "reduce":
                stages = {plan.stage[n] - 1}
            for s in self._operands(n):
                needed[s] |= stages
        return needed

    def _loads(self, n: Node) -> set[Node]:
        """Operands of full size that come from memory."""
        numel, inside = math.prod(self.group.shape), set(self._operands(n))
        found = set()
        for a in n.args:
            s = a
            while is_view(s) and s not in inside:
                s = s.args[0]
            if s not in inside and a.tensor.numel == numel:
                found.add(s)
        return found

    # --- the loops ---

    def lower(self) -> Lowered:
        domain = refined(self.group, lambda d: self._probe(d, Trace()))
        trace = Trace()
        self._probe(domain, trace)
        reduced = [v for d in self.group.reduced for v in domain.dims[d]]
        kept = [v for d, dim in enumerate(domain.dims) if d not in self.group.reduced for v in dim]
        after = [v for d, dim in enumerate(domain.dims) if d > max(self.group.reduced) for v in dim]
        rows, inner = merged(kept, trace.forms), merged(reduced, trace.forms)
        lane = rows.pop() if after else self._narrow_lane(rows, inner)
        writer = _Writer(self, domain, rows, inner, lane)
        return writer.kernel()

    def _narrow_lane(self, rows: list[Run], inner: list[Run]) -> Run:
        """Rows shorter than a vector are taken a vector of rows at a time."""
        machine = self.context.machine
        hints = self.context.hints
        length = hints.product(extent(r) for r in inner)
        if rows and length <= machine.lanes // 2 and hints(extent(rows[-1])) >= machine.lanes:
            return rows.pop()
        return []

    def _probe(self, domain: Domain, trace: Trace) -> None:
        """Evaluate everything once, as if each member were computed from its operands alone."""
        emitter = self.emitter(domain, domain.own_axes(), Params(), trace)
        for n in self.order:
            self.evaluate(emitter, n, domain)
            if n in self.context.targets:
                emitter.store(n, domain.index[n])
            stand_in = scalar.var(f"t{n.serial}", n.dtype.compute)
            emitter.provided[n] = _at(domain.index[n], stand_in)

    def emitter(self, domain: Domain, axes: Sequence[Axis], params: Params, trace: Trace) -> Emitter:
        return Emitter(domain.space, axes, params, self.context.values, self.context.targets, self.here, trace)

    def evaluate(self, emitter: Emitter, n: Node, domain: Domain) -> Expr:
        """The value of a member, or what a reduction reduces."""
        if n.op.family is not Family.REDUCE:
            return emitter.value(n, domain.index[n])
        x = n.args[0]
        if x is self.group.anchor:
            return emitter.value(x, domain.domain)
        index = domain.index.get(x)
        return emitter.value(x, index if index is not None else self._through(domain, n))

    def _through(self, domain: Domain, n: Node) -> Index:
        """The index of a reduction's operand that is a view of a member."""
        def at(x: Node) -> Index:
            if x in domain.index:
                return domain.index[x]
            found = forward(domain.space, x, at(x.args[0]))
            assert found is not None
            return found

        return at(n.args[0])


class _Writer:
    """Writes the kernel of a rows group once its loops are known."""

    def __init__(self, rows: _Rows, domain: Domain, outer: list[Run], inner: list[Run], lane: Run) -> None:
        self.rows, self.domain, self.plan = rows, domain, rows.plan
        self.machine = rows.context.machine
        self.draft = Draft(kernel_name(rows.group))
        self.grid: list[tuple[Var, Expr]] = []
        self.outer_axes: list[Axis] = []
        for i, run in enumerate(outer):
            g = scalar.var(f"r{i}")
            self.grid.append((g, to_expr(extent(run))))
            self.outer_axes.append(axis(run, g))
        self.inner = [(scalar.var(f"c{i}"), to_expr(extent(run))) for i, run in enumerate(inner)]
        self.inner_axes = [axis(run, v) for run, (v, _) in zip(inner, self.inner, strict=True)]
        self.lane, self.lane_axes, self.width, self.ragged = self._laned(lane)
        self.emitter = rows.emitter(domain, [*self.outer_axes, *self.inner_axes, *self.lane_axes], self.draft.params, Trace())
        self.allocated: list[Buffer] = []
        self.work = 0.0

    def _laned(self, lane: Run) -> tuple[Var | None, list[Axis], int, tuple[Expr, Expr] | None]:
        if not lane:
            return None, [], 1, None
        size, width = extent(lane), LANES_WIDE * self.machine.lanes
        j = scalar.var("j")
        if isinstance(size, int) and size <= width:
            return j, [axis(lane, j)], size, None
        g = scalar.var("g")
        full, rest = size // width, size % width
        self.grid.append((g, to_expr(ceildiv(size, width))))
        return j, [axis(lane, g * const(width) + j)], width, (g < to_expr(full), to_expr(rest)) if rest != 0 else None

    def kernel(self) -> Lowered:
        body = self._stages(const(self.width))
        if self.ragged is not None:
            body = If(self.ragged[0], body, self._again(self.ragged[1]))
        for b in reversed(self.allocated):
            body = Alloc(b, body)
        group = self.rows.group
        elements = self.rows.context.hints.product(group.shape)
        moved = elements * 4 * (1 + sum(self.plan.level[t] == "full" for t in self.rows.context.targets if t in self.plan.level))
        return self.draft.finish(self.grid, body, elementwise_ns(self.machine, elements, self.work, moved), bounded=True)

    def _again(self, width: Expr) -> Stmt:
        """The same body for a narrower last block, in the same buffers."""
        buffers, self.work, work = self.allocated, 0.0, self.work
        self.emitter.provided.clear()
        self.emitter.memo.clear()
        self.allocated = []
        body = self._stages(width)
        self.allocated, self.work = buffers, work
        return body

    def _buffer(self, name: str, n: Node, shape: tuple[Expr, ...]) -> Buffer:
        made = Buffer(name, n.dtype.compute, shape or (const(1),), Scope.SHARED)
        self.allocated.append(made)
        return made

    def _stages(self, width: Expr) -> Stmt:
        """Statements stage by stage; a `Let` encloses all that follows it."""
        wraps: list[tuple[Var, Expr] | Stmt] = []
        for stage in range(self.plan.last + 1):
            wraps += self._full_pass(stage, width)
            for n in self.rows.order:
                if self.plan.level[n] == "reduce" and self.plan.stage[n] == stage + 1:
                    wraps += self._reduction(n, width)
            for n in self.rows.order:
                if self.plan.level[n] == "row" and self.plan.stage[n] == stage + 1:
                    wraps += self._bound(n, width)
            if stage == 0:
                first = [n for n in self.rows.order if self.plan.level[n] == "row" and self.plan.stage[n] == 0]
                wraps = [w for n in first for w in self._bound(n, width)] + wraps
        return _nested(wraps)

    # --- one stage ---

    def _full_pass(self, stage: int, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        """Computes what is kept from this stage on, and the results over the whole row that are ready."""
        stores: list[Stmt] = []
        for n in self.rows.order:
            if self.plan.level[n] != "full":
                continue
            kept = self.plan.kept.get(n) == stage
            ready = self.plan.stage[n] == stage and n in self.rows.context.targets
            if not kept and not ready:
                continue
            value = self._value(n)
            both = kept and ready
            shared = scalar.var(f"k{self.rows.order.index(n)}", value.dtype) if both else value
            group: list[Stmt] = []
            if kept:
                group.append(self._keep(n, shared, width))
            if ready:
                buffer, at = self.emitter.store(n, self.domain.index[n])
                group.append(Store(buffer, at, shared))
            stores.append(Let(shared, value, block(*group)) if isinstance(shared, Var) and both else block(*group))
        if not stores:
            return []
        return [self._parallel([*self.inner], width, block(*stores))]

    def _value(self, n: Node) -> Expr:
        value = self.rows.evaluate(self.emitter, n, self.domain)
        if self.plan.level[n] != "row":
            self.work += expression_cycles(value)
        return value

    def _keep(self, n: Node, value: Expr, width: Expr) -> Stmt:
        number = sum(b.name.startswith("row") for b in self.allocated)
        shape = (*(e for _, e in self.inner), *((const(self.width),) if self.lane is not None else ()))
        buffer = self._buffer(f"row{number}", n, shape)
        at = (*(v for v, _ in self.inner), *((self.lane,) if self.lane is not None else ())) or (const(0),)
        self.emitter.provided[n] = _at(self.domain.index[n], buffer[at])
        self._forget()
        return Store(buffer, at, value)

    def _forget(self) -> None:
        """Expressions over what is now kept must be made anew."""
        self.emitter.memo.clear()

    def _reduction(self, n: Node, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        value = self._value(n)
        op = OPS[n.op.name]
        if value.dtype is dtypes.b1 and op in ("max", "min"):
            op = "any" if op == "max" else "all"
        number = sum(b.name.startswith("acc") for b in self.allocated)
        buffer = self._buffer(f"acc{number}", n, (const(self.width),))
        if n.dtype.compute is not value.dtype and op not in ("argmax", "argmin"):
            value = scalar.cast(value, n.dtype.compute)
        at: tuple[Expr, ...] = (const(0),) if self.lane is None else (self.lane,)
        variables, extents = tuple(v for v, _ in self.inner), tuple([e for _, e in self.inner])
        if not variables:
            variables, extents = (scalar.var("c"),), (const(1),)
        reduce: Stmt = Reduce(op, buffer, at, variables, extents, value)
        self._forget()
        return [self._parallel([], width, reduce), *self._kept_row(n, buffer, width)]

    def _bound(self, n: Node, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        """A value a row, computed from reductions."""
        value = self._value(n)
        self._forget()
        if self.lane is None:
            return self._let(n, value, width)
        number = sum(b.name.startswith("acc") for b in self.allocated)
        buffer = self._buffer(f"acc{number}", n, (const(self.width),))
        return [self._parallel([], width, Store(buffer, (self.lane,), value)), *self._kept_row(n, buffer, width)]

    def _kept_row(self, n: Node, buffer: Buffer, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        if self.lane is None:
            return self._let(n, buffer[0], width)
        self.emitter.provided[n] = _at(self.domain.index[n], buffer[self.lane])
        return self._row_result(n, buffer[self.lane], width)

    def _let(self, n: Node, value: Expr, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        v = scalar.var(f"t{self.rows.order.index(n)}", value.dtype)
        self.emitter.provided[n] = _at(self.domain.index[n], v)
        return [(v, value), *self._row_result(n, v, width)]

    def _row_result(self, n: Node, value: Expr, width: Expr) -> list[tuple[Var, Expr] | Stmt]:
        if n not in self.rows.context.targets:
            return []
        buffer, at = self.emitter.store(n, self.domain.index[n])
        return [self._parallel([], width, Store(buffer, at, value))]

    def _parallel(self, loops: list[tuple[Var, Expr]], width: Expr, body: Stmt) -> Stmt:
        if self.lane is not None:
            loops = [*loops, (self.lane, width)]
        if not loops:
            return body
        return Parallel(tuple(v for v, _ in loops), tuple([e for _, e in loops]), body)


def _at(index: Index, value: Expr) -> Provider:
    """A provider of `value` at exactly `index`."""
    return lambda at: value if at == index else None


def _mentions(a: Affine, atoms: set[Expr]) -> bool:
    return any(any(leaf in atoms for leaf in scalar.walk(t)) for t, _ in a.terms)


def _nested(parts: Sequence[tuple[Var, Expr] | Stmt]) -> Stmt:
    """Statements in order, where a (variable, value) pair is in scope in all that follows it."""
    following: list[Stmt] = []
    for part in reversed(parts):
        if isinstance(part, tuple):
            following = [Let(part[0], part[1], block(*following))]
        else:
            following.insert(0, part)
    return block(*following)


def _promote(group: Group) -> None:
    """Give recomputed nodes that are read at one point only an index, so that they can be kept like members."""
    for n in sorted(group.inlined, key=lambda m: -m.serial):
        found: set[Index | None] = set()
        for m in [*group.index]:
            if m.op.family is Family.INDEX:
                if any(_under(a, n) for a in m.args):
                    found.add(None)  # read elsewhere than at the point
                continue
            for a in m.args:
                if _under(a, n):
                    found.add(_read_at(group, m, a, n))
        index = next(iter(found)) if len(found) == 1 else None
        if index is not None:
            group.index[n] = index


def _under(a: Node, n: Node) -> bool:
    while a is not n and is_view(a):
        a = a.args[0]
    return a is n


def _read_at(group: Group, m: Node, a: Node, n: Node) -> Index | None:
    if m.op.family is not Family.REDUCE:
        index = broadcast(group.index[m], shape_of(a))
    elif a is group.anchor:
        index = group.domain
    else:
        return None
    while a is not n:
        index = backward(group.space, a, index)
        a = a.args[0]
    return index
