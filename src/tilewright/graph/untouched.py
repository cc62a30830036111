"""Recording leaves no trace. In: what user code may change while it is recorded. Out: what it did change, put back.

Watched are a module tree's attributes, a function's cells and the globals it names, containers and objects among the arguments,
torch's modes and the random states. Tensors need no watch: their data is never touched. Must not know what is recorded.
"""

from __future__ import annotations

import random
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from . import torch_private as private

_CONTAINERS = (list, dict, set)


class Watch:
    """Copies of everything watched, taken when it is made."""

    def __init__(self, fn: Callable[..., Any], modules: Iterable[nn.Module], arguments: Iterable[Any]) -> None:
        self._held: list[tuple[str, Any, Any]] = []  # label, container, copy
        self._cells: list[tuple[str, types.CellType, Any]] = []
        self._seen: set[int] = set()
        for root in modules:
            for m in root.modules():
                self._module(m)
        self._function(fn)
        self.arguments(arguments)
        self._states = _states()
        self._reseeds, self._threads, self._drawn = private.reseeds(), threading.active_count(), torch.get_rng_state()

    def arguments(self, values: Iterable[Any]) -> None:
        """Watch more values: containers, and objects' attributes."""
        for value in values:
            self._value("an argument", value, deep=True)

    def _module(self, module: nn.Module) -> None:
        label, attributes = type(module).__name__, module.__dict__
        if id(attributes) in self._seen:
            return
        self._container(label, attributes)
        for name, value in attributes.items():
            if type(value) in _CONTAINERS:
                self._container(f"{label}.{name}", value)

    def _function(self, fn: Any) -> None:
        if isinstance(fn, types.MethodType):
            self._value("self", fn.__self__, deep=True)
            fn = fn.__func__
        if not isinstance(fn, types.FunctionType):
            return
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._cells.append((name, cell, value))
            self._value(name, value, deep=True)
        for name in fn.__code__.co_names:
            if name in fn.__globals__:
                self._value(name, fn.__globals__[name], deep=False)
        names = [n for n in fn.__code__.co_names if n in fn.__globals__]
        self._globals = fn.__globals__, {n: fn.__globals__[n] for n in names}

    _globals: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def _value(self, label: str, value: Any, deep: bool) -> None:
        """A container as it is now; of an object, its attributes."""
        if type(value) in _CONTAINERS:
            if id(value) in self._seen:
                return
            self._container(label, value)
            for item in value.values() if type(value) is dict else value if type(value) is list else ():
                if type(item) in _CONTAINERS:
                    self._value(label, item, deep)
        elif deep and not isinstance(value, type | types.ModuleType | types.FunctionType | torch.Tensor | nn.Module):
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict:
                self._container(label, attributes)
                for name, item in attributes.items():
                    if type(item) in _CONTAINERS:
                        self._container(f"{label}.{name}", item)

    def _container(self, label: str, value: Any) -> None:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._held.append((label, value, value.copy()))

    def restore(self) -> str:
        """Put everything back. What had changed, in words, or ""."""
        changed = ""
        for label, now, before in self._held:
            if not _same(now, before):
                changed = changed or _difference(label, now, before)
                _put_back(now, before)
        for name, cell, value in self._cells:
            if cell.cell_contents is not value:
                changed = changed or f"the variable {name}"
                cell.cell_contents = value
        names, values = self._globals
        for name, value in values.items():
            if names.get(name, names) is not value:
                changed = changed or f"the global {name}"
                names[name] = value
        for label, before, read, write in self._states:
            if not _equal_state(read(), before):
                changed = changed or label
                write(before)
        drawn = self._random()
        return changed or drawn

    def _random(self) -> str:
        """torch's random state: if this thread set it, or no other could have drawn from it, it is put back."""
        alone = max(self._threads, threading.active_count()) == 1
        if private.reseeds() == self._reseeds and not (alone and not torch.equal(torch.get_rng_state(), self._drawn)):
            return ""
        torch.set_rng_state(self._drawn)
        return "torch's random state"


def root_modules(fn: Callable[..., Any], module: nn.Module | None, arguments: Iterable[Any] = ()) -> list[tuple[str, nn.Module]]:
    """(name, module) of the modules that a function can reach at once: its own, those that it is bound to, closes over, names or
    is given. The name of `module` is ""."""
    named = [("", module), ("", fn)]
    bound = getattr(fn, "__self__", None)
    if bound is not None and not isinstance(bound, types.ModuleType):
        named += [("", bound), *((k, v) for k, v in getattr(bound, "__dict__", {}).items())]
    plain = getattr(fn, "__func__", fn)
    if isinstance(plain, types.FunctionType):
        named += [(name, plain.__globals__.get(name)) for name in plain.__code__.co_names]
        named += [(name, _contents(cell)) for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or ())]
    named += [("argument", value) for value in arguments]
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, value in named:
        if isinstance(value, nn.Module):
            found.setdefault(id(value), (name, value))
    return list(found.values())


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _same(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(k is q and v is w for (k, v), (q, w) in zip(now.items(), before.items()))
    if isinstance(now, list):
        return all(v is w for v, w in zip(now, before))
    return bool(now == before)


def _difference(label: str, now: Any, before: Any) -> str:
    if isinstance(now, dict):
        missing = object()
        for key in [*before, *now]:
            if now.get(key, missing) is not before.get(key, missing):
                return f"{label}.{key}" if isinstance(key, str) else f"{label}[{key!r}]"
    return label


def _put_back(now: Any, before: Any) -> None:
    if isinstance(now, list):
        now[:] = before
    else:
        now.clear()
        now.update(before)


def _states() -> list[tuple[str, Any, Callable[[], Any], Callable[[Any], Any]]]:
    """(label, value now, how it is read, how it is set)."""
    rows: list[tuple[str, Callable[[], Any], Callable[[Any], Any]]] = [
        ("whether gradients are recorded", torch.is_grad_enabled, torch.set_grad_enabled),
        ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("Python's random state", random.getstate, random.setstate),
        ("autocast", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
        ("the number of threads", torch.get_num_threads, torch.set_num_threads),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        rows.append(("NumPy's random state", lambda: numpy.random.get_state(legacy=False), numpy.random.set_state))
    return [(label, read(), read, write) for label, read, write in rows]


def _equal_state(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal_state(a[k], b[k]) for k in b)
    return bool((a == b).all()) if hasattr(a, "dtype") and not isinstance(a, torch.dtype) else bool(a == b)
