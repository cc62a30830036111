"""Attention as one flash-style kernel: scores live in a block's buffer, never in memory.

In: strided views of q, k, v, an optional mask and the result. Out: one launch. Must not know graphs, fusion or instructions.

A grid block belongs to one key head and takes every `parts`-th block of query rows of the heads that share it. It packs k^T
into panels once. Where all columns fit one block of scores, softmax is done on whole rows; else blocks of columns follow
each other with a running maximum and sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et
al., "FlashAttention", 2022), and what lies above the diagonal of a causal mask is never computed.
Where the machine multiplies bf16 in pairs, keys, values, queries and weights stay bf16; scores and sums are fp32.

Lengths, heads and batches may be symbolic. Then blocks of rows have one size and the last one is cut at run time, and
scores are the first block of columns, of whole rows where there are no more, then those that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...base.dims import Size, as_int, ceildiv, divides, provably_le, provably_lt, to_expr
from ...base.dims import maximum as greatest
from ...base.dims import minimum as least
from ...base.dtypes import DType
from ...base.scalar import cast, const, maximum, minimum, select, unary
from ..builder import Index, KernelBuilder, Span, region
from ..hints import Hints
from ..ir import Buffer, Const, Expr, Region, Scope
from ..layout import paired
from ..program import Arg, Launch, View
from ..schedule import Machine, balanced, gemm_ns, op_cycles
from .pack import converted_copy

ROWS = 64  # query rows of a block
WHOLE = 512  # columns up to which scores of a block are whole rows
COLUMNS = 512  # of a block of scores where there are more
CHUNK = 128  # columns that a product with values takes at a time where their number is found at run time
FEW = 2  # query rows up to which scores are dot products, since packing k would cost as much
_PAD = 16  # elements that rows of scores are longer by, so that they do not meet in one set of a cache
_ALIASING = 1024  # bytes; rows this far apart, or a multiple, meet in few sets


@dataclass(frozen=True)
class Problem:
    """The operands with dimensions [batch.., heads, length, features]; q has `group` heads for each one of k and v.

    `safe`: a row whose scores are all -inf gives zeros, not NaN.
    """

    q: View
    k: View
    v: View
    mask: View | None
    out: View
    scale: float
    causal: bool
    safe: bool

    @property
    def rows(self) -> Size:
        return self.q.shape[-2]

    @property
    def columns(self) -> Size:
        return self.k.shape[-2]

    @property
    def group(self) -> Size:
        heads, own = self.q.shape[-3], self.k.shape[-3]
        return heads // own if heads != own else 1

    @property
    def depth(self) -> int:
        return as_int(self.q.shape[-1])

    @property
    def features(self) -> int:
        return as_int(self.v.shape[-1])

    @property
    def compute(self) -> DType:
        return self.q.value.dtype.compute


def lower_attention(
    q: View,
    k: View,
    v: View,
    mask: View | None,
    out: View,
    *,
    scale: float,
    causal: bool,
    machine: Machine,
    safe: bool = True,
    hints: Hints | None = None,
) -> Launch:
    """The launch that computes `out` = softmax(q k^T * scale + mask) v, as the row `attention` of the op table says.

    q [B.., Hq, Sq, D], k [B.., Hkv, Skv, D], v [B.., Hkv, Skv, Dv], out [B.., Hq, Sq, Dv], mask bool or of q's dtype and
    broadcastable to [B.., Hq, Sq, Skv]; any strides, Hkv > 0. All but D and Dv may be symbolic; raises TypeError where one
    of these is.
    """
    problem = _few_rows(Problem(q, k, v, mask, out, scale, causal, safe))
    return _Writer(problem, machine, hints or Hints()).launch()


def index(s: Size) -> Index:
    return s if isinstance(s, int) else to_expr(s)


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for s in sizes:
        total = total * s
    return total


def _few_rows(p: Problem) -> Problem:
    """A single query row: a causal one sees one key; heads that share keys become the rows of one."""
    if p.rows != 1:
        return p
    if p.causal:
        first = least(1, p.columns)
        p = replace(p, k=_cut(p.k, first), v=_cut(p.v, first), causal=False)
    if p.group == 1:
        return p
    heads, group = p.k.shape[-3], p.group

    def turned(x: View) -> View:
        """[B.., heads * group, 1, F] as [B.., heads, group, F]; a broadcast mask as it needs."""
        over, step = x.shape[-3], x.strides[-3]
        if over == 1:
            step = 0
        shape = (*x.shape[:-3], heads, group, x.shape[-1])
        return View(x.value, shape, (*x.strides[:-3], step * group, step, x.strides[-1]), x.offset)

    mask = None if p.mask is None else turned(_of_rank(p.mask, len(p.q.shape)))
    return replace(p, q=turned(p.q), out=turned(p.out), mask=mask)


def _cut(x: View, length: Size) -> View:
    return View(x.value, (*x.shape[:-2], length, x.shape[-1]), x.strides, x.offset)


def _of_rank(x: View, rank: int) -> View:
    """`x` with leading dimensions of size 1."""
    more = rank - len(x.shape)
    return View(x.value, (1,) * more + x.shape, (0,) * more + x.strides, x.offset)


def _broadcast(x: View, shape: tuple[Size, ...]) -> View:
    x = _of_rank(x, len(shape))
    strides = tuple(0 if a == 1 else t for a, t in zip(x.shape, x.strides, strict=True))
    return View(x.value, shape, strides, x.offset)


@dataclass(frozen=True)
class Columns:
    """A block of scores: columns `first`.. of the keys, `count` of them; `diagonal`: some lie above the diagonal."""

    first: Expr
    count: Expr
    diagonal: bool


class _Writer:
    """Writes the kernel of one problem."""

    def __init__(self, problem: Problem, machine: Machine, hints: Hints) -> None:
        self.p, self.machine, self.hints = problem, machine, hints
        self.b = KernelBuilder("attention", hints.values)
        self.dtype = problem.compute
        self.nr = machine.nr
        self.pair = self._pairing()
        self.element = problem.q.value.dtype if self.pair > 1 else self.dtype
        self.block = self._block_rows()
        self.few = provably_le(problem.rows, FEW)
        self.whole = provably_le(problem.columns, WHOLE)
        self.width = problem.columns if self.whole and isinstance(problem.columns, int) else COLUMNS
        self.open = not isinstance(problem.columns, int)  # how many columns a block has is found at run time
        self.chunk = self.unit if self.open else min(CHUNK, self.deep(self.width)) if problem.causal else 1
        self.folds_scale = math.isfinite(problem.scale) and abs(math.frexp(problem.scale)[0]) == 0.5
        self.args: list[Arg] = []

    def _pairing(self) -> int:
        """How many rows of a right side lie together; 1 where products are fp32."""
        p = self.p
        same = p.q.value.dtype is p.k.value.dtype is p.v.value.dtype
        return self.machine.pair_of(p.q.value.dtype, p.depth) if same and not provably_le(p.rows, FEW) else 1

    def _block_rows(self) -> int:
        """Query rows of a block: whole tiles where their number is known at run time only."""
        if isinstance(self.p.rows, int):
            return balanced(self.p.rows, ROWS)[0]
        unit = self.machine.tile if self.pair > 1 and self.machine.tile else self.machine.mr
        return max(unit, ROWS // unit * unit)

    def deep(self, k: int) -> int:
        """`k` elements of a product as buffers hold them: with zeros behind up to whole steps of the tile registers."""
        return math.ceil(k / self.unit) * self.unit

    @property
    def unit(self) -> int:
        return max(self.pair, self.machine.tile) if self.pair > 1 else 1

    def launch(self) -> Launch:
        p = self.p
        q, k, v = (self._param(n, x) for n, x in (("q", p.q), ("k", p.k), ("v", p.v)))
        self.mask = None
        if p.mask is not None:
            self.mask = self._param("mask", _broadcast(p.mask, (*p.q.shape[:-1], p.k.shape[-2])))
        self.out = self._param("out", p.out, out=True)
        self.parts = self._parts()
        *batch, self.part = self.b.grid(*(index(s) for s in p.k.shape[:-2]), index(self.parts))
        self.head: tuple[Expr, ...] = tuple(batch)
        self.q, self.k, self.v = q, k, v
        if p.columns == 0:
            self._nothing()
        elif p.safe or provably_lt(0, p.columns):
            self._body()
        else:
            with self.b.if_(to_expr(p.columns).eq(0)):
                self._nothing()
            with self.b.else_():
                self._body()
        return Launch(self.b.build(self._cost(), bounded=True), tuple(self.args))

    def _param(self, name: str, x: View, out: bool = False) -> Buffer:
        self.args.append(Arg(x.value, x.offset))
        return self.b.param(name, x.value.dtype, [index(s) for s in x.shape], [index(s) for s in x.strides], out=out)

    def _parts(self) -> Size:
        """Grid blocks a key head: enough to keep all threads busy, but each packs k anew."""
        heads = greatest(product(self.p.k.shape[:-2]), 1)
        units = self.p.group * ceildiv(self.p.rows, max(self.block, 1))
        return greatest(1, least(units, ceildiv(4 * self.machine.threads, heads))) if self.machine.threads > 1 else 1

    def _cost(self) -> float:
        p = self.p
        columns = self.hints(p.columns)
        pairs = self.hints.product(p.q.shape[:-1]) * columns // (2 if p.causal else 1)
        rows = max(pairs // max(columns, 1), 1)
        products = gemm_ns(self.machine, rows, columns, p.depth + p.features, 1, p.q.value.dtype.bytes)
        return products + pairs * (op_cycles("exp") + 6) / self.machine.lanes / self.machine.ghz

    def _nothing(self) -> None:
        """No keys at all: a product over nothing."""
        with self.b.if_(self.part.eq(0)), self.b.for_(index(self.p.group), name="g") as g:
            head = (*self.head[:-1], self.head[-1] * to_expr(self.p.group) + g)
            with self.b.parallel(index(self.p.rows), self.out.shape[-1]) as (r, d):
                self.b.store(self.out, (*head, r, d), 0.0)

    # --- the loops over query rows ---

    def _body(self) -> None:
        if not self.few:
            self._pack_keys()
        self.values = self._packed_values()
        if not isinstance(self.p.rows, int):
            self._units(ceildiv(self.p.rows, self.block), None, 0)
            return
        size, full, rest = balanced(self.p.rows, ROWS)
        if full:
            self._units(full, size, 0)
        if rest:
            self._units(1, rest, full * size)

    def _units(self, blocks: Size, rows: int | None, first: int) -> None:
        """Every `parts`-th one of `blocks` blocks of rows in each head of the group; `rows` each, None: what is left."""
        units = blocks * self.p.group
        with self.b.for_(index(ceildiv(units, self.parts)), name="turn") as turn:
            unit = turn * to_expr(self.parts) + self.part
            if divides(self.parts, units):
                self._unit(unit, blocks, rows, first)
            else:
                with self.b.if_(unit < to_expr(units)):
                    self._unit(unit, blocks, rows, first)

    def _unit(self, unit: Expr, blocks: Size, rows: int | None, first: int) -> None:
        head, count = self.head, to_expr(blocks)
        if self.p.group != 1:
            head = (*head[:-1], head[-1] * to_expr(self.p.group) + unit // count)
        start = unit % count * const(self.block if rows is None else rows) + const(first)
        if rows is None:
            start = self.b.let(start, "start")
            left = self.b.let(minimum(to_expr(self.p.rows) - start, self.block), "rows")
            _Block(self, head, start, left, self.block).write()
        else:
            _Block(self, head, start, const(rows), rows).write()

    # --- keys and values ---

    def _pack_keys(self) -> None:
        """k^T in panels [ceil(columns / nr)][D][nr], zero beyond the last column."""
        d, nr = self.deep(self.p.depth), self.nr
        shape = (index(ceildiv(self.p.columns, nr)), d, nr)
        layout = paired(shape, (d * nr,), self.pair) if self.pair > 1 else None
        self.panels = self.b.alloc(self.element, shape, Scope.SHARED, "panels", layout=layout)
        with self.b.for_(shape[0], name="panel") as panel:
            source = region(self.k, *self.head, (panel * const(nr), nr), (0, d))
            self.b.emit(converted_copy(source, region(self.panels, panel, (0, d), (0, nr)), True))

    def _packed_values(self) -> Callable[[Span, Span], Region]:
        """How to name a region of v: in place, or as a row-major copy where reading it again and again would be slow."""
        v, rows, features = self.p.v, index(self.p.columns), self.p.features
        if self.pair > 1:
            rows = index(ceildiv(ceildiv(self.p.columns, self.unit) * self.unit, self.chunk) * self.chunk)
            pairs = self.b.alloc(v.value.dtype, (rows, features), Scope.SHARED, "values", layout=paired((rows, features), ()))
            self.b.copy(region(self.v, *self.head, (0, rows), (0, features)), pairs)
            return lambda span, across: region(pairs, span, across)
        stride = self.hints(v.strides[-2])
        strided = (features > 1 or self.open) and v.strides[-1] != 1
        slow = v.value.dtype is not self.dtype or stride * v.value.dtype.bytes % _ALIASING == 0 or stride < features
        often = self.hints(self.p.rows * self.p.group // self.parts) > 2 * FEW
        if not strided and not (slow and often):
            return lambda span, across: region(self.v, *self.head, span, across)
        steps = (features + (_PAD if features * self.dtype.bytes % _ALIASING == 0 else 0), 1)
        copy = self.b.alloc(self.dtype, (rows, features), Scope.SHARED, "values", strides=steps)
        self.b.copy(region(self.v, *self.head, (0, rows), (0, features)), copy)
        return lambda span, across: region(copy, span, across)


class _Block:
    """One block of query rows of one head: `rows` of them from `start`, in buffers with `room` for so many."""

    def __init__(self, writer: _Writer, head: tuple[Expr, ...], start: Expr, rows: Expr, room: int) -> None:
        self.w, self.b, self.head, self.start, self.rows = writer, writer.b, head, start, rows
        self.features, dtype = writer.p.features, writer.dtype
        deep, element = writer.deep(writer.p.depth), writer.element
        pad = _PAD if deep * element.bytes % _ALIASING == 0 else 0
        width = math.ceil(writer.width / writer.nr) * writer.nr
        self.query = self.b.alloc(element, (room, deep), Scope.SHARED, "query", strides=(deep + pad, 1))
        self.scores = self.b.alloc(dtype, (room, width), Scope.FRAGMENT, "scores", strides=(width + _PAD, 1))
        self.weights = self.scores  # what the values are multiplied with
        if writer.pair > 1:
            wide = math.ceil(writer.deep(writer.width) / writer.chunk) * writer.chunk
            self.weights = self.b.alloc(element, (room, wide), Scope.FRAGMENT, "weights", strides=(wide + 2 * _PAD, 1))
        self.acc = self.b.alloc(dtype, (room, self.features), Scope.FRAGMENT, "acc")
        self.highest, self.total = (self.b.alloc(dtype, (room,), Scope.SHARED, n) for n in ("highest", "total"))
        self.peak = self.b.alloc(dtype, (room,), Scope.SHARED, "peak")

    def write(self) -> None:
        self._load_query()
        if self.w.open:
            self._any_columns()
        elif self.w.whole:
            self._whole_rows(Columns(const(0), self._columns_seen(), self.w.p.causal))
        else:
            self._running()
        self._store()

    def _any_columns(self) -> None:
        """The first block as whole rows, then those that follow, if there are any."""
        causal, width = self.w.p.causal, const(self.w.width)
        seen = self.b.let(self._columns_seen(), "columns")
        if self.w.whole:
            self._whole_rows(Columns(const(0), seen, causal))
            return
        self._whole_rows(Columns(const(0), self.b.let(minimum(seen, width), "first"), causal))
        with self.b.for_((seen + (width - 1)) // width - 1, name="step") as step:
            first = self.b.let((step + 1) * width, "from")
            self._step(Columns(first, self.b.let(minimum(seen - first, width), "count"), causal))

    def _load_query(self) -> None:
        """A copy in the type that is multiplied, scaled where that is exact."""
        depth = self.w.p.depth
        with self.b.parallel(self.rows, depth) as (r, d):
            x = cast(self.w.q[(*self.head, self.start + r, d)], self.w.dtype)
            x = x * self.w.p.scale if self.w.folds_scale and self.w.p.scale != 1 else x
            self.b.store(self.query, (r, d), cast(x, self.query.dtype))
        if depth < self.w.deep(depth):
            self.b.fill(region(self.query, (0, self.rows), (depth, self.w.deep(depth) - depth)), 0.0)

    def _columns_seen(self) -> Expr:
        """Up to which column the last row of the block sees."""
        columns = to_expr(self.w.p.columns)
        return minimum(self.start + self.rows, columns) if self.w.p.causal else columns

    # --- scores in whole rows ---

    def _whole_rows(self, columns: Columns) -> None:
        self._multiply_keys(columns)
        with self.b.for_(self.rows, name="r") as r:
            seen = self._seen(r, columns)
            self.b.reduce("max", self.highest, r, [seen], lambda j: self._score(r, j, columns))
            self._exponentials(r, self._finite(self.highest[r]), seen, columns)
            self.b.reduce("sum", self.total, r, [seen], lambda j: self._weight(r, j))
        self._multiply_values(columns, clear=True)

    # --- scores in blocks of columns ---

    def _running(self) -> None:
        with self.b.parallel(self.rows) as (r,):
            self.b.store(self.highest, r, -math.inf)
            self.b.store(self.total, r, 0.0)
        self.b.fill(self.acc, 0.0)
        width, columns = const(self.w.width), to_expr(self.w.p.columns)
        full = (minimum(self.start + 1, columns) if self.w.p.causal else columns) // width
        with self.b.for_(full, name="step") as step:
            self._step(Columns(step * width, width, False))
        if self.w.p.causal:
            seen = self._columns_seen()
            with self.b.for_((seen + (width - 1)) // width - full, name="late") as late:
                first = (full + late) * width
                self._step(Columns(first, minimum(seen - first, width), True))
        elif self.w.p.columns % self.w.width != 0:
            self._step(Columns(full * width, columns % width, False))

    def _step(self, columns: Columns) -> None:
        """One block of columns: what was summed before is rescaled to the new highest score."""
        self._multiply_keys(columns)
        with self.b.for_(self.rows, name="r") as r:
            seen = self._seen(r, columns)
            self.b.reduce("max", self.peak, r, [seen], lambda j: self._score(r, j, columns))
            now = self.b.let(maximum(self.highest[r], self.peak[r]), "now")
            shift = self._finite(now)
            keep = self.b.let(unary("exp", self.highest[r] - shift), "keep")
            self.b.store(self.highest, r, now)
            self._exponentials(r, shift, seen, columns)
            self.b.reduce("sum", self.peak, r, [seen], lambda j: self._weight(r, j))
            self.b.store(self.total, r, self.total[r] * keep + self.peak[r])
            with self.b.parallel(self.features) as (d,):
                self.b.store(self.acc, (r, d), self.acc[r, d] * keep)
        self._multiply_values(columns, clear=False)

    # --- what both share ---

    def _multiply_keys(self, columns: Columns) -> None:
        """scores = query k^T; columns beyond the last key of a panel hold zeros that nobody reads."""
        if self.w.few:
            depth = self.query.shape[1]
            with self.b.parallel(self.rows, columns.count) as (r, j):

                def term(d: Expr) -> Expr:
                    return self.query[r, d] * cast(self.w.k[(*self.w.head, columns.first + j, d)], self.w.dtype)

                self.b.reduce("sum", self.scores, (r, j), [depth], term)
            return
        nr = const(self.w.nr)
        with self.b.for_((columns.count + (nr - 1)) // nr, name="panel") as panel:
            keys = region(self.w.panels, columns.first // nr + panel, (0, self.w.panels.shape[1]), (0, nr))
            query = region(self.query, (0, self.rows), (0, self.query.shape[1]))
            self.b.gemm(query, keys, region(self.scores, (0, self.rows), (panel * nr, nr)), clear=True)

    def _multiply_values(self, columns: Columns, clear: bool) -> None:
        rows, across = (0, self.rows), (0, self.features)
        target = region(self.acc, rows, across)
        if self.w.pair == 1:
            values = self.w.values((columns.first, columns.count), across)
            self.b.gemm(region(self.weights, rows, (0, columns.count)), values, target, clear=clear)
            return
        if self.w.open or isinstance(columns.count, Const):
            depth = self._multiplied(columns)
            self.b.gemm(
                region(self.weights, rows, (0, depth)), self.w.values((columns.first, depth), across), target, clear=clear
            )
            return
        if clear:
            self.b.fill(region(self.acc, rows, across), 0.0)

        chunk = const(self.w.chunk)
        with self.b.for_((columns.count + (chunk - 1)) // chunk, name="chunk") as i:
            values = self.w.values((columns.first + i * chunk, chunk), across)
            self.b.gemm(region(self.weights, rows, (i * chunk, chunk)), values, target)

    def _seen(self, r: Expr, columns: Columns) -> Expr:
        """How many of the block's columns row r sees: those before the diagonal."""
        if not columns.diagonal:
            return columns.count
        return self.b.let(maximum(minimum(self.start + r + 1 - columns.first, columns.count), 0), "seen")

    def _exponentials(self, r: Expr, shift: Expr, seen: Expr, columns: Columns) -> None:
        """Weights in the place of scores, not yet divided by their sum; 0 where nothing is seen."""
        with self.b.parallel(seen) as (j,):
            weight = unary("exp", self._score(r, j, columns) - shift)
            self.b.store(self.weights, (r, j), cast(weight, self.weights.dtype))
        end = self._multiplied(columns)
        if end is not seen:
            with self.b.parallel(end - seen) as (j,):
                self.b.store(self.weights, (r, seen + j), 0.0)

    def _multiplied(self, columns: Columns) -> Expr:
        """How many of the block's columns the product with the values takes."""
        if self.w.pair == 1:
            return columns.count
        if isinstance(columns.count, Const):
            depth = self.w.deep(int(columns.count.value))
            return columns.count if depth == columns.count.value else const(depth)
        chunk = const(self.w.chunk)
        return (columns.count + (chunk - 1)) // chunk * chunk

    def _weight(self, r: Expr, j: Expr) -> Expr:
        return cast(self.weights[r, j], self.w.dtype)

    def _score(self, r: Expr, j: Expr, columns: Columns) -> Expr:
        """The score of row r and column j of the block, scaled and masked."""
        x: Expr = self.scores[r, j]
        if not self.w.folds_scale:
            x = x * self.w.p.scale
        mask = self.w.mask
        if mask is None:
            return x
        m = mask[(*self.head, self.start + r, columns.first + j)]
        return select(m, x, -math.inf) if m.dtype.kind == "bool" else x + cast(m, self.w.dtype)

    def _finite(self, highest: Expr) -> Expr:
        """What scores are reduced by: the highest, or 0 where all are -inf, so that their exponentials are 0, not NaN."""
        return self.b.let(select(highest.eq(-math.inf), const(0.0, self.w.dtype), highest), "shift")

    def _store(self) -> None:
        dtype = self.w.p.out.value.dtype
        with self.b.for_(self.rows, name="r") as r:
            part = 1 / self.total[r]
            part = self.b.let(select(self.total[r].eq(0), const(0.0, self.w.dtype), part) if self.w.p.safe else part, "part")
            with self.b.parallel(self.features) as (d,):
                self.b.store(self.w.out, (*self.head, self.start + r, d), cast(self.acc[r, d] * part, dtype))
