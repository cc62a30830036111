"""`tw.explain(fn, *args)`: what Tilewright makes of a call, as a report to read.

In: a function or module (compiled or not) and the arguments of a call. Out: a `Report`, whose `str()` is the report. The function
is captured and compiled anew, past the disk cache; what `tw.compile` made of it does not change. It is run only where its graph
breaks, on copies of the tensors it is given: what comes behind a break is known only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from .. import driver
from ..base import config, errors, log
from ..executable import Executable
from ..graph import torch_private as private
from ..graph.ir import INPUT, Graph, InputAttrs, Node
from ..graph.ops.opaque import PURE, CallAttrs
from ..graph.pipeline import optimise
from ..program import torch_link
from ..program.breaks import REASONS, Break
from ..program.capture import UserError
from ..program.compiled import CompiledFunction, Held
from ..stages import Captured, Dump, Lowered
from ..targets.plan import Plan, blocks, make_plan
from ..targets.target import target_named
from ..tile.fuse import Group, Partition
from ..tile.pipeline import lower
from ..tile.program import Call, Launch, Step
from .advice import advice
from .boundaries import boundaries
from .report_text import render

T = TypeVar("T")

_LOOKUPS = ("const", "get", "item", "cell")
"""Guard rows that fetch what later rows test."""


@dataclass(frozen=True)
class InputLine:
    """A tensor that the graph reads. `kind` is "user", "parameter" or "constant"."""

    name: str
    kind: str
    type: str
    strides: tuple[Any, ...]
    bytes: int


@dataclass(frozen=True)
class KernelLine:
    """A kernel with all its launches in one call. `share` of the estimated cost, from 0 to 1; 0 for a folded kernel.

    `members`: the graph operators computed in it, in order; `again` those that other kernels compute as well. `kind` is the
    fuser's word for the group: pointwise, rows, contract, attention, scan, copy, ...
    """

    name: str
    kind: str
    launches: int
    blocks: int
    share: float
    members: tuple[str, ...]
    again: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class BoundaryLine:
    """Two kernels between which values (`count` of them) pass through memory, and why they are not one."""

    producer: str
    consumer: str
    value: str
    reason: str
    count: int = 1


@dataclass(frozen=True)
class CallLine:
    """An eager call in the graph, how often, and why it is there."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True)
class GraphLine:
    """One graph of several: where it begins, and its size. `cost_ns` is the estimated one-thread time."""

    name: str
    operators: int
    kernels: int
    calls: int
    guards: int
    cost_ns: int


@dataclass(frozen=True)
class BreakLine:
    """Where and why a graph ends before the function does. `line` is the user's, `reason` a row of the break table."""

    reason: str
    text: str
    at: str
    line: str
    hint: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, repr=False)
class Report:
    """What `explain` found. `fallback`, where it is not "", says why the whole call runs in eager; the rest is then empty.

    `graphs`: in the order in which they were compiled; other fields are of all of them. `recompiles`: (kind of guard, what
    changed) for each time that the function had been compiled again before. `cost_ns` is the estimated one-thread time of a
    call. `seconds`: compile time by stage, with an empty cache. Memory is in bytes: `arena_bytes` the peak of temporaries,
    `packed_bytes` packed and folded weights beside the originals. `advice` begins with what promises most.
    """

    name: str
    fallback: str = ""
    graphs: tuple[GraphLine, ...] = ()
    inputs: tuple[InputLine, ...] = ()
    guards: tuple[str, ...] = ()
    kernels: tuple[KernelLine, ...] = ()
    boundaries: tuple[BoundaryLine, ...] = ()
    calls: tuple[CallLine, ...] = ()
    breaks: tuple[BreakLine, ...] = ()
    recompiles: tuple[tuple[str, str], ...] = ()
    eager_backward: bool = False
    cost_ns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    arena_bytes: int = 0
    packed_bytes: int = 0
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(render(self))

    def __repr__(self) -> str:
        return f"<report on {self.name}: {len(self.graphs)} graphs, {len(self.breaks)} graph breaks>"


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Print and return what a call `fn(*args, **kwargs)` assumes, which kernels it becomes and why, what runs in eager.

    `fn` may be what `tw.compile` returned; its options then apply. Raises NotCallable, and what `fn` itself raises.
    """
    report = report_on(fn, args, kwargs)
    print(report)
    return report


def report_on(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report:
    """As `explain`, without printing."""
    function, options, recompiles = _unwrapped(fn)
    torch_link.connect()
    seen = _Build()
    name = type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__qualname__", repr(function))
    compiled = CompiledFunction(function, seen, options, fullgraph=False)
    try:
        pieces = _pieces(compiled, args, kwargs)
    except UserError as e:
        raise e.error from None
    except errors.TilewrightError as e:
        report = Report(name, fallback=str(e), recompiles=recompiles)
    else:
        report = seen.report(name, pieces, tuple(map(_break, _all(compiled, lambda c: c.program.breaks.values()))))
        seconds: dict[str, float] = {}
        for stage, spent in _all(compiled, lambda c: c.program.seconds.items()):
            seconds[stage] = seconds.get(stage, 0.0) + spent
        report = replace(report, recompiles=recompiles, seconds=seconds)
    return replace(report, advice=tuple(advice(report, options)))


def _pieces(compiled: CompiledFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is compiled for the call, piece by piece: (where it begins, what its entry holds)."""
    entry = compiled.new_entry(args, kwargs)
    if not compiled.program.breaks:
        return [("", entry.data)]
    before = torch.get_rng_state()
    compiled(*_copied(args), **_copied(kwargs))
    torch.set_rng_state(before)
    pieces = [(compiled.program.name, e.data) for e in compiled.entries]
    return pieces + list(_all(compiled, _rests))


