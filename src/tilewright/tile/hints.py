"""Example values of symbolic sizes, by which costs are estimated and block sizes chosen.

In: the value of each symbol in the call that a graph was recorded from. Out: numbers to compare. Nothing that must be right
for every size may depend on one. Must not know graphs or statements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..base import dims
from ..base.dims import Size


class Hints:
    """`hints(size)`: the size where each symbol has its example value."""

    def __init__(self, values: Iterable[tuple[str, int]] = ()) -> None:
        self.values = dict(values)
        self._known: dict[Size, int] = {}

    def __call__(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        found = self._known.get(size)
        if found is None:
            found = self._known[size] = dims.evaluate(size, self.values)
        return found

    def all(self, sizes: Iterable[Size]) -> tuple[int, ...]:
        return tuple([s if isinstance(s, int) else self(s) for s in sizes])

    def product(self, sizes: Iterable[Size]) -> int:
        """How many elements a shape has."""
        return math.prod([s if isinstance(s, int) else self(s) for s in sizes])
