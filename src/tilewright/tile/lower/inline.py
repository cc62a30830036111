"""Which members of pointwise groups are computed again by their readers instead of being kept in memory.

In: a partition. Out: the same groups with `inlined` filled in, and members moved where moving saves a result. A node is
recomputed where that costs less than writing and reading it, and never where the work would grow without bound.
Must not know statements or memory.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from ...base import scalar
from ...base.dtypes import DType
from ...graph.ir import Attrs, Family, Node, Op, TupleType
from ...graph.ops.kernel import KernelAttrs
from ..fuse import Group, Partition, is_leaf, is_virtual
from ..hints import Hints
from ..schedule import LAUNCH_NS, Machine, expression_cycles
from .kernel import elements_read, reads_elements
from .space import shape_of

MOST_CYCLES = 160
"""Work of one recomputed element, beyond which only a sole reader of each element once may have it."""
MOST_NODES = 64


@dataclass(frozen=True)
class Read:
    """`consumer`, computed in `group`, reads operand `arg`."""

    group: Group
    consumer: Node
    arg: Node

    def evaluations(self, hints: Hints) -> int:
        """How many elements it asks for."""
        n = self.consumer
        if isinstance(n.attrs, KernelAttrs):
            return self._elements_of_kernel(n, n.attrs, hints)
        own = n.op.family is Family.POINTWISE or n.op.name in ("take", "gather", "pad", "pack")
        once = hints.product(shape_of(n)) or 1
        return hints.product(shape_of(n if own else self.arg)) * max(1, self.group.inlined.get(n, once) // once)


    def _elements_of_kernel(self, n: Node, attrs: KernelAttrs, hints: Hints) -> int:
        scalars = hints.all(attrs.scalars)
        return round(sum(elements_read(attrs.text, p, scalars) for p, a in read_params(n, attrs) if a is self.arg))


def read_params(n: Node, attrs: KernelAttrs) -> list[tuple[int, Node]]:
    """The parameters of a user's kernel that are operands, each with its node."""
    return list(zip([p for p, role in enumerate(attrs.roles) if role != "out"], n.args, strict=True))


def _read_by_element(r: Read) -> bool:
    """Whether a kernel does nothing with an operand but read its elements, so that they may be computed instead."""
    attrs = r.consumer.attrs
    if not isinstance(attrs, KernelAttrs) or isinstance(r.consumer.type, TupleType) or "inout" in attrs.roles:
        return False
    params = [p for p, a in read_params(r.consumer, attrs) if a is r.arg]
    return all(attrs.roles[p] == "in" and reads_elements(attrs.text, p) for p in params)


@functools.lru_cache(4096)
def _body_cycles(op: Op, attrs: Attrs, operands: tuple[DType, ...]) -> float:
    assert op.body is not None
    return expression_cycles(op.body(attrs, *(scalar.var(f"x{i}", d) for i, d in enumerate(operands))))


def cycles(n: Node) -> float:
    """Work of one vector of results of a pointwise node, loads left out; data movement counts a little."""
    if n.op.family is Family.POINTWISE:
        return _body_cycles(n.op, n.attrs, tuple(a.dtype.compute for a in n.args))
    return 2.0


