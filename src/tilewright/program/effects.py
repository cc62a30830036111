"""Side effects of a captured program: done for real while it is captured, put back afterwards, replayed after the graph ran.

In: what the program changes outside. Out: a journal of `Effect`s in their order; the state before. Must not know bytecode.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .breaks import Break
from .sources import MISSING


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """`function(*operands)` repeats it; the operands are live values of the capture."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    changes: bool = True  # whether the first operand is an object from outside that is changed


class Everything:
    """Stands for all keys of a container."""


EVERYTHING = Everything()


class Effects:
    def __init__(self) -> None:
        self.journal: list[Effect] = []
        self._before: dict[int, tuple[Any, Any]] = {}
        self._written: dict[int, set[Any]] = {}
        self._undo: list[Callable[[], None]] = []
        self.guarded: set[tuple[int, str]] = set()  # attributes whose first value a guard compares

    # --- what was changed ---

    def is_written(self, holder: Any, key: Any) -> bool:
        keys = self._written.get(id(holder))
        return keys is not None and (EVERYTHING in keys or key in keys)

    def is_changed(self, holder: Any) -> bool:
        return id(holder) in self._written

    def before(self, holder: Any) -> Any:
        """The container as it was when the capture began."""
        found = self._before.get(id(holder))
        return holder if found is None else found[1]

    def _mark(self, holder: Any, key: Any) -> None:
        self._written.setdefault(id(holder), set()).add(key)

    def _save(self, container: Any) -> None:
        if id(container) not in self._before:
            copy = _copy(container)
            self._before[id(container)] = container, copy
            self._undo.append(lambda: _put_back(container, copy))

    def settled(self) -> list[Effect]:
        """The journal without assignments of attributes that later ones undo or overwrite; to be asked before `restore`.

        An attribute that is new gets its last value where it was made, so that attributes keep eager's order.
        """
        touched: dict[tuple[int, str], list[int]] = {}
        for n, effect in enumerate(self.journal):
            if effect.function is object.__setattr__ or effect.function is object.__delattr__:
                touched.setdefault((id(effect.operands[0]), effect.operands[1]), []).append(n)
        kept: dict[int, Effect | None] = {}
        for places in touched.values():
            kept.update(self._last_word(places))
        found = [kept.get(n, effect) if n in kept else effect for n, effect in enumerate(self.journal)]
        return [effect for effect in found if effect is not None]

    def _last_word(self, places: list[int]) -> dict[int, Effect | None]:
        """What is done, and where, instead of all that is done to one attribute."""
        kept: dict[int, Effect | None] = dict.fromkeys(places)
        deleted = [n for n in places if self.journal[n].function is object.__delattr__]
        last = self.journal[places[-1]]
        o, name = last.operands[:2]
        saved = self._before.get(id(getattr(o, "__dict__", None)))
        existed = saved is None or name in saved[1]
        if deleted and existed:
            kept[deleted[-1]] = self.journal[deleted[-1]]
        if last.function is object.__setattr__ and not (self._is_undone(last) and not deleted):
            kept[next(n for n in places if not deleted or n > deleted[-1])] = last
        return kept

    def _is_undone(self, effect: Effect) -> bool:
        """Whether an attribute ends as it began, and a guard says how it began."""
        if effect.function is object.__delattr__:
            return False
        o, name, value = effect.operands
        attributes = getattr(o, "__dict__", None)
        saved = self._before.get(id(attributes))
        return saved is not None and name in saved[1] and saved[1][name] is value and (id(attributes), name) in self.guarded

    def restore(self) -> None:
        """Put everything back."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # --- changes ---

    def set_attribute(self, o: Any, attributes: dict[str, Any], name: str, value: Any) -> None:
        self._save(attributes)
        self._mark(attributes, name)
        attributes[name] = value
        self.journal.append(Effect(object.__setattr__, (o, name, value)))

    def delete_attribute(self, o: Any, attributes: dict[str, Any], name: str) -> None:
        self._save(attributes)
        self._mark(attributes, name)
        del attributes[name]
        self.journal.append(Effect(object.__delattr__, (o, name)))

    def set_member(self, o: Any, name: str, value: Any) -> None:
        """A `__slots__` member, or an attribute of a class."""
        write = type.__setattr__ if isinstance(o, type) else object.__setattr__
        before = o.__dict__.get(name, MISSING) if isinstance(o, type) else getattr(o, name, MISSING)
        if isinstance(o, type):
            raise Break("effect", f"the class attribute {o.__qualname__}.{name} is set")
        self._undo.append(lambda: write(o, name, before) if before is not MISSING else object.__delattr__(o, name))
        self._mark(o, name)
        write(o, name, value)
        self.journal.append(Effect(write, (o, name, value)))

    def set_item(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._save(table)
        self._mark(table, key)
        write = _own_class(table).__setitem__
        write(table, key, value)
        self.journal.append(Effect(write, (table, key, value)))

    def delete_item(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            self._save(table)
            self._mark(table, key)
        write = _own_class(table).__delitem__
        write(table, key)
        self.journal.append(Effect(write, (table, key)))

    def keep_exception(self, e: BaseException) -> None:
        """An exception from outside: raising it leaves marks on it."""
        traceback, context, cause, suppressed = e.__traceback__, e.__context__, e.__cause__, e.__suppress_context__

        def undo() -> None:
            e.__traceback__, e.__context__, e.__cause__ = traceback, context, cause
            e.__suppress_context__ = suppressed

        self._undo.append(undo)

    def set_cell(self, cell: types.CellType, value: Any) -> None:
        try:
            before = cell.cell_contents
        except ValueError:
            before = MISSING
        if not self.is_written(cell, "cell_contents"):
            self._undo.append(lambda: _restore_cell(cell, before))
        self._mark(cell, "cell_contents")
        if value is MISSING:
            del cell.cell_contents
            self.journal.append(Effect(_empty_cell, (cell,)))
            return
        cell.cell_contents = value
        self.journal.append(Effect(_set_cell, (cell, value)))

    def mutate(
        self, container: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rewrite: bool
    ) -> Any:
        """A call of a container's method that changes it. `rewrite`: its outcome depends on what the container held, which is
        replayed as the content it leaves."""
        self._save(container)
        self._mark(container, EVERYTHING)
        result = method(container, *args, **kwargs)
        if rewrite:
            self.journal.append(Effect(_put_back, (container, _copy(container))))
        else:
            self.journal.append(Effect(method, (container, *[_frozen(a) for a in args])))
        return result

    def later(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A call that is done when effects are replayed, not now."""
        self.journal.append(Effect(function, args, False))


def _frozen(operand: Any) -> Any:
    """An operand as it is now: what is done to it later does not reach the container."""
    return operand


def _copy(container: Any) -> Any:
    """What it holds, whatever its class does to those who copy or fill it."""
    if not isinstance(container, dict):
        return container.copy()
    own = _own_class(container)
    copy = own()
    for key, value in own.items(container):
        copy[key] = value
    return copy


def _put_back(container: Any, content: Any) -> None:
    if isinstance(container, list):
        list.__setitem__(container, slice(None), content)
    elif isinstance(container, dict):
        own = _own_class(container)
        own.clear(container)
        for key, value in content.items():
            own.__setitem__(container, key, value)
    else:
        container.clear()
        container.extend(content) if hasattr(container, "extend") else container.update(content)


def _own_class(table: dict[Any, Any]) -> Any:
    """The class without Python code that keeps the entries."""
    return next(c for c in (collections.OrderedDict, dict) if isinstance(table, c))


def _set_cell(cell: types.CellType, value: Any) -> None:
    cell.cell_contents = value


def _empty_cell(cell: types.CellType) -> None:
    del cell.cell_contents


def _restore_cell(cell: types.CellType, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


put_back, set_cell = _put_back, _set_cell
