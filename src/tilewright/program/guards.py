"""Guards: what one recording assumed, as rows for the native engine.

In: the callable, the arguments of the recorded call, and where each graph input was found. Out: `GuardTable`, whose
rows `tilewright.native.Entry` checks at each call, each with a sentence that says what it protects. Must not know what
the graph computes.

Everything reachable that the recording may have read is guarded: arguments (tensors by metadata, Python values by
equality, containers by type and length), the module tree (children, training flags, hooks, plain attributes), the
globals and cells a function names, and torch's modes. Parameters are looked up at each call, never pinned.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..graph import torch_private as private
from ..graph.record import ArgSource, ConstantSource, ParameterSource, Recorded
from .torch_link import dlpack_device, dlpack_dtype

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
CONTAINERS = (tuple, list, dict)
MOST_ITEMS = 256  # a larger container is guarded as the object it is
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class GuardTable:
    """`rows` in native form; `reasons` says, a row each, what changed where it fails."""

    nargs: int
    kwnames: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    reasons: list[str]
    inputs: int

    def explain(self, failed: int) -> str:
        """Why a call missed: the sentence of the row that failed."""
        if failed < 0:
            return "the call passes other arguments (their number or keyword names)"
        if failed >= len(self.reasons):
            return "an input that the graph writes overlaps another input in memory"
        return self.reasons[failed]


class _Builder:
    def __init__(self, nargs: int, kwnames: tuple[str, ...], check_grad: bool) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.reasons: list[str] = []
        self.slots = nargs + len(kwnames)
        self.check_grad = check_grad
        self._memo: dict[tuple[Any, ...], int] = {}
        self._modules: set[int] = set()
        self._classes: set[type] = set()

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
        elif type(value) in (tuple, list, dict) and len(value) <= MOST_ITEMS:
            self.test(("type", slot, type(value)), f"{what} has another type")
            self.test(("len", slot, len(value)), f"{what} has another length")
            kind, items = ("get", value.items()) if type(value) is dict else ("item", enumerate(value))
            for key, item in items:
                if not (inputs and isinstance(item, torch.Tensor)):
                    name = f"{what}[{key!r}]"
                    self.value(self.derive((kind, slot, key), f"{name} is gone"), item, name, inputs)
        elif isinstance(value, PLAIN):
            self.test(("eq", slot, value), f"{what} is no longer {value!r}")
        else:
            self.test(("is", slot, value), f"{what} is another object")

    def module(self, root: nn.Module, what: str) -> None:
        """Everything of a module tree but its tensors: children, training flags, hooks and plain attributes."""
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
                elif type(value) in CONTAINERS and not key.startswith("_"):
                    self.value(self.derive(("get", slot, key), f"{name}.{key} is gone"), value, f"{name}.{key}")
                elif isinstance(value, (bool, int, float, str)):
                    self.test(
                        ("eq", self.derive(("get", slot, key), f"{name}.{key} is gone"), value),
                        f"{name}.{key} is no longer {value!r}",
                    )

    def module_class(self, cls: type) -> None:
        """What a module's calls run: its class's `forward`, and the globals that names."""
        if cls in self._classes:
            return
        self._classes.add(cls)
        methods = [(name, inspect.getattr_static(cls, name)) for name in ("forward", "__call__")]
        self.test(("class", cls, tuple(methods)), f"the class {cls.__qualname__} was edited")
        forward = methods[0][1]
        if isinstance(forward, types.FunctionType) and not (forward.__module__ or "").startswith("torch."):
            self.function(forward)

    def function(self, fn: types.FunctionType) -> None:
        """The globals that a function names and the cells that it closes over."""
        slot = self.derive(("const", fn.__globals__), "globals")
        for name in fn.__code__.co_names:
            value = fn.__globals__.get(name)
            if type(value) in CONTAINERS or isinstance(value, (bool, int, float, str, nn.Module, types.FunctionType)):
                self.value(self.derive(("get", slot, name), f"global {name} is gone"), value, f"global {name}")
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            value = _contents(cell)
            if value is None or isinstance(value, (*PLAIN, *CONTAINERS, nn.Module, types.FunctionType)):
                held = self.derive(("cell", self.derive(("const", cell), name)), f"variable {name} is unset")
                self.value(held, value, f"variable {name}")

    def _container(self, slot: int, key: str, value: dict[str, Any], name: str) -> None:
        held = self.derive(("get", slot, key), f"{name}.{key} is gone")
        self.test(("len", held, len(value)), f"{name}.{key} gained or lost an entry")
        if key == "_modules":
            for child, module in value.items():
                self.test(
                    ("is", self.derive(("get", held, child), f"{name}.{child} is gone"), module),
                    f"{name}.{child} is another module",
                )
        elif key in ("_parameters", "_buffers"):
            for child, tensor in value.items():
                if tensor is None:
                    self.test(
                        ("is", self.derive(("get", held, child), f"{name}.{child} is gone"), None),
                        f"{name}.{child} is no longer None",
                    )


def guard_table(fn: Callable[..., Any], recorded: Recorded, args: Sequence[Any], kwargs: dict[str, Any]) -> GuardTable:
    """The guards of one recording of `fn(*args, **kwargs)`."""
    kwnames = tuple(kwargs)
    b = _Builder(len(args), kwnames, torch.is_grad_enabled())
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
    return GuardTable(len(args), kwnames, b.rows, b.reasons, len(recorded.inputs))


def _constant(b: _Builder, source: ConstantSource) -> tuple[int, torch.Tensor, str]:
    """The slot of a tensor that the program closed over: where it was read, if that is known, else this very object."""
    what = f"tensor {source.key}" if source.key else "a tensor that the function closes over"
    if isinstance(source.holder, dict):
        slot = b.derive(("get", b.derive(("const", source.holder), what), source.key), f"{what} is gone")
    elif source.holder is not None:
        slot = b.derive(("cell", b.derive(("const", source.holder), what)), f"{what} is unset")
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
    if isinstance(fn, types.MethodType):
        b.value(b.derive(("const", fn.__self__), "self"), fn.__self__, "self")
        fn = fn.__func__
    if isinstance(fn, nn.Module):
        b.module(fn, "module")
    if isinstance(fn, types.FunctionType):
        b.function(fn)


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