def _rests(compiled: CompiledFunction) -> Iterable[tuple[str, Any]]:
    for rest in compiled.program.rests.values():
        yield from ((f"{compiled.program.name}, from line {rest.places[0].line}", e.data) for e in rest.entries)
    for child in _children(compiled):
        yield from ((child.program.name, e.data) for e in child.entries)


def _children(compiled: CompiledFunction) -> list[CompiledFunction]:
    return list({id(c): c for c in compiled.program.children.values()}.values())


def _all(compiled: CompiledFunction, what: Callable[[CompiledFunction], Iterable[T]]) -> Iterable[T]:
    """`what` of the function and of those that it calls at breaks."""
    todo, done = [compiled], set()
    while todo:
        c = todo.pop(0)
        if id(c) not in done:
            done.add(id(c))
            yield from what(c)
            todo += _children(c)


def _copied(values: Any) -> Any:
    """Containers of the arguments with copies of their tensors, a tensor that occurs twice as one."""
    leaves, tree = private.tree_flatten(values)
    plain = [v for v in leaves if type(v) is torch.Tensor]
    copies: dict[int, Any] = {id(v): v.detach().clone().requires_grad_(v.requires_grad) for v in plain}
    return private.tree_unflatten([copies.get(id(v), v) for v in leaves], tree)


def _break(b: Break) -> BreakLine:
    line = b.at.source_line() if b.at is not None else ""
    return BreakLine(b.reason, str(b), str(b.at or "an unknown place"), line, REASONS[b.reason].hint)


def _unwrapped(fn: Any) -> tuple[Any, config.Options, tuple[tuple[str, str], ...]]:
    """The function, its options, and why it was compiled again so far."""
    inner = getattr(fn, "_tilewright", fn)
    if isinstance(inner, CompiledFunction):
        return inner.fn, inner.options, tuple(_all(inner, lambda c: c.program.recompiles))
    if not callable(fn):
        raise errors.NotCallable(function="tilewright.explain", got=f"{type(fn).__name__} {fn!r}"[:100])
    return fn, config.Options.parse(None), ()


@dataclass
class _Built:
    """What every stage made of one graph."""

    captured: Captured
    groups: list[tuple[Group, Sequence[Step]]] = field(default_factory=list)
    parts: Partition | None = None
    lowered: Any = None

    def watch(self, parts: Partition, group: Group, steps: Sequence[Step]) -> None:
        self.parts = parts
        self.groups.append((group, steps))

    @property
    def plan(self) -> Plan:
        return self.lowered.plan

    @property
    def cost(self) -> float:
        return sum(s.kernel.cost for s in self.plan.program.steps if isinstance(s, Launch))

    def edges(self) -> Iterable[tuple[str, str, str, str]]:
        """Boundaries between kernels: producer, consumer, value, reason."""
        if self.parts is not None:
            names = {g: _group_name(g, steps) for g, steps in self.groups}
            for b in boundaries(self.parts, [g for g, _ in self.groups]):
                yield names.get(b.producer, b.producer.kind), names[b.consumer], _type(b.value), b.reason


