"""Guards: what a capture assumed, as rows for the native engine.

In: torch's modes. Out: `GuardTable`, whose rows `tilewright.native.Entry` checks at each call, each with a sentence that says
what it protects. Must not know what the graph computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..graph import torch_private as private


@dataclass(frozen=True)
class GuardTable:
    """`rows` in native form; `reasons` says, a row each, what changed where it fails. The rows read `symbols` sizes."""

    nargs: int
    kwnames: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    reasons: list[str]
    inputs: int
    symbols: int = 0

    def explain(self, failed: int) -> str:
        """Why a call missed: the sentence of the row that failed."""
        if failed < 0:
            return "the call passes other arguments (their number or keyword names)"
        if failed >= len(self.reasons):
            return "an input that the graph writes overlaps another input in memory"
        return self.reasons[failed]


def modes() -> list[tuple[Callable[..., Any], Any, Any]]:
    """torch's modes that a capture depends on: (query, its argument, the value now)."""
    queries: list[tuple[Callable[..., Any], Any]] = [
        (torch.is_grad_enabled, None),
        (torch.is_autocast_enabled, "cpu"),
        (torch.get_default_dtype, None),
        (torch.are_deterministic_algorithms_enabled, None),
    ]
    if torch.is_autocast_enabled("cpu"):
        queries.append((torch.get_autocast_dtype, "cpu"))
    found = [(q, a, q() if a is None else q(a)) for q, a in queries]
    return found + [(query, None, answer) for query, answer in private.plain_calls()]