class Inliner:
    def __init__(self, partition: Partition, machine: Machine, hints: Hints) -> None:
        self.partition, self.machine, self.hints = partition, machine, hints
        self.reads: defaultdict[Node, list[Read]] = defaultdict(list)
        for g in partition.groups:
            if g.kind == "copy":
                n = g.sources.get(g.members[0], g.members[0])
                self.reads[partition.copied(g)].append(Read(g, n, n))
                continue
            for m in g.members:
                self._note(g, m)

    def _note(self, group: Group, n: Node) -> None:
        for a in dict.fromkeys(n.args):
            self.reads[self.partition.base(a)].append(Read(group, n, a))

    def run(self) -> None:
        for g in self.partition.groups:
            if g.kind in ("contract", "rows"):
                self._sink(g)
        for g in self.partition.groups:
            if g.kind == "pointwise" and g.effect is None:
                self._inline(g)

    # --- moving ---

    def _sink(self, group: Group) -> None:
        """Members that are kept beside the very operands they are computed from go to their readers, which then read less."""
        for m in reversed(list(group.members)):
            if m.op.family is not Family.POINTWISE or m is group.core or m in group.bound:
                continue
            readers = self.reads[m]
            targets = {r.group for r in readers}
            if len(targets) != 1 or group in targets or cycles(m) > 40:
                continue
            target = next(iter(targets))
            if target.kind not in ("pointwise", "rows") or target.effect is not None or m not in self.partition.group_of:
                continue
            operands = [s for a in m.args if (s := self.partition.base(a)) in group.index]
            if all(self._is_kept(group, s) for s in operands):
                evaluations = sum(r.evaluations(self.hints) for r in readers)
                group.members.remove(m)
                del group.index[m], self.partition.group_of[m]
                for a in m.args:
                    s = self.partition.base(a)
                    self.reads[s] = [r for r in self.reads[s] if r.consumer is not m or r.group is not group]
                self._adopt(target, m, evaluations)

    def _is_kept(self, group: Group, n: Node) -> bool:
        return n in group.bound or any(r.group is not group for r in self.reads[n])

    def _adopt(self, target: Group, n: Node, evaluations: int) -> None:
        if n in target.inlined:
            target.inlined[n] = max(target.inlined[n], evaluations)
            return
        target.inlined[n] = evaluations
        self._note(target, n)

    # --- recomputing ---

    def _inline(self, group: Group) -> None:
        for n in reversed(list(group.members)):
            readers = self.reads[n]
            outside = [r for r in readers if r.group is not group]
            if not outside or n in group.bound or not all(self._may_inline(group, r) for r in outside):
                continue
            tree = self._tree(group, n)
            if self._pays(n, tree, outside, len(group.members) == len([t for t in tree if t in group.index])):
                self._move(group, n, tree, outside)

    def _may_inline(self, group: Group, r: Read) -> bool:
        g = r.group
        if g.effect is not None or g.folded != group.folded:
            return False
        if g.kind == "contract":
            return r.consumer is not g.core
        if g.kind == "kernel":
            return r.consumer is not g.core or _read_by_element(r)
        return g.kind in ("pointwise", "rows", "scan", "pack", "copy")

    def _tree(self, group: Group, n: Node) -> dict[Node, int]:
        """`n` and what else its group computes for it, with the number of different places at which each is computed for one
        element of `n`; empty where that grows beyond `MOST_NODES`."""
        places: dict[Node, set[tuple[Node, ...]]] = {n: {()}}
        todo = [n]
        while todo:
            m = max(todo, key=lambda t: t.serial)  # all its readers in the tree are done
            todo.remove(m)
            for a in m.args:
                s = self.partition.base(a)
                if is_leaf(s) or is_virtual(s) or not (s in group.index or s in group.inlined):
                    continue
                if s not in places:
                    places[s] = set()
                    todo.append(s)
                moved = a is not s or s.shape != m.shape or m.op.family is not Family.POINTWISE
                places[s] |= {(*p, a) if moved else p for p in places[m]}
            if sum(map(len, places.values())) > MOST_NODES:
                return {}
        return {m: len(p) for m, p in places.items()}

    def _pays(self, n: Node, tree: dict[Node, int], outside: list[Read], whole: bool) -> bool:
        """Whether recomputing costs less than the memory traffic (and perhaps the launch) it saves."""
        if not tree:
            return False
        elements = self.hints.product(shape_of(n))
        evaluations = sum(r.evaluations(self.hints) for r in outside)
        work = sum(cycles(m) * count for m, count in tree.items())
        groups = {r.group for r in outside}
        if work > MOST_CYCLES and (evaluations > elements or len(groups) > 1):
            return False
        m = self.machine
        once = sum(map(cycles, tree))
        extra = (evaluations * work - elements * once) / (m.lanes * m.ghz)
        loads = sum(count for t, count in tree.items() for a in t.args if self._is_load(tree, a))
        extra += max(0, loads - 1) * evaluations * 4 / m.cache_bandwidth
        saved = 2 * elements * n.dtype.bytes / m.cache_bandwidth + (LAUNCH_NS if whole else 0.0)
        return extra <= saved

    def _is_load(self, tree: Collection[Node], a: Node) -> bool:
        s = self.partition.base(a)
        return s not in tree and not is_virtual(s)

    def _move(self, group: Group, n: Node, tree: Collection[Node], outside: list[Read]) -> None:
        evaluations: dict[Group, int] = defaultdict(int)
        for r in outside:
            evaluations[r.group] += r.evaluations(self.hints)
        self.reads[n] = [r for r in self.reads[n] if r.group is group]
        for target, count in evaluations.items():
            for m in tree:
                self._adopt(target, m, count)


def external_reads(partition: Partition, group: Group) -> list[Node]:
    """The nodes in memory that the kernel of `group` reads, in order of first use."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def visit(n: Node) -> None:
        s = partition.base(n)
        if s in seen or is_virtual(s):
            return
        seen.add(s)
        if s in group.index or s in group.inlined:
            for a in s.args:
                visit(a)
        else:
            found[s] = None

    if group.kind == "copy":
        s = partition.copied(group)
        if s not in group.inlined and not is_virtual(s):
            return [s]
        seen.add(s)
        todo = list(s.args)
    else:
        todo = [a for m in group.members for a in m.args]
    for a in todo:
        visit(a)
    return list(found)
