"""Graph nodes as scalar expressions of the loop variables: what every template builds its statements from.

In: nodes, the index at which an element is wanted, and which nodes are in memory. Out: `Expr` with loads of kernel
parameters. Views, gathers, concatenations and pads are index arithmetic here; everything pointwise is recomputed where it
is asked for. Must not know grids or statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...base import dims, dtypes, scalar
from ...base.dims import Size, provably_le, provably_lt, to_expr
from ...base.scalar import Expr, Var, cast, const
from ...graph.ir import Family, Node
from ...graph.ops.index import CAT, GATHER, TAKE, DimAttrs, IotaAttrs, PadAttrs, SliceScatterAttrs
from ..ir import Buffer, Layout
from ..program import Value
from .packing import PackAttrs
from .space import ZERO, Affine, Index, Space, divisor_expr, row_major, shape_of
from .views import backward, broadcast


@dataclass(frozen=True)
class Axis:
    """Adjacent domain variables, outermost first, that one expression of the loop variables counts through.

    `parts`, where given, holds each variable's own value; else it is found by division. An axis cut from a variable's range
    begins at `start`: the variable is `start + expr`, and `extents` is of the cut.
    """

    vars: tuple[Var, ...]
    extents: tuple[Size, ...]
    expr: Expr
    parts: tuple[Expr, ...] | None = None
    start: Size = 0

    def part(self, k: int) -> Expr:
        if self.parts is not None:
            return self.parts[k]
        if self.start != 0:
            return self.expr + to_expr(self.start)
        quotient = self.expr // divisor_expr(row_major(self.extents)[k])
        return quotient if k == 0 else quotient % divisor_expr(self.extents[k])


@dataclass(frozen=True)
class Binding:
    """What a parameter is bound to at launch: the memory of `node`, `offset` elements in."""

    node: Node
    offset: Size


@dataclass
class Params:
    """A kernel's parameters in order of first use."""

    buffers: list[Buffer] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    known: dict[tuple[object, ...], Buffer] = field(default_factory=dict)
    bounded: bool = True  # no index that the emitter made lies outside its parameter

    def get(
        self,
        node: Node,
        shape: tuple[Size, ...],
        strides: tuple[Size, ...],
        offset: Size,
        write: bool = False,
        layout: Layout | None = None,
    ) -> Buffer:
        """The parameter that sees the memory of `node` through shape and strides, or through a layout."""
        if not shape:
            shape, strides = (1,), (1,)
        key = (node, shape, strides, offset, write, layout)
        found = self.known.get(key)
        if found is None:
            name = f"y{len(self.outputs)}" if write else f"x{len(self.buffers) - len(self.outputs)}"
            step = None if layout or strides == row_major(shape) else tuple([to_expr(s) for s in strides])
            found = self.known[key] = Buffer(name, node.dtype, tuple([to_expr(s) for s in shape]), strides=step, layout=layout)
            self.buffers.append(found)
            self.bindings.append(Binding(node, offset))
            if write:
                self.outputs.append(name)
        return found


@dataclass
class Trace:
    """Which affine forms a kernel depends on: adjacent loops may merge where all of these can follow."""

    forms: dict[Affine, None] = field(default_factory=dict)
    stores: dict[Affine, None] = field(default_factory=dict)


Provider = Callable[[Index], Expr | None]


