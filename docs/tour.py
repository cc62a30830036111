"""One small model from its Python line to the instructions that run, each stage printed with a sentence.

    python docs/tour.py

It calls the same stages as `tw.compile`, one after the other, as `src/tilewright/driver.py` does.
"""

from __future__ import annotations

import inspect
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import tilewright as tw
from tilewright import native
from tilewright.graph.ir import Graph
from tilewright.graph.pipeline import optimise
from tilewright.graph.text import print_graph
from tilewright.program.capture import finish
from tilewright.program.rebuild import Rebuild
from tilewright.program.start import capture_call
from tilewright.targets.cpu import compile as code
from tilewright.targets.cpu.generate import generate
from tilewright.targets.plan import make_plan
from tilewright.targets.target import Target, target_named
from tilewright.tile.fuse import Group, Partition
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Launch, Program, Step
from tilewright.tile.text import kernel_text
from tilewright.tools.dump import changes


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 512)
        self.norm = nn.LayerNorm(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(functional.gelu(self.up(x))), dim=-1)


def show(title: str, sentence: str, text: str) -> None:
    print(f"\n=== {title}\n{sentence}\n\n{text.rstrip()}")


def excerpt(text: str, patterns: list[str], lines: int) -> str:
    """So many lines from where the last pattern is first found behind the others; the lines before are left out."""
    all_lines = text.splitlines()
    at = 0
    for pattern in patterns:
        at = next(i for i, line in enumerate(all_lines) if i >= at and re.search(pattern, line))
    return "\n".join([*all_lines[at : at + lines], f"... {len(all_lines)} lines in all"])


def milliseconds(call: Callable[[], Any], count: int = 50) -> float:
    """The median time of a call."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def launch_seconds(call: Callable[[], Any], launches: int, count: int = 50) -> list[float]:
    """The shortest time of each launch in `count` calls."""
    native.profile(launches * count)
    for _ in range(count):
        call()
    times = native.profile(0)
    return [1e-9 * min(times[i::launches]) for i in range(launches)]


def capture(model: nn.Module, x: torch.Tensor) -> Graph:
    captured = capture_call(model, (x,), {})
    result = Rebuild(captured.cx)
    result.expression(captured.end[1])
    graph = finish(captured.cx.recorder, result.tensors).graph
    show(
        "Captured graph",
        "The model's bytecode was interpreted on tensors without data. Each torch call left a row of the op table.",
        print_graph(graph),
    )
    table = captured.cx.rows.table(len(graph.inputs))
    looked_up = ("const", "get", "item", "cell")  # rows that fetch what later rows test
    tests = [why for row, why in zip(table.rows, table.reasons, strict=True) if row[0] not in looked_up]
    show(
        "Guards",
        f"What the capture took for granted: {len(tests)} tests, run natively before every call. It is compiled anew where",
        "\n".join([*tests[:4], "...", *tests[-2:]]),
    )
    return graph


def transform(recorded: Graph) -> Graph:
    texts = [print_graph(recorded)]
    shown: list[str] = []

    def watch(name: str, graph: Graph) -> None:
        texts.append(print_graph(graph))
        changed = changes(texts[-2], texts[-1])
        if changed:
            shown.append("\n".join([f"{name}:", *changed]))

    graph = optimise(recorded, watch=watch)
    show("Optimised graph", "Passes over whole tensors. Those that changed something, and what:", "\n".join(shown))
    return graph


def fuse(graph: Graph, target: Target) -> Program:
    groups: list[str] = []

    def watch(parts: Partition, group: Group, steps: Sequence[Step]) -> None:
        when = "computed once" if group.folded else "each call"
        groups.append(f"{group.kind} over {group.shape}, {when}: {', '.join(m.op.name for m in group.members)}")

    program = lower(graph, target.machine(torch.get_num_threads()), watch=watch)
    show(
        "Fusion groups",
        "Each group of operators becomes one kernel. Its first word says which template lowers it.",
        "\n".join(groups),
    )
    show(
        "Tile IR",
        "The kernels as loops over tiles. `grid` is the parallel loop; a product's accumulator stays in the cache.",
        "\n".join(kernel_text(k) for k in program.kernels()),
    )
    return program


def generate_code(program: Program, graph: Graph, target: Target) -> None:
    plan = make_plan(program, graph)
    show(
        "Plan",
        f"Launches in order, and where each value lives: {plan.arena_bytes} bytes of arena for what lies between kernels.",
        plan.text(),
    )
    module = generate(plan, target.isa).text
    show(
        "LLVM IR",
        f"Written with vectors of {target.isa.lanes} floats by the code generator itself. In the inner loop of the product:",
        excerpt(module, [r"define internal void @micro_", r"llvm\.fma"], 14),
    )
    show(
        "Assembly",
        "LLVM only selects instructions and registers. In the inner loop of the product:",
        excerpt(code.assembly(module, target.isa), [r"vfmadd|fmla"], 14),
    )


def launch(model: nn.Module, x: torch.Tensor, program: Program) -> None:
    compiled = tw.compile(model)
    start = time.perf_counter()
    result = compiled(x)
    first = time.perf_counter() - start
    error = float((result - model(x)).abs().max())
    eager, ours = milliseconds(lambda: model(x)), milliseconds(lambda: compiled(x))
    names = [s.kernel.name for s in program.steps if isinstance(s, Launch)]
    times = [
        f"  {name}: {1e6 * s:.1f} µs" for name, s in zip(names, launch_seconds(lambda: compiled(x), len(names)), strict=True)
    ]
    lines = [
        f"first call {1e3 * first:.0f} ms; largest difference to eager {error:.1e}",
        f"eager {eager:.3f} ms, Tilewright {ours:.3f} ms a call, of which",
        *times,
        str(compiled.stats),
    ]
    show(
        "Launch",
        "tw.compile does all of the above at the first call and keeps the code on disk. Later calls check the guards and run.",
        "\n".join(lines),
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model, x = Small().eval(), torch.randn(64, 256)
    show("The Python line", "What the user wrote.", inspect.getsource(Small.forward))
    target = target_named("cpu")
    graph = transform(capture(model, x))
    program = fuse(graph, target)
    generate_code(program, graph, target)
    launch(model, x, program)


if __name__ == "__main__":
    main()
