"""Matrix products with whatever pointwise work follows them.

In: a contract group and its operands as strided views. Out: one kernel: grid over batches, blocks of rows and panels of
columns; a block accumulates in a fragment and stores its results through the epilogue. The right side is read packed, in
place, or packed block by block into a shared buffer. Must not know attention or convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...base import scalar
from ...base.dims import Size, ceildiv, divides, provably_le, to_expr
from ...base.scalar import Expr, Var, const
from ...graph.ir import Node
from ..fuse import Group
from ..ir import Alloc, Buffer, Copy, Fill, For, Gemm, If, Parallel, Region, Scope, Stmt, Store, block
from ..layout import paired
from ..program import View
from ..schedule import dot_rows, expression_cycles, gemm_ns, plan_gemm
from .context import Context, Draft, Lowered, kernel_name
from .domain import Domain, Run, axis, extent, merged, refined
from .emit import Axis, Emitter, Params, Trace
from .pack import converted_copy
from .packing import PackedAttrs, pair_of
from .space import Affine, divisor_expr, row_major, shape_of

LEAST_ROWS = 4  # tiles of rows in a block, where their number is not known beforehand
PAIRED_ROWS = 4  # up to which packing a right side in pairs, inside the kernel, costs more than it gains

_PAD = 16  # elements that rows of a copy are longer by, so that they do not meet in one set of a cache


@dataclass(frozen=True)
class Side:
    """An operand: a strided view of the memory of `node`."""

    node: Node
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size

    def turned(self) -> Side:
        """The last two dimensions swapped."""
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return Side(self.node, shape, (*self.strides[:-2], self.strides[-1], self.strides[-2]), self.offset)


@dataclass(frozen=True)
class Operands:
    """`a` [batch..., M, K]; `b` [batch..., K, N], or packed as `packing` has it, `pair` rows of K together (0: it is not)."""

    a: Side
    b: Side
    pair: int

    @property
    def packed(self) -> bool:
        return self.pair > 0

    @property
    def structure(self) -> object:
        """All that a kernel over them depends on."""
        return tuple([(s.shape, s.strides, s.offset) for s in (self.a, self.b)])


def operands(core: Node, view_of: Callable[[Node], tuple[View, Node]]) -> Operands:
    """The operands of a matmul; `view_of` gives the strided view of a node and the node whose memory that is."""
    a, b = (_side(*view_of(n)) for n in core.args)
    return Operands(a, b, core.attrs.pair if isinstance(core.attrs, PackedAttrs) else 0)


def _side(view: View, node: Node) -> Side:
    return Side(node, view.shape, view.strides, view.offset)


def lower_contract(group: Group, context: Context, sides: Operands) -> list[Lowered]:
    return [_Contract(group, context, sides).lower()]


class _Contract:
    def __init__(self, group: Group, context: Context, sides: Operands) -> None:
        assert group.core is not None
        self.group, self.context, self.sides, self.core = group, context, sides, group.core
        self.machine, self.hints = context.machine, context.hints
        self.members = [m for m in group.members if m in context.targets]
        self.here = {*group.members, *group.inlined}
        self.n, self.k = shape_of(self.core)[-1], sides.a.shape[-1]
        self.likely = self.hints.all(shape_of(self.core))  # the shape by which code is chosen
        self.nr = self.machine.nr
        self.compute = self.core.dtype.compute
        self.pair = sides.pair or pair_of(self.machine, self.core.dtype, self.k)
        self.deep = ceildiv(self.k, self.pair) * self.pair
        self.ahead = sides.packed or self._in_place()
        self.along = not self.ahead and self._along_k()
        own = sides.packed or not (self.ahead or self.along)
        self.multiplies_pairs = self.pair > 1 and own
        self.wide = own and self._widens()
        if sides.packed:
            self.wide = sides.b.node.dtype is not self.core.dtype

    def _widens(self) -> bool:
        return isinstance(self.k, int) and self.machine.widens(self.core.dtype, self.k, self.likely[-2])

    def _in_place(self) -> bool:
        """Whether rows of b can be read where they are: contiguous, and not so far apart that few sets of a cache hold them."""
        k_step, n_step = self.sides.b.strides[-2:]
        rows = self.likely[-2]
        if self.pair > 1 and rows > PAIRED_ROWS:
            return False
        apart = self.hints(k_step) * self.core.dtype.bytes % 1024 == 0 and self.hints(self.k) > 64
        return (n_step == 1 or self.n == 1) and not (apart and rows > self.machine.mr)

    def _along_k(self) -> bool:
        """Whether b, contiguous along K, is multiplied where it is, as dot products: too few rows would share packed panels."""
        if not isinstance(self.k, int) or not all(isinstance(s, int) for s in shape_of(self.core)[:-1]):
            return False  # of how many rows, or of how much of K, decides how code multiplies them
        limit = PAIRED_ROWS if self.pair > 1 else dot_rows(self.k)
        contiguous = self.sides.b.strides[-2] == 1 and self.sides.a.strides[-1] == 1
        return contiguous and self.k > 1 and math.prod(self.likely[:-1]) <= limit

    # --- loops ---

    def lower(self) -> Lowered:
        domain = refined(self.group, self._probe)
        trace = Trace()
        self._evaluate(domain, domain.own_axes(), Params(), trace, None)
        kept = [v for dim in domain.dims[:-1] for v in dim]
        a_form, b_form = self._form(domain, self.sides.a.strides[:-1], True), self._form(domain, self._b_batch(), False)
        runs = merged(kept, [*trace.forms, a_form, b_form])
        rows: Run = []
        if runs and not any(b_form.coefficient(v) for v, _ in runs[-1]):
            rows = runs.pop()
        return _Writer(self, domain, runs, rows, a_form, b_form).kernel()

    def _probe(self, domain: Domain) -> None:
        self._evaluate(domain, domain.own_axes(), Params(), Trace(), None)

    def _b_batch(self) -> tuple[Size, ...]:
        return self.sides.b.strides[: -2 if not self.sides.packed else -3 if self.sides.pair == 1 else -4]

    def _form(self, domain: Domain, strides: tuple[Size, ...], with_rows: bool) -> Affine:
        """An operand's address, as far as it depends on batches (and rows), broadcast as matmul does."""
        index = domain.domain[: -1 if with_rows else -2]
        shape = self.sides.a.shape[:-1] if with_rows else self.sides.b.shape[: len(strides)]
        steps: list[Size] = [0 if s == 1 else t for s, t in zip(shape, strides, strict=True)]
        return domain.space.linear(index[len(index) - len(steps) :], steps)

    def _evaluate(self, domain: Domain, axes: list[Axis], params: Params, trace: Trace, acc: Expr | None) -> list[Store]:
        """The epilogue's stores, with `acc` for the product's element."""
        emitter = Emitter(domain.space, axes, params, self.context.values, self.context.targets, self.here, trace)
        product = acc if acc is not None else scalar.var("acc", self.compute)
        emitter.provided[self.core] = lambda index: product if index == domain.index[self.core] else None
        stores = []
        for m in self.members:
            buffer, at = emitter.store(m, domain.index[m])
            stores.append(Store(buffer, at, emitter.value(m, domain.index[m])))
        return stores


