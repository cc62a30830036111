"""The graph IR: pure programs over whole tensors.

In: rows of the op table and their operands. Out: interned `Node`s and a `Graph`. Strides, memory, devices and torch
are unknown here; layout belongs to the graph's inputs and outputs only.

    Graph      = inputs (Node...), outputs (Output...), effects (Effect...), constraints
    Node       = op, args (Node...), attrs (the op's own frozen dataclass), type       -- interned
    Type       = TensorType(dtype, shape) | TupleType(Type...)
    Output     = node, strides, and which memory it shares: a fresh buffer, another output's, or an input's
    Effect     = node is written back into the memory of an input, in order, after everything was read
"""

from __future__ import annotations

import enum
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..base.dims import Size
from ..base.dtypes import DType
from ..base.interned import Interned
from ..base.scalar import Expr

Shape: TypeAlias = tuple[Size, ...]


class Family(enum.Enum):
    """How an operator's elements depend on its operands', which is all that fusion and lowering ask."""

    INPUT = "input"
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    SCAN = "scan"
    VIEW = "view"
    CONTRACT = "contract"
    INDEX = "index"
    RANDOM = "random"
    OPAQUE = "opaque"
    KERNEL = "kernel"  # a tile kernel that a user wrote
    COMPOSITE = "composite"  # has `expand`: written in other operators, kept whole for pattern matching


@dataclass(frozen=True)
class TensorType:
    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Size:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TupleType:
    """The type of an operator with several results; `getitem` takes one of them."""

    items: tuple[TensorType, ...]

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.items))})"


Type: TypeAlias = TensorType | TupleType


@dataclass(frozen=True)
class Attrs:
    """Base of every op's own attributes: a frozen dataclass of hashable, printable fields."""


@dataclass(frozen=True, eq=False)
class Op:
    """One row of the op table: everything there is to know of an operator.

    `infer(attrs, *types)` gives the result's type and raises `ValueError` for operands it does not admit.
    `eager(attrs, *tensors)` is its meaning, in torch. `body(attrs, *operands)` is a pointwise operator on scalars, in
    the operands' compute type. `expand(attrs, *nodes)` writes a composite operator in simpler ones.
    """

    name: str
    family: Family
    infer: Callable[..., Type]
    eager: Callable[..., Any]
    attrs: type[Attrs] = Attrs
    body: Callable[..., Expr] | None = None
    expand: Callable[..., Node] | None = None
    arity: int | None = None  # None: any number
    dtypes: tuple[DType, ...] = ()  # operand types that the generated tests try; the first operand's
    effectful: bool = False  # draws random numbers or calls back into Python: never merged, moved or dropped

    def __repr__(self) -> str:
        return self.name

    def __call__(self, *args: Node, **attrs: Any) -> Node:
        """Build a node: `ADD(x, y)`, `PERMUTE(x, dims=(1, 0))`. Raises ValueError, naming the operator, for bad operands."""
        return make(self, args, self.attrs(**attrs))


_SERIAL = itertools.count()


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node(metaclass=Interned):
    """An operator applied. Equal nodes are one object. `serial` grows with creation, so operands have smaller ones."""

    op: Op
    args: tuple[Node, ...]
    attrs: Attrs
    type: Type
    serial: int = field(init=False, repr=False)

    __match_args__ = ("op", "args", "attrs", "type")

    def __post_init__(self) -> None:
        object.__setattr__(self, "serial", next(_SERIAL))

    def __repr__(self) -> str:
        return f"%{self.serial} = {self.op.name}({', '.join(f'%{a.serial}' for a in self.args)}) : {self.type}"

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def tensor(self) -> TensorType:
        """The type, where it is one tensor's. Raises TypeError for an operator with several results."""
        if isinstance(self.type, TensorType):
            return self.type
        raise TypeError(f"{self.op.name} has {len(self.type.items)} results; take one with getitem")


def make(op: Op, args: tuple[Node, ...], attrs: Attrs) -> Node:
    """The node `op(*args)`, its type inferred. Raises ValueError, naming the operator, for operands it does not admit."""
    if op.arity is not None and len(args) != op.arity:
        raise ValueError(f"{op.name}: {op.arity} operands expected, got {len(args)}")
    try:
        return Node(op, args, attrs, op.infer(attrs, *(a.type for a in args)))
    except ValueError as e:
        raise ValueError(f"{op.name}({', '.join(repr(a.type) for a in args)}): {e}") from None


