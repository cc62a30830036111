"""What a captured program reads from the world outside it: every read becomes guards, every tensor an input of the graph.

In: slots and the real values in them. Out: the values as the program sees them (tensors as fakes); `Known` objects. Objects are
changed for real while a capture runs and put back after it, so reads of changed places carry no guard. Must not know bytecode.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
from torch import nn

from ..graph.fake import Fake
from ..graph.recorder import ArgSource, ConstantSource, ParameterSource, Recorder, Source
from ..graph.symbolic import plain, to_symint
from .breaks import Break
from .effects import Effects
from .sizes import OpenSizes, Policy
from .sources import MISSING, Known, Rows, is_atom
from .trust import is_opaque, is_python_class
from .varying import Varying

SEQUENCES = (list, tuple)
CONTAINERS = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    collections.Counter,
)
_HIDDEN = (int, float, str, bytes, complex)  # subclasses of these are compared by value too
PINNED = (nn.Module, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType)


class Outside:
    """`policy`: which ints were seen to change, which sizes may be left open."""

    def __init__(self, recorder: Recorder, rows: Rows, effects: Effects, policy: Policy) -> None:
        self.recorder = recorder
        self.rows = rows
        self.effects = effects
        self.known: dict[int, Known] = {}
        self.input_slots: dict[int, int] = {}  # graph input -> slot
        self._seen: dict[int, Any] = {}  # slot -> value as the program sees it
        self._changed: dict[int, Known] = {}
        self._absences: set[Any] = set()
        self.varying = policy.varying
        self.sizes = OpenSizes(recorder.symbols, policy)
        self.computed: dict[int, Varying] = {}  # graph inputs that are made of ints
        self._unsettled: dict[int, tuple[int, str]] = {}  # slots of ints whose value is not guarded

    # --- values ---

    def read(self, value: Any, slot: int, name: str, argument: bool = False, source: Source | None = None) -> Any:
        """The value in a slot, guarded, as the program sees it."""
        if slot in self._seen:
            return self._seen[slot]
        seen = value
        if isinstance(value, torch.Tensor):
            seen = self._tensor(value, slot, name, argument, source)
        elif name in self.varying and (type(value) is str or (type(value) in (int, float) and abs(value) < 2**62)):
            seen = self._varying(value, slot, name)
        elif is_atom(value):
            kind = "is" if value is None or value is True or value is False else "eq"
            self.rows.test(kind, slot, value, why=f"{name} is no longer {value!r}"[:200])
        elif argument and type(value) is types.MethodType:
            for part in ("__func__", "__self__"):
                what = f"{name}.{part}"
                self.read(getattr(value, part), self.rows.derive("attr", slot, part, why=f"{what} is gone"), what, argument)
            self._note(value, slot, name, False, argument)
        elif argument and isinstance(value, BaseException):
            self.rows.test("type", slot, type(value), why=f"{name} has another type")
            self._note(value, slot, name, False, argument)
            self.effects.keep_exception(value)
        elif argument and (is_opaque(value) or hasattr(type(value), "__next__")):
            self.rows.test("type", slot, type(value), why=f"{name} has another type")
            self._note(value, slot, name, False, argument)
        elif argument and type(value) is types.CellType:
            self.rows.test("type", slot, types.CellType, why=f"{name} is no cell")
            self._note(value, slot, name, False, argument)
        elif isinstance(value, PINNED):
            owner = getattr(value, "__self__", None) if isinstance(value, types.BuiltinFunctionType) else None
            if owner is not None and not isinstance(owner, type | types.ModuleType):
                self.constant(owner, f"{name}.__self__")
            self.rows.test("is", slot, value, why=f"{name} is another object")
            self._note(value, slot, name, True, argument)
        elif type(value) in CONTAINERS or (argument and is_python_class(type(value))) or isinstance(value, tuple):
            self.rows.test("type", slot, type(value), why=f"{name} has another type")
            if isinstance(value, _HIDDEN):
                self.rows.test("eq", slot, value, why=f"{name} is no longer {value!r}"[:200])
            self._note(value, slot, name, False, argument)
        else:
            self.rows.test("is", slot, value, why=f"{name} is another object")
            self._note(value, slot, name, True, argument)
        self._seen[slot] = seen
        return seen

    def _varying(self, value: int | float | str, slot: int, name: str) -> Any:
        size = self.sizes.number(value, slot, name) if type(value) is int else None
        if size is not None:
            return to_symint(size)
        self.rows.test("type", slot, type(value), why=f"{name} is no {type(value).__name__}")
        self._unsettled[slot] = value, name
        return Varying(self, value, f"P{slot}", frozenset((slot,)))

    def _note(self, value: Any, slot: int, name: str, pinned: bool, argument: bool) -> None:
        first = self.known.get(id(value))
        if first is None:
            self.known[id(value)] = Known(value, slot, name, pinned, argument)
        elif not pinned and first.slot != slot:
            self.rows.test("same", slot, first.slot, why=f"{name} and {first.name} are no longer one object")

    def _tensor(self, value: torch.Tensor, slot: int, name: str, argument: bool, source: Source | None) -> Fake:
        if type(value) is Fake:
            return value
        known = self.recorder.known(value)
        if known is None:
            if source is None:
                source = ArgSource((name,)) if argument else ConstantSource(value)
            seen = self.sizes.tensor(value, slot, name, argument) if not isinstance(source, ParameterSource) else None
            known = self.recorder.input(value, source, seen)
            index = known.memory.source
            assert index is not None
            self.input_slots[index] = slot
            self.rows.tensor(slot, value, index, name, seen)
        else:
            index = known.memory.source
            if index in self.input_slots and self.input_slots[index] != slot:
                first = self.input_slots[index]
                self.rows.test("same", slot, first, why=f"{name} is no longer the same tensor as before")
        return known

    def settle(self, slots: frozenset[int]) -> None:
        """Guard the values of ints that vary."""
        for slot in slots:
            value, name = self._unsettled.pop(slot, (None, ""))
            if value is not None:
                self.rows.test("eq", slot, value, why=f"{name} is no longer {value!r}")

    def see(self, value: Any) -> Any:
        """A value that came out of a container or a function without Python code."""
        if isinstance(value, torch.Tensor) and type(value) is not Fake:
            known = self.recorder.known(value)
            if known is None:
                raise Break("unknown tensor", f"of shape {list(value.shape)}")
            return known
        return plain(value)

    def constant(self, value: Any, name: str) -> Known:
        """An object that the captured code itself holds, or that a guard of its class pins."""
        known = self.known.get(id(value))
        if known is None:
            slot = self.rows.derive("const", value, why=name)
            known = self.known[id(value)] = Known(value, slot, name, True, False)
        return known

    def read_constant(self, value: Any, name: str) -> Any:
        if is_atom(value):
            return value
        if isinstance(value, torch.Tensor):
            slot = self.rows.derive("const", value, why=name)
            return self.read(value, slot, name)
        self.constant(value, name)
        return value

    # --- parts of known objects ---

    def dict_slot(self, known: Known) -> int:
        if known.dict_slot < 0:
            why = f"{known.name} is of another class, or has no attributes"
            known.dict_slot = self.rows.derive("dict", known.slot, type(known.value), why=why)
        return known.dict_slot

    def attribute(self, known: Known, attributes: dict[str, Any], name: str) -> Any:
        """`known.__dict__[name]`, or MISSING."""
        if self.effects.is_written(attributes, name):
            return self.see(attributes.get(name, MISSING))
        slot = self.dict_slot(known)
        if name not in attributes:
            self._absent(slot, name, f"{known.name}.{name}")
            return MISSING
        what = f"{known.name}.{name}"
        return self.read(attributes[name], self.rows.derive("get", slot, name, why=f"{what} is gone"), what, known.argument)

    def _absent(self, slot: int, key: Any, what: str) -> None:
        memo = ("absent", slot, key)
        if memo not in self._absences:
            self._absences.add(memo)
            self.rows.test("absent", slot, key, why=f"{what} exists now")

    def member(self, known: Known, value: Any, name: str) -> Any:
        """What a `__slots__` member holds."""
        if self.effects.is_written(known.value, name):
            return self.see(value)
        what = f"{known.name}.{name}"
        return self.read(value, self.rows.derive("attr", known.slot, name, why=f"{what} is gone"), what, known.argument)

    def exception_arguments(self, e: BaseException) -> None:
        """Guard what an exception says."""
        known = self.known.get(id(e))
        if known is not None and not known.pinned:
            self.expand(self.member(known, e.args, "args"))

    def entry(self, known: Known, key: Any) -> Any:
        """`known.value[key]` of a dict, guarded alone, or MISSING."""
        table = known.value
        if self.effects.is_written(table, key):
            return self.see(dict.get(table, key, MISSING))
        what = f"{known.name}[{key!r}]"
        if key not in table:
            self._absent(known.slot, key, what)
            return MISSING
        slot = self.rows.derive("get", known.slot, key, why=f"{what} is gone")
        return self.read(dict.__getitem__(table, key), slot, what, known.argument)

    def module_tensor(self, known: Known, module: nn.Module, kind: str, key: str) -> Any:
        """`module.<kind>[key]` for kind `_parameters`, `_buffers` or `_modules`; MISSING where there is none."""
        table = module.__dict__[kind]
        if self.effects.is_written(table, key):
            return self.see(table.get(key, MISSING))
        if key not in table:
            return MISSING
        holder = self.rows.derive("get", self.dict_slot(known), kind, why=f"{known.name}.{kind} is gone")
        what = f"{known.name}.{key}"
        slot = self.rows.derive("get", holder, key, why=f"{what} is gone")
        source = (
            ParameterSource(module, kind, key, what.removeprefix("module."))
            if kind != "_modules" and not known.argument
            else None
        )
        return self.read(table[key], slot, what, known.argument, source)

    def cell(self, cell: types.CellType, slot: int, name: str) -> Any:
        """What a cell from outside holds. Raises ValueError where it is empty."""
        value = cell.cell_contents
        if self.effects.is_written(cell, "cell_contents"):
            return self.see(value)
        what = f"variable {name}"
        return self.read(value, self.rows.derive("cell", slot, why=f"{what} is unset"), what)

    def global_(self, table: dict[str, Any], name: str) -> Any:
        """A global variable, or MISSING."""
        if self.effects.is_written(table, name):
            return self.see(table.get(name, MISSING))
        slot = self.rows.derive("const", table, why="globals")
        if name not in table:
            self._absent(slot, name, f"global {name}")
            return MISSING
        what = f"global {name}"
        return self.read(table[name], self.rows.derive("get", slot, name, why=f"{what} is gone"), what)

    # --- whole containers ---

    def expand(self, value: Any, depth: int = 0) -> None:
        """Guard everything in a container, before something reads it as a whole."""
        if depth > 20:
            raise Break("object", "a container nested too deep")
        known = self.known.get(id(value))
        if known is None:
            for item in _items(value):
                if isinstance(item, (*CONTAINERS, tuple)):
                    self.expand(item, depth + 1)
            return
        if known.expanded or not isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
            return
        known.expanded = True
        before = self.effects.before(value)
        if isinstance(before, (set, frozenset)):
            if not all(is_atom(x) or isinstance(x, types.FunctionType) or _is_class(x) for x in before):
                raise Break("object", f"{known.name} is a set of objects")
            self.rows.test("eq", known.slot, before.copy(), why=f"{known.name} has other elements")
            return
        if isinstance(before, collections.deque):
            raise Break("object", f"{known.name} is a deque")
        if isinstance(before, dict):
            self.rows.test("keys", known.slot, tuple(before), why=f"{known.name} has other keys")
            items: Any = before.items()
        else:
            self.rows.test("len", known.slot, len(before), why=f"{known.name} has another length")
            items = enumerate(before)
        kind = "get" if isinstance(before, dict) else "item"
        for key, item in items:
            what = f"{known.name}[{key!r}]"
            self.read(item, self.rows.derive(kind, known.slot, key, why=f"{what} is gone"), what, known.argument)
            if isinstance(item, (*CONTAINERS, tuple)):
                self.expand(item, depth + 1)

    def length(self, known: Known) -> None:
        """Guard a container's length alone."""
        value = self.effects.before(known.value)
        if isinstance(value, (list, tuple, dict)):
            self.rows.test("len", known.slot, len(value), why=f"{known.name} has another length")
        else:
            self.expand(known.value)

    def position(self, known: Known, index: int) -> Any:
        """`known.value[index]` of a list or tuple that nobody changed. Raises IndexError as Python does."""
        value = known.value
        self.length(known)
        item = value[index]
        at = index if index >= 0 else index + len(value)
        what = f"{known.name}[{at}]"
        return self.read(item, self.rows.derive("item", known.slot, at, why=f"{what} is gone"), what, known.argument)

    def apart(self, changed: Known) -> None:
        """A changed object that is not pinned: no other object of its type may be the same one in a later call."""
        if not changed.pinned:
            self._changed[changed.slot] = changed

    def keep_apart(self) -> None:
        """The rows for `apart`, when all objects are known."""
        for changed in self._changed.values():
            for other in self.known.values():
                if other is not changed and not other.pinned and type(other.value) is type(changed.value):
                    self.rows.test("differ", changed.slot, other.slot, why=f"{changed.name} and {other.name} are one object now")


def _is_class(x: Any) -> bool:
    """A class that equals itself alone."""
    return isinstance(x, type) and type(x).__eq__ is object.__eq__


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set, frozenset, collections.deque)) else ()
