"""Guards: what one recording assumed, as rows for the native engine.

In: the callable, the arguments of the recorded call, and where each graph input was found. Out: `GuardTable`, whose
rows `tilewright.native.Entry` checks at each call, each with a sentence that says what it protects. Must not know what
the graph computes.

Everything reachable that the recording may have read is guarded: arguments (tensors by metadata, Python values by
equality, containers by type and length), the module tree (children, training flags, hooks, plain attributes), the
globals and cells a function names, and torch's modes. Parameters are looked up at each call, never pinned.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import native
from ..graph import torch_private as private
from ..graph.record import ArgSource, ConstantSource, ParameterSource, Recorded
from . import trust
from .torch_link import dlpack_device, dlpack_dtype

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
CONTAINERS = (tuple, list, dict)
MOST_DISTINCT = 6  # tensors among the arguments, for which it is guarded that no two are one
MOST_ITEMS = 256  # a larger container is guarded as the object it is
GUARDED_IN_LIBRARIES = (bool, int, float, str, *CONTAINERS, nn.Module, types.FunctionType)
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
WHOLE = ("vars", "__dict__", "getattr", "dir", "asdict", "astuple", "replace")  # code that names these may read any attribute
METHODS = ("forward", "__call__", "__getattr__", "__getitem__", "__len__", "__iter__", "__enter__", "__exit__", "__bool__")


@dataclass(frozen=True)
class GuardTable:
    """`rows` in native form; `reasons` says, a row each, what changed where it fails. The rows read `symbols` sizes."""

    nargs: int
    kwnames: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    reasons: list[str]
    inputs: int
    symbols: int = 0

    def explain(self, failed: int) -> str:
        """Why a call missed: the sentence of the row that failed."""
        if failed < 0:
            return "the call passes other arguments (their number or keyword names)"
        if failed >= len(self.reasons):
            return "an input that the graph writes overlaps another input in memory"
        return self.reasons[failed]


class _Builder:
    def __init__(self, nargs: int, kwnames: tuple[str, ...], check_grad: bool, names: Set[str]) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.reasons: list[str] = []
        self.slots = nargs + len(kwnames)
        self.check_grad = check_grad
        self._memo: dict[tuple[Any, ...], int] = {}
        self.names = {*METHODS, *names}  # attributes and globals that the code met so far names
        self._modules: set[int] = set()
        self._classes: set[type] = set()
        self._functions: set[types.FunctionType] = set()
        self._objects: dict[int, Any] = {}
        self._within: set[int] = set()  # containers that are being guarded
        self.tensors: dict[int, tuple[int, str]] = {}  # tensors of modules and objects: (slot of the dict, key)

    def derive(self, row: tuple[Any, ...], reason: str) -> int:
        """A row that fills a new slot: its number. Asking twice gives the same slot."""
        key = tuple(id(x) if not isinstance(x, (int, str)) else x for x in row)
        if key not in self._memo:
            self.test(row, reason)
            self._memo[key] = self.slots
            self.slots += 1
        return self._memo[key]

    def test(self, row: tuple[Any, ...], reason: str) -> None:
        self.rows.append(row)
        self.reasons.append(reason)

    def tensor(self, slot: int, t: torch.Tensor, index: int, what: str) -> None:
        meta = (type(t), index, *dlpack_dtype(t.dtype), *dlpack_device(t.device), t.requires_grad if self.check_grad else None)
        self.test(
            ("tensor", slot, (*meta, tuple(t.shape), t.stride())), f"{what}: its type, dtype, shape, strides or device changed"
        )

    def value(self, slot: int, value: Any, what: str, inputs: bool = False) -> None:
        """A Python value read as it stands: plain ones by equality, containers by their items, anything else by identity.

        `inputs`: tensors are inputs of the graph, guarded as such.
        """
        if isinstance(value, nn.Module):
            self.test(("is", slot, value), f"{what} is another module")
            self.module(value, what)
        elif isinstance(value, CONTAINERS) and len(value) <= MOST_ITEMS:
            self._items(slot, value, what, inputs)
        elif type(value) in (set, frozenset) and len(value) <= MOST_ITEMS and all(isinstance(v, PLAIN) for v in value):
            self.test(("eq", slot, type(value)(value)), f"{what} is no longer {value!r}")
        elif isinstance(value, PLAIN):
            self.test(("eq", slot, value), f"{what} is no longer {value!r}")
        else:
            self.test(("is", slot, value), f"{what} is another object")
            self.object(slot, value, what)

    def _items(self, slot: int, value: Any, what: str, inputs: bool) -> None:
        self.test(("type", slot, type(value)), f"{what} has another type")
        is_dict = isinstance(value, dict)
        if isinstance(value, collections.OrderedDict) and not inputs:  # its order is its own, which only it can tell
            self.test(("is", slot, value), f"{what} is another object")
            keys = tuple(value)
            self.test(("state", lambda held: tuple(held) == keys, value, True), f"{what} has other keys")
        else:
            size = ("keys", slot, tuple(value)) if is_dict else ("len", slot, len(value))
            self.test(size, f"{what} has other keys" if is_dict else f"{what} has another length")
        if id(value) in self._within:
            return
        self._within.add(id(value))
        for key, item in value.items() if is_dict else enumerate(value):
            if not (inputs and isinstance(item, torch.Tensor)):
                name = f"{what}[{key!r}]"
                self.value(self.derive(("get" if is_dict else "item", slot, key), f"{name} is gone"), item, name, inputs)
        self._within.discard(id(value))

    def object(self, slot: int, value: Any, what: str) -> None:
        """What the program can read of an object that is itself: a function's globals and cells, attributes that code names."""
        if isinstance(value, type):
            self.python_class(value)
        elif id(value) in self._objects:
            return
        self._objects[id(value)] = value
        if isinstance(value, native.Dispatcher):
            self.value(self.derive(("const", value.fn), what), value.fn, what)  # type: ignore[attr-defined]
        elif isinstance(value, types.FunctionType):
            self.function(value, slot)
        elif isinstance(value, types.MethodType | functools.partial):
            for part in ("func", "args", "keywords") if isinstance(value, functools.partial) else ("__func__", "__self__"):
                self.value(self.derive(("attr", slot, part), f"{what}.{part} is gone"), getattr(value, part), f"{what}.{part}")
        elif isinstance(value, types.ModuleType) or (trust.is_python_class(type(value)) and not isinstance(value, type)):
            self._attributes(slot, value, what)

    def _attributes(self, slot: int, value: Any, what: str) -> None:
        """Of an object of a library, all plain attributes; else those that some code names."""
        cls = type(value)
        library = _is_library(sys.modules.get(cls.__module__))
        if isinstance(value, types.ModuleType):
            if _is_library(value) or trust.is_trusted_module(value.__name__) or value.__name__.startswith("tilewright"):
                return
            library = False
        elif trust.is_trusted_module(cls.__module__):
            return
        else:
            self.python_class(cls)
        whole = not self.names.isdisjoint(WHOLE)
        named = lambda name: name in self.names or whole  # noqa: E731
        held = getattr(value, "__dict__", None)
        if type(held) is dict:
            own = self.derive(("dict", slot), f"{what} has no attributes")
            for name, item in held.items():
                if isinstance(item, torch.Tensor):  # if it is an input of the graph, it is read here and guarded as such
                    self.tensors.setdefault(id(item), (own, name))
                    if named(name):
                        self.test(
                            ("type", self.derive(("get", own, name), f"{what}.{name} is gone"), type(item)),
                            f"{what}.{name} has another type",
                        )
                elif named(name) or (library and isinstance(item, PLAIN)):
                    self.value(self.derive(("get", own, name), f"{what}.{name} is gone"), item, f"{what}.{name}")
            for name in self.names:
                if name not in held and _look_up(cls, name) is not None:
                    self.test(("absent", own, name), f"{what}.{name} exists now")
        for name in self.names:
            if isinstance(_look_up(cls, name), types.MemberDescriptorType) and hasattr(value, name):
                self.value(self.derive(("attr", slot, name), f"{what}.{name} is gone"), getattr(value, name), f"{what}.{name}")

    def python_class(self, cls: type) -> None:
        """What looking up any name that some code names gives, in the classes that a user or a library wrote."""
        if cls in self._classes or not trust.is_python_class(cls) or trust.is_trusted_module(cls.__module__):
            return
        self._classes.add(cls)
        found = {name: _look_up(cls, name) for name in sorted(self.names)}
        pairs = tuple((n, f) for n, f in found.items() if f is not None)
        self.test(("class", cls, pairs), f"the class {cls.__qualname__} was edited")
        if _is_library(sys.modules.get(cls.__module__)):
            return
        for name, value in found.items():
            for part in _parts(value):
                what = f"{cls.__qualname__}.{name}"
                if isinstance(part, types.FunctionType):
                    self.function(part, self.derive(("const", part), what))
                elif isinstance(part, CONTAINERS) or (part is not None and trust.is_python_class(type(part))):
                    self.value(self.derive(("const", part), what), part, what)
        for base in cls.__mro__[1:]:  # `super()` looks names up there
            self.python_class(base)

    def module(self, root: nn.Module, what: str) -> None:
        """Everything of a module tree but its tensors: children, training flags, hooks and attributes."""
        for path, module in root.named_modules():
            if id(module) in self._modules:
                continue
            self._modules.add(id(module))
            self.module_class(type(module))
            name = f"{what}.{path}" if path else what
            slot = self.derive(("const", module.__dict__), name)
            self.test(("len", slot, len(module.__dict__)), f"{name} gained or lost an attribute")
            for key, value in module.__dict__.items():
                if key in ("_parameters", "_buffers", "_modules", *HOOKS):
                    self._container(slot, key, value, name)
                elif key not in _of_every_module() and not isinstance(value, torch.Tensor | nn.Module):
                    if isinstance(value, PLAIN) or not key.startswith("_") or key in self.names:
                        self.value(self.derive(("get", slot, key), f"{name}.{key} is gone"), value, f"{name}.{key}")

    def module_class(self, cls: type) -> None:
        """What a module's calls run: its class's methods, and the globals that they name."""
        if cls in self._classes:
            return
        methods = [(name, _look_up(cls, name)) for name in ("forward", "__call__")]
        self.test(("class", cls, tuple(methods)), f"the class {cls.__qualname__} was edited")
        forward = methods[0][1]
        if isinstance(forward, types.FunctionType):
            self.function(forward, self.derive(("const", forward), f"{cls.__qualname__}.forward"))
        self.python_class(cls)
        self._classes.add(cls)

    def function(self, fn: types.FunctionType, slot: int) -> None:
        """A function's code and defaults, the globals that it names and the cells that it closes over."""
        if fn in self._functions or trust.is_trusted_module(fn.__module__ or "") or trust.is_own_code(fn.__code__):
            return
        self._functions.add(fn)
        name = fn.__qualname__
        self.test(("code", slot, fn.__code__), f"the code of {name} is another")
        for part in ("__defaults__", "__kwdefaults__"):
            if getattr(fn, part) is not None:
                self.value(self.derive(("attr", slot, part), f"{name} has no {part}"), getattr(fn, part), f"{name}.{part}")
        names = _names(fn.__code__)
        self.names |= names
        library = _is_library(sys.modules.get(fn.__module__ or ""))
        slot = self.derive(("const", fn.__globals__), "globals")
        for key in sorted(names & fn.__globals__.keys()):
            value = fn.__globals__[key]
            if not isinstance(value, torch.Tensor) and (not library or isinstance(value, GUARDED_IN_LIBRARIES)):
                self._read(("get", slot, key), value, f"global {key}", library)
        for key, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            if not isinstance(value := _contents(cell), torch.Tensor) and value is not cell:
                self._read(("cell", self.derive(("const", cell), key)), value, f"variable {key}", library)

    def _read(self, row: tuple[Any, ...], value: Any, what: str, library: bool) -> None:
        slot = self.derive(row, f"{what} is gone")
        if library and isinstance(value, types.FunctionType):  # where it stands is enough: it is not expected to be edited
            self.test(("is", slot, value), f"{what} is another function")
        else:
            self.value(slot, value, what)

    def _container(self, slot: int, key: str, value: dict[str, Any], name: str) -> None:
        held = self.derive(("get", slot, key), f"{name}.{key} is gone")
        ordered = value and key not in ("_parameters", "_buffers")
        self.test(("keys", held, tuple(value)) if ordered else ("len", held, len(value)), f"{name}.{key} gained or lost an entry")
        for child, item in value.items():
            what = f"{name}.{child}"
            if key in ("_parameters", "_buffers"):
                if item is None:
                    self.test(("is", self.derive(("get", held, child), f"{what} is gone"), None), f"{what} is no longer None")
                elif (first := self.tensors.setdefault(id(item), (held, child))) != (held, child):
                    slots = [self.derive(("get", h, c), f"{what} is gone") for h, c in (first, (held, child))]
                    self.test(("same", *slots), f"{what} is no longer the same tensor as another")
            else:
                place = self.derive(("get", held, child), f"{what} is gone")
                self.test(("is", place, item), f"{what} is another module" if key == "_modules" else f"a hook of {name} changed")
                if key != "_modules":
                    self.object(place, item, f"a hook of {name}")


