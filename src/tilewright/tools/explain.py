"""`tw.explain(fn, *args)`: what Tilewright makes of a call, as a report to read.

In: a function or module (compiled or not) and the arguments of a call. Out: a `Report`, whose `str()` is the report. The function
is recorded and compiled anew, past the disk cache; it is not run, and neither it nor what `tw.compile` made of it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from .. import driver
from ..base import config, errors, log
from ..executable import Executable
from ..graph.ir import Graph, InputAttrs, InputKind, Node
from ..graph.ops.opaque import PURE, CallAttrs
from ..graph.pipeline import optimise
from ..program import torch_link
from ..program.capture import UserError
from ..program.compiled import CompiledFunction
from ..stages import Captured, Dump, Lowered
from ..targets.plan import blocks, make_plan
from ..targets.target import target_named
from ..tile.fuse import Group, Partition
from ..tile.pipeline import lower
from ..tile.program import Call, Launch, Step
from .boundaries import boundaries

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
class Report:
    """What `explain` found. `fallback`, where it is not "", says why the whole call runs in eager; the rest is then empty.

    `breaks`: where and why the graph ends before the function does. The report is then of the graph before the first of them.
    `cost_ns` is the estimated one-thread time of a call. `seconds`: compile time by stage, with an empty cache. Memory is in
    bytes: `arena_bytes` the peak of temporaries, `packed_bytes` packed and folded weights beside the originals.
    """

    name: str
    fallback: str = ""
    inputs: tuple[InputLine, ...] = ()
    guards: tuple[str, ...] = ()
    kernels: tuple[KernelLine, ...] = ()
    boundaries: tuple[BoundaryLine, ...] = ()
    calls: tuple[CallLine, ...] = ()
    breaks: tuple[str, ...] = ()
    eager_backward: bool = False
    cost_ns: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    arena_bytes: int = 0
    packed_bytes: int = 0

    def __str__(self) -> str:
        return "\n".join(_render(self))


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """What a call `fn(*args, **kwargs)` assumes, which kernels it becomes and why, and what runs in eager.

    `fn` may be what `tw.compile` returned; its options then apply. Raises NotCallable, and what `fn` itself raises.
    """
    function, options = _unwrapped(fn)
    torch_link.connect()
    seen = _Build()
    name = type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__qualname__", repr(function))
    compiled = CompiledFunction(function, seen, options, fullgraph=False)
    try:
        entry = compiled.new_entry(args, kwargs)
    except UserError as e:
        raise e.error from None
    except errors.TilewrightError as e:
        return Report(name, fallback=str(e))
    table = entry.data.table
    tests = [why for row, why in zip(table.rows, table.reasons, strict=True) if row[0] not in _LOOKUPS]
    breaks = tuple(map(str, compiled.program.breaks.values()))
    return seen.report(name, tests, breaks) if seen.groups else Report(name, guards=tuple(tests), breaks=breaks)


def _unwrapped(fn: Any) -> tuple[Any, config.Options]:
    inner = getattr(fn, "_tilewright", fn)
    if isinstance(inner, CompiledFunction):
        return inner.fn, inner.options
    if not callable(fn):
        raise errors.NotCallable(function="tilewright.explain", got=f"{type(fn).__name__} {fn!r}"[:100])
    return fn, config.Options()


class _Executable(Executable):
    """Notes whether it will be called below autograd."""

    below_autograd = False

    def forward(self) -> Any:
        self.below_autograd = True
        return super().forward()


class _Build:
    """`driver.build` without the cache, keeping what every stage made."""

    def __init__(self) -> None:
        self.groups: list[tuple[Group, Sequence[Step]]] = []
        self.parts: Partition | None = None

    def __call__(self, graph: Graph, options: config.Options, stages: log.Stages) -> _Executable:
        self.captured, self.stages, dump = Captured(graph), stages, Dump(None)
        target = target_named(f"cpu:{options.cpu}" if options.cpu else "cpu")
        with stages.stage("optimise"):
            optimised = optimise(graph)
        with stages.stage("lower"):
            program = lower(optimised, target.machine(torch.get_num_threads()), options, self._watch)
        with stages.stage("plan"):
            self.lowered = Lowered(optimised, make_plan(program, optimised))
        compiled = driver.assemble(self.lowered, target, stages, dump)
        with stages.stage("load"):
            self.executable = _Executable(compiled.recipe, compiled.object_file, lambda level: "")
        return self.executable

    def _watch(self, parts: Partition, group: Group, steps: Sequence[Step]) -> None:
        self.parts = parts
        self.groups.append((group, steps))

    def report(self, name: str, guards: Sequence[str], breaks: tuple[str, ...]) -> Report:
        """The report of what was built. Called after `__call__`."""
        plan = self.lowered.plan
        cost = sum(s.kernel.cost for s in plan.program.steps if isinstance(s, Launch))
        edges = []
        if self.parts is not None:
            names = {g: _group_name(g, steps) for g, steps in self.groups}
            for b in boundaries(self.parts, [g for g, _ in self.groups]):
                edges.append((names.get(b.producer, b.producer.kind), names[b.consumer], _type(b.value), b.reason))
        return Report(
            name,
            inputs=tuple(map(_input, self.captured.graph.inputs, self.captured.graph.strides)),
            guards=tuple(dict.fromkeys(guards)),
            kernels=tuple(self._kernels(cost)),
            boundaries=tuple(BoundaryLine(*edge, count) for edge, count in _counted(edges)),
            calls=tuple(CallLine(op, count, why) for (op, why), count in _counted(map(_call, _calls(plan.program.steps)))),
            breaks=breaks,
            eager_backward=self.executable.below_autograd,
            cost_ns=round(cost),
            seconds=dict(self.stages.seconds),
            arena_bytes=self.executable.arena_bytes,
            packed_bytes=self.executable.packed_bytes,
        )

    def _kernels(self, cost: float) -> Iterable[KernelLine]:
        """A line for each distinct kernel with the same members, in order of first launch, folded ones first."""
        lines: dict[Any, list[Any]] = {}
        folded = set(map(id, self.lowered.plan.program.folded))
        for group, steps in self.groups:
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


# --- text -------------------------------------------------------------------------------------------------------------

MOST_LINES = 40
"""Lines of one section; what is left out is counted."""


def _render(r: Report) -> Iterable[str]:
    if r.fallback:
        yield f"{r.name}: runs in eager"
        yield ""
        yield from ("  " + line for line in r.fallback.splitlines())
        return
    launches = sum(k.launches for k in r.kernels if not k.folded)
    calls = sum(c.count for c in r.calls)
    yield f"{r.name}: {_plural(launches, 'kernel launch', 'kernel launches')}, {_plural(calls, 'eager call')}"
    for title, lines in (
        ("Inputs", _input_lines(r)),
        (f"Guards ({len(r.guards)}): compiled anew where", _guard_lines(r)),
        (f"Kernels (shares of {_time(r.cost_ns)}, the estimate for one thread)", _kernel_lines(r)),
        ("Not fused, because", _boundary_lines(r)),
        ("Eager", _eager_lines(r)),
        ("Compile time", [", ".join(f"{stage} {1e3 * s:.1f} ms" for stage, s in r.seconds.items())]),
        ("Memory", [f"arena {_bytes(r.arena_bytes)}, packed and folded weights {_bytes(r.packed_bytes)}"]),
    ):
        if lines:
            yield ""
            yield title
            yield from ("  " + line for line in lines[:MOST_LINES])
            if len(lines) > MOST_LINES:
                yield f"  ... and {len(lines) - MOST_LINES} more"


def _input_lines(r: Report) -> list[str]:
    lines = [f"argument {i.name}: {i.type}, strides {i.strides}" for i in r.inputs if i.kind == InputKind.USER.value]
    for kind, one in ((InputKind.PARAMETER, "parameter or buffer"), (InputKind.CONSTANT, "constant")):
        found = [i for i in r.inputs if i.kind == kind.value]
        if found:
            count = _plural(len(found), one, "parameters and buffers" if kind is InputKind.PARAMETER else "constants")
            names = ", ".join(f"{i.name} {i.type}" for i in found[:4]) + (", ..." if len(found) > 4 else "")
            lines.append(f"{count}, {_bytes(sum(i.bytes for i in found))}: {names}")
    return lines


def _guard_lines(r: Report) -> list[str]:
    """Those on arguments and Python values one by one; of modes, the module tree and its tensors, only how many."""
    inner = {i.name for i in r.inputs if i.kind == InputKind.PARAMETER.value}
    kinds: dict[str, list[str]] = {"modes": [], "module": [], "tensors": [], "code": [], "": []}
    for g in r.guards:
        if g.startswith("torch's "):
            kinds["modes"].append(g)
        elif g.split(":")[0].removeprefix("module.") in inner:
            kinds["tensors"].append(g)
        elif g.startswith(("the class ", "the code of ")) or "__defaults__" in g or "__kwdefaults__" in g:
            kinds["code"].append(g)
        else:
            kinds["module" if g.startswith(("module", "hooks of")) else ""].append(g)
    lines = kinds[""]
    if kinds["modes"]:
        names = ", ".join(g.removeprefix("torch's ").split(" is ")[0] for g in kinds["modes"])
        lines.append(f"a mode of torch changed: {names}")
    if kinds["module"]:
        lines.append(f"the module tree changed: {len(kinds['module'])} flags, attributes, children and hooks")
    if kinds["code"]:
        lines.append(f"a class or function was edited: {len(kinds['code'])} of them")
    if kinds["tensors"]:
        lines.append(f"metadata of a parameter or buffer changed: {len(kinds['tensors'])} of them")
    return lines


def _kernel_lines(r: Report) -> list[str]:
    return [line for k in r.kernels for line in _kernel_line(k)]


def _kernel_line(k: KernelLine) -> Iterable[str]:
    share = "once" if k.folded else f"{100 * k.share:.0f} %"
    times = f" × {k.launches}" if k.launches > 1 else ""
    yield f"{share:>5}  {k.name}{times}  ({k.kind}, {_plural(k.blocks, 'block')})"
    text = ", ".join(_runs(k.members))
    if k.again:
        text += f"; computed here again: {', '.join(_runs(k.again))}"
    yield f"       {text}"


def _runs(names: Sequence[str]) -> list[str]:
    """The names, repetitions in a row as one."""
    found: list[list[Any]] = []
    for n in names:
        if found and found[-1][0] == n:
            found[-1][1] += 1
        else:
            found.append([n, 1])
    return [n if count == 1 else f"{n} × {count}" for n, count in found]


def _boundary_lines(r: Report) -> list[str]:
    """By reason: the pairs that it keeps apart."""
    lines: list[str] = []
    for why in dict.fromkeys(b.reason for b in r.boundaries):
        lines.append(why + ":")
        pairs: dict[tuple[str, str], int] = {}
        for b in r.boundaries:
            if b.reason == why:
                pairs[b.producer, b.consumer] = pairs.get((b.producer, b.consumer), 0) + b.count
        shown = list(pairs.items())[:4]
        lines += [f"    {p} → {c}" + (f" × {count}" if count > 1 else "") for (p, c), count in shown]
        if len(pairs) > 4:
            lines.append(f"    ... and {len(pairs) - 4} other pairs")
    return lines


def _eager_lines(r: Report) -> list[str]:
    lines = [f"the graph ends, and another begins behind it: {b}" for b in r.breaks]
    lines += [f"{c.operator} × {c.count}: {c.reason}" for c in r.calls]
    if r.eager_backward:
        lines.append("the outputs require grad: backward runs the function again in eager")
    return lines or ["nothing"]


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _time(ns: float) -> str:
    return f"{ns / 1e3:.1f} µs" if ns < 1e6 else f"{ns / 1e6:.1f} ms"


def _bytes(n: int) -> str:
    if not n:
        return "0 bytes"
    power = min(int(math.log2(n)) // 10, 3)
    return f"{n / 2 ** (10 * power):.{1 if power else 0}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
