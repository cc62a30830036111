"""Models: eager, Tilewright and, on request, torch.compile, interleaved. Writes JSON and prints Markdown.

python -m bench.models [--only NAME ...] [--rivals] [--seconds S] [--json FILE]
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
from pathlib import Path
from typing import Any

import torch

from . import zoo
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
    if rivals:
        torch._dynamo.reset()
        rival = torch.compile(module)
        start = time.perf_counter()
        rival(*inputs)
        row["torch_compile_first_call_s"] = time.perf_counter() - start
        calls["torch_compile"] = lambda: rival(*inputs)
    times = interleaved(calls, seconds)
    row |= {f"{k}_ms": 1e3 * t for k, t in times.items()}
    row["eager_over_tilewright"] = times["eager"] / times["tilewright"]
    if rivals:
        row["torch_compile_over_tilewright"] = times["torch_compile"] / times["tilewright"]
    return row


COLUMNS = {
    "model": ("model", "{}"),
    "first_call_s": ("first call, s", "{:.2f}"),
    "first_call_warm_s": ("with cache, s", "{:.2f}"),
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
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    rows = []
    for name in options.only:
        rows.append(measure(name, options.rivals, options.seconds))
        print(markdown(rows[-1:]).splitlines()[-1] if len(rows) > 1 else markdown(rows), flush=True)
    for key in ("eager_over_tilewright", "torch_compile_over_tilewright"):
        if key in rows[0]:
            print(f"geometric mean, {COLUMNS[key][0]}: {statistics.geometric_mean([r[key] for r in rows]):.2f}")
    print(", ".join(f"{k} {v}" for k, v in machine().items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
