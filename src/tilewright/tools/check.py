"""Finds the stage that changes a graph's values: each pass, the tile program in the simulator, the machine code.

    python -m tilewright.tools.check [FILE] [--seed N] [--tolerance T]

In: the text of a graph, as `compiled.text("graph")` and `TW_DUMP` have it. Out: a line a stage with its largest relative
difference to the graph as given, in eager, on random inputs. Must not know what the stages do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ..base import config, errors, log
from ..executable import Executable
from ..graph.interpret import interpret
from ..graph.ir import Graph
from ..graph.ops.torch_dtypes import to_torch
from ..graph.pipeline import optimise
from ..graph.text import parse_graph
from ..program import torch_link
from ..stages import Dump, Lowered
from ..targets.plan import make_plan
from ..targets.recipe import call_graph
from ..targets.target import Target, target_named
from ..tile.memory import Memory
from ..tile.pipeline import lower
from ..tile.program import Call
from ..tile.simulate import run_program
from .inputs import examples

Tensors = Sequence[torch.Tensor]


def check(graph: Graph, tensors: Tensors, target: Target | None = None) -> Iterator[tuple[str, float]]:
    """(stage, largest relative difference of its outputs), stage by stage. `tensors` stay as they are."""
    target = target or target_named()
    exact = interpret(graph, _copies(tensors))
    found: list[tuple[str, float]] = []
    watch = lambda name, g: found.append((name, difference(interpret(g, _copies(tensors)), exact)))  # noqa: E731
    graph = optimise(graph, watch=watch)
    yield from found
    low = Lowered(graph, make_plan(lower(graph, target.machine(torch.get_num_threads())), graph))
    yield "simulator", difference(simulate(low, tensors), exact)
    yield "machine code", difference(run(low, tensors, target), exact)


def run(low: Lowered, tensors: Tensors, target: Target | None = None) -> list[torch.Tensor]:
    """The outputs of the compiled program, one a graph output. Inputs that it writes are copied first."""
    from ..driver import assemble

    torch_link.connect()
    compiled = assemble(low, target or target_named(), log.Stages(), Dump(None))
    tensors = _copies(tensors)
    return Executable(compiled.recipe, compiled.object_file, lambda level: "").execute(tensors)


def run_graph(graph: Graph, tensors: Tensors, target: Target | None = None) -> list[torch.Tensor]:
    """A graph, taken through all stages to machine code and run. Raises what the stages raise."""
    target = target or target_named()
    graph = optimise(graph)
    low = Lowered(graph, make_plan(lower(graph, target.machine(torch.get_num_threads())), graph))
    return run(low, tensors, target)


def simulate(low: Lowered, tensors: Tensors) -> list[torch.Tensor | None]:
    """The outputs of the program in the simulator; None for one that only shares an input's memory."""
    arrays = [Memory(_array(t)) for t in tensors]
    results = run_program(low.plan.program, arrays, call=_call)
    kinds = [to_torch(o.node.dtype) for o in low.graph.outputs]
    return [None if a is None else _tensor(a, k) for a, k in zip(results, kinds, strict=False)]


def _call(step: Call, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    operands = [_tensor(a, to_torch(v.value.dtype)) for a, v in zip(arrays, step.args, strict=True)]
    return [_array(t.contiguous()).reshape(t.shape) for t in interpret(call_graph(step), operands)]


def _array(t: torch.Tensor) -> np.ndarray:
    """The tensor's memory from its first element, flat; of bfloat16 the bits."""
    size = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    flat = t.detach().clone(memory_format=torch.preserve_format).as_strided((size,), (1,))
    return (flat.view(torch.uint16) if flat.dtype is torch.bfloat16 else flat).numpy()


def _tensor(a: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    t = torch.from_numpy(np.array(a))
    return t.view(dtype) if dtype is torch.bfloat16 and t.dtype is torch.uint16 else t.to(dtype)


def _copies(tensors: Tensors) -> list[torch.Tensor]:
    """Of the same strides; nothing writes into one that repeats elements."""
    return [t if 0 in t.stride() else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]


def difference(got: Sequence[torch.Tensor | None], expected: Tensors) -> float:
    """The largest |got - expected| / max |expected| of an output; infinite where NaNs differ, or any element of other types."""
    worst = 0.0
    for g, e in zip(got, expected, strict=False):
        if g is None or not e.numel():
            continue
        if not e.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(g, e) else float("inf"))
            continue
        g, e = g.double(), e.double()
        off = torch.where((g == e) | (g.isnan() & e.isnan()), 0.0, (g - e).abs())
        worst = max(worst, float(off.nan_to_num(nan=float("inf")).max() / max(float(e.nan_to_num(0, 0, 0).abs().max()), 1e-30)))
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 1 where a stage is off by more than the tolerance."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tilewright check", description=__doc__, formatter_class=plain)
    parser.add_argument("file", nargs="?", default="-", help="text of a graph; - is standard input (default)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative difference that counts as wrong (default: 1e-4)")
    parser.add_argument("--cpu", help="instruction set: x86-64-v4, x86-64-v3 (default: this machine's)")
    options = parser.parse_args(argv)
    wrong = 0
    try:
        graph = parse_graph(sys.stdin.read() if options.file == "-" else Path(options.file).read_text())
        torch.manual_seed(options.seed)
        with torch.no_grad(), config.override(cpu=options.cpu or config.get().cpu):
            for stage, error in check(graph, examples(graph)):
                off = error > options.tolerance
                wrong += off
                print(f"{stage:16} {error:.1e}{'  <- differs' if off else ''}")
    except (errors.TilewrightError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
