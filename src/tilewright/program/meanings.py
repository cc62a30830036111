"""Functions that mean something of their own in a capture: what they read is guarded, what they do is interpreted or put off.

In: the capture and arguments. Out: results. Must not know bytecode.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import functools
import logging
import sys
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..graph import torch_private as private
from ..graph.fake import Fake
from ..graph.symbolic import to_symint
from . import access, higher_order
from .breaks import Break
from .calls import call, call_plainly, iterable
from .outside import CONTAINERS
from .sources import MISSING, is_atom
from .trust import is_opaque, is_python_class
from .varying import Varying

if TYPE_CHECKING:
    from .capture import Capture


@functools.cache
def functions() -> dict[Any, Callable[..., Any]]:
    """What these functions do in a capture."""
    return {
        len: _len, isinstance: _isinstance, type: _type, getattr: _getattr, setattr: access.set_attribute, delattr:
        access.delete_attribute,
        hasattr: _hasattr, iter: _iter, next: _next, bool: lambda cx, v=False: access.truth(cx, v), print: _print, repr: _repr,
        str: _str, format: lambda cx, v, spec="": format(cx.text(v), spec), vars: _vars, object.__new__: _new,
        object.__setattr__: access.plain_set_attribute, object.__getattribute__: access.plain_attribute,
        object.__delattr__: access.delete_attribute, nn.Module.__call__: lambda cx, m, *a, **k: call_plainly(cx, m, list(a), k),
        warnings.warn: _warn, sys.exc_info: _exc_info, sys.exception: lambda cx: cx.handled, dataclasses.dataclass: _dataclass,
        functools.partial: lambda cx, *a, **k: functools.partial(*a, **k),
        property: lambda cx, *a, **k: property(*a, **k), classmethod: lambda cx, f: classmethod(f), staticmethod: lambda cx,
        f: staticmethod(f),
        types.MethodType: lambda cx, f, o: types.MethodType(f, o), torch.compiler.is_compiling: _is_compiling,
        torch.compiler.is_dynamo_compiling: _is_compiling, builtins.__build_class__: _build_class, id: _id,
        issubclass: lambda cx, a, b: issubclass(a, b), callable: lambda cx, f: callable(f),
        nn.Module.__setattr__: access.set_attribute,
        nn.Module.__getattr__: lambda cx, m, n: access._missing_attribute(cx, m, n, cx.outside.known.get(id(m))),
        **{getattr(logging.Logger, name): functools.partial(_log, name) for name in _LEVELS},
        torch.cond: higher_order.cond, private.higher_order_map: higher_order.map_, private.scan: higher_order.scan,
        private.associative_scan: higher_order.associative_scan, copy.copy: _copy, copy.deepcopy: _deepcopy,
        torch.is_tensor: lambda cx, v: isinstance(v, torch.Tensor), dict.fromkeys: lambda cx, keys,
        v=None: dict.fromkeys(iterable(cx, keys), v),
    }  # fmt: skip


def _id(cx: Capture, o: Any) -> int:
    raise Break("object", "id()")


def _len(cx: Capture, o: Any) -> int:
    cls = type(o)
    method = getattr(cls, "__len__", None)
    if cls is Fake and o.dim():
        return to_symint(o.sizes[0])
    if cls is Fake or method is None:
        return len(o)
    if type(method) is types.FunctionType:
        return call(cx, access.get_attribute(cx, o, "__len__"), [], {})
    known = cx.outside.known.get(id(o))
    if known is not None:
        if not isinstance(o, CONTAINERS):
            raise Break("object", f"the length of a {cls.__name__}")
        if not cx.effects.is_changed(o):
            cx.outside.length(known)
        else:
            cx.outside.expand(o)
    elif is_opaque(o):
        raise Break("object", f"the length of a {cls.__name__}")
    return len(o)


def _isinstance(cx: Capture, o: Any, classes: Any) -> bool:
    if type(o) is Varying:
        o = type(o.value)()
    if type(o) is torch.SymInt:
        o = 0
    if isinstance(classes, tuple):
        return any(_isinstance(cx, o, c) for c in classes)
    if type(o) is Fake:
        real = cx.real(o)
        return isinstance(real if real is not None else _PLAIN, classes)
    check = getattr(type(classes), "__instancecheck__", None)
    if type(check) is types.FunctionType and not type(classes).__module__.startswith(("abc", "torch", "enum", "typing")):
        return access.truth(cx, call(cx, check, [classes, o], {}))
    return isinstance(o, classes)


_PLAIN = torch.empty(0)


def _type(cx: Capture, *args: Any, **kwargs: Any) -> Any:
    if len(args) != 1:
        made = type(*args, **kwargs)
        cx.new_classes.add(made)
        return made
    if type(args[0]) is Varying:
        return type(args[0].value)
    if type(args[0]) is torch.SymInt:
        return int
    if type(args[0]) is Fake:
        real = cx.real(args[0])
        return torch.Tensor if real is None else type(real)
    return type(args[0])


def _getattr(cx: Capture, o: Any, name: str, *default: Any) -> Any:
    try:
        return access.get_attribute(cx, o, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hasattr(cx: Capture, o: Any, name: str) -> bool:
    return _getattr(cx, o, name, MISSING) is not MISSING


def _iter(cx: Capture, o: Any, *sentinel: Any) -> Any:
    if sentinel:
        raise Break("builtin", "iter with a sentinel")
    return access.iterate(cx, o)


def _next(cx: Capture, it: Any, *default: Any) -> Any:
    try:
        return cx.next(it)
    except StopIteration:
        if default:
            return default[0]
        raise


def _print(cx: Capture, *args: Any, **kwargs: Any) -> None:
    if not all(is_atom(v) for v in kwargs.values()):
        raise Break("builtin", "print to a file")
    texts = [a if type(a) is Varying else cx.text(a) for a in args]
    cx.effects.later(_print_text, (*texts, *[_Keyword(k, v) for k, v in kwargs.items()]))


class _Keyword:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


def _print_text(*args: Any) -> None:
    print(*[a for a in args if type(a) is not _Keyword], **{a.name: a.value for a in args if type(a) is _Keyword})


def _warn(cx: Capture, message: Any, category: Any = None, stacklevel: int = 1, **kwargs: Any) -> None:
    if kwargs or not isinstance(message, str | Warning) or (isinstance(message, Warning) and not all(map(is_atom, message.args))):
        raise Break("builtin", "warnings.warn")
    cx.effects.later(warnings.warn, (message, category))


_LEVELS = ("debug", "info", "warning", "error", "critical", "log")


def _log(name: str, cx: Capture, logger: Any, *args: Any, **kwargs: Any) -> None:
    if kwargs or not all(map(is_atom, args)) or not isinstance(logger, logging.Logger):
        raise Break("object", f"Logger.{name}")
    cx.effects.later(getattr(logging.Logger, name), (logger, *args))


def _is_compiling(cx: Capture) -> bool:
    cx.asked_compiling = True
    return cx.compiling


def _repr(cx: Capture, o: Any) -> str:
    return repr(cx.text(o)) if is_atom(o) else cx.text(o, repr)


def _str(cx: Capture, o: Any = "", *rest: Any) -> str:
    return str(o, *rest) if rest else cx.text(o, str)


def _vars(cx: Capture, o: Any) -> Any:
    return access.get_attribute(cx, o, "__dict__")


def _new(cx: Capture, cls: type, *args: Any, **kwargs: Any) -> Any:
    o = object.__new__(cls)
    cx.new_objects.append(o)
    return o


def _copy(cx: Capture, o: Any) -> Any:
    cls = type(o)
    if is_atom(o) or isinstance(o, type | types.FunctionType | types.BuiltinFunctionType):
        return o
    if type(getattr(cls, "__copy__", None)) is types.FunctionType and cls is not Fake:
        return call(cx, access.get_attribute(cx, o, "__copy__"), [], {})
    if cls in CONTAINERS:
        return o if cls in (tuple, frozenset) else call(cx, access.get_attribute(cx, o, "copy"), [], {})
    attributes = _own_attributes(cx, o, "copy.copy")
    made = object.__new__(cls)
    cx.new_objects.append(made)
    made.__dict__.update(attributes)
    return made


def _own_attributes(cx: Capture, o: Any, what: str) -> dict[str, Any]:
    """Of an object that is nothing but its attributes, all of which are guarded."""
    cls, attributes = type(o), access.attributes_of(o)
    plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__ and not hasattr(cls, "__deepcopy__")
    if (
        not is_python_class(cls)
        or not plain
        or attributes is None
        or type(getattr(cls, "__getstate__", None)) is types.FunctionType
        or isinstance(o, (nn.Module, *CONTAINERS))
    ):
        raise Break("builtin", f"{what} of a {cls.__name__}")
    known = cx.outside.known.get(id(o))
    if known is None:
        return {name: cx.outside.see(v) for name, v in attributes.items()}
    before = cx.effects.before(attributes)
    cx.rows.test("keys", cx.outside.dict_slot(known), tuple(before), why=f"{known.name} has other attributes")
    return {name: cx.outside.attribute(known, attributes, name) for name in list(attributes)}


def _deepcopy(cx: Capture, o: Any, memo: Any = None) -> Any:
    if memo is not None:
        raise Break("builtin", "copy.deepcopy with a memo")
    _read_whole(cx, o, set())
    return copy.deepcopy(o)


def _read_whole(cx: Capture, o: Any, seen: set[int]) -> None:
    """Guard everything that a deep copy of the object reads."""
    cls = type(o)
    if is_atom(o) or id(o) in seen or isinstance(o, type | types.FunctionType | types.BuiltinFunctionType):
        return
    seen.add(id(o))
    if isinstance(o, CONTAINERS):
        cx.outside.expand(o)
        for item in [*o.keys(), *o.values()] if isinstance(o, dict) else list(o):
            _read_whole(cx, item, seen)
        if cls in CONTAINERS:
            return
    for value in _own_attributes(cx, o, "copy.deepcopy").values():
        _read_whole(cx, value, seen)


def _exc_info(cx: Capture) -> Any:
    e = cx.handled
    return (None, None, None) if e is None else (type(e), e, e.__traceback__)


def _dataclass(cx: Capture, cls: Any = None, /, **options: Any) -> Any:
    if cls is None:
        return functools.partial(dataclasses.dataclass, **options)
    if not cx.is_new(cls):
        raise Break("effect", f"{cls.__qualname__} becomes a dataclass")
    made = dataclasses.dataclass(cls, **options)
    cx.new_classes.add(made)
    return made


def _build_class(cx: Capture, body: types.FunctionType, name: str, *bases: Any, **keywords: Any) -> Any:
    made = types.new_class(name, bases, keywords, lambda namespace: cx.class_body(body, namespace))
    cx.new_classes.add(made)
    return made
