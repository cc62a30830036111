"""Interleaved timing: candidates take turns in one process, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def interleaved(
    candidates: dict[str, Callable[[], Any]], seconds: float = 3.0, warmup: int = 3, least: int = 7
) -> dict[str, float]:
    """Median seconds a call of each candidate; turns go round until `seconds` are over, at least `least` times."""
    for call in candidates.values():
        for _ in range(warmup):
            call()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    stop = time.perf_counter() + seconds
    turns = 0
    while time.perf_counter() < stop or turns < least:
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
        turns += 1
    return {name: statistics.median(s) for name, s in samples.items()}


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order, whatever containers hold them."""
    from torch.utils import _pytree as pytree

    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def relative_error(got: Any, exact: Any) -> float:
    """The largest ‖got − exact‖ / ‖exact‖ over the floating-point tensors of two results."""
    errors = [0.0]
    for g, x in zip(tensors(got), tensors(exact), strict=True):
        if g.is_floating_point():
            errors.append(float((g.double() - x.double()).norm() / (x.double().norm() + 1e-30)))
    return max(errors)


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    import platform

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), model)
    except OSError:
        pass
    return {"cpu": model, "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version()}
