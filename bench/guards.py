"""What checking guards costs: BERT-base's module tree, and a function of two tensors.

    python -m bench.guards            nanoseconds a check, the least of many batches, in this thread's CPU time

The tree is BERT-base's in everything that guards look at (12 layers, 201 parameters); widths are small, which no guard notices.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import torch

import tilewright as tw

BATCH = 200


def least(call: Callable[[], Any], batches: int) -> float:
    """Nanoseconds a call in the fastest of the batches."""
    best = float("inf")
    for _ in range(batches):
        start = time.thread_time_ns()
        for _ in range(BATCH):
            call()
        best = min(best, (time.thread_time_ns() - start) / BATCH)
    return best


def checked(name: str, compiled: Any, *args: Any, **kwargs: Any) -> None:
    """Compile for the arguments, then check those guards again and again."""
    compiled(*args, **kwargs)
    function = getattr(compiled, "_tilewright", compiled)
    (entry,) = function.entries
    assert entry.check(*args, **kwargs) is None
    kinds = collections.Counter(row[0] for row in entry.data.table.rows)
    nothing = least(lambda: None, 1000)
    print(f"{name}: {sum(kinds.values())} rows, {least(lambda: entry.check(*args, **kwargs), 1000) - nothing:.0f} ns")
    print("  " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))


def main() -> None:
    from transformers import BertConfig, BertModel

    bert = BertModel(BertConfig(hidden_size=48, intermediate_size=96, vocab_size=100)).eval()
    ids, mask = torch.randint(0, 100, (1, 16)), torch.ones(1, 16, dtype=torch.long)
    with torch.no_grad():
        checked("BERT-base's tree", tw.compile(bert), ids, attention_mask=mask)
    checked("two tensors", tw.compile(lambda x, y: x * 2 + y), torch.randn(8), torch.randn(8))


if __name__ == "__main__":
    main()
