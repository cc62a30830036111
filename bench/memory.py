"""What a process keeps of functions that it compiled and let go: memory and objects after every hundred of them.

    python -m bench.memory [--count 1000] [--no-cache]

Each function has code of its own; a quarter breaks the graph, a third carries gradients, a fifth is a module with packed weights.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tilewright.base import config

SOURCE = """
def f(x, y):
    z = torch.sin(x) * y + {k}
    if {breaks} and z.sum() > -1e9:
        z = z + 1
    return z.sum(0) + 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--no-cache", action="store_true", help="compile everything, past the disk cache")
    options = parser.parse_args()
    print("compiled   MiB in use   KiB a compile   objects")
    with config.override(cache=not options.no_cache):
        before = used()
        for k in range(options.count):
            once(k)
            if k % 100 == 99:
                gc.collect()
                now = used()
                print(f"{k + 1:8}   {now / 2**20:10.1f}   {(now - before) / 100 / 1024:13.1f}   {len(gc.get_objects()):7}")
                before = now


def once(k: int) -> None:
    """Compile the k-th function, call it, and let it go."""
    if k % 5 == 4:
        module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval()
        with torch.no_grad():
            tw.compile(module)(torch.randn(4, 32))
        return
    with torch.set_grad_enabled(k % 3 == 0):
        tw.compile(made(k + 0.25, k % 4 == 0))(torch.randn(2, 3, requires_grad=k % 3 == 0), 2.5)


def made(k: float, breaks: bool) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(SOURCE.format(k=k, breaks=breaks), "made.py", "exec"), namespace)
    return namespace["f"]


def used() -> int:
    """Bytes of memory in use, without what the allocator only keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


if __name__ == "__main__":
    main()
