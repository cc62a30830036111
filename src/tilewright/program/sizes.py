"""Sizes and ints that a capture leaves open, and the guards on them.

In: tensors and ints with the names of the places they were read from; what was seen there before. Out: their shapes and strides
with symbols for what varies; rows for the native engine. Must not know bytecode, or how graphs become code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..base import dims
from ..base.dims import Dim, Size
from ..base.postfix import Program, postfix
from ..graph import refine
from ..graph.symbolic import Assumption, Symbols
from .sources import Rows

_MARKS, _STILL = "_tilewright_dynamic", "_tilewright_static"
_LARGEST = 2**61


def mark_dynamic(
    tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...], *, min: int | None = None, max: int | None = None
) -> None:
    """Let compiled functions take every size of a tensor's dim: one compiled entry serves all from `min` to `max`.

    A function that needs one size warns that it does, with `fullgraph=True` it raises RecordError. Sizes 0 and 1 have code of
    their own. Raises IndexError for a dim that the tensor has not.
    """
    marks = tensor.__dict__.setdefault(_MARKS, {})
    for d in _dims(tensor, dim):
        marks[d] = (min, max, True)
        tensor.__dict__.get(_STILL, set()).discard(d)


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...]) -> None:
    """As `mark_dynamic`; a function that needs one size is compiled for that size, silently."""
    marks = tensor.__dict__.setdefault(_MARKS, {})
    for d in _dims(tensor, dim):
        marks[d] = (None, None, False)


def mark_static(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...] | None = None) -> None:
    """Let compiled functions be compiled for the size of a tensor's dim (of all its dims), however often it changes."""
    found = _dims(tensor, list(range(tensor.dim())) if dim is None else dim)
    tensor.__dict__.setdefault(_STILL, set()).update(found)
    for d in found:
        tensor.__dict__.get(_MARKS, {}).pop(d, None)


def _dims(tensor: torch.Tensor, dim: int | list[int] | tuple[int, ...]) -> list[int]:
    found = [dim] if isinstance(dim, int) else list(dim)
    for d in found:
        if not -tensor.dim() <= d < tensor.dim():
            raise IndexError(f"dim {d} of a tensor that has {tensor.dim()}")
    return [d % tensor.dim() for d in found]


class History:
    """The sizes seen so far at each place, in one piece of a program: for each compilation, by its number."""

    def __init__(self) -> None:
        self.compilation = 0
        self.opened = False  # whether the last capture left a size open
        self._seen: dict[tuple[str, int], dict[int, int]] = {}

    def see(self, name: str, shape: tuple[int, ...]) -> None:
        for d, n in enumerate(shape):
            self._seen.setdefault((name, d), {})[self.compilation] = n

    def varies(self, name: str, dim: int) -> bool:
        return len(set(self._seen.get((name, dim), {}).values())) > 1

    def alike(self, a: tuple[str, int], b: tuple[str, int]) -> bool:
        """Whether two sizes were always equal."""
        x, y = self._seen.get(a, {}), self._seen.get(b, {})
        return all(y[k] == n for k, n in x.items() if k in y)


@dataclass(frozen=True)
class Policy:
    """What a capture may leave open. `dynamic`: True: all sizes of arguments; None: those that vary; False: none.
    `varying`: names of ints, floats and texts that were seen to change. `freeze`: parameters are taken never to change."""

    freeze: bool = False
    varying: frozenset[str] = frozenset()
    dynamic: bool | None = False
    history: History = field(default_factory=History)

    def still(self) -> Policy:
        """The same, with every size as it is."""
        return replace(self, dynamic=False)


@dataclass(frozen=True)
class Place:
    """Where a symbol is read: the size of a tensor's dim, or an int (`dim` is -1)."""

    slot: int
    dim: int
    name: str

    @property
    def text(self) -> str:
        return f"P{self.slot}.shape[{self.dim}]" if self.dim >= 0 else f"P{self.slot}"


