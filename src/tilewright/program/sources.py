"""Guard rows as a capture makes them, and what is known of the objects that it found outside.

In: values and the slots they were read from. Out: rows for the native engine, a sentence each; `Known` objects. A slot is a
place
of the native table: an argument, or what a row derives from another slot. Must not know how values are used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .guards import GuardTable
from .torch_link import dlpack_device, dlpack_dtype

_NUMPY = {t for name in np.typecodes["AllFloat"] + np.typecodes["AllInteger"] + "?" if (t := np.dtype(name).type)}
ATOMS = (
    int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout,
    torch.Size, range,
    type(Ellipsis), type(NotImplemented), slice, *_NUMPY,
)  # fmt: skip
"""Types of immutable values that hold nothing else: compared by value, and constants from then on."""


def is_atom(value: Any) -> bool:
    if type(value) is torch.Size:
        return all(type(n) is int for n in value)
    if type(value) is slice:
        return all(type(v) in (int, type(None)) for v in (value.start, value.stop, value.step))
    return type(value) in ATOMS or isinstance(value, enum.Enum)


@dataclass(slots=True)
class Known:
    """An object found outside: the slot it is read from. `pinned`: guarded by identity. `argument`: reached from an argument."""

    value: Any
    slot: int
    name: str
    pinned: bool
    argument: bool
    expanded: bool = False
    dict_slot: int = -1


@dataclass
class Rows:
    """The rows of one capture."""

    nargs: int
    kwnames: tuple[str, ...]
    check_grad: bool
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    classes: dict[type, dict[str, Any]] = field(default_factory=dict)
    codes: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = self.nargs + len(self.kwnames)
        self._memo: dict[tuple[Any, ...], int] = {}
        self._kept: list[Any] = []

    def derive(self, kind: str, *operands: Any, why: str) -> int:
        """A row that fills a new slot: its number. Asking twice gives the same slot."""
        key = (kind, *[x if type(x) in (int, str) else id(x) for x in operands])
        slot = self._memo.get(key)
        if slot is None:
            self._kept.append(operands)
            self.rows.append((kind, *operands))
            self.reasons.append(why)
            slot = self._memo[key] = self.slots
            self.slots += 1
        return slot

    def test(self, *row: Any, why: str) -> None:
        self.rows.append(row)
        self.reasons.append(why)

    def tensor(self, slot: int, t: torch.Tensor, index: int, what: str, seen: Any = None) -> None:
        """`seen`: its shape and strides where some are open: those are not checked here."""
        shape, strides = seen or (tuple(t.shape), t.stride())
        known = [tuple([n if isinstance(n, int) else None for n in v]) for v in (shape, strides)]
        meta = (type(t), index, *dlpack_dtype(t.dtype), *dlpack_device(t.device), t.requires_grad, *known)
        self.test("tensor", slot, meta, why=f"{what}: its type, dtype, shape, strides or device changed")

    def looked_up(self, cls: type, name: str, found: Any) -> None:
        """Looking the name up in the class gave `found`, or nothing (MISSING)."""
        self.classes.setdefault(cls, {})[name] = found

    def table(self, inputs: int) -> GuardTable:
        """All rows; those of classes last."""
        for cls, names in self.classes.items():
            pairs = tuple((n,) if v is MISSING else (n, v) for n, v in names.items())
            self.test("class", cls, pairs, why=f"the class {cls.__qualname__} was edited")
        self.classes = {}
        rows = self.rows if self.check_grad else [_without_grad(r) if r[0] == "tensor" else r for r in self.rows]
        return GuardTable(self.nargs, self.kwnames, rows, self.reasons, inputs)


def _without_grad(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tensor's row for a program that never asks whether it requires grad."""
    kind, slot, meta = row
    return kind, slot, (*meta[:6], None, *meta[7:])


class Missing:
    """What looking up a name that is not there gives."""


MISSING = Missing()


def look_up(cls: type, name: str) -> Any:
    """The attribute as a class of the MRO holds it, unbound, or MISSING."""
    for c in cls.__mro__:
        found = c.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING
