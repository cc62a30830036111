"""Kernels as text: what the templates make of small graphs."""

from __future__ import annotations

import golden
from tile.lower_cases import MACHINE, check
from tilewright.graph.text import parse_graph
from tilewright.tile.program import Launch, Program
from tilewright.tile.text import kernel_text


def text(program: Program) -> str:
    """The kernels in order of first launch, then the launches with the values they are bound to."""
    parts = [kernel_text(k).rstrip() for k in program.kernels()]
    lines = []
    for s in (*program.folded, *program.steps):
        assert isinstance(s, Launch)
        args = (f"{a.value.storage.value}{a.value.id}" + (f"+{a.offset}" if a.offset else "") for a in s.args)
        lines.append(f"{s.kernel.name}({', '.join(args)})")
    return "\n\n".join([*parts, "\n".join(lines)])


@golden.cases("lower")
def test_lower(case: golden.Case) -> None:
    case.check(text(check(parse_graph(case.input), error=1e-3, machine=MACHINE)))
