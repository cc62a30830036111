"""The text of a graph: a printer and a parser that are inverse.

In: a `Graph`, or text. Out: the other. The text is complete and canonical: nodes are numbered by structure alone, so equal graphs
have equal text in every process, and it serves as the key of the disk cache. Must not know what operators mean.

    dim s0 >= 2 % 8 = 64                                             a size symbol with its facts and the value to plan for
    %0 = input(index=0, name="x", kind=user) : f32[4, s0], strides=(8, 1)
    %1 = cast(%0, dtype=bf16) : bf16[4, s0]
    return %1, strides=(s0, 1)                                       then, where it shares memory: alias=input 0, offset=0
    write %1, index=0                                                an effect
    require {s0}                                                     a constraint

A value is None, True, False, a number, "text", a tuple, a dtype or type (f32, f32[4]), {a symbolic size}, $i (the place of an
operand in a call's arguments), or an object of torch (torch.float32, torch.strided, device("cpu")).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..base import dims, dtypes
from ..base.dims import Dim, Size, Symbol
from ..base.dtypes import DType
from ..base.errors import Location, ParseError
from .ir import INPUT, Alias, Attrs, Effect, Graph, InputAttrs, InputKind, Node, Op, Output, TensorType, TupleType, Type, make
from .ops import OPS
from .ops.opaque import CallAttrs, TensorArg
from .ops.rules import field_names

# --- printing ---------------------------------------------------------------------------------------------------------


def print_graph(graph: Graph) -> str:
    """The graph's text, ending in a newline. Raises TypeError for an attribute that has no text."""
    order = canonical_order(graph)
    number = {n: i for i, n in enumerate(order)}
    symbols = {s.name: s for s in _symbols(graph, order)}
    hints = dict(graph.hints)
    lines = [_symbol_line(symbols.get(name, Symbol(name, None, None, 1)), hint) for name, hint in graph.hints]
    lines += [_symbol_line(s, None) for name, s in symbols.items() if name not in hints]
    strides = dict(zip(graph.inputs, graph.strides, strict=True))
    for n in order:
        line = node_line(n, number)
        lines.append(f"{line}, strides={value_text(strides[n])}" if n in strides else line)
    for o in graph.outputs:
        lines.append(f"return %{number[o.node]}, strides={value_text(o.strides)}{_alias_text(o.alias)}")
    lines += [f"write %{number[e.node]}, index={e.index}" for e in graph.effects]
    lines += [f"require {value_text(c)}" for c in graph.constraints]
    return "\n".join(lines) + "\n"


def node_line(node: Node, number: Mapping[Node, int] | None = None) -> str:
    """One node's text; without `number`, nodes are named by their serial."""
    if number is None:
        parts = [f"%{a.serial}" for a in node.args]
    else:
        parts = [f"%{number[a]}" for a in node.args]
    attrs, type_ = node.attrs, node.type
    for name in field_names(attrs):
        if name != "type":  # a field of that name repeats the node's type
            parts.append(f"{name}={value_text(getattr(attrs, name))}")
    own = node.serial if number is None else number[node]
    return f"%{own} = {node.op.name}({', '.join(parts)}) : {type_!r}"


def canonical_order(graph: Graph) -> list[Node]:
    """Inputs, then every other node after its operands, in an order that depends on the graph's structure only.

    Effectful calls keep the order of their `seq`.
    """
    effectful = [n for n in graph.nodes() if isinstance(n.attrs, CallAttrs) and n.attrs.seq >= 0]
    effectful.sort(key=lambda n: n.attrs.seq)  # type: ignore[attr-defined]
    seen: dict[Node, None] = dict.fromkeys(graph.inputs)
    for root in (*effectful, *graph.roots):
        if root in seen:
            continue
        todo: list[tuple[Node, int]] = [(root, 0)]
        while todo:
            n, i = todo.pop()
            while i < len(n.args) and n.args[i] in seen:
                i += 1
            if i < len(n.args):
                todo.append((n, i + 1))
                todo.append((n.args[i], 0))
            else:
                seen.setdefault(n)
    return list(seen)


def value_text(value: Any) -> str:
    """The text of an attribute's value. Raises TypeError for a value that has none."""
    if value.__class__ is int:
        return str(value)
    printer = _PRINTERS.get(value.__class__)
    if printer is None:
        raise TypeError(f"{value!r} of {type(value)} has no text")
    return printer(value)


def _tuple_text(value: tuple[Any, ...]) -> str:
    inner = ", ".join([value_text(v) for v in value])
    return f"({inner},)" if len(value) == 1 else f"({inner})"


