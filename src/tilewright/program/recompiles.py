"""Why a function is compiled again and again: the guard that keeps failing, and what helps.

In: the entries of a function, and the arguments of a call that none of them serves. Out: sentences. Must not know what the
entries compute.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from typing import Any

from .. import native
from ..base import log
from ..base.errors import RecompileError

_SUBJECT = re.compile(r"(.*?)(?: is | has | exists |: )")

HINTS = {
    "tensor": "a size that varies is taken once for all sizes with `dynamic=True` or `tw.mark_dynamic(tensor, dim)`",
    "eq": "pass a number that varies as a tensor, or compile the part of the function that does not need it",
    "is": "pass or keep the same object at each call; one made anew at each call never fits",
    "state": "call it in one mode only, or compile a function for each",
    "keys": "keep the container's keys the same",
    "len": "keep the container's length the same, or stack its tensors into one",
}
"""By the kind of the guard that fails."""


def failures(entries: Iterable[native.Entry], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str]]:
    """(kind of guard, what changed) for every entry: its first guard that fails for this call."""
    found = []
    for entry in entries:
        failed, table = entry.check(*args, **kwargs), entry.data.table
        if failed is not None:
            found.append((table.rows[failed][0] if 0 <= failed < len(table.rows) else "", table.explain(failed)))
    return found


def culprit(found: list[tuple[str, str]]) -> tuple[str, str]:
    """Of the guards that failed: what changed most often, in the words of the newest entry, and a hint."""
    if not found:
        return "", ""
    kind, subject = collections.Counter(map(_subject, found)).most_common(1)[0][0]
    text = next(text for k, text in found if (k, _subject((k, text))[1]) == (kind, subject))
    return text, HINTS.get(kind, "")


def _subject(failure: tuple[str, str]) -> tuple[str, str]:
    kind, text = failure
    match = _SUBJECT.match(text)
    return kind, match[1] if match else text


def warn(owner: Any, name: str, entries: tuple[native.Entry, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say, once for `owner`, that it has reached its limit of entries, and why."""
    text, hint = culprit(failures(entries, args, kwargs))
    log.warn_once(
        (id(owner), "limit"),
        f"{name} was compiled {len(entries)} times, its recompile_limit; calls that fit none of these run in eager"
        + (f". The guard that kept failing: {text}" if text else "") + (f"\nhint: {hint}" if hint else ""),
    )  # fmt: skip


def error(
    name: str, reason: str, entries: tuple[native.Entry, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RecompileError:
    """That a call would have to be compiled, which is not to be."""
    found = failures(entries, args, kwargs)
    text, hint = culprit(found)
    if text:
        reason += f", and of {len(found)} compiled variants none fits: {text}"
    return RecompileError(function=name, reason=reason, hint=hint)