class _Build:
    """`driver.build` without the cache, keeping what every stage made of each graph."""

    def __init__(self) -> None:
        self.graphs: dict[Executable, _Built] = {}

    def __call__(self, graph: Graph, options: config.Options, stages: log.Stages) -> Executable:
        built, dump = _Built(Captured(graph)), Dump(None)
        target = target_named(f"cpu:{options.cpu}" if options.cpu else "cpu")
        with stages.stage("optimise"):
            optimised = optimise(graph)
        with stages.stage("lower"):
            program = lower(optimised, target.machine(torch.get_num_threads()), options, built.watch)
        with stages.stage("plan"):
            built.lowered = Lowered(optimised, make_plan(program, optimised))
        compiled = driver.assemble(built.lowered, target, stages, dump)
        with stages.stage("load"):
            executable = Executable(compiled.recipe, compiled.object_file, lambda level: "")
        self.graphs[executable] = built
        return executable

    def report(self, name: str, pieces: Sequence[tuple[str, Held]], breaks: tuple[BreakLine, ...]) -> Report:
        """The report on the pieces, each built by a call before."""
        tables = [[why for row, why in zip(h.table.rows, h.table.reasons) if row[0] not in _LOOKUPS] for _, h in pieces]
        built = [self.graphs.get(h.executable) for _, h in pieces]
        graphs = [b for b in built if b is not None]
        cost = sum(b.cost for b in graphs)
        nodes = [n for b in graphs for n in _calls(b.plan.program.steps)]
        inputs = [line for b in graphs for line in map(_input, b.captured.graph.inputs, b.captured.graph.strides)]
        edges = _counted([e for b in graphs for e in b.edges()])
        return Report(
            name,
            graphs=tuple(_graph_line(where, b, len(t)) for (where, _), b, t in zip(pieces, built, tables)),
            inputs=tuple(dict.fromkeys(inputs)),
            guards=tuple(dict.fromkeys(t for table in tables for t in table)),
            kernels=tuple(k for b in graphs for k in _kernels(b, cost)),
            boundaries=tuple(BoundaryLine(*edge, count) for edge, count in edges),
            calls=tuple(CallLine(op, count, why) for (op, why), count in _counted(map(_call, nodes))),
            breaks=breaks,
            eager_backward=any(h.gradients for _, h in pieces),
            cost_ns=round(cost),
            arena_bytes=max((h.executable.arena_bytes for _, h in pieces), default=0),
            packed_bytes=sum(h.executable.packed_bytes for _, h in pieces),
        )


def _graph_line(where: str, built: _Built | None, guards: int) -> GraphLine:
    if built is None:
        return GraphLine(where, 0, 0, 0, guards, 0)
    steps = built.plan.program.steps
    launches = sum(isinstance(s, Launch) for s in steps)
    operators = sum(n.op is not INPUT for n in built.captured.graph.nodes())
    return GraphLine(where, operators, launches, len(_calls(steps)), guards, round(built.cost))


def _kernels(built: _Built, cost: float) -> Iterable[KernelLine]:
    """A line for each distinct kernel with the same members, in order of first launch, folded ones first."""
    lines: dict[Any, list[Any]] = {}
    folded = set(map(id, built.plan.program.folded))
    for group, steps in built.groups:
        for step in steps:
            if isinstance(step, Launch):
                key = (step.kernel, id(step) in folded)
                lines.setdefault(key, [group, step, 0])[2] += 1
    for (kernel, is_folded), (group, step, count) in sorted(lines.items(), key=lambda item: not item[0][1]):
        share = 0.0 if is_folded or not cost else kernel.cost * count / cost
        members, again = tuple(m.op.name for m in group.members), tuple(n.op.name for n in group.inlined)
        if kernel.name == "copy":  # of the group's operand, or of a result to where the caller wants it
            members, again = ("copy",), ()
        yield KernelLine(kernel.name, group.kind, count, blocks(step), share, members, again, is_folded)


def _group_name(group: Group, steps: Sequence[Step]) -> str:
    launches = [s for s in steps if isinstance(s, Launch)]
    return launches[-1].kernel.name if launches else _call(group.core)[0] if group.core is not None else group.kind


def _calls(steps: Iterable[Step]) -> list[Node]:
    return [s.node for s in steps if isinstance(s, Call)]


def _call(node: Node) -> tuple[str, str]:
    """(operator, why it is an eager call)."""
    if not isinstance(node.attrs, CallAttrs):
        return node.op.name, "the library is faster here"
    if node.attrs.seq != PURE:
        return node.attrs.overload, "it draws random numbers from eager's generator, or has other effects"
    return node.attrs.overload, "the op table has no row for it, or none for these operands"


def _input(node: Node, strides: tuple[Any, ...]) -> InputLine:
    assert isinstance(node.attrs, InputAttrs)
    a, numel = node.attrs, node.tensor.numel
    return InputLine(a.name, a.kind.value, repr(node.type), strides, numel * node.dtype.bytes if isinstance(numel, int) else 0)


def _type(node: Node) -> str:
    return repr(node.type)


def _counted(items: Iterable[T]) -> list[tuple[T, int]]:
    counts: dict[T, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return list(counts.items())