_PRINTERS: dict[type, Callable[[Any], str]] = {
    bool: repr, int: str, float: repr, type(None): repr, tuple: _tuple_text,
    str: json.dumps,
    complex: lambda v: f"complex({v.real!r}, {v.imag!r})",
    DType: lambda v: v.short,
    TensorType: repr,
    Dim: lambda v: f"{{{v}}}",
    InputKind: lambda v: v.value,
    TensorArg: lambda v: f"${v.index}",
    torch.dtype: str, torch.layout: str, torch.memory_format: str,
    torch.device: lambda v: f'device("{v}")',
}  # fmt: skip


def _alias_text(alias: Alias | None) -> str:
    return "" if alias is None else f", alias={alias.of} {alias.index}, offset={value_text(alias.offset)}"


def _symbol_line(s: Symbol, hint: int | None) -> str:
    low = "" if s.lo is None else f" >= {s.lo}"
    high = "" if s.hi is None else f" <= {s.hi}"
    facts = f"dim {s.name}{low}{high}" + ("" if s.divisor == 1 else f" % {s.divisor}")
    return facts if hint is None else f"{facts} = {hint}"


def _symbols(graph: Graph, order: list[Node]) -> tuple[Symbol, ...]:
    found: set[Dim] = set()
    for n in order:
        collect(n.type, found)
        if not isinstance(n.attrs, InputAttrs):
            for name in field_names(n.attrs):
                collect(getattr(n.attrs, name), found)
    collect((graph.strides, graph.constraints), found)
    for o in graph.outputs:
        collect((o.strides, o.alias.offset if o.alias else 0), found)
    return dims.symbols(*found) if found else ()


