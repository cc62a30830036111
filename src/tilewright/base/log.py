"""What the compiler tells: channels of text (shown by `TW_DEBUG` or by `logging`), warnings said once, and stage times.

In: texts and stage names. Out: records of the loggers "tilewright.<channel>", `TilewrightWarning`s, seconds by stage.
Must not know what is reported.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator

from . import config


class TilewrightWarning(UserWarning):
    """Something that runs, but not as asked: a call that stays in eager, a value that a trace has frozen."""


class Channel:
    """A stream of text, on from `level` of `TW_DEBUG` up, or where its logger admits DEBUG."""

    def __init__(self, name: str, level: int) -> None:
        self.name = name
        self.level = level
        self.logger = logging.getLogger(f"tilewright.{name}")

    @property
    def on(self) -> bool:
        return config.get().debug >= self.level or self.logger.isEnabledFor(logging.DEBUG)

    def write(self, text: str | Callable[[], str]) -> None:
        """Report a text; a function is only called if the channel is on."""
        if not self.on:
            return
        message = text if isinstance(text, str) else text()
        record = self.logger.makeRecord(self.logger.name, logging.DEBUG, "", 0, message, (), None)
        if self.logger.hasHandlers():
            self.logger.handle(record)
        else:
            print(f"[{self.logger.name}] {message}", file=sys.stderr)


breaks = Channel("breaks", 1)
guards = Channel("guards", 1)
timing = Channel("timing", 2)
graph = Channel("graph", 3)
tile = Channel("tile", 4)
source = Channel("source", 5)
assembly = Channel("assembly", 6)

CHANNELS = {c.name: c for c in (breaks, guards, timing, graph, tile, source, assembly)}


_SAID: set[Hashable] = set()
_SAID_LOCK = threading.Lock()


def warn_once(key: Hashable, message: str, stacklevel: int = 2) -> bool:
    """Warn, unless a warning with this key was given before in this process. True where it was given now."""
    with _SAID_LOCK:
        if key in _SAID:
            return False
        _SAID.add(key)
    warnings.warn(message, TilewrightWarning, stacklevel=stacklevel + 1)
    return True


def forget_warnings() -> None:
    """Let every warning be given again."""
    with _SAID_LOCK:
        _SAID.clear()


class Stages:
    """Seconds spent in each named stage, those of inner stages included, in order of first start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a `with` block; repeated ones add up. Counted even where it raises."""
        self.seconds.setdefault(name, 0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] += spent
            timing.write(lambda: f"{name}: {spent * 1e3:.2f} ms")