@dataclass(frozen=True)
class _Blocks:
    """Rows in `full` blocks of `size` and a last one of `rest`; `depths`: lengths of the K steps; `panels` of one block."""

    size: int
    full: Size
    rest: Size
    depths: tuple[Size, ...]
    panels: int


class _Writer:
    def __init__(self, owner: _Contract, domain: Domain, batches: list[Run], rows: Run, a_form: Affine, b_form: Affine) -> None:
        self.owner, self.domain, self.machine = owner, domain, owner.machine
        self.m = extent(rows)
        self.panels = ceildiv(owner.n, owner.nr)
        batch = owner.hints.product(extent(r) for r in batches)
        self.plan = self._planned(batch)
        self.draft = Draft(kernel_name(owner.group))
        self.grid: list[tuple[Var, Expr]] = [(scalar.var(f"b{i}"), to_expr(extent(run))) for i, run in enumerate(batches)]
        self.batches = [v for v, _ in self.grid]
        self.batch_axes = [axis(run, v) for run, v in zip(batches, self.batches, strict=True)]
        self.rows = rows
        self.a = self._left(batches, a_form)
        self.b = self._right(batches, b_form)
        self.cost = 0.0
        self.likely_rows = owner.hints(self.m)
        self.elements = batch * self.likely_rows * owner.hints(owner.n)

    def _planned(self, batch: int) -> _Blocks:
        owner = self.owner
        m, n, k = owner.hints.all((self.m, owner.n, owner.k))
        plan = plan_gemm(self.machine, m, n, k, batch, owner.pair, owner.wide)
        panels = plan.panels
        while not divides(panels, self.panels):
            panels -= 1
        size, full, rest = plan.rows
        if isinstance(self.m, int):
            return _Blocks(size, full, rest, plan.depths if isinstance(owner.k, int) else (owner.k,), panels)
        size = max(size, LEAST_ROWS * self.machine.mr)
        return _Blocks(size, self.m // size, self.m % size, plan.depths if isinstance(owner.k, int) else (owner.k,), panels)

    def _operand(self, side: Side, batches: list[Run], form: Affine, tail: int, rows: Run) -> Buffer:
        """The parameter [batch runs..., rows if any..., the last `tail` dimensions of the operand]."""
        shape = [extent(run) for run in batches]
        strides = [form.coefficient(run[-1][0]) for run in batches]
        if tail == 1:
            shape.append(self.m)
            strides.append(form.coefficient(rows[-1][0]) if rows else row_major((1, side.shape[-1]))[0])
        shape += side.shape[-tail:]
        strides += side.strides[-tail:]
        return self.draft.params.get(side.node, tuple(shape), tuple(strides), side.offset + form.const)

    def _right(self, batches: list[Run], form: Affine) -> Buffer:
        """b as the kernel reads it: panels, [batch..., K, N], or [batch..., N, K] where its blocks are transposed."""
        sides = self.owner.sides
        self.turned = not self.owner.ahead and sides.b.strides[-1] != 1
        b = sides.b.turned() if self.turned else sides.b
        if sides.pair <= 1:
            return self._operand(b, batches, form, 3 if sides.packed else 2, [])
        shape = (*(extent(run) for run in batches), b.shape[-4], self.owner.deep, self.owner.nr)
        steps = (*(form.coefficient(run[-1][0]) for run in batches), b.strides[-4])
        layout = paired([to_expr(s) for s in shape], [to_expr(s) for s in steps], sides.pair)
        return self.draft.params.get(b.node, shape, steps, b.offset + form.const, layout=layout)

    def _left(self, batches: list[Run], form: Affine) -> Buffer:
        """a; where its rows are wanted in another type, or in pairs while their elements lie apart, each block copies its own."""
        owner, side = self.owner, self.owner.sides.a
        self.copies = owner.wide or (owner.multiplies_pairs and side.strides[-1] != 1 and not provably_le(owner.k, 1))
        return self._operand(side, batches, form, 1, self.rows)

    # --- statements ---

    def kernel(self) -> Lowered:
        owner, plan = self.owner, self.plan
        panel = scalar.var("p")
        blocks = ceildiv(self.m, plan.size) if self.m != 0 else 0
        inside = not (owner.ahead or owner.along)
        row_var = scalar.var("mb")
        groups = self.panels // plan.panels
        some_blocks, some_groups = not provably_le(blocks, 1), not provably_le(groups, 1)
        loops = [(row_var, blocks)] if not inside and some_blocks else []
        if some_groups:
            loops.insert(0 if self._rows_stay() else len(loops), (panel, groups))
        self.grid += [(v, to_expr(count)) for v, count in loops]
        first = panel if some_groups else const(0)
        body = self._columns(first, lambda cols: self._rows(row_var if some_blocks else const(0), first, cols, inside))
        m, n, k = self.likely_rows, *owner.hints.all((owner.n, owner.k))
        cost = gemm_ns(self.machine, m, n, k, self.elements // max(1, m * n), owner.core.dtype.bytes)
        cost += self.elements * self.cost / (self.machine.lanes * self.machine.ghz)
        return self.draft.finish(self.grid, body, cost, bounded=True)

    def _rows_stay(self) -> bool:
        """Whether all of a stays in the second-level cache, so that each panel is read once.

        Only products of pairs are so fast that reading panels again for each block of rows shows.
        """
        size = self.likely_rows * self.owner.hints(self.owner.k) * self.owner.core.dtype.bytes
        return self.owner.multiplies_pairs and size <= self.machine.l2_bytes // 2

    def _columns(self, group: Expr, body: Callable[[Size], Stmt]) -> Stmt:
        """`body(columns of the last panel of the group)`, twice where the very last panel is ragged."""
        rest = self.owner.n % self.owner.nr
        if rest == 0:
            return body(self.owner.nr)
        whole = self.owner.n // self.owner.nr // self.plan.panels  # groups of full panels
        if whole == 0:
            return body(rest)
        return If(group < to_expr(whole), body(self.owner.nr), body(rest))

    def _rows(self, row: Expr, group: Expr, cols: Size, inside: bool) -> Stmt:
        size, full, rest = self.plan.size, self.plan.full, self.plan.rest
        if inside:
            return self._packing(row, group, cols)
        if rest == 0:
            return self._block(row * const(size), size, group, cols, None)
        if full == 0:
            return self._block(const(0), rest, group, cols, None)
        return If(
            row < to_expr(full),
            self._block(row * const(size), size, group, cols, None),
            self._block(row * const(size), rest, group, cols, None),
        )

    def _packing(self, row: Expr, group: Expr, cols: Size) -> Stmt:
        """Pack the group's panels, then walk the rows."""
        owner, count = self.owner, self.plan.panels
        deep = to_expr(owner.deep)
        shape = (const(count), deep, const(owner.nr))
        layout = paired(shape, (deep * const(owner.nr),), owner.pair) if owner.pair > 1 else None
        dtype = owner.compute if owner.wide else self.b.dtype
        packed = Buffer("packed", dtype, shape, Scope.SHARED, layout=layout)
        size, full, rest = self.plan.size, self.plan.full, self.plan.rest
        steps: list[Stmt] = []
        for q in range(count):
            width = to_expr(cols if q == count - 1 else owner.nr)
            first = (group * const(count) + const(q)) * const(owner.nr)
            if self.turned:
                src = Region(self.b, (*self.batches, first, const(0)), (*self._points(), width, deep))
            else:
                src = Region(self.b, (*self.batches, const(0), first), (*self._points(), deep, width))
            dst = Region(packed, (const(q), const(0), const(0)), (None, deep, width))
            steps.append(converted_copy(src, dst, self.turned))
        v = scalar.var("mi")
        if full == 1:
            steps.append(self._block(const(0), size, group, cols, packed))
        elif full != 0:
            steps.append(For(v, to_expr(full), self._block(v * const(size), size, group, cols, packed)))
        if rest != 0:
            steps.append(self._block(to_expr(full * size), rest, group, cols, packed))
        return Alloc(packed, block(*steps))

    def _points(self) -> tuple[None, ...]:
        return (None,) * len(self.batches)

    def _block(self, first_row: Expr, rows: Size, group: Expr, cols: Size, packed: Buffer | None) -> Stmt:
        """The products of one block of rows with the panels of a group, then their epilogues."""
        owner, count = self.owner, self.plan.panels
        room = rows if isinstance(rows, int) else self.plan.size
        acc = Buffer("acc", owner.compute, (const(count), const(room), const(owner.nr)), Scope.FRAGMENT)
        steps: list[Stmt] = []
        start: Size = 0
        for depth in self.plan.depths:
            products: list[Stmt] = []
            height, length = to_expr(rows), to_expr(depth)
            left = Region(self.a, (*self.batches, first_row, to_expr(start)), (*self._points(), height, length))
            dtype = owner.compute if owner.wide else self.a.dtype
            copy = Buffer("left", dtype, (const(room), length), Scope.SHARED, strides=(to_expr(depth + _PAD), const(1)))
            whole = Region(copy, (const(0), const(0)), (height, length))
            for q in range(count):
                width = cols if q == count - 1 else owner.nr
                products.append(self._gemm(acc, whole if self.copies else left, group, q, (start, depth), width, packed))
            steps.append(Alloc(copy, block(self._copied(left, whole), *products)) if self.copies else block(*products))
            start = start + depth
        for q in range(count):
            width = cols if q == count - 1 else owner.nr
            steps.append(self._epilogue(acc, first_row, rows, group, q, width))
        return Alloc(acc, block(*steps))

    def _copied(self, left: Region, copy: Region) -> Stmt:
        """Rows of a into a buffer, along them or across them, whichever is contiguous."""
        side = self.owner.sides.a
        if side.strides[-1] == 1 or left.buffer.dtype is copy.buffer.dtype:
            return Copy(left, copy)
        step = Buffer("narrow", left.buffer.dtype, copy.buffer.shape, Scope.SHARED)
        whole = Region(step, copy.offsets, copy.shape)
        return Alloc(step, block(Copy(left, whole), Copy(whole, copy)))

    def _gemm(
        self, acc: Buffer, a: Region, group: Expr, q: int, k: tuple[Size, Size], columns: Size, packed: Buffer | None
    ) -> Stmt:
        """One product: `k` is (start, length) of the step, `columns` those wanted."""
        owner, points = self.owner, self._points()
        start, depth, width = to_expr(k[0]), to_expr(k[1]), to_expr(columns)
        panel = group * const(self.plan.panels) + const(q)
        if packed is not None:
            b = Region(packed, (const(q), start, const(0)), (None, depth, width))
        elif owner.sides.packed:
            width = const(owner.nr)
            b = Region(self.b, (*self.batches, panel, start, const(0)), (*points, None, depth, width))
        elif owner.along:
            b = Region(self.b, (*self.batches, panel * const(owner.nr), start), (*points, width, depth))
        else:
            b = Region(self.b, (*self.batches, start, panel * const(owner.nr)), (*points, depth, width))
        target = Region(acc, (const(q), const(0), const(0)), (None, a.shape[0], width))
        if k[1] == 0:
            return Fill(target, const(0, acc.dtype))
        return Gemm(a, b, target, transpose_b=packed is None and owner.along, clear=k[0] == 0)

    def _epilogue(self, acc: Buffer, first_row: Expr, rows: Size, group: Expr, q: int, width: Size) -> Stmt:
        owner = self.owner
        i, j = scalar.var("i"), scalar.var("j")
        panel = group * const(self.plan.panels) + const(q)
        column = panel * const(owner.nr) + j
        columns = self.domain.dims[-1]
        axes = [*self.batch_axes]
        if self.rows:
            axes.append(axis(self.rows, first_row + i))
        if columns:
            axes.append(axis(columns, column, self._parts(columns, panel, j)))
        stores = owner._evaluate(self.domain, axes, self.draft.params, Trace(), acc[const(q), i, j])
        self.cost = expression_cycles(*(s.value for s in stores)) + 2
        return Parallel((i, j), (to_expr(rows), to_expr(width)), block(*stores))

    def _parts(self, columns: Run, panel: Expr, j: Expr) -> tuple[Expr, ...] | None:
        """The values of the variables that columns are split into, where whole panels lie within the innermost."""
        inner = columns[-1][1]
        if len(columns) == 1 or not divides(self.owner.nr, inner):
            return None
        per = divisor_expr(inner // self.owner.nr)
        parts: list[Expr] = [(panel % per) * const(self.owner.nr) + j]
        rest = panel // per
        for _, e in reversed(columns[1:-1]):
            parts.insert(0, rest % divisor_expr(e))
            rest = rest // divisor_expr(e)
        return (rest, *parts)