def _look_up(cls: type, name: str) -> Any:
    """The attribute as the first class holds it that a user or a library wrote; else None."""
    for c in cls.__mro__:
        if name in c.__dict__:
            return c.__dict__[name] if name in METHODS or not trust.is_trusted_module(c.__module__) else None
    return None


def _parts(found: Any) -> tuple[Any, ...]:
    """What stands behind a class attribute: the functions of a property, of a static or class method; else itself."""
    if isinstance(found, property):
        return found.fget, found.fset
    return (found.__func__,) if isinstance(found, staticmethod | classmethod) else (found,)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names of globals and attributes in code and the functions within; strings too, which `getattr` may be given."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    strings = [c for c in code.co_consts if isinstance(c, str) and len(c) < 40 and c.isidentifier()]
    return frozenset(METHODS).union(code.co_names, strings, *inner)


def _is_library(module: types.ModuleType | None) -> bool:
    """Whether a module is installed: nobody is expected to change its functions' globals between calls."""
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@functools.cache
def _of_every_module() -> frozenset[str]:
    return frozenset(nn.Module().__dict__) - {"training"}


def guard_table(fn: Callable[..., Any], recorded: Recorded, args: Sequence[Any], kwargs: dict[str, Any]) -> GuardTable:
    """The guards of one recording of `fn(*args, **kwargs)`."""
    names: frozenset[str] = frozenset()
    while True:  # code that is met late may name attributes of objects that were met before
        b = _build(fn, recorded, args, kwargs, names)
        if b.names <= names:
            return GuardTable(len(args), tuple(kwargs), b.rows, b.reasons, len(recorded.inputs))
        names = frozenset(b.names)


