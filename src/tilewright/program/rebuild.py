"""Python objects that are alive at the end of a capture, as code that makes them anew from a graph's outputs.

In: values of the capture. Out: statements of Python source, the tensors and outside objects they use, the constants they name.
Objects
from outside are themselves, objects made inside are made again, each once. Must not know guards or bytecode.
"""

from __future__ import annotations

import ast
import collections
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..graph.fake import Fake
from . import varying
from .breaks import Break
from .frames import Handled
from .opcodes import NULL, UNSET
from .resume import generator, place_of, tail
from .sources import is_atom
from .trust import is_opaque, is_python_class
from .varying import Varying

if TYPE_CHECKING:
    from .capture import Capture

ITERATORS = tuple(
    type(i) for i in (iter([]), iter(()), iter(range(0)), iter({}), iter({}.items()), iter({}.values()), iter(""),
    iter(set()), reversed([]))
)  # fmt: skip


def traceback_at(file: str, line: int, function: str) -> types.TracebackType | None:
    """The traceback of an exception that was raised on a line of a function."""
    tree = ast.parse("raise RuntimeError")
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
    try:
        exec(compile(tree, file, "exec").replace(co_name=function, co_qualname=function), {})
    except RuntimeError as e:
        return e.__traceback__ and e.__traceback__.tb_next
    return None


def _exhausted() -> Any:
    made = (x for x in ())
    next(made, None)
    return made


