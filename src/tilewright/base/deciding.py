"""Who answers comparisons of symbolic sizes, a thread each.

In: a function that answers `a op b`. Out: within `deciding`, sizes compare as ints do. Must not know what a size is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Decides(threading.local):
    """`by(op, a, b)` answers this thread's comparisons of sizes; None: nobody does."""

    by: Callable[[str, Any, Any], bool] | None = None


DECIDES = Decides()


def answer(op: str, a: Any, b: Any) -> bool:
    return NotImplemented if DECIDES.by is None else DECIDES.by(op, a, b)


@contextlib.contextmanager
def deciding(by: Callable[[str, Any, Any], bool] | None) -> Iterator[None]:
    """Within, in this thread, `a == b`, `a < b` and `a <= b` of sizes are answered by `by(op, a, b)`, and a size is true that
    differs from 0. Elsewhere `==` is identity and sizes have no order."""
    before, DECIDES.by = DECIDES.by, by
    try:
        yield
    finally:
        DECIDES.by = before
