"""Models: eager, Tilewright and, on request, torch.compile, interleaved. Writes JSON and prints Markdown.

python -m bench.models [--only NAME ...] [--rivals] [--seconds S] [--json FILE] [--readme] [--from FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import readme, zoo
from .timing import interleaved, machine, relative_error

FIRST_CALL = """
import time, torch
from bench.zoo import build
module, inputs = build({name!r})
torch.set_grad_enabled(False)
import tilewright as tw
start = time.perf_counter()
tw.compile(module)(*inputs)
print(time.perf_counter() - start)
"""


def first_calls(name: str) -> tuple[float, float]:
    """Seconds of the first call in a fresh process, with an empty cache and with a warm one."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TW_CACHE_DIR": cache}
        command = [sys.executable, "-c", FIRST_CALL.format(name=name)]
        cold, warm = (subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2))
    return float(cold.stdout.split()[-1]), float(warm.stdout.split()[-1])


def measure(name: str, rivals: bool = False, seconds: float = 3.0) -> dict[str, Any]:
    """One model's row: times, ratios, errors against float64, and what Tilewright counted."""
    import tilewright as tw

    module, inputs = zoo.build(name)
    eager = module(*inputs)
    exact_inputs = [t.double() if t.is_floating_point() else t for t in inputs]
    exact = copy.deepcopy(module).double()(*exact_inputs)
    compiled = tw.compile(module)
    got = compiled(*inputs)
    cold, warm = first_calls(name)
    row: dict[str, Any] = {"model": name, "first_call_s": cold, "first_call_warm_s": warm}
    row |= {"error": relative_error(got, exact), "eager_error": relative_error(eager, exact)}
    row |= {
        "kernels": compiled.stats.kernels,
        "arena_mb": compiled.stats.arena_bytes / 2**20,
        "packed_mb": compiled.stats.packed_bytes / 2**20,
    }
    calls = {"eager": lambda: module(*inputs), "tilewright": lambda: compiled(*inputs)}
    times = interleaved(calls, seconds)
    row |= {f"{k}_ms": 1e3 * t for k, t in times.items()}
    row["eager_over_tilewright"] = times["eager"] / times["tilewright"]
    return row | _rival(module, inputs, calls["tilewright"], seconds) if rivals else row


def _rival(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], ours: Callable[[], Any], seconds: float
) -> dict[str, float]:
    """torch.compile beside Tilewright. Eager takes no turns here: idle threads of two OpenMP libraries would disturb all."""
    torch._dynamo.reset()
    rival = torch.compile(module)
    start = time.perf_counter()
    rival(*inputs)
    first = time.perf_counter() - start
    times = interleaved({"torch_compile": lambda: rival(*inputs), "tilewright": ours}, seconds)
    return {
        "torch_compile_first_call_s": first,
        "torch_compile_ms": 1e3 * times["torch_compile"],
        "torch_compile_over_tilewright": times["torch_compile"] / times["tilewright"],
    }


COLUMNS = {
    "model": ("model", "{}"),
    "first_call_s": ("first call, s", "{:.2f}"),
    "first_call_warm_s": ("with cache, s", "{:.2f}"),
    "eager_ms": ("eager, ms", "{:.2f}"),
    "tilewright_ms": ("Tilewright, ms", "{:.2f}"),
    "eager_over_tilewright": ("eager ÷ Tilewright", "{:.2f}"),
    "torch_compile_over_tilewright": ("torch.compile ÷ Tilewright", "{:.2f}"),
    "torch_compile_first_call_s": ("torch.compile first call, s", "{:.1f}"),
    "error": ("error against float64", "{:.1e}"),
    "eager_error": ("eager's error", "{:.1e}"),
    "kernels": ("kernels", "{}"),
    "arena_mb": ("arena, MiB", "{:.2f}"),
    "packed_mb": ("packed weights, MiB", "{:.1f}"),
}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table; columns that no row has are left out."""
    columns = {k: v for k, v in COLUMNS.items() if any(k in r for r in rows)}
    lines = ["| " + " | ".join(title for title, _ in columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(f.format(r[k]) if k in r else "" for k, (_, f) in columns.items()) + " |" for r in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[n for n in zoo.MODELS if n != "mlp"], choices=list(zoo.MODELS), metavar="NAME"
    )
    parser.add_argument("--rivals", action="store_true", help="also measure torch.compile (slow to compile)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--from", type=Path, dest="source", help="figures of an earlier --json, instead of measuring")
    options = parser.parse_args()
    if options.source:
        found = json.loads(options.source.read_text())
    else:
        found = {"machine": machine(), "rows": measured(options.only, options.rivals, options.seconds)}
    table = f"{markdown(found['rows'])}\n\n{summary(found)}"
    print(summary(found) if not options.source else table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.readme:
        readme.rewrite(table)


def measured(names: list[str], rivals: bool, seconds: float) -> list[dict[str, Any]]:
    """The rows of the named models, printed as they come."""
    torch.set_grad_enabled(False)
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(measure(name, rivals, seconds))
        print(markdown(rows[-1:]).splitlines()[-1] if len(rows) > 1 else markdown(rows), flush=True)
    return rows


def summary(found: dict[str, Any]) -> str:
    """The geometric means, and what they were measured on."""
    rows = found["rows"]
    means = [
        f"{COLUMNS[key][0]} {statistics.geometric_mean([r[key] for r in rows]):.2f}"
        for key in ("eager_over_tilewright", "torch_compile_over_tilewright")
        if key in rows[0]
    ]
    where = ", ".join(f"{k} {v}" for k, v in found["machine"].items())
    return f"Geometric mean: {'; '.join(means)}. Measured on {where}."


if __name__ == "__main__":
    main()