class Rebuild:
    """`lines` make the objects; `expression(v)` names one. `tensors[n]` is the tensor named Tn, `passed` the slots named Pn."""

    def __init__(self, cx: Capture) -> None:
        self.cx = cx
        self.lines: list[str] = []
        self.tensors: list[Fake] = []
        self.passed: dict[int, str] = {}
        self.constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._unassigned: set[str] = set()  # names of objects that are being made
        self._put_off: list[str] = []
        self._kept: list[Any] = []

    def constant(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None or not name.startswith("K"):
            name = f"K{len(self.constants)}"
            self.constants[name] = value
            self._names[id(value)] = name
            self._kept.append(value)
        return name

    def is_made(self, v: Any) -> bool:
        """Whether the object is made anew already."""
        return id(v) in self._names

    def expression(self, v: Any) -> str:
        """An expression for the value. Raises Break where it cannot be made anew."""
        v = self.cx.original(v)
        if v is None or v is True or v is False or type(v) in (int, str):
            return repr(v)
        if isinstance(v, torch.Tensor):
            return self._tensor(v)
        if type(v) is torch.SymInt:
            v = varying.of_size(self.cx.outside, v)
        if type(v) is Varying:
            for slot in v.slots:
                self.passed.setdefault(slot, f"P{slot}")
            return v.text
        known = self.cx.outside.known.get(id(v))
        if known is not None and not known.pinned:
            return self.passed.setdefault(known.slot, f"P{known.slot}")
        if known is not None or self._is_constant(v):
            return self.constant(v)
        name = self._names.get(id(v))
        if name is not None:
            return name
        self._kept.append(v)
        name = self._names[id(v)] = f"x{len(self._names)}"
        self._unassigned.add(name)
        self._make(name, v)
        if not self._unassigned:
            self.lines += self._put_off
            self._put_off = []
        return name

    def _assign(self, name: str, text: str) -> None:
        self.lines.append(f"{name} = {text}")
        self._unassigned.discard(name)

    def _fill(self, before: str, v: Any) -> None:
        """A line that puts a value into an object that exists; put off where the value is not made yet, as in a cycle."""
        text = self.expression(v)
        (self._put_off if text in self._unassigned else self.lines).append(f"{before}{text}")

    def _tensor(self, v: torch.Tensor) -> str:
        fake = self.cx.outside.see(v)
        name = self._names.get(id(fake))
        if name is None:
            name = self._names[id(fake)] = f"T{len(self.tensors)}"
            self.tensors.append(fake)
        return name

    def _is_constant(self, v: Any) -> bool:
        if is_atom(v) or v is NULL or v is UNSET:
            return True
        if isinstance(v, type):
            return not self.cx.is_new(v)
        if isinstance(v, nn.Module):
            return not self.cx.is_new(v)
        if isinstance(v, types.ModuleType | types.BuiltinFunctionType | types.CodeType | torch.finfo | torch.iinfo):
            return not isinstance(v, types.BuiltinFunctionType) or isinstance(v.__self__, types.ModuleType | type | None)
        if isinstance(v, types.FunctionType):
            return not self.cx.is_new(v)
        return isinstance(v, types.MethodDescriptorType | types.WrapperDescriptorType | types.GenericAlias)

    def _make(self, name: str, v: Any) -> None:
        kind = type(v)
        if kind is torch.Size:
            self._assign(name, f"{self.constant(torch.Size)}([{', '.join([self.expression(x) for x in v])}])")
        elif kind is tuple:
            self._assign(name, f"({''.join(self.expression(x) + ', ' for x in v)})")
        elif kind is list:
            self._assign(name, "[]")
            texts = [self.expression(x) for x in v]
            if self._unassigned.isdisjoint(texts):
                self.lines += [f"{name} += [{', '.join(texts)}]"] if v else []
            else:
                self._put_off.append(f"{name} += [{', '.join(texts)}]")
        elif kind is dict:
            self._assign(name, "{}")
            for k, x in v.items():
                self._fill(f"{name}[{self.expression(k)}] = ", x)
        elif kind is set or kind is frozenset:
            self._assign(name, f"{kind.__name__}([{', '.join([self.expression(x) for x in v])}])")
        elif kind is types.CellType:
            self._make_cell(name, v)
        elif kind is types.FunctionType:
            self._make_function(name, v)
        elif kind is types.MethodType and self.cx.is_generator(v.__self__):
            self._assign(name, f"{self.expression(v.__self__)}.{v.__name__}")
        elif kind is types.MethodType:
            self._assign(name, f"{self.constant(types.MethodType)}({self.expression(v.__func__)}, {self.expression(v.__self__)})")
        elif kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            self._assign(name, f"{self.expression(v.__self__)}.{v.__name__}")
        elif kind is super:
            self._assign(name, f"{self.constant(super)}({self.constant(v.__thisclass__)}, {self.expression(v.__self__)})")
        else:
            self._make_reduced(name, v)

    def _make_cell(self, name: str, v: types.CellType) -> None:
        self._assign(name, f"{self.constant(types.CellType)}()")
        try:
            content = v.cell_contents
        except ValueError:
            return
        self._fill(f"{name}.cell_contents = ", content)

    def _make_function(self, name: str, v: types.FunctionType) -> None:
        closure = f"({''.join(self.expression(c) + ', ' for c in v.__closure__)})" if v.__closure__ else "None"
        code, globals_ = self.constant(v.__code__), self.constant(v.__globals__)
        make, defaults = self.constant(types.FunctionType), self.expression(v.__defaults__)
        self._assign(name, f"{make}({code}, {globals_}, {v.__name__!r}, {defaults}, {closure})")
        if v.__kwdefaults__:
            self.lines.append(f"{name}.__kwdefaults__ = {self.expression(v.__kwdefaults__)}")
        self.lines.append(f"{name}.__qualname__ = {v.__qualname__!r}; {name}.__module__ = {v.__module__!r}")
        if getattr(v, "__type_params__", ()):
            self.lines.append(f"{name}.__type_params__ = {self.constant(v.__type_params__)}")
        if v.__annotations__:
            self.lines.append(f"{name}.__annotations__ = {self.constant(v.__annotations__)}")
        for key, value in v.__dict__.items():
            self._fill(f"{name}.__dict__[{key!r}] = ", value)

    def _make_generator(self, name: str, v: Any) -> None:
        frame = v.frame
        if v.running:
            raise Break("rebuild", "a generator that is running")
        if v.done:
            self._assign(name, f"{self.constant(_exhausted)}()")
            return
        handled = v.handled
        for u in reversed(frame.stack):
            if type(u) is Handled:
                u.current, handled = handled, u.previous
        place, leaves = place_of(frame, frame.at + (0 if v.started else 1), frame.stack, suspended=v.started)
        tail(place)
        operands = "".join([f", {self.expression(x)}" for x in leaves])
        self._assign(name, f"{self.constant(generator)}({self.constant(place)}, {self.constant(frame.globals)}{operands})")

    def _make_reduced(self, name: str, v: Any) -> None:
        """As a copy is made: by what `__reduce_ex__` says."""
        kind = type(v)
        if isinstance(v, type):
            raise Break("rebuild", f"the class {v.__qualname__}")
        if self.cx.is_generator(v):
            self._make_generator(name, v)
            return
        if is_opaque(v) or isinstance(v, types.GeneratorType):
            raise Break("rebuild", kind.__name__)
        if (
            is_python_class(kind)
            and not isinstance(v, BaseException | dict | list | tuple | set)
            and kind.__reduce_ex__ is object.__reduce_ex__
        ):
            if kind.__reduce__ is object.__reduce__ and not hasattr(kind, "__getnewargs_ex__"):
                self._make_object(name, v)
                return
        try:
            reduced = v.__reduce_ex__(4)
        except Exception as e:
            raise Break("rebuild", f"{kind.__name__}: {e}") from None
        make, operands, state, items, pairs = (
            (*reduced, None, None, None, None)[:5] if isinstance(reduced, tuple) else (None,) * 5
        )
        if make is None:
            raise Break("rebuild", kind.__name__)
        self._assign(name, f"{self.constant(make)}({', '.join([self.expression(x) for x in operands])})")
        if state is not None:
            self._set_state(name, v, state)
        if isinstance(v, BaseException):
            for key in ("__cause__", "__context__"):  # setting a cause hides the context
                if getattr(v, key) is not None:
                    self.lines.append(f"{name}.{key} = {self.expression(getattr(v, key))}")
            self.lines.append(f"{name}.__suppress_context__ = {v.__suppress_context__}")
            if id(v) in self.cx.origins:
                _, at, function = self.cx.origins[id(v)]
                self.lines.append(f"{name}.__traceback__ = {self.constant(traceback_at)}({at.file!r}, {at.line}, {function!r})")
        for x in items or ():
            self.lines.append(f"{name}.append({self.expression(x)})")
        for k, x in pairs or ():
            base = collections.OrderedDict if isinstance(v, collections.OrderedDict) else dict
            self.lines.append(f"{self.constant(base.__setitem__)}({name}, {self.expression(k)}, {self.expression(x)})")

    def _set_state(self, name: str, v: Any, state: Any) -> None:
        if hasattr(v, "__setstate__") and not is_python_class(type(v)):
            self.lines.append(f"{name}.__setstate__({self.expression(state)})")
            return
        own, members = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        for key, value in (own or {}).items():
            self._fill(f"{name}.__dict__[{key!r}] = ", value)
        for key, value in (members or {}).items():
            self.lines.append(f"{self.constant(object.__setattr__)}({name}, {key!r}, {self.expression(value)})")

    def _make_object(self, name: str, v: Any) -> None:
        cls = type(v)
        self._assign(name, f"{self.constant(object.__new__)}({self.expression(cls)})")
        for key, value in getattr(v, "__dict__", {}).items():
            self._fill(f"{name}.__dict__[{key!r}] = ", value)
        for base in cls.__mro__:
            for key, member in base.__dict__.items():
                if type(member) is types.MemberDescriptorType and hasattr(v, key) and key not in ("__dict__", "__weakref__"):
                    self.lines.append(f"{self.constant(object.__setattr__)}({name}, {key!r}, {self.expression(getattr(v, key))})")