def _build(fn: Callable[..., Any], recorded: Recorded, args: Sequence[Any], kwargs: dict[str, Any], names: Set[str]) -> _Builder:
    kwnames = tuple(kwargs)
    check_grad = torch.is_grad_enabled() or not names.isdisjoint(("enable_grad", "set_grad_enabled"))
    b = _Builder(len(args), kwnames, check_grad, names)
    for query, argument, expected in _modes():
        b.test(("state", query, argument, expected), f"torch's {query.__name__} is no longer {expected}")
    holder, key = private.tangent_level()
    b.test(("eq", b.derive(("get", b.derive(("const", holder), "tangents"), key), "tangents"), -1), "tensors have tangents")
    for i, value in enumerate([*args, *kwargs.values()]):
        if not isinstance(value, torch.Tensor):
            b.value(i, value, f"argument {i}" if i < len(args) else f"argument {kwnames[i - len(args)]}", inputs=True)
    _callable(b, fn)
    for index, source in enumerate(recorded.inputs):
        if isinstance(source, ArgSource):
            slot, tensor, what = _argument(b, source, args, kwargs)
        elif isinstance(source, ParameterSource):
            holder = getattr(source.module, source.kind)
            slot = b.derive(("const", source.module.__dict__), source.name)
            slot = b.derive(("get", slot, source.kind), f"{source.name} is gone")
            slot, tensor, what = b.derive(("get", slot, source.key), f"{source.name} is gone"), holder[source.key], source.name
        else:
            slot, tensor, what = _constant(b, source)
        b.tensor(slot, tensor, index, what)
    for source, index in recorded.same:
        (slot, _, what), first = _argument(b, source, args, kwargs), recorded.inputs[index]
        assert isinstance(first, ArgSource)
        reason = f"{what} is no longer the same tensor as argument {first.path[0]}"
        b.test(("same", slot, _argument(b, first, args, kwargs)[0]), reason)
    _distinct(b, recorded, args, kwargs)
    return b