class Emitter:
    """Evaluates nodes at indices. Names of loop variables must differ from those of domain variables, unless an axis stands
    for itself.

    `values`: the nodes in memory, `targets`: where results go. `here`: nodes that this kernel computes itself, so never loads.
    `provided`: nodes whose value at an index is in a register or a local buffer; such a function may refuse.
    """

    def __init__(
        self,
        space: Space,
        axes: Sequence[Axis],
        params: Params,
        values: Mapping[Node, Value],
        targets: Mapping[Node, Value],
        here: Collection[Node],
        trace: Trace | None = None,
    ) -> None:
        self.space, self.axes, self.params, self.values = space, axes, params, values
        self.targets, self.here = targets, here
        self.trace = trace if trace is not None else Trace()
        self.provided: dict[Node, Provider] = {}
        self.memo: dict[tuple[Node, Index], Expr] = {}
        self.axis_of = {v: axis for axis in axes for v in axis.vars}

    # --- indices ---

    def render(self, a: Affine) -> Expr:
        """An affine form as an expression of the loop variables."""
        self.trace.forms[a] = None
        total: Expr | None = None
        for step, e in self._merged(a):
            part = e if step == 1 else e * to_expr(step)
            total = part if total is None else total + part
        if total is None:
            return to_expr(a.const)
        return total + to_expr(a.const) if a.const != 0 else total

    def _merged(self, a: Affine) -> list[tuple[Size, Expr]]:
        """(coefficient, expression) pairs whose sum is `a` less its constant: one an axis where the coefficients fit it."""
        found: list[tuple[Size, Expr]] = []
        done: set[Axis] = set()
        for atom, c in a.terms:
            axis = self.axis_of.get(atom) if isinstance(atom, Var) else None
            if axis is None:
                found.append((c, self._atom(atom)))
            elif axis not in done:
                done.add(axis)
                found += self._along(axis, a)
        return found

    def _along(self, axis: Axis, a: Affine) -> list[tuple[Size, Expr]]:
        coefficients = [a.coefficient(v) for v in axis.vars]
        if fits(coefficients, axis.extents):
            return [(coefficients[-1], axis.expr + to_expr(axis.start))]
        return [(c, axis.part(k)) for k, c in enumerate(coefficients) if c != 0]

    def _atom(self, atom: Expr) -> Expr:
        """An opaque atom is written over domain variables; put the loops' expressions in their places."""
        return scalar.transform(atom, lambda e: self._part_of(e) if isinstance(e, Var) else None)

    def _part_of(self, v: Var) -> Expr | None:
        axis = self.axis_of.get(v)
        return None if axis is None else axis.part(axis.vars.index(v))

    def is_affine(self, index: Index) -> bool:
        return all(isinstance(t, Var) and t in self.axis_of for i in index for t, _ in i.terms)

    def place(self, node: Node, index: Index, write: bool = False) -> tuple[Buffer, tuple[Expr, ...]]:
        """A parameter for the memory of `node` and the index in it of element `index`."""
        value = (self.targets if write else self.values)[node]
        if not self.is_affine(index):
            buffer = self.params.get(node, value.shape, value.strides, 0, write)
            return buffer, tuple(self.render(i) for i in index) or (const(0),)
        address = self.space.linear(index, value.strides)
        self.trace.forms[address] = None
        if write:
            self.trace.stores[address] = None
        shape: list[Size] = []
        strides: list[Size] = []
        at: list[Expr] = []
        offset = address.const
        for axis in self.axes:
            coefficients = [address.coefficient(v) for v in axis.vars]
            if all(c == 0 for c in coefficients):
                continue
            offset += coefficients[-1] * axis.start
            if fits(coefficients, axis.extents):
                shape.append(math.prod(axis.extents))
                strides.append(coefficients[-1])
                at.append(axis.expr)
                continue
            for k, c in enumerate(coefficients):
                if c != 0:
                    shape.append(axis.extents[k])
                    strides.append(c)
                    at.append(axis.part(k))
        return self.params.get(node, tuple(shape), tuple(strides), offset, write), tuple(at) or (const(0),)

    # --- values ---

    def value(self, node: Node, index: Index) -> Expr:
        """Element `index` of `node`, in the node's compute type."""
        key = (node, index)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._value(node, index)
        return found

    def _value(self, node: Node, index: Index) -> Expr:
        provider = self.provided.get(node)
        if provider is not None:
            e = provider(index)
            if e is not None:
                return e
        if node in self.values and node not in self.here:
            return self.load(node, index)
        match node.op.family:
            case Family.VIEW:
                return self.value(node.args[0], backward(self.space, node, index))
            case Family.POINTWISE:
                operands = [self.value(a, broadcast(index, shape_of(a))) for a in node.args]
                body = node.op.body
                assert body is not None, node.op
                return body(node.attrs, *operands)
            case Family.INDEX:
                return self._indexed(node, index)
        raise NotImplementedError(f"{node!r} is neither in memory nor recomputable")

    def load(self, node: Node, index: Index) -> Expr:
        buffer, at = self.place(node, index)
        return cast(buffer[at], node.dtype.compute)

    def store(self, node: Node, index: Index) -> tuple[Buffer, tuple[Expr, ...]]:
        """Where the result of `node` goes."""
        return self.place(node, index, write=True)

    # --- data movement ---

    def _indexed(self, node: Node, index: Index) -> Expr:
        args = node.args
        match node.attrs:
            case IotaAttrs():
                assert node.op.body is not None
                return node.op.body(node.attrs, self.render(index[0]))
            case SliceScatterAttrs():
                return self._slice_scatter(node, node.attrs, index)
            case PadAttrs():
                return self._pad(node, node.attrs, index)
            case PackAttrs():
                return self._pack(node, node.attrs, index)
            case DimAttrs(d) if node.op is CAT:
                return self._cat(args, index, d)
            case DimAttrs(d) if node.op is TAKE:
                rank = len(args[1].shape)
                at = self._position(args[1], index[d : d + rank], shape_of(args[0])[d])
                return self.value(args[0], (*index[:d], at, *index[d + rank :]))
            case DimAttrs(d) if node.op is GATHER:
                at = self._position(args[1], index, shape_of(args[0])[d])
                return self.value(args[0], (*index[:d], at, *index[d + 1 :]))
        raise NotImplementedError(f"index operator {node.op.name}")

    def _position(self, node: Node, index: Index, size: Size) -> Affine:
        """A loaded index as an atom. It is kept within the operand, whatever the caller passed."""
        known = self._ranged(node, index)
        if known is not None and self._lies(known, 0, size):
            return known
        return self._kept_within(cast(self.value(node, index), dtypes.i64), size)

    def _kept_within(self, e: Expr, size: Size) -> Affine:
        """An index of any value as an atom in [0, size), or zero where that is empty."""
        last = size - 1 if provably_le(1, size) else dims.maximum(size - 1, 0)
        if not provably_le(1, size):
            self.params.bounded = False
        e = scalar.minimum(scalar.maximum(e, 0), to_expr(last))
        if isinstance(e, scalar.Const):
            return Affine((), int(e.value))
        return self.space.atom(e, 0, last)

    def _lies(self, a: Affine, low: Size, high: Size) -> bool:
        """Whether `a` is in [low, high) for all iterations."""
        first, last = self.space.range(a)
        return provably_le(low, first) and provably_lt(last, high)

    def _ranged(self, node: Node, index: Index) -> Affine | None:
        """The value of an integer range at `index`, which is affine too."""
        while node.op.family is Family.VIEW:
            node, index = node.args[0], backward(self.space, node, index)
        match node.attrs:
            case IotaAttrs(_, dtype, int(start), int(step)) if not dtype.is_float:
                return self.space.scale(index[0], step, start)
        return None

    def _within(self, a: Affine, low: Size, high: Size) -> bool | None:
        """Whether `a` is in [low, high) for all iterations (True), for none (False), or it depends (None, cuts requested)."""
        first, last = self.space.range(a)
        if provably_le(low, first) and provably_lt(last, high):
            return True
        if provably_lt(last, low) or provably_le(high, first):
            return False
        for point in (low, high):
            if not (provably_le(point, first) or provably_lt(last, point)):
                self.space.request_cut(a, point)
        return None

    def _clamped(self, a: Affine, size: Size) -> Affine:
        return a if self._lies(a, 0, size) else self._kept_within(self.render(a), size)

    def _inside(self, a: Affine, low: Size, high: Size) -> Expr:
        e = self.render(a)
        first, last = self.space.range(a)
        tests = [] if provably_le(low, first) else [e >= to_expr(low)]
        tests += [] if provably_lt(last, high) else [e < to_expr(high)]
        return tests[0] if len(tests) == 1 else tests[0] & tests[1]

    def _cat(self, args: Sequence[Node], index: Index, d: int) -> Expr:
        start: Size = 0
        found: tuple[Size, Node] | None = None
        pieces: list[tuple[Size, Node]] = []
        for a in args:
            size = shape_of(a)[d]
            within = self._within(index[d], start, start + size) if size != 0 else False
            if within:
                found = (start, a)
            elif within is None:
                pieces.append((start, a))
            start = start + size
        if found is not None:
            return self.value(found[1], (*index[:d], self.space.scale(index[d], 1, -found[0]), *index[d + 1 :]))
        position = self.render(index[d])
        result: Expr | None = None
        for start, a in reversed(pieces):
            size = shape_of(a)[d]
            at = self._clamped(self.space.scale(index[d], 1, -start), size)
            e = self.value(a, (*index[:d], at, *index[d + 1 :]))
            result = e if result is None else scalar.select(position < to_expr(start + size), e, result)
        assert result is not None
        return result

    def _slice_scatter(self, node: Node, attrs: SliceScatterAttrs, index: Index) -> Expr:
        x, src = node.args
        d = attrs.dim
        start, stop, step = attrs.start, attrs.stop, attrs.step
        size = shape_of(src)[d]
        if size == 0:
            return self.value(x, index)
        within = self._within(index[d], start, stop) if step == 1 else None
        if within is False:
            return self.value(x, index)
        shifted = self.space.scale(index[d], 1, -start)
        if within is True:
            return self.value(src, (*index[:d], shifted, *index[d + 1 :]))
        e = self.render(shifted)
        cond = (e >= 0) & (self.render(index[d]) < to_expr(stop))
        if step != 1:
            by = divisor_expr(step)
            cond = cond & (e % by).eq(0)
            shifted = self.space.atom(e // by, -(start // step) - 1, (shape_of(x)[d] - start) // step)
        at = self._clamped(shifted, size)
        return scalar.select(cond, self.value(src, (*index[:d], at, *index[d + 1 :])), self.value(x, index))

    def _pad(self, node: Node, attrs: PadAttrs, index: Index) -> Expr:
        x, fill = node.args[0], const(attrs.value, node.dtype.compute)
        at: list[Affine] = []
        cond: Expr | None = None
        lows = [low for low, _ in attrs.pads]
        for i, size, low in zip(index, shape_of(x), lows, strict=True):
            within = self._within(i, low, low + size)
            if within is False or size == 0:
                return fill
            shifted = self.space.scale(i, 1, -low)
            if within is None:
                test = self._inside(i, low, low + size)
                cond = test if cond is None else cond & test
                shifted = self._clamped(shifted, size)
            at.append(shifted)
        e = self.value(x, tuple(at))
        return e if cond is None else scalar.select(cond, e, fill)

    def _pack(self, node: Node, attrs: PackAttrs, index: Index) -> Expr:
        k, n = shape_of(node.args[0])[-2:]
        *batch, panel, row, j = index if attrs.pair == 1 else index[:-1]
        if attrs.pair > 1:
            row = self.space.add(self.space.scale(row, attrs.pair), index[-1])
        column = self.space.add(self.space.scale(panel, attrs.nr), j)
        cond: Expr | None = None
        at = list(batch)
        for i, size in ((row, k), (column, n)):
            if not provably_lt(self.space.range(i)[1], size):
                test = self.render(i) < to_expr(size)
                cond = test if cond is None else cond & test
                i = self._clamped(i, size)
            at.append(i)
        e = self.value(node.args[0], tuple(at))
        return e if cond is None else scalar.select(cond, e, const(0, e.dtype))


def fits(coefficients: Sequence[Size], extents: Sequence[Size]) -> bool:
    """Whether a linear form over adjacent variables is a multiple of their merged count."""
    return all(a == b * e for a, b, e in zip(coefficients, coefficients[1:], extents[1:]))


def domain(space: Space, shape: Sequence[Size], prefix: str = "d") -> Index:
    """Fresh variables for every dimension of `shape` (constant zero where the size is 1)."""
    return tuple(space.loop(f"{prefix}{i}", s) if s != 1 else ZERO for i, s in enumerate(shape))