def over(node: Node, args: tuple[Node, ...]) -> Node:
    """The same operator over other operands. The type is inferred anew only where the operands' types are others."""
    if all(map(operator.is_, args, node.args)):
        return node
    same = all(a.type == b.type for a, b in zip(args, node.args, strict=True))
    return Node(node.op, args, node.attrs, node.type) if same else make(node.op, args, node.attrs)


class InputKind(enum.Enum):
    USER = "user"  # an argument of the call: differs every time
    PARAMETER = "parameter"  # a module's parameter or buffer: looked up at each call, rarely changes; may be folded and packed
    CONSTANT = "constant"  # a tensor that the program closed over


@dataclass(frozen=True)
class InputAttrs(Attrs):
    index: int
    name: str
    kind: InputKind
    type: TensorType


INPUT = Op("input", Family.INPUT, infer=lambda attrs: attrs.type, eager=lambda attrs: None, attrs=InputAttrs, arity=0)


@dataclass(frozen=True)
class Alias:
    """Memory that an output shares: `input` i's, or an earlier `output` i's, from `offset` elements behind its first one."""

    of: str  # "input" | "output"
    index: int
    offset: Size = 0


@dataclass(frozen=True)
class Output:
    """A result: its value, the strides (in elements) that eager gives it, and the memory it shares, if any.

    An output that aliases an input is not computed: it is that input's memory seen through shape and strides.
    """

    node: Node
    strides: Shape
    alias: Alias | None = None


@dataclass(frozen=True)
class Effect:
    """`node`, of the input's whole shape, is written into input `index` after the graph has read everything."""

    index: int
    node: Node


@dataclass(frozen=True)
class Graph:
    """`strides` holds one tuple an input, in elements, as guarded."""

    inputs: tuple[Node, ...]
    outputs: tuple[Output, ...]
    strides: tuple[Shape, ...]
    effects: tuple[Effect, ...] = ()
    constraints: tuple[Any, ...] = ()  # facts on size symbols that the guards establish
    hints: tuple[tuple[str, int], ...] = ()  # every size symbol, in the order of a call's sizes, and a value to plan for

    @property
    def roots(self) -> tuple[Node, ...]:
        return tuple(o.node for o in self.outputs) + tuple(e.node for e in self.effects)

    def nodes(self) -> list[Node]:
        """Every reachable node, operands first, in the order of creation."""
        return reachable(self.roots)

    def in_sequence(self) -> list[Node]:
        """As `nodes`, with effectful calls in the order of their `seq` even where a pass made an early one anew."""
        nodes = self.nodes()
        calls = [n for n in nodes if _seq(n) >= 0]
        later = sorted(calls, key=_seq)
        if later == calls:
            return nodes
        done: dict[Node, None] = {}
        later.reverse()
        for n in nodes:
            while _seq(n) >= 0 and n not in done:
                _after_operands(later.pop(), done)
            _after_operands(n, done)
        return list(done)

    def with_roots(self, new: Callable[[Node], Node]) -> Graph:
        """The same graph computing `new(root)` in place of each root (outputs, then effects)."""
        outputs = tuple(Output(new(o.node), o.strides, o.alias) for o in self.outputs)
        effects = tuple(Effect(e.index, new(e.node)) for e in self.effects)
        return Graph(self.inputs, outputs, self.strides, effects, self.constraints, self.hints)


def reachable(roots: Iterable[Node]) -> list[Node]:
    seen: set[Node] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo += n.args
    return sorted(seen, key=lambda n: n.serial)


def _seq(n: Node) -> int:
    return getattr(n.attrs, "seq", -1)


def _after_operands(node: Node, done: dict[Node, None]) -> None:
    todo = [node]
    while todo:
        missing = [a for a in todo[-1].args if a not in done]
        if missing:
            todo += missing
        else:
            done.setdefault(todo.pop())


def users(graph: Graph) -> dict[Node, list[Node]]:
    """node -> the nodes that read it, in order; a root is a key even where nothing reads it."""
    table: dict[Node, list[Node]] = {n: [] for n in graph.nodes()}
    for n in table:
        for a in dict.fromkeys(n.args):
            table[a].append(n)
    return table


def rewrite_nodes(graph: Graph, rule: Callable[[Node, tuple[Node, ...]], Node | None]) -> Graph:
    """Rebuild operands-first: `rule(node, new_args)` gives the replacement, or None for the same op over the new operands."""
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        args = tuple(new[a] for a in n.args)
        replaced = rule(n, args)
        new[n] = over(n, args) if replaced is None else replaced
    return graph.with_roots(new.__getitem__)
