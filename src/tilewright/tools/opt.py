"""Runs passes by name over the text of a graph or of tile kernels, or takes it down to a lower level, and prints the result.

    python -m tilewright.tools.opt [FILE] [--passes NAME,NAME...] [--to graph|tile|llvm|asm]

In: text as `compiled.text(...)`, `TW_DUMP` and the golden cases have it, from a file or standard input. Out: text. Nothing is
run. `--list` shows the passes. Must not know what a pass does.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..base import config, errors
from ..graph.ir import Graph
from ..graph.pipeline import PIPELINE, Pass, optimise
from ..graph.text import parse_graph, print_graph
from ..graph.verify import verify as verify_graph
from ..stages import Lowered
from ..targets.cpu import compile as code
from ..targets.cpu import llvm
from ..targets.cpu.generate import generate
from ..targets.cpu.kernel import emit_kernel
from ..targets.plan import make_plan
from ..targets.target import Target, target_named
from ..tile.ir import Kernel
from ..tile.parse import parse_kernels
from ..tile.pipeline import lower
from ..tile.text import kernel_text
from ..tile.verify import verify as verify_kernel

LEVELS = ("graph", "tile", "llvm", "asm")


def passes() -> dict[str, Pass]:
    """Every graph pass by the name it first has in the pipeline."""
    found: dict[Callable[[Graph], Graph], Pass] = {}
    for p in PIPELINE:
        found.setdefault(p.run, p)
    return {p.name: p for p in found.values()}


def named(names: str) -> tuple[Pass, ...]:
    """The passes of a comma-separated list; "all" stands for the whole pipeline. Raises OptionError for an unknown one."""
    known = passes()
    chosen: list[Pass] = []
    for name in filter(None, (n.strip() for n in names.split(","))):
        if name == "all":
            chosen += PIPELINE
        elif name in known:
            chosen.append(known[name])
        else:
            raise errors.OptionError(option="--passes", value=name, choices=f"all, or some of {', '.join(known)}")
    return tuple(chosen)


def describe(p: Pass) -> str:
    """What a pass does: the first line of its module."""
    return (sys.modules[p.run.__module__].__doc__ or "").splitlines()[0]


def run(text: str, names: str = "", to: str | None = None, target: Target | None = None, threads: int = 1) -> str:
    """The text after the named passes, at level `to` (default: the level that it has).

    A graph goes down through the whole pipeline unless passes are named. Raises ParseError, VerifyError, OptionError.
    """
    if to not in (None, *LEVELS):
        raise errors.OptionError(option="--to", value=to, choices=", ".join(LEVELS))
    target = target or target_named()
    if is_tile(text):
        if names or to == "graph":
            option, value = ("--passes", names) if names else ("--to", to)
            raise errors.OptionError(option=option, value=value, choices="only --to tile, llvm or asm for the text of kernels")
        return _kernels(text, to or "tile", target)
    graph = parse_graph(text)
    verify_graph(graph)
    chosen = named(names) if names or to in (None, "graph") else PIPELINE
    graph = optimise(graph, debug=True, passes=chosen)
    if to in (None, "graph"):
        return print_graph(graph)
    low = Lowered(graph, make_plan(lower(graph, target.machine(threads)), graph))
    if to == "tile":
        return low.text()
    module = generate(low.plan, target.isa).text
    return module if to == "llvm" else code.assembly(module, target.isa)


def is_tile(text: str) -> bool:
    """Whether the text is of kernels, not of a graph."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return next(lines, "").startswith("kernel ")


def _kernels(text: str, to: str, target: Target) -> str:
    """Kernels at a level. A plan behind them (as in a dump) is left out."""
    kernels = parse_kernels(re.split(r"^plan:", text, maxsplit=1, flags=re.MULTILINE)[0])
    for k in kernels:
        verify_kernel(k)
    if to == "tile":
        return "\n".join(map(kernel_text, kernels))
    module = _module(kernels, target)
    return module if to == "llvm" else code.assembly(module, target.isa)


def _module(kernels: Sequence[Kernel], target: Target) -> str:
    module = llvm.Module()
    for number, kernel in enumerate(kernels):
        emit_kernel(kernel, f"k{number}_{re.sub(r'[^A-Za-z0-9_]', '_', kernel.name)}", module, target.isa)
    return module.text(target.isa.attributes)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 1 for text or names that are not understood."""
    parser = argparse.ArgumentParser("tilewright opt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="-", help="text of a graph or of kernels; - is standard input (default)")
    parser.add_argument("--passes", default="", metavar="NAMES", help="graph passes to run, comma-separated; all: the pipeline")
    parser.add_argument("--to", choices=LEVELS, help="the level to print (default: that of the text)")
    parser.add_argument("--cpu", help="instruction set: x86-64-v4, x86-64-v3, aarch64 (default: this machine's)")
    parser.add_argument("--threads", type=int, default=1, help="threads that schedules are made for (default: 1)")
    parser.add_argument("--list", action="store_true", help="list the passes and leave")
    options = parser.parse_args(argv)
    if options.list:
        for name, p in passes().items():
            print(f"{name:12} {describe(p)}")
        return 0
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
        with config.override(cpu=options.cpu or config.get().cpu):
            print(run(text, options.passes, options.to, target_named(), options.threads), end="")
    except (errors.TilewrightError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