def _distinct(b: _Builder, recorded: Recorded, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """A function may ask whether two of its few arguments are one tensor."""
    sources = [s for s in recorded.inputs if isinstance(s, ArgSource)]
    found = [_argument(b, s, args, kwargs) for s in sources] if len(sources) <= MOST_DISTINCT else []
    for i, (slot, x, _) in enumerate(found):
        for other, y, _ in found[:i]:
            if x.shape == y.shape and x.dtype is y.dtype:
                b.test(("differ", slot, other), "two arguments are one tensor now")


def _constant(b: _Builder, source: ConstantSource) -> tuple[int, torch.Tensor, str]:
    """The slot of a tensor that the program closed over: where it was read, if that is known, else this very object."""
    what = f"tensor {source.key}" if source.key else "a tensor that the function closes over"
    if isinstance(source.holder, dict):
        slot = b.derive(("get", b.derive(("const", source.holder), what), source.key), f"{what} is gone")
    elif source.holder is not None:
        slot = b.derive(("cell", b.derive(("const", source.holder), what)), f"{what} is unset")
    elif (place := b.tensors.get(id(source.tensor))) is not None:
        slot = b.derive(("get", *place), f"{what} is gone")
    else:
        slot = b.derive(("const", source.tensor), what)
    return slot, source.tensor, what


def _argument(b: _Builder, source: ArgSource, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, torch.Tensor, str]:
    """The slot of an argument's tensor: `path` starts with a position or a keyword name and goes on into containers."""
    first, *rest = source.path
    slot = first if isinstance(first, int) else len(args) + list(kwargs).index(first)
    value = args[first] if isinstance(first, int) else kwargs[first]
    what = f"argument {first}"
    for step in rest:
        kind = "get" if isinstance(value, dict) else "item"
        what = f"{what}[{step!r}]"
        slot, value = b.derive((kind, slot, step), f"{what} is gone"), value[step]
    return slot, value, what


def _callable(b: _Builder, fn: Callable[..., Any]) -> None:
    """Hooks of all modules; a module's tree; of a function or an object, what it reads."""
    for name, hooks in private.global_hooks():
        b.test(("keys", b.derive(("const", hooks), name), tuple(hooks)), "hooks of all modules changed")
    if isinstance(fn, nn.Module):
        b.module(fn, "module")
    elif isinstance(fn, types.MethodType):
        b.value(b.derive(("const", fn.__self__), "self"), fn.__self__, "self")
        b.object(b.derive(("const", fn.__func__), "function"), fn.__func__, fn.__qualname__)
    else:
        b.object(b.derive(("const", fn), "function"), fn, "function")


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _modes() -> list[tuple[Callable[..., Any], Any, Any]]:
    """torch's modes that a recording depends on: (query, its argument, the value now)."""
    queries: list[tuple[Callable[..., Any], Any]] = [
        (torch.is_grad_enabled, None),
        (torch.is_autocast_enabled, "cpu"),
        (torch.get_default_dtype, None),
        (torch.are_deterministic_algorithms_enabled, None),
    ]
    if torch.is_autocast_enabled("cpu"):
        queries.append((torch.get_autocast_dtype, "cpu"))
    modes = [(q, a, q() if a is None else q(a)) for q, a in queries]
    return modes + [(query, None, answer) for query, answer in private.plain_calls()]
