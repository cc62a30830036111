"""Compile BERT-base and a GPT-2-style decoder on the CPU and show what came of it.

python -m examples.demo [--rivals]
"""

from __future__ import annotations

import sys

import torch
from bench.models import COLUMNS, measure
from bench.timing import machine
from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 160)


def main() -> None:
    torch.set_grad_enabled(False)
    rows = []
    for name in ("bert-base", "gpt2-small"):
        with console.status(f"{name}: compiling and timing"):
            rows.append(measure(name, rivals="--rivals" in sys.argv))
    table = Table(title="Tilewright on this CPU")
    for title in ("", *(r["model"] for r in rows)):
        table.add_column(title, justify="right" if title else "left")
    for key, (title, form) in COLUMNS.items():
        if key != "model" and key in rows[0]:
            table.add_row(title, *(form.format(r[key]) for r in rows))
    console.print(table)
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()))


if __name__ == "__main__":
    main()
