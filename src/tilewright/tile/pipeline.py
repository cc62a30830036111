"""Lowering: a graph becomes kernels in launch order over values in memory.

In: a graph after its passes, a machine. Out: `Program`. The stages are `prepare`, `partition`, `inline`, and one template a
group; groups of equal structure share one kernel. Must not know targets, arenas or torch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..base import dims
from ..base.config import Options
from ..base.dims import Size, provably_le
from ..graph.ir import INPUT, Graph, InputAttrs, Node, Shape, TensorType, TupleType, users
from ..graph.ops.contract import AttentionAttrs
from ..graph.ops.kernel import KernelAttrs
from ..graph.ops.opaque import GetitemAttrs
from ..graph.ops.view import RESHAPE
from ..graph.passes.folded import folded_nodes
from .fuse import Group, Partition, is_virtual, new_group, partition
from .hints import Hints
from .ir import Buffer, Kernel, Var, var, variables
from .lower.attention import lower_attention
from .lower.checks import Check, check_kernel, check_of, range_kernel, settled
from .lower.context import Context, Lowered
from .lower.contract import lower_contract, operands
from .lower.index import scatter_steps
from .lower.inline import Inliner, external_reads, read_params
from .lower.kernel import copy_kernel, costed, parsed
from .lower.kernel_fusion import lower_kernel
from .lower.pack import lower_pack
from .lower.pointwise import lower_pointwise
from .lower.prepare import for_library, prepare
from .lower.reduce import lower_rows
from .lower.scan import lower_scan
from .lower.space import row_major, shape_of
from .lower.strides import CONFLICT, choose, padded
from .lower.views import compose, is_view, whole
from .program import Arg, Call, Launch, Program, Step, Storage, Value, View
from .schedule import ROW_LIMIT, Machine

Watch: TypeAlias = Callable[[Partition, Group, Sequence[Step]], None]
"""Told of each group that is run, and the steps that it became."""


def lower(graph: Graph, machine: Machine, options: Options | None = None, watch: Watch | None = None) -> Program:
    """Lower `graph` for `machine`; what is symbolic in it is computed for every size, and costs are those of its hints."""
    library = options is not None and options.library
    hints = Hints(graph.hints)
    graph = prepare(graph, machine, hints, library)
    folded = folded_nodes(graph)
    parts = partition(graph, folded, machine)
    inliner = Inliner(parts, machine, hints)
    inliner.run()
    return _Lowering(graph, parts, inliner, machine, library, watch).run()


Cached = tuple[tuple[Kernel, tuple[tuple[int, Size], ...]], ...]


class _Lowering:
    """`values`: the memory of each kept node, with the node's own shape and strides in it; `all` holds the program's values
    by number, an output's with the output's shape and strides."""

    def __init__(
        self, graph: Graph, parts: Partition, inliner: Inliner, machine: Machine, library: bool, watch: Watch | None
    ) -> None:
        self.graph, self.parts, self.inliner, self.machine, self.watch = graph, parts, inliner, machine, watch
        self.library, self.hints = library, inliner.hints
        self.symbols = _symbols(graph, self.hints)
        self.groups = sorted(parts.groups, key=lambda g: (not g.folded, g.order))  # what is folded has run before all else
        self.all: list[Value] = []
        self.values: dict[Node, Value] = {}
        self.steps: list[Step] = []
        self.folded: list[Step] = []
        self.cache: dict[object, Cached] = {}
        self.kernels: dict[Kernel, Kernel] = {}
        self.checked: set[tuple[Node, Size | None]] = set()
        self.written: set[int] = set()  # inputs that a user's kernel has updated in place
        self.users = users(graph)

    def run(self) -> Program:
        for i, n in enumerate(self.graph.inputs):
            name = n.attrs.name if isinstance(n.attrs, InputAttrs) else ""
            self.values[n] = self._value(n.tensor, self.graph.strides[i], Storage.INPUT, i, name)
        needed = self._needed()
        for group in self.groups:
            if group in needed:
                steps, folded = len(self.steps), len(self.folded)
                self._group(group, needed[group])
                if self.watch is not None:
                    self.watch(self.parts, group, (*self.folded[folded:], *self.steps[steps:]))
        return Program(tuple(self.all), tuple(self.steps), tuple(self.folded))

    def _needed(self) -> dict[Group, list[Node]]:
        """The groups that are run, and the members that they keep."""
        wanted: set[Node] = set()
        found: dict[Group, list[Node]] = {}
        for group in reversed(self.groups):
            kept = [m for m in group.members if m in wanted or m in group.bound]
            if group.kind == "call" or (group.kind == "kernel" and self._is_alone(group)):
                kept = group.members
                read = any(m in wanted or m in group.bound for m in kept)
                if not (group.core and group.core.op.effectful) and not read and _is_pure(group):
                    continue
            elif group.effect is not None:
                kept = group.members
            if kept:
                found[group] = kept
                wanted.update(external_reads(self.parts, group))
                wanted.update(self.parts.base(c.node) for c in self._checks(group))
        return found

    # --- checks ---

    def _checks(self, group: Group) -> list[Check]:
        """What must hold of operands when the program runs. Constants and ranges are looked at now: raises CompileError."""
        found = [c for c in (check_of(n) for n in (*group.members, *group.inlined)) if c is not None]
        return [c for c in found if not (is_virtual(self.parts.base(c.node)) and settled(c))]

    def _check(self, check: Check, folded: bool) -> None:
        """Assert it, once."""
        if (check.node, check.size) in self.checked:
            return
        self.checked.add((check.node, check.size))
        into = self.folded if folded else self.steps
        kernel = range_kernel(check)
        if kernel is not None:
            into.append(self._started(self._sized(kernel), ()))
            return
        view, _ = self.view_of(check.node, folded)
        kernel = self._sized(check_kernel(check, view, self.hints))
        into.append(self._started(kernel, (Arg(self.all[view.value.id], view.offset),)))

    # --- memory ---

    def _value(
        self, t: TensorType, strides: Shape, storage: Storage, index: int = -1, name: str = ""
    ) -> Value:
        v = Value(len(self.all), t.dtype, t.shape, strides, storage, index, name)
        self.all.append(v)
        return v

    def _kept(self, group: Group, n: Node) -> Value:
        """Memory for a member that others read or that is a result."""
        if group.effect is not None:
            return self.values[self.graph.inputs[group.effect]]
        if n in group.bound:
            index, strides = group.bound[n]
            result = self.graph.outputs[index]
            made = self._value(result.node.tensor, result.strides, Storage.OUTPUT, index, n.op.name)
            return dataclasses.replace(made, shape=n.shape, strides=strides)
        storage = Storage.FOLDED if group.folded else Storage.TEMP
        strides = choose(n, [(r.consumer, r.arg) for r in self.inliner.reads.get(n, ())])
        return self._value(n.tensor, strides, storage, name=n.op.name)

    def view_of(self, n: Node, folded: bool = False, as_rows: bool = False, columns: int = 0) -> tuple[View, Node]:
        """A strided view of `n` and the node whose memory it is; what strides cannot express is copied first.

        `as_rows`: the copy is to be read as the left side of a product with `columns` columns.
        """
        found = self._strided(n)
        if found is not None and as_rows and (self._is_apart(found[0], columns) or self._conflicts(found[0])):
            n = RESHAPE(n, shape=n.shape)  # the copy: other readers go on to read what it is a copy of
            found = self._strided(n) if n in self.values else None
        if found is not None:
            return found
        group = self._copy_group(n)
        group.folded = folded
        strides = padded(n) if as_rows else row_major(shape_of(n))
        value = self._value(n.tensor, strides, Storage.FOLDED if folded else Storage.TEMP, name="copy")
        self._launch(group, {n: value}, lambda c: lower_pointwise(group, c))
        self.values[n] = value
        return whole(value), n

    def _conflicts(self, a: View) -> bool:
        """Whether several blocks of rows would lie in few sets of a cache, each row a multiple of 1 KB from the next."""
        *rows, _ = self.hints.all(a.shape)
        *steps, last = self.hints.all(a.strides)
        apart = [t for s, t in zip(rows, steps, strict=True) if s > 1][-1:]
        bytes_ = apart[0] * a.value.dtype.bytes if apart else 0
        return math.prod(rows) > ROW_LIMIT and last == 1 and bytes_ > 0 and bytes_ % CONFLICT == 0

    def _is_apart(self, a: View, columns: int) -> bool:
        """Whether elements of a's rows lie apart where the machine would multiply them in pairs, or read them many times."""
        rows, k = self.hints.all(a.shape[-2:])
        often = rows >= 8 and columns >= 4 * self.machine.nr
        return k > 1 and a.strides[-1] != 1 and (often or self.machine.pair_of(a.value.dtype, k) > 1)

    def _copy_group(self, n: Node) -> Group:
        group = new_group("copy", shape_of(n), False, -1)
        group.add(n, group.domain)
        return group

    def _strided(self, n: Node) -> tuple[View, Node] | None:
        value = self.values.get(n)
        if value is not None:
            return whole(value), n
        if not is_view(n):
            return None
        under = self._strided(n.args[0])
        view = compose(n, under[0]) if under is not None else None
        return None if view is None or under is None else (view, under[1])

    # --- groups ---

    def _group(self, group: Group, kept: Sequence[Node]) -> None:
        if group.kind == "call":
            self._call(group)
            return
        if group.kind == "kernel" and self._is_alone(group):
            self._kernel(group)
            return
        if group.effect is not None and group.effect in self.written:
            return
        targets = {n: self._kept(group, n) for n in kept}
        for check in self._checks(group):
            self._check(check, group.folded)
        if math.prod(group.shape) != 0 or group.kind == "rows":
            match group.kind:
                case "rows":
                    self._launch(group, targets, lambda c: lower_rows(group, c))
                case "contract" if self._is_for_library(group, targets):
                    self._library(group, targets)
                case "contract":
                    assert group.core is not None
                    a, columns = group.core.args[0], self.hints(shape_of(group.core)[-1])
                    sides = operands(group.core, lambda n: self.view_of(n, group.folded, n is a, columns))
                    both = (sides.a.node, sides.b.node)
                    self._launch(group, targets, lambda c: lower_contract(group, c, sides), sides.structure, both)
                case "attention":
                    self._attention(group, targets)
                case "scan":
                    self._launch(group, targets, lambda c: lower_scan(group, c))
                case "kernel":
                    self._fused_kernel(group, targets)
                case "pack":
                    self._launch(group, targets, lambda c: lower_pack(group, c, self._strided) or lower_pointwise(group, c))
                case "scatter":
                    for step in scatter_steps(group):
                        self._launch(step, targets, functools.partial(lower_pointwise, step))
                case _:
                    self._launch(group, targets, lambda c: lower_pointwise(group, c))
        if group.effect is None:
            self.values.update({n: v for n, v in targets.items() if self.parts.group_of.get(n) is group})

    def _is_for_library(self, group: Group, targets: dict[Node, Value]) -> bool:
        core = group.core
        alone = core is not None and group.members == [core] and not group.inlined and targets.keys() == {core}
        return self.library and alone and core is not None and not group.folded and for_library(core, self.machine, self.hints)

    def _library(self, group: Group, targets: dict[Node, Value]) -> None:
        """The product by a library call."""
        core = group.core
        assert core is not None
        seen = [self.view_of(a)[0] for a in core.args]
        args = tuple([dataclasses.replace(v, value=self.all[v.value.id]) for v in seen])
        self.steps.append(Call(core, args, (self.all[targets[core].id],), True))

    def _attention(self, group: Group, targets: dict[Node, Value]) -> None:
        """Attention has a template of its own, over views; equal views in all but memory share its kernel."""
        node = group.core
        assert node is not None
        views = [self.view_of(a, group.folded)[0] for a in node.args]
        views.append(whole(targets[node]))
        key = (node.attrs, tuple((v.value.dtype, v.shape, v.strides) for v in views))
        cached = self.cache.get(key)
        if cached is None:
            blank = [View(dataclasses.replace(v.value, id=-1 - i), v.shape, v.strides, 0) for i, v in enumerate(views)]
            mask = blank[3] if len(blank) == 5 else None
            a = node.attrs
            assert isinstance(a, AttentionAttrs)
            launch = lower_attention(
                blank[0], blank[1], blank[2], mask, blank[-1],
                scale=a.scale, causal=a.causal, safe=a.safe, machine=self.machine, hints=self.hints,
            )  # fmt: skip
            where = tuple([(-1 - x.value.id, x.offset) for x in launch.args])
            cached = self.cache[key] = ((self._sized(launch.kernel), where),)
        into = self.folded if group.folded else self.steps
        for kernel, where in cached:
            args = [Arg(self.all[views[i].value.id], views[i].offset + offset) for i, offset in where]
            into.append(self._started(kernel, tuple(args)))

    def _call(self, group: Group) -> None:
        node = group.core
        assert node is not None
        seen = [self.view_of(a)[0] for a in node.args]
        args = tuple([dataclasses.replace(v, value=self.all[v.value.id]) for v in seen])
        takers = {m.attrs.index: m for m in group.members if isinstance(m.attrs, GetitemAttrs)}
        if isinstance(node.type, TensorType):
            takers = {0: node}
        results = {k: self._kept(group, m) for k, m in sorted(takers.items())}
        self.values.update({m: results[k] for k, m in takers.items()})
        if isinstance(node.type, TupleType) and not results:
            # What nobody takes need not even be a tensor; one result is kept, so that an operator with effects runs.
            t = node.type.items[0]
            results[0] = self._value(t, row_major(t.shape), Storage.TEMP, name=node.op.name)
        self.steps.append(Call(node, args, tuple([self.all[v.id] for v in results.values()]), False, tuple(results)))

    def _kernel(self, group: Group) -> None:
        """A user's kernel, on row-major memory. What it updates is copied first, unless that is an input of its own."""
        node = group.core
        assert node is not None and isinstance(node.attrs, KernelAttrs)
        attrs = node.attrs
        kernel = costed(parsed(attrs.text), self.hints.all(attrs.scalars), self.machine)
        takers = {m.attrs.index: m for m in group.members if isinstance(m.attrs, GetitemAttrs)}
        types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
        if isinstance(node.type, TensorType):
            takers = {0: node}
        operands, args, result = iter(node.args), [], 0
        for p, role in zip(kernel.params, attrs.roles, strict=True):
            operand = next(operands) if role != "out" else None
            made = None
            if role != "in":
                made = self._result(group, takers.get(result), types[result], operand)
                result += 1
            if operand is not None:
                view = self._as_declared(operand, p, kernel, attrs.scalars, group.folded)
                if made is None:
                    args.append(Arg(self.all[view.value.id], view.offset))
                    continue
                if made.id != view.value.id:
                    self._copy_into(view, made, group.folded)
            assert made is not None
            args.append(Arg(self.all[made.id]))
        into = self.folded if group.folded else self.steps
        into.append(Launch(self.kernels.setdefault(kernel, kernel), tuple(args), attrs.scalars))

    def _is_alone(self, group: Group) -> bool:
        """Whether a user's kernel is run as it is."""
        return not group.inlined and all(m is group.core or isinstance(m.attrs, GetitemAttrs) for m in group.members)

    def _fused_kernel(self, group: Group, targets: dict[Node, Value]) -> None:
        """A user's kernel with operands and consumers computed in it."""
        node = group.core
        assert node is not None and isinstance(node.attrs, KernelAttrs)
        kernel, views = parsed(node.attrs.text), {}
        for index, operand in read_params(node, node.attrs):
            if self.parts.base(operand) in group.inlined or is_virtual(self.parts.base(operand)):
                continue
            self._as_declared(operand, kernel.params[index], kernel, node.attrs.scalars, group.folded)
            view, under = self.view_of(operand, group.folded)
            views[operand] = under, view
        structure = tuple([(v.shape, v.strides, v.offset) for _, v in views.values()])
        memory = tuple([n for n, _ in views.values()])
        self._launch(group, targets, lambda c: lower_kernel(group, c, views), structure, memory)

    def _result(self, group: Group, taker: Node | None, t: TensorType, updated: Node | None) -> Value:
        """Row-major memory for a result of a user's kernel; an input's own where that is updated, and nothing else needs it."""
        if taker is not None and updated is not None and taker not in group.bound:
            index = self._updates(taker, updated)
            if index is not None:
                self.written.add(index)
                self.values[taker] = self.values[updated]
                return self.values[updated]
        if taker is not None and taker in group.bound:
            made = self._value(t, row_major(t.shape), Storage.OUTPUT, group.bound[taker][0], taker.op.name)
        else:
            made = self._value(t, row_major(t.shape), Storage.FOLDED if group.folded else Storage.TEMP, name="kernel")
        if taker is not None:
            self.values[taker] = made
        return made

    def _updates(self, taker: Node, updated: Node) -> int | None:
        """The input that the result is written back to, where that is the operand, and no one else reads either."""
        if updated.op is not INPUT:
            return None
        index = self.graph.inputs.index(updated)
        by = self.users
        core = taker.args[0] if isinstance(taker.attrs, GetitemAttrs) else taker
        alone = by[updated] == [core] and not by[taker] and all(o.node is not taker for o in self.graph.outputs)
        effects = [e for e in self.graph.effects if e.node is taker]
        return index if alone and [e.index for e in effects] == [index] else None

    def _as_declared(self, n: Node, p: Buffer, kernel: Kernel, scalars: tuple[Size, ...], folded: bool) -> View:
        """The operand in memory as the parameter declares it; else a copy of it."""
        names = {v.name: s for v, s in zip(kernel.scalars, scalars, strict=True)}
        wanted = tuple([dims.substitute(dims.of_expr(s), names) for s in p.steps()])
        view, _ = self.view_of(n, folded)
        if all(t == w or provably_le(s, 1) for s, t, w in zip(view.shape, view.strides, wanted, strict=True)):
            return view
        self.values[n] = value = self._value(n.tensor, wanted, Storage.FOLDED if folded else Storage.TEMP, name="copy")
        self._copy_into(view, value, folded)
        return whole(value)

    def _copy_into(self, view: View, value: Value, folded: bool) -> None:
        kernel = self._sized(copy_kernel(view, value))
        args = Arg(self.all[view.value.id], view.offset), Arg(self.all[value.id])
        (self.folded if folded else self.steps).append(self._started(kernel, args))

    # --- kernels ---

    def _sized(self, kernel: Kernel) -> Kernel:
        """The kernel with the symbols that occur in it as its scalars; equal ones are one object.

        That it is bounded is worth saying only where sizes are unknown: else a target sees it.
        """
        used = variables(kernel) if self.symbols else set()
        scalars = tuple([v for v in self.symbols if v in used])
        if scalars or kernel.bounded:
            kernel = dataclasses.replace(kernel, scalars=scalars, bounded=kernel.bounded and bool(scalars))
        return self.kernels.setdefault(kernel, kernel)

    def _started(self, kernel: Kernel, args: tuple[Arg, ...]) -> Launch:
        return Launch(kernel, args, tuple([self.symbols[v] for v in kernel.scalars]))

    def _launch(
        self, group: Group, targets: dict[Node, Value], template: Callable[[Context], list[Lowered]], extra: object = (),
        operands: tuple[Node, ...] = (),
    ) -> None:  # fmt: skip
        """Lower the group, or take what a group of equal structure was lowered to, and append its launches.

        `extra`: what else the kernel depends on; `operands`: nodes that it reads other than by the group's own operands.
        """
        nodes, rows = self._structure(group, targets, operands)
        key = (group.kind, group.shape, group.reduced, rows, extra)
        cached = self.cache.get(key)
        if cached is None:
            lowered = template(Context(self.machine, self.values, targets, self.hints))
            place = {n: i for i, n in enumerate(nodes)}
            cached = tuple(
                (self._sized(one.kernel), tuple((place[b.node], b.offset) for b in one.bindings))
                for one in lowered
            )
            self.cache[key] = cached
        into = self.folded if group.folded else self.steps
        for kernel, bindings in cached:
            args = []
            for (i, offset), p in zip(bindings, kernel.params, strict=True):
                n = nodes[i]
                value = targets[n] if p.name in kernel.outputs else self.values[n]
                args.append(Arg(self.all[value.id], offset))
            into.append(self._started(kernel, tuple(args)))

    def _structure(
        self, group: Group, targets: dict[Node, Value], operands: tuple[Node, ...]
    ) -> tuple[list[Node], tuple[object, ...]]:
        """The nodes that a group's kernel depends on and all that it depends on in them, operands by position."""
        place: dict[Node, int] = {}
        rows: list[object] = []
        here = set(group.inlined) if group.kind == "copy" else {*group.index, *group.inlined}

        def visit(n: Node) -> int:
            known = place.get(n)
            if known is not None:
                return known
            value = self.values.get(n)
            if value is not None and n not in here:
                row: object = ("memory", n.dtype, value.shape, value.strides)
            else:
                row = (n.op, n.attrs, n.type, tuple([visit(a) for a in n.args]), n in here)
            place[n] = len(rows)
            rows.append(row)
            return place[n]

        members = tuple([(visit(m), targets[m].strides if m in targets else None) for m in group.members])
        sources = tuple([visit(s) for s in (*group.sources.values(), *operands)])
        return list(place), (tuple(rows), members, sources)


def _symbols(graph: Graph, hints: Hints) -> dict[Var, Size]:
    """The graph's symbols by the variables that stand for them in kernels, in the order of its hints."""
    if not hints.values:
        return {}
    sizes = [s for n in graph.nodes() for t in (n.type.items if isinstance(n.type, TupleType) else (n.type,)) for s in t.shape]
    known = {s.name: s.dim for s in dims.symbols(*sizes)}
    return {var(name): known.get(name) or dims.symbol(name, lo=None) for name in hints.values}


def _is_pure(group: Group) -> bool:
    return getattr(group.core.attrs, "seq", -1) == -1 if group.core is not None else True
