"""A `Report` of `tw.explain` as text.

In: a report. Out: its lines. Must not know where the facts come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..graph.ir import InputKind

if TYPE_CHECKING:
    from .explain import KernelLine, Report

MOST_LINES = 40
"""Lines of one section; what is left out is counted."""


def render(r: Report) -> Iterable[str]:
    """The report's lines: sections that have something to say."""
    if r.fallback:
        yield f"{r.name}: runs in eager"
        yield ""
        yield from ("  " + line for line in r.fallback.splitlines())
        yield from ("", "Advice", *(f"  {n}. {a}" for n, a in enumerate(r.advice, 1)))
        return
    launches = sum(k.launches for k in r.kernels if not k.folded)
    calls = sum(c.count for c in r.calls)
    yield f"{r.name}: {_plural(launches, 'kernel launch', 'kernel launches')}, {_plural(calls, 'eager call')}"
    for title, lines in (
        ("Graphs", _graph_lines(r)),
        ("Graph breaks", _break_lines(r)),
        ("Recompiles so far, because", [text for _, text in r.recompiles]),
        ("Inputs", _input_lines(r)),
        (f"Guards ({len(r.guards)}): compiled anew where", _guard_lines(r)),
        (f"Kernels (shares of {_time(r.cost_ns)}, the estimate for one thread)", _kernel_lines(r)),
        ("Not fused, because", _boundary_lines(r)),
        ("Eager", _eager_lines(r)),
        ("Compile time", [", ".join(f"{stage} {1e3 * s:.1f} ms" for stage, s in r.seconds.items())]),
        ("Memory", [f"arena {_bytes(r.arena_bytes)}, packed and folded weights {_bytes(r.packed_bytes)}"]),
        ("Advice", [f"{n}. {a}" for n, a in enumerate(r.advice, 1)]),
    ):
        if lines:
            yield ""
            yield title
            yield from ("  " + line for line in lines[:MOST_LINES])
            if len(lines) > MOST_LINES:
                yield f"  ... and {len(lines) - MOST_LINES} more"


def _graph_lines(r: Report) -> list[str]:
    """Where there are several: each with its size."""
    if len(r.graphs) < 2:
        return []
    return [
        f"{g.name}: {_plural(g.operators, 'operator')}, {_plural(g.kernels, 'kernel launch', 'kernel launches')}, "
        f"{_plural(g.calls, 'eager call')}, {_plural(g.guards, 'guard')}, {_time(g.cost_ns)}"
        for g in r.graphs
    ]


def _break_lines(r: Report) -> list[str]:
    lines = []
    for b in r.breaks:
        lines.append(b.text)
        lines += [f"    {b.line.strip()}"] if b.line.strip() else []
        lines += [f"    hint: {b.hint}"] if b.hint else []
    return lines


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
    lines = [f"{c.operator} × {c.count}: {c.reason}" for c in r.calls]
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
