"""Fusion: which nodes of a graph one kernel computes.

In: a graph without composites. Out: `Group`s in an order of execution, each with the index of every member as a function of
the group's iteration space. Must not know memory, statements or machines, beyond a few costs.

Nodes are placed in the order of creation. A node joins one of its operands' groups, if the others run before that or can be
made to, or starts the next one; so a group reads only earlier groups and the order is right by construction. Views join
nothing: they are read through. Afterwards `inline.py` moves cheap members into the groups that read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..base.dims import Size, provably_le
from ..graph.ir import Family, Graph, Node, TensorType, TupleType
from ..graph.ops.contract import ATTENTION
from ..graph.ops.index import IOTA, SliceScatterAttrs
from ..graph.ops.kernel import KernelAttrs
from ..graph.ops.opaque import GETITEM
from ..graph.ops.pointwise import FULL
from ..graph.ops.reduce import ArgAttrs, ReduceAttrs
from ..graph.ops.view import RESHAPE, SLICE
from .lower.kernel import writes_elements
from .lower.space import ZERO, Index, Space, row_major, shape_of
from .lower.views import backward, broadcast, forward, is_view, pull_back, source
from .schedule import Machine

MOST_MEMBERS = 96
DEEPEST = 20  # groups one after another that are moved for a fusion
NEAR = 24  # serial numbers between nodes that may share a kernel though neither reads the other


@dataclass(eq=False)
class Group:
    """Nodes of one kernel. `kind`: pointwise, rows (reductions of one domain), contract, attention, scan, call, kernel,
    pack, scatter, copy.

    `shape` is the iteration space's and `domain` its index; `index` maps a member to its element at a point of the domain.
    `reduced` are the dimensions of the domain that a rows group reduces. `inlined`: nodes outside that are recomputed here,
    with how many elements of them. `bound`: members computed into the memory of a graph output (its number, the member's
    strides there). `effect`: the input that the only member is written back to. `sources`: where what is stored for a member is
    the value of another node, at the same point of the domain.
    """

    kind: str
    order: float
    shape: tuple[Size, ...]
    folded: bool
    space: Space
    domain: Index
    reduced: tuple[int, ...] = ()
    core: Node | None = None
    anchor: Node | None = None  # what a rows group reduces first
    members: list[Node] = field(default_factory=list)
    index: dict[Node, Index] = field(default_factory=dict)
    inlined: dict[Node, int] = field(default_factory=dict)
    bound: dict[Node, tuple[int, tuple[Size, ...]]] = field(default_factory=dict)
    effect: int | None = None
    sources: dict[Node, Node] = field(default_factory=dict)
    before: dict[Group, None] = field(default_factory=dict)  # the groups that this one reads

    def add(self, n: Node, index: Index) -> None:
        self.members.append(n)
        self.index[n] = index

    def __repr__(self) -> str:
        return f"Group({self.order} {self.kind} {self.shape}: {', '.join(m.op.name for m in self.members)})"


@dataclass
class Partition:
    """`group_of` maps a node to the group that computes it; views are in it only where a group stores them."""

    groups: list[Group]
    group_of: dict[Node, Group]

    def base(self, n: Node) -> Node:
        """The node in memory, or recomputable, that the chain of views `n` reads."""
        return base(self.group_of, n)

    def copied(self, group: Group) -> Node:
        """What a copy group reads: the node under its member, which may be the member itself, kept elsewhere."""
        member = group.members[0]
        n = group.sources.get(member, member)
        return self.base(n.args[0] if self.group_of.get(n) is group else n)


def base(group_of: dict[Node, Group], n: Node) -> Node:
    while is_view(n) and n not in group_of:
        n = n.args[0]
    return n


def is_virtual(n: Node) -> bool:
    """A constant or a range: computed wherever it is read, never kept for that."""
    return n.op is FULL or n.op is IOTA


def is_leaf(n: Node) -> bool:
    return n.op.family is Family.INPUT


def chase(space: Space, n: Node, index: Index) -> tuple[Node, Index]:
    """The node under a chain of views, and the index there of element `index` of `n`."""
    while is_view(n):
        index = backward(space, n, index)
        n = n.args[0]
    return n, index


def new_group(kind: str, shape: Sequence[Size], folded: bool, order: float, core: Node | None = None) -> Group:
    space = Space()
    domain = tuple(space.loop(f"d{i}", s) for i, s in enumerate(shape))
    return Group(kind, order, tuple(shape), folded, space, domain, core=core)


class Fuser:
    def __init__(self, graph: Graph, folded: set[Node], machine: Machine) -> None:
        self.graph, self.folded, self.machine = graph, folded, machine
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.anchored: dict[tuple[Node, tuple[int, ...]], Group] = {}  # rows groups by what they reduce, and over what
        self.ordered: Group | None = None  # the last call that must keep its place among such calls
        self.reading: dict[tuple[Node, tuple[Size, ...]], Group] = {}  # pointwise groups by an operand and their shape

    def run(self) -> Partition:
        for n in self.graph.in_sequence():
            if not (is_view(n) or is_leaf(n) or is_virtual(n)):
                self._place(n)
        self._outputs()
        self._effects()
        return Partition(sorted(self.groups, key=lambda g: g.order), self.group_of)

    # --- placing ---

    def _place(self, n: Node) -> None:
        match n.op.family:
            case Family.POINTWISE:
                if not (self._join(n) or self._beside(n)):
                    self._start("pointwise", n)
                self._note_operands(n)
            case Family.INDEX:
                kind = {"pack": "pack", "as_strided_scatter": "scatter"}.get(n.op.name, "pointwise")
                self._start(kind, n)
            case Family.REDUCE:
                self._reduce(n)
            case Family.CONTRACT:
                self._start("attention" if n.op is ATTENTION else "contract", n, core=n)
            case Family.SCAN:
                self._start("scan", n, core=n)
            case Family.KERNEL:
                self._kernel(n)
            case _ if n.op is GETITEM:
                self.group_of[n] = self.group_of[n.args[0]]
                self.group_of[n].members.append(n)
            case _:
                self._call(n)

    def _kernel(self, n: Node) -> None:
        """A kernel of several results computes them all; `getitem` nodes are its members."""
        single = isinstance(n.type, TensorType)
        group = self._new("kernel", shape_of(n) if single else (), n in self.folded, n)
        self._put(group, n, group.domain)

    def _call(self, n: Node) -> None:
        """Random draws and other effects happen in the order of the program."""
        group = self._start("call", n, core=n)
        if n.op.effectful or getattr(n.attrs, "seq", -1) >= 0:
            if self.ordered is not None:
                group.before[self.ordered] = None
            self.ordered = group

    def _new(self, kind: str, shape: Sequence[Size], folded: bool, core: Node | None = None) -> Group:
        group = new_group(kind, shape, folded, len(self.groups), core)
        self.groups.append(group)
        return group

    def _start(self, kind: str, n: Node, core: Node | None = None) -> Group:
        group = self._new(kind, () if kind == "call" else shape_of(n), n in self.folded, core)
        self._put(group, n, group.domain)
        return group

    def _put(self, group: Group, n: Node, index: Index) -> None:
        group.add(n, index)
        self.group_of[n] = group
        group.before.update({g: None for g in self._read(n) if g is not group})

    def _read(self, n: Node) -> list[Group]:
        """The groups that `n` reads; folded ones run before everything that is not folded, so they do not count for it."""
        folded = n in self.folded
        return [g for a in n.args if (g := self.group_of.get(source(a))) is not None and g.folded == folded]

    def _join(self, n: Node) -> bool:
        """Put `n` into a group that it reads: rather a product or rows than pointwise work, rather a later group."""
        read = dict.fromkeys(self._read(n))
        for group in sorted(read, key=lambda g: (g.kind == "pointwise", -g.order)):
            if not (group.kind in ("pointwise", "rows", "contract") or self._admits(group)) or len(group.members) >= MOST_MEMBERS:
                continue
            index = self._index_in(group, n)
            if index is not None and all(g is group or self._hoist(g, group) for g in read):
                self._put(group, n, index)
                return True
        return False

    def _admits(self, group: Group) -> bool:
        """Whether consumers may be computed where a user's kernel writes its one result."""
        n = group.core
        if group.kind != "kernel" or n is None or not isinstance(n.attrs, KernelAttrs) or isinstance(n.type, TupleType):
            return False
        roles = n.attrs.roles
        return "inout" not in roles and writes_elements(n.attrs.text, roles.index("out"))

    def _beside(self, n: Node) -> bool:
        """Put `n` into a pointwise group over the same space that reads one of its operands, if that was made lately."""
        for a in n.args:
            group = self.reading.get((a, shape_of(n)))
            if group is None or group.kind != "pointwise" or group.folded != (n in self.folded) or group.shape != n.shape:
                continue
            near = n.serial - group.members[-1].serial <= NEAR and len(group.members) < MOST_MEMBERS
            if near and all(g is not group and self._hoist(g, group) for g in self._read(n)):
                self._put(group, n, group.domain)
                return True
        return False

    def _note_operands(self, n: Node) -> None:
        group = self.group_of[n]
        if group.index[n] == group.domain:
            for a in n.args:
                if a.shape == n.shape:
                    self.reading[a, shape_of(n)] = group

    def _hoist(self, group: Group, target: Group, depth: int = 0) -> bool:
        """Whether `group` runs before `target`, moved forward in the order if need be and possible."""
        if group.order < target.order:
            return True
        if group is target or depth > DEEPEST or not all(self._hoist(g, target, depth + 1) for g in group.before):
            return False
        latest = max((g.order for g in self.groups if g.order < target.order), default=target.order - 1)
        middle = (latest + target.order) / 2
        if not latest < middle < target.order:
            return False
        group.order = middle
        return True

    def _index_in(self, group: Group, n: Node) -> Index | None:
        """Where `n` stands in the group's domain, if it reads every member at the point where that is computed."""
        candidates = [group.domain] if group.kind == "rows" and n.shape == group.shape else []
        for a in n.args:
            if source(a) in group.index:
                found = self._forward(group, a)
                if found is not None and math.prod(a.shape) == math.prod(n.shape):
                    candidates.append((ZERO,) * (len(n.shape) - len(a.shape)) + found)
        return next((c for c in candidates if self._consistent(group, n, c)), None)

    def _forward(self, group: Group, n: Node) -> Index | None:
        """The index of `n`, a chain of views over a member, at a point of the domain."""
        if not is_view(n):
            return group.index[n]
        below = self._forward(group, n.args[0])
        return None if below is None else forward(group.space, n, below)

    def _consistent(self, group: Group, n: Node, index: Index) -> bool:
        for a in n.args:
            if source(a) in group.index:
                s, at = chase(group.space, a, broadcast(index, shape_of(a)))
                if at != group.index[s]:
                    return False
        return True

    # --- reductions ---

    def _reduce(self, n: Node) -> None:
        x = n.args[0]
        assert isinstance(n.attrs, ReduceAttrs | ArgAttrs)
        dims = n.attrs.dims or tuple(range(len(x.shape)))
        group = self._rows_group(n, x, dims)
        kept = [d for i, d in enumerate(self._in_group(group, x)) if i not in dims]
        if n.attrs.keepdim:
            it = iter(kept)
            index = tuple(ZERO if i in dims else next(it) for i in range(len(x.shape)))
        else:
            index = tuple(kept)
        self._put(group, n, index)

    def _in_group(self, group: Group, x: Node) -> Index:
        if group.anchor is x:
            return group.domain
        found = self._forward(group, x)
        assert found is not None
        return found

    def _rows_group(self, n: Node, x: Node, dims: tuple[int, ...]) -> Group:
        """The group in which `n` reduces `dims` of `x`: its operand's, another that reduces the same, or a new one."""
        latest = next(iter(self._read(n)), None)
        if latest is not None and len(latest.members) < MOST_MEMBERS:
            if latest.kind == "rows" and self._same_rows(latest, x, dims):
                return latest
            if latest.kind == "pointwise" and self._become_rows(latest, x, dims):
                return latest
        known = self.anchored.get((x, dims))
        if known is not None and known.folded == (n in self.folded) and len(known.members) < MOST_MEMBERS:
            return known
        group = self._new("rows", shape_of(x), n in self.folded)
        group.anchor, group.reduced = x, dims
        self.anchored[x, dims] = group
        return group

    def _same_rows(self, group: Group, x: Node, dims: tuple[int, ...]) -> bool:
        if source(x) not in group.index:
            return x is group.anchor and dims == group.reduced
        index = self._forward(group, x)
        if index is None or math.prod(x.shape) != math.prod(group.shape):
            return False
        inner = {t for d in group.reduced for t, _ in group.domain[d].terms}
        for i, a in enumerate(index):
            atoms = {t for t, _ in a.terms}
            if not (atoms <= inner if i in dims else atoms.isdisjoint(inner)):
                return False
            if any(t not in group.space.vars for t in atoms):
                return False
        return True

    def _become_rows(self, group: Group, x: Node, dims: tuple[int, ...]) -> bool:
        """Make the pointwise group that computes `x` (or what it is a view of) a group of rows over `x`."""
        s = source(x)
        if group.index[s] != group.domain or math.prod(x.shape) != math.prod(group.shape) or self._forward(group, x) is None:
            return False
        if x.shape != group.shape or x is not s:
            space = Space()
            domain = tuple(space.loop(f"d{i}", e) for i, e in enumerate(x.shape))
            _, at = chase(space, x, domain)
            env = {d.terms[0][0]: v for d, v in zip(group.domain, at, strict=True) if d.terms}
            index = {m: tuple(space.substitute(i, group.space, env) for i in group.index[m]) for m in group.members}
            group.space, group.domain, group.index, group.shape = space, domain, index, shape_of(x)
        group.kind, group.anchor, group.reduced = "rows", x, dims
        return True

    # --- results ---

    def _outputs(self) -> None:
        """Bind every output that needs memory to a node: what is computed anyway where its place can be the output's."""
        taken: set[Node] = set()
        for i, o in enumerate(self.graph.outputs):
            if o.alias is not None:
                continue
            s = source(o.node)
            wanted = o.strides
            strides = self._direct(o.node, wanted) if s not in taken else None
            if strides is not None:
                taken.add(s)
                self.group_of[s].bound[s] = (i, strides)
            else:
                once = _without_repeats(o.node, wanted)
                self._copy(once).bound[once] = (i, wanted)

    def _direct(self, n: Node, strides: tuple[Size, ...]) -> tuple[Size, ...] | None:
        """Strides for the node under `n` that put `n` in memory with `strides`; None where it must be copied."""
        s = source(n)
        group = self.group_of.get(s)
        if group is None or group.folded or (group.kind == "call" and n is not s):
            return None
        if group.kind == "kernel" and s.op.family is not Family.POINTWISE and (n is not s or strides != row_major(shape_of(n))):
            return None
        if any(t == 0 and not provably_le(e, 1) for e, t in zip(n.shape, strides, strict=True)):
            return None
        while is_view(n):
            pulled = pull_back(n, strides)
            if pulled is None:
                return None
            n, strides = n.args[0], pulled
        return strides

    def _copy(self, n: Node) -> Group:
        """A group of its own that puts `n` in memory, reading what it is a view of."""
        group = self._new("copy", shape_of(n), False)
        group.add(n, group.domain)
        return group

    def _effects(self) -> None:
        """Effects come last, from memory that no effect changes."""
        changed = {self.graph.inputs[e.index] for e in self.graph.effects}
        kept: list[tuple[int, Node]] = []
        for e in self.graph.effects:
            n = e.node
            if source(n) in changed and n is not self.graph.inputs[e.index]:
                n = RESHAPE(n, shape=n.shape)
                self.group_of[n] = self._copy(n)
            kept.append((e.index, n))
        for i, n in kept:
            self._part_or_whole(self.graph.inputs[i], n, changed).effect = i

    def _part_or_whole(self, target: Node, n: Node, changed: set[Node]) -> Group:
        """A copy of `n` into the memory of `target`; of the part that differs, where `n` says which that is."""
        if not isinstance(n.attrs, SliceScatterAttrs) or n.args[0] is not target or source(n.args[1]) in changed:
            return self._copy(n)
        d, part = n.attrs.dim, n.args[1]
        start, step = n.attrs.start, n.attrs.step
        group = self._new("copy", shape_of(part), False)
        at = group.domain
        group.add(n, (*at[:d], group.space.scale(at[d], step, start), *at[d + 1 :]))
        group.sources[n] = part
        return group


def _without_repeats(n: Node, strides: tuple[Size, ...]) -> Node:
    """`n` without the elements that share their memory with others, those of dimensions of stride 0."""
    for d, (size, step) in enumerate(zip(shape_of(n), strides, strict=True)):
        if step == 0 and not provably_le(size, 1):
            n = SLICE(n, dim=d, start=0, stop=1, step=1)
    return n


def partition(graph: Graph, folded: set[Node], machine: Machine) -> Partition:
    return Fuser(graph, folded, machine).run()
