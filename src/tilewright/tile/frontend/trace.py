"""A kernel in the making: what the vocabulary emits into, and where in the source it came from.

In: calls of the vocabulary while a kernel's source is evaluated. Out: a `Kernel`, with the place in the source of each of its
statements. Must not know how source is read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...base.errors import Location, TilewrightError
from ..builder import KernelBuilder
from ..ir import Buffer, Kernel, Load, Scope, Stmt, written
from ..verify import verify
from .values import LanguageError


@dataclass(frozen=True)
class Traced:
    """A kernel as written. `places`: where each statement stands in the source, by `id`; `keep` holds those statements."""

    kernel: Kernel
    places: dict[int, Location]
    keep: tuple[Stmt, ...]
    allocated: tuple[Buffer, ...] = ()  # results that `T.empty` made, in the order of the `return`

    def place(self, s: Stmt) -> Location | None:
        return self.places.get(id(s))


class Trace(KernelBuilder):
    """The kernel that the vocabulary adds to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.at: Location | None = None
        self.hint = ""  # a name for what is made next
        self.threads: tuple[int, ...] | None = None  # of the grid, once there is one
        self.places: dict[int, Location] = {}
        self.keep: list[Stmt] = []
        self.depth = 0  # loops and branches of the kernel that are open

    def emit(self, s: Stmt) -> None:
        if self.at is not None:
            self.places[id(s)] = self.at
            self.keep.append(s)
        super().emit(s)

    def buffer(self, dtype: Any, shape: Any, scope: Scope, name: str) -> Buffer:
        return self.alloc(dtype, shape, scope, self.hint or name)

    @contextlib.contextmanager
    def made_at(self, at: Location | None) -> Iterator[None]:
        """What is emitted within is at this place in the source."""
        before, self.at = self.at, at
        try:
            yield
        finally:
            self.at = before

    def finish(self) -> Traced:
        """The kernel, its outputs those parameters that it writes. Raises LanguageError."""
        try:
            made = self.build()
            outputs = {b.name for b in written(made.body)}
            made = replace(made, outputs=tuple([p.name for p in made.params if p.name in outputs]))
            verify(made)
        except TilewrightError as e:
            raise LanguageError(reason=e.message, at=e.at, hint=e.hint) from None
        return Traced(made, self.places, tuple(self.keep))


_ACTIVE = threading.local()


def active() -> Trace:
    """The kernel being traced in this thread. Raises LanguageError outside of one."""
    found: Trace | None = getattr(_ACTIVE, "trace", None)
    if found is None:
        raise LanguageError(
            reason="the kernel language is used outside of a kernel",
            hint="it belongs in a function under @T.prim_func or @tw.kernel",
        )
    return found


@contextlib.contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    before, _ACTIVE.trace = getattr(_ACTIVE, "trace", None), trace
    try:
        yield trace
    finally:
        _ACTIVE.trace = before


def is_loaded(value: Any) -> bool:
    """Whether an expression reads memory, whose content may change after."""
    from ...base import scalar
    from ...base.scalar import Expr

    return isinstance(value, Expr) and any(isinstance(e, Load) for e in scalar.walk(value))
