"""Code for a range of sizes against code for one size: run times of the same programs at the same sizes, one after the other.

    python -m bench.dynamic [--only NAME ...] [--seconds S]

A ratio above 1 is what the range costs. One entry is timed at all sizes of a case.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import tilewright as tw

from .timing import interleaved, machine

Program = Callable[..., torch.Tensor]


def mlp() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).eval()
    return model, [(torch.randn(n, 256),) for n in (64, 7, 33, 200)]


def encoder() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    model = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu").eval()
    return model, [(torch.randn(b, n, 256),) for b, n in ((2, 64), (1, 128), (4, 33), (2, 200))]


def convolution() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()).eval()
    return model, [(torch.randn(1, 3, n, n),) for n in (64, 48, 97)]


def norms() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(torch.softmax(x, -1) * 2, (512,)) + x

    return f, [(torch.randn(n, 512),) for n in (128, 31, 500)]


def columns() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) * torch.sigmoid(x)

    return f, [(torch.randn(128, n),) for n in (512, 333, 1000)]


def decoding() -> tuple[Program, list[tuple[torch.Tensor, ...]]]:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    return f, [tuple(torch.randn(1, 8, m, 64) for m in (1, n, n)) for n in (128, 77, 500)]


CASES = {f.__name__: f for f in (mlp, encoder, convolution, norms, columns, decoding)}


def measure(name: str, seconds: float) -> list[dict[str, Any]]:
    """One row a size."""
    torch.manual_seed(0)
    program, calls = CASES[name]()
    symbolic = tw.compile(program)
    with torch.no_grad():
        for args in reversed(calls):  # two sizes make it symbolic
            symbolic(*args)
        compiles = symbolic.stats.compiles
        rows = []
        for args in calls:
            static = tw.compile(program, dynamic=False)
            times = interleaved(
                {"static": lambda s=static, a=args: s(*a), "symbolic": lambda a=args: symbolic(*a)}, seconds=seconds, warmup=5
            )
            ratio = times["symbolic"] / times["static"]
            shape, us = list(args[-1].shape), times["static"] * 1e6
            rows.append({"case": name, "shape": shape, "us": us, "ratio": ratio, "compiles": compiles})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each size")
    args = parser.parse_args()
    print(", ".join(f"{k} {v}" for k, v in machine().items()))
    for name in args.only:
        for r in measure(name, args.seconds):
            times = f"static {r['us']:9.1f} µs  symbolic/static {r['ratio']:.2f}  compiles {r['compiles']}"
            print(f"{r['case']:12} {r['shape']!s:20} {times}")


if __name__ == "__main__":
    main()
