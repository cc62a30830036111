"""A user's kernel with what surrounds it in the graph computed inside: operands where it reads them, results where it writes.

In: a group around a `kernel` node. Out: `Lowered`. An operand that is computed here takes the place of every element read of it;
where the result is written, its consumers are computed from what is written, and stored. Must not know how groups are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ...base import scalar
from ...base.dims import to_expr
from ...base.scalar import Const, Expr, Var, cast, var
from ...graph.ir import Node
from ...graph.ops.kernel import KernelAttrs
from .. import ir
from ..fuse import Group
from ..ir import Buffer, Load, Region, Stmt, block
from ..program import View
from ..rewriting import rewritten
from .context import Context, Draft, Lowered, kernel_name
from .emit import Axis, Emitter
from .kernel import costed, parsed
from .space import ZERO, Affine, Index, Space, constant, shape_of

TEMPORARY = re.compile(r"(?:[xy]|fused)\d+")
"""Names of the parameters that are made here."""


def lower_kernel(group: Group, context: Context, views: Mapping[Node, tuple[Node, View]]) -> list[Lowered]:
    """`views`: the operands that are in memory, each with the node whose memory that is."""
    return [_Fused(group, context, views).lower()]


class _Fused:
    def __init__(self, group: Group, context: Context, views: Mapping[Node, tuple[Node, View]]) -> None:
        node = group.core
        assert node is not None and isinstance(node.attrs, KernelAttrs)
        self.group, self.context, self.views, self.node, self.attrs = group, context, views, node, node.attrs
        self.kernel = parsed(self.attrs.text)
        self.draft = Draft(kernel_name(group))
        self.members = [m for m in group.members if m in context.targets]
        self.here = {*group.members, *group.inlined}
        self.sizes: dict[Expr, Expr] = {v: to_expr(s) for v, s in zip(self.kernel.scalars, self.attrs.scalars, strict=True)}
        self.operands: dict[Buffer, Node] = {}
        self.buffers: dict[Buffer, Buffer] = {}
        self.result = self.kernel.params[next(i for i, r in enumerate(self.attrs.roles) if r != "in")]
        self.names = 0

    def lower(self) -> Lowered:
        given = iter(self.node.args)
        for p, role in zip(self.kernel.params, self.attrs.roles, strict=True):
            if role == "in":
                self._operand(p, next(given))
        self._rename()
        grid = [(self._variable(v), self._sized(e)) for v, e in self.kernel.grid]
        body = rewritten(self.kernel.body, self._leaf, self.buffers, self._statement)
        cost = costed(self.kernel, self.context.hints.all(self.attrs.scalars), self.context.machine).cost
        return self.draft.finish(grid, body, cost)

    def _operand(self, p: Buffer, node: Node) -> None:
        found = self.views.get(node)
        if found is None:
            self.operands[p] = node
            return
        under, view = found
        shape, steps = view.shape or (1,), view.strides or (1,)
        self.buffers[p] = self.draft.params.get(under, shape, steps, view.offset)

    def _rename(self) -> None:
        """Give buffers sizes of the graph's, and names that no parameter made here has."""
        for s in ir.statements(self.kernel.body):
            if isinstance(s, ir.Alloc):
                b = s.buffer
                name = f"{b.name}_" if TEMPORARY.fullmatch(b.name) else b.name
                shape = tuple([self._sized(e) for e in b.shape])
                if name != b.name or shape != b.shape:
                    self.buffers[b] = Buffer(name, b.dtype, shape, b.scope, b.strides, b.layout)

    def _variable(self, v: Var) -> Var:
        return Var(f"{v.name}_", v.dtype) if TEMPORARY.fullmatch(v.name) else v

    def _sized(self, e: Expr) -> Expr:
        return scalar.transform(e, lambda n: self.sizes.get(n) or (self._variable(n) if isinstance(n, Var) else None))

    # --- operands ---

    def _leaf(self, e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer in self.operands:
            index = tuple([scalar.transform(i, self._leaf) for i in e.index])
            return self._element(e.buffer, index)
        if isinstance(e, Var):
            return self.sizes.get(e) or self._variable(e)
        return None

    def _element(self, p: Buffer, index: Sequence[Expr]) -> Expr:
        """Element `index` of an operand that is computed here; zero beyond its end, as of one in memory."""
        node = self.operands[p]
        space = Space()
        at: list[Affine] = []
        inside: Expr | None = None
        for e, n in zip(index, shape_of(node) or (1,), strict=True):
            if n == 1:
                at.append(ZERO)
            elif isinstance(e, Const):
                at.append(constant(int(e.value)))
            else:
                at.append(space.atom(e, 0, n - 1))
            if not (isinstance(e, Const) and isinstance(n, int) and int(e.value) < n):
                test = e < to_expr(n)
                inside = test if inside is None else inside & test
        emitter = Emitter(space, (), self.draft.params, self.context.values, self.context.targets, self.here - {self.node})
        value = cast(emitter.value(node, tuple(at[: len(shape_of(node))])), node.dtype)
        return value if inside is None else scalar.select(inside, value, scalar.const(0, value.dtype))

    # --- statements ---

    def _statement(self, s: Stmt) -> Stmt | None:
        match s:
            case ir.Copy(src, dst) if src.buffer in self.operands:
                return self._nest(dst, lambda i: self._stores(dst, i, self._from(src, self._turned(i, s.transpose))))
            case ir.Copy(src, dst) if dst.buffer is self.result:
                return self._nest(dst, lambda i: self._stores(dst, i, self._loaded(src, self._turned(i, s.transpose))))
            case ir.Fill(dst, value) if dst.buffer is self.result:
                return self._nest(dst, lambda i: self._stores(dst, i, self._rewritten(value)))
            case ir.Store(buffer, index, value) if buffer is self.result:
                return self._consumers(tuple([self._rewritten(i) for i in index]), self._rewritten(value))
        return None

    def _rewritten(self, e: Expr) -> Expr:
        def leaf(n: Expr) -> Expr | None:
            found = self._leaf(n)
            if found is None and isinstance(n, Load) and n.buffer in self.buffers:
                return Load(self.buffers[n.buffer], tuple([self._rewritten(i) for i in n.index]))
            return found

        return scalar.transform(e, leaf)

    def _nest(self, r: Region, body: Callable[[tuple[Expr, ...]], Stmt]) -> Stmt:
        variables = []
        for _ in r.shape:
            variables.append(var(f"fused{self.names}"))
            self.names += 1
        extents = tuple([self._rewritten(e) for e in r.shape])
        return ir.Parallel(tuple(variables), extents, body(tuple(variables)))

    @staticmethod
    def _turned(index: tuple[Expr, ...], transpose: bool) -> tuple[Expr, ...]:
        return (*index[:-2], index[-1], index[-2]) if transpose else index

    def _at(self, r: Region, index: Sequence[Expr]) -> tuple[Expr, ...]:
        it = iter(index)
        return tuple([self._rewritten(o) if e is None else self._rewritten(o) + next(it) for o, e in zip(r.offsets, r.extents)])

    def _from(self, r: Region, index: Sequence[Expr]) -> Expr:
        return self._element(r.buffer, self._at(r, index))

    def _loaded(self, r: Region, index: Sequence[Expr]) -> Expr:
        if r.buffer in self.operands:
            return self._from(r, index)
        return Load(self.buffers.get(r.buffer, r.buffer), self._at(r, index))

    def _stores(self, dst: Region, index: Sequence[Expr], value: Expr) -> Stmt:
        at = self._at(dst, index)
        if dst.buffer is self.result:
            return self._consumers(at, value)
        b = self.buffers.get(dst.buffer, dst.buffer)
        return ir.Store(b, at, cast(value, b.dtype))

    def _consumers(self, at: tuple[Expr, ...], value: Expr) -> Stmt:
        """Store what the group keeps, computed from a value that the kernel writes to its result."""
        domain = self.group.domain
        axes = [Axis((d.terms[0][0],), (n,), e) for d, n, e in zip(domain, self.group.shape, at, strict=True) if d.terms]  # type: ignore[arg-type]
        params, context = self.draft.params, self.context
        emitter = Emitter(self.group.space, axes, params, context.values, context.targets, self.here)
        own = cast(cast(value, self.node.dtype), self.node.dtype.compute)

        def provided(index: Index) -> Expr | None:
            return own if index == self.group.index[self.node] else None

        emitter.provided[self.node] = provided
        made = []
        for m in self.members:
            index = self.group.index[m]
            buffer, where = emitter.store(m, index)
            made.append(ir.Store(buffer, where, cast(emitter.value(m, index), buffer.dtype)))
        return block(*made)