def collect(value: Any, found: set[Dim]) -> None:
    """Add the symbolic sizes in a value of an attribute, or a type, to `found`."""
    if isinstance(value, Dim):
        found.add(value)
    elif isinstance(value, tuple):
        for v in value:
            if v.__class__ is not int:
                collect(v, found)
    elif isinstance(value, TensorType):
        collect(value.shape, found)
    elif isinstance(value, TupleType):
        collect(value.items, found)


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse_graph(text: str, ops: Mapping[str, Op] = OPS, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph that `print_graph` printed. Blank lines and lines that start with `#` are skipped.
    A symbol in `sizes` has that value.

    Raises ParseError, with the line's number and text, for what cannot be read or for a wrong type.
    """
    building = _Building(ops, sizes or {})
    for i, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            building.line(line)
        except (ValueError, KeyError, TypeError) as e:
            reason = f"unknown name {e}" if isinstance(e, KeyError) else str(e)
            raise ParseError(what="the graph", reason=reason, at=Location("<graph>", i, text=line)) from None
    return building.graph()


_TOKEN = re.compile(
    r"\s*(?:(?P<node>%\d+)|(?P<place>\$\d+)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf\b)|nan\b)"
    r"|(?P<int>-?\d+)"
    r"|(?P<size>\{[^}]*\})"
    r"|(?P<name>[A-Za-z_][\w.]*)"
    r"|(?P<mark>>=|<=|[=(),:\[\]%]))"
)
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False} | {k.value: k for k in InputKind}


@dataclass
class _Building:
    """A graph as far as it is read."""

    ops: Mapping[str, Op]
    sizes: Mapping[str, int]
    nodes: dict[str, Node] = field(default_factory=dict)
    symbols: dict[str, Size] = field(default_factory=dict)
    inputs: list[Node] = field(default_factory=list)
    strides: list[tuple[Size, ...]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    constraints: list[Any] = field(default_factory=list)
    hints: list[tuple[str, int]] = field(default_factory=list)

    def graph(self) -> Graph:
        return Graph(
            tuple(self.inputs), tuple(self.outputs), tuple(self.strides), tuple(self.effects), tuple(self.constraints),
            tuple(self.hints),
        )  # fmt: skip

    def line(self, line: str) -> None:
        read = _Reader(line, self.symbols)
        match read.kind, read.token:
            case "node", name:
                self._node(name, read)
            case "name", "return":
                self._output(read)
            case "name", "write":
                read.advance()
                node = self.nodes[read.take("node")]
                self.effects.append(Effect(read.field("index"), node))
            case "name", "require":
                read.advance()
                self.constraints.append(read.value())
            case "name", "dim":
                self._symbol(read)
            case _:
                raise ValueError(f"a line cannot start with {read.token!r}")
        read.end()

    def _node(self, name: str, read: _Reader) -> None:
        read.advance()
        read.expect("=")
        op = self.ops[read.take("name")]
        read.expect("(")
        args: list[Node] = []
        fields: dict[str, Any] = {}
        while read.token != ")":
            if read.kind == "node":
                args.append(self.nodes[read.take("node")])
            else:
                key = read.take("name")
                read.expect("=")
                fields[key] = read.value()
            if read.token != ")":
                read.expect(",")
        read.expect(")")
        read.expect(":")
        type_ = read.type()
        node = make(op, tuple(args), _attrs(op, fields, type_))
        if node.type != type_:
            raise ValueError(f"the type is {node.type}, not {type_}")
        self.nodes[name] = node
        if op is INPUT and read.kind:
            self.inputs.append(node)
            self.strides.append(read.field("strides"))

    def _output(self, read: _Reader) -> None:
        read.advance()
        node = self.nodes[read.take("node")]
        strides, alias = read.field("strides"), None
        if read.kind:
            read.expect(",")
            read.expect("alias")
            read.expect("=")
            of, index = read.take("name"), int(read.take("int"))
            alias = Alias(of, index, read.field("offset"))
        self.outputs.append(Output(node, strides, alias))

    def _symbol(self, read: _Reader) -> None:
        read.advance()
        name = read.take("name")
        facts: dict[str, int] = {}
        while read.kind:
            mark = read.take("mark")
            facts[mark] = int(read.take("int"))
        self.symbols[name] = self.sizes.get(name, dims.symbol(name, facts.get(">="), facts.get("<="), facts.get("%", 1)))
        if "=" in facts and name not in self.sizes:
            self.hints.append((name, facts["="]))


def _attrs(op: Op, fields: dict[str, Any], type_: Type) -> Attrs:
    """The op's attributes; a field named `type` is the node's type."""
    known = field_names(op.attrs)
    if "type" in known:
        fields["type"] = type_
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{op.name} has no attribute {unknown[0]!r}")
    return op.attrs(**fields)


class _Reader:
    """One line, token by token; `kind` is "" at its end."""

    def __init__(self, text: str, symbols: Mapping[str, Size]) -> None:
        self.text, self.symbols, self.pos = text, symbols, 0
        self.kind, self.token = "", ""
        self.advance()

    def advance(self) -> None:
        m = _TOKEN.match(self.text, self.pos)
        if m is None:
            rest = self.text[self.pos :].strip()
            if rest:
                raise ValueError(f"cannot read {rest!r}")
            self.kind = self.token = ""
            return
        self.kind = m.lastgroup or ""
        self.token = m.group(m.lastindex or 0)
        self.pos = m.end()

    def take(self, kind: str) -> str:
        if self.kind != kind:
            raise ValueError(f"a {kind} expected, got {self.token!r}")
        token = self.token
        self.advance()
        return token

    def expect(self, token: str) -> None:
        if self.token != token:
            raise ValueError(f"{token!r} expected, got {self.token!r}")
        self.advance()

    def end(self) -> None:
        if self.kind:
            raise ValueError(f"{self.token!r} after the end")

    def field(self, name: str) -> Any:
        """`, name=value`"""
        self.expect(",")
        self.expect(name)
        self.expect("=")
        return self.value()

    def value(self) -> Any:
        kind, token = self.kind, self.token
        if kind == "mark" and token == "(":
            return tuple(self._items(")"))
        if kind == "name":
            return self._named()
        self.advance()
        match kind:
            case "int":
                return int(token)
            case "float":
                return float(token)
            case "text":
                return json.loads(token)
            case "place":
                return TensorArg(int(token[1:]))
            case "size":
                return dims.parse(token[1:-1], self.symbols)
        raise ValueError(f"a value expected, got {token!r}")

    def _items(self, end: str) -> Iterable[Any]:
        self.advance()
        items = []
        while self.token != end:
            items.append(self.value())
            if self.token != end:
                self.expect(",")
        self.expect(end)
        return items

    def _named(self) -> Any:
        name = self.take("name")
        if name in _WORDS:
            return _WORDS[name]
        if name in dtypes.BY_NAME:
            return TensorType(dtypes.named(name), self._shape()) if self.token == "[" else dtypes.named(name)
        if name in ("device", "complex"):
            arguments = tuple(self._items(")"))
            return torch.device(*arguments) if name == "device" else complex(*arguments)
        if name.startswith("torch."):
            found = getattr(torch, name.removeprefix("torch."), None)
            if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                return found
        raise ValueError(f"unknown name {name!r}")

    def _shape(self) -> tuple[Size, ...]:
        """Sizes up to the closing bracket, read from the text itself: a symbolic size holds arithmetic."""
        end = self.text.index("]", self.pos)
        inner, self.pos = self.text[self.pos : end], end + 1
        self.advance()
        return tuple([int(s) if s.strip().isdigit() else dims.parse(s, self.symbols) for s in _split(inner)])

    def type(self) -> Type:
        if self.token != "(":
            found = self.value()
            if not isinstance(found, TensorType):
                raise ValueError(f"a type expected, got {found!r}")
            return found
        return TupleType(tuple(self._items(")")))


def _split(text: str) -> list[str]:
    """At the commas outside parentheses."""
    if not text.strip():
        return []
    if "(" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