@dataclass
class OpenSizes:
    """Those of one capture."""

    symbols: Symbols
    policy: Policy
    places: dict[str, Place] = field(default_factory=dict)  # of each symbol
    _same: list[tuple[int, int, Size]] = field(default_factory=list)  # (slot, dim, size) of each other open size
    _strides: list[tuple[int, int, Size]] = field(default_factory=list)
    _keys: dict[str, tuple[str, int]] = field(default_factory=dict)  # symbol -> what the history calls its place
    _marked: list[str] = field(default_factory=list)

    def tensor(self, t: torch.Tensor, slot: int, name: str, argument: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """A tensor's shape and strides, if some of its sizes are open."""
        if isinstance(t, nn.Parameter) or is_lazy(t) or self.policy.dynamic is False:
            return None
        shape = tuple(t.shape)
        self.policy.history.see(name, shape)
        opened = {d: self._open(t, slot, name, d, n) for d, n in enumerate(shape) if self._is_open(t, name, d, n, argument)}
        if not opened:
            return None
        self.policy.history.opened = True
        sizes = tuple([opened.get(d, n) for d, n in enumerate(shape)])
        strides = _strides(shape, t.stride(), sizes)
        self._strides += [(slot, d, s) for d, s in enumerate(strides) if not isinstance(s, int)]
        return sizes, strides

    def number(self, value: int, slot: int, name: str) -> Dim | None:
        """A symbol for an int that varies, where one may stand for it."""
        if self.policy.dynamic is False or not 2 <= value < _LARGEST:
            return None
        self.policy.history.opened = True
        size = self.symbols.new(value)
        self.places[str(size)] = Place(slot, -1, name)
        return size

    def _is_open(self, t: torch.Tensor, name: str, d: int, n: int, argument: bool) -> bool:
        attributes = getattr(t, "__dict__", {})
        if n < 2 or d in attributes.get(_STILL, ()):
            return False
        return d in attributes.get(_MARKS, ()) or bool(self.policy.dynamic and argument) or self.policy.history.varies(name, d)

    def _open(self, t: torch.Tensor, slot: int, name: str, d: int, n: int) -> Dim:
        mark = getattr(t, "__dict__", {}).get(_MARKS, {}).get(d)
        if mark is None or mark == (None, None, False):
            for symbol, key in self._keys.items():
                if self.symbols.hints[symbol] == n and self.policy.history.alike(key, (name, d)):
                    self._same.append((slot, d, self.symbols.sizes[symbol]))
                    return self.symbols.sizes[symbol]
        lo, hi, wanted = mark or (None, None, False)
        if not (lo or 0) <= n <= (n if hi is None else hi):
            lo = hi = None
        size = self.symbols.new(n, max(lo or 2, 2), hi)
        symbol = str(size)
        self.places[symbol] = Place(slot, d, f"{name}.shape[{d}]")
        self._keys[symbol] = (name, d)
        if wanted:
            self._marked.append(symbol)
        return size

    # --- what others need of them ---

    def text(self, size: Size) -> tuple[str, frozenset[int]]:
        """An expression that computes the size from what is in slots, and these."""
        if isinstance(size, int):
            return repr(size), frozenset()
        names = [s.name for s in dims.symbols(size)]
        slots = frozenset(self.places[n].slot for n in names)
        return f"({_renamed(str(size), {n: self.places[n].text for n in names})})", slots

    def sources(self, input_slots: Mapping[int, int]) -> dict[str, tuple[int, int] | int]:
        """Where each symbol is read: (graph input, dim), or the slot of an int."""
        inputs = {slot: i for i, slot in input_slots.items()}
        return {n: (inputs[p.slot], p.dim) if p.dim >= 0 else p.slot for n, p in self.places.items()}

    def broken_marks(self, refined: refine.Refined) -> list[str]:
        """The dims that were marked as dynamic and have one size only, each with what assumes so."""
        found = []
        for symbol in self._marked:
            size = refined.sizes[symbol]
            if isinstance(size, int):
                why = next((f" ({at})" for a, at in self.symbols.assumed.items() if at and self._settles(a, symbol)), "")
                found.append(f"{self.places[symbol].name} is marked as dynamic, but the program needs it to be {size}{why}")
        return found

    def _settles(self, a: Assumption, symbol: str) -> bool:
        return a.op == "==" and a.holds and any(s.name == symbol for s in dims.symbols(a.left, a.right))

    # --- guards ---

    def guard(self, rows: Rows, refined: refine.Refined) -> None:
        """Add rows for all that was assumed."""
        numbers = {name: k for k, (name, _) in enumerate(refined.hints)}
        names = {n: p.name for n, p in self.places.items()}
        for name, place in self.places.items():
            if name in numbers and place.dim >= 0:
                rows.test("symbol", place.slot, place.dim, numbers[name], why=f"{place.name} has no such dim")
            elif name in numbers:
                rows.test("int_symbol", place.slot, numbers[name], why=f"{place.name} is no int")

        def test(kind: str, slot: int, dim: int, size: Size, what: str) -> None:
            size = refined.size(size)
            why = f"{what} is no longer {_renamed(str(size), names)}"
            rows.test(kind, slot, dim, postfix(size, numbers), why=why)

        for name, place in self.places.items():
            if name not in numbers and place.dim >= 0:
                test("size", place.slot, place.dim, self.symbols.sizes[name], place.name)
            elif name not in numbers:
                self._guard_int(rows, place, refined.sizes[name], names)
        for slot, d, size in self._same:
            test("size", slot, d, size, f"dim {d} of the tensor")
        for slot, d, size in self._strides:
            test("stride", slot, d, size, f"stride {d} of the tensor")
        for a in (*_facts(refined), *refined.beside):
            at = next((f" ({w})" for b, w in self.symbols.assumed.items() if b == a and w), "")
            rows.test("holds", _program(a, numbers), why=f"{_renamed(str(a), names)} does not hold{at}")

    def _guard_int(self, rows: Rows, place: Place, size: Size, names: Mapping[str, str]) -> None:
        if not isinstance(size, int):
            raise ValueError(f"{place.name} would have to be {_renamed(str(size), names)}")
        rows.test("eq", place.slot, size, why=f"{place.name} is no longer {size}")


def _facts(refined: refine.Refined) -> list[Assumption]:
    """What is said of the symbols that are left."""
    found = []
    for s in refined.symbols:
        plain = dims.symbol(s.name, None)
        if s.lo is not None:
            found.append(Assumption("<=", s.lo, plain, True))
        if s.hi is not None:
            found.append(Assumption("<=", plain, s.hi, True))
        if s.divisor > 1:
            found.append(Assumption("==", plain % s.divisor, 0, True))
    return found


def _program(a: Assumption, numbers: Mapping[str, int]) -> Program:
    left, right = postfix(a.left, numbers), postfix(a.right, numbers)
    if a.op == "==":
        return (*left, *right, "==" if a.holds else "!=")
    if a.holds:
        return (*left, *right, a.op)
    return (*right, *left, "<=" if a.op == "<" else "<")


_NAME = re.compile(r"\bs\d+\b")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda m: names.get(m[0], m[0]), text)


def _strides(shape: tuple[int, ...], strides: tuple[int, ...], sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """The strides in terms of the open sizes: where one steps over a whole inner dim, for all sizes."""
    made: list[Size] = list(strides)
    inner = -1
    for d in sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: (strides[d], -d)):
        if inner >= 0 and strides[d] == shape[inner] * strides[inner]:
            made[d] = sizes[inner] * made[inner]
        inner = d
    outer: Size = 1
    for d in reversed(range(len(shape))):
        if shape[d] == 1 and strides[d] == _value(shape, d):  # of a size of 1, any would do
            made[d] = outer
        outer = outer * sizes[d]
    return tuple(made)


def _value(shape: tuple[int, ...], d: int) -> int:
    product = 1
    for n in shape[d + 1 :]:
        product *= n
    return product
