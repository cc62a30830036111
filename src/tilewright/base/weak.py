"""Answers remembered for as long as what they are about lives: classes and code objects come and go with users' programs.

In: a function of one object that can be referenced weakly (and further hashable arguments). Out: the function, answering from
memory; objects are told apart by identity. An answer must not hold its object, which would then live for ever. Must not know what
is asked.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """`function(object, *rest)`, called once for each `object` alive and `rest`."""
    memory: dict[int, tuple[weakref.ref[Any], dict[tuple[Any, ...], R]]] = {}

    @functools.wraps(function)
    def ask(about: Any, *rest: Any) -> R:
        found = memory.get(id(about))
        if found is None:
            key = id(about)
            found = memory[key] = weakref.ref(about, lambda _: memory.pop(key, None)), {}
        answers = found[1]
        if rest not in answers:
            answers[rest] = function(about, *rest)
        return answers[rest]

    return ask
