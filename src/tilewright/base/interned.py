"""Interning: equal nodes are one object, so equality is identity and shared sub-expressions cost nothing.

In: a frozen dataclass whose fields are hashable. Out: the one live instance with those field values.
Must not know what is interned.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

_LOCK = threading.RLock()  # the garbage collector may run finalisers within it, which make nodes too


class Interned(type):
    """Metaclass for `@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)` node classes.

    Two calls with equal fields give the same object. Fields that are themselves interned compare by identity, so a
    lookup costs the number of fields, never the size of the tree. Numbers are kept apart by type and bit pattern:
    `1`, `True` and `1.0` differ, and so do `0.0` and `-0.0`.
    """

    _table: weakref.WeakValueDictionary[tuple[Any, ...], Any]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._table = weakref.WeakValueDictionary()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != len(cls.__match_args__):  # type: ignore[attr-defined]
            new = super().__call__(*args, **kwargs)
            args = tuple(getattr(new, name) for name in cls.__match_args__)  # type: ignore[attr-defined]
        key = tuple([_distinct(a) if a.__class__ in _NUMBERS else a for a in args])
        node = cls._table.get(key)
        if node is None:
            with _LOCK:
                node = cls._table.setdefault(key, super().__call__(*args))
        return node


_NUMBERS = (bool, float)


def _distinct(value: bool | float) -> Any:
    return (float, value.hex()) if isinstance(value, float) else (bool, value)
