"""The stages of a compilation as public, frozen objects that keep their text, and the dump of all of them to a folder.

In: what each layer made. Out: `Captured`, `Lowered`, `Compiled`. Must not know how one becomes the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .base import config
from .graph.ir import Graph
from .graph.text import print_graph
from .targets.plan import Plan
from .targets.recipe import Recipe
from .tile.text import kernel_text


@dataclass(frozen=True)
class Captured:
    """A graph as recorded."""

    graph: Graph

    def text(self) -> str:
        return print_graph(self.graph)


@dataclass(frozen=True)
class Lowered:
    """The optimised graph, and the planned program that computes it."""

    graph: Graph
    plan: Plan

    def text(self) -> str:
        """The kernels, each once, then the plan."""
        return "\n".join([*(kernel_text(k) for k in self.plan.program.kernels()), self.plan.text()])


@dataclass(frozen=True)
class Compiled:
    """Machine code and what a launcher needs to run it."""

    recipe: Recipe
    object_file: bytes

    def text(self) -> str:
        return self.recipe.to_json()


_COMPILATIONS = itertools.count(1)


class Dump:
    """Writes texts, numbered, into a folder of one compilation; into none where `folder` is None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    @staticmethod
    def next() -> Dump:
        """The dump of a new compilation, below the folder that `TW_DUMP` names, if any."""
        root = config.get().dump
        return Dump(None if root is None else root / f"{next(_COMPILATIONS):03d}")

    def __call__(self, name: str, text: Callable[[], str]) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{next(self._numbers):02d}-{name.replace(' ', '-')}.txt").write_text(text())
