"""Calls that a captured program makes: which are interpreted, which run as they are, which end the graph.

In: the capture, a callable and its arguments. Out: its result. Python functions are interpreted; torch's functions run on
fakes;
functions without Python code run where they are known to do nothing but compute. Must not know bytecode.
"""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import math
import operator
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import native
from ..graph import torch_private as private
from ..graph.fake import Fake
from . import access
from .breaks import Break
from .frames import DROP, PUSH
from .outside import CONTAINERS
from .sources import MISSING, is_atom, look_up
from .trust import (
    changes_torch,
    is_known_builtin,
    is_numpy_function,
    is_opaque,
    is_python_class,
    is_standard_code,
    is_torch_code,
    runs_as_is,
)  # fmt: skip
from .varying import OF_SIZES, Varying, of_function, of_size, settled

if TYPE_CHECKING:
    from .capture import Capture

_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks", "_global_forward_pre_hooks")


def call(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any], then: str = "") -> Any:
    """`f(*args, **kwargs)`. `then`: what the caller's instruction does with the result (see `frames`)."""
    kind = type(f)
    if kind is types.FunctionType:
        return _call_function(cx, f, args, kwargs, then)
    if kind is types.MethodType:
        return call(cx, f.__func__, [f.__self__, *args], kwargs, then)
    if isinstance(f, type):
        return _construct(cx, f, args, kwargs, then)
    if kind in _METHODS or kind in _DESCRIPTORS:
        return _call_builtin(cx, f, args, kwargs)
    if isinstance(f, nn.Module):
        return _call_module(cx, f, args, kwargs, then)
    if kind is functools.partial:
        return _call_partial(cx, f, args, kwargs, then)
    if isinstance(f, native.Dispatcher):
        return call(cx, f.fn, args, kwargs, then)  # type: ignore[attr-defined]
    if isinstance(f, functools._lru_cache_wrapper):
        return _call_cached(cx, f, args, kwargs, then)
    if kind is weakref.ref:
        return cx.outside.read_constant(f(), "what a weak reference refers to")
    if is_numpy_function(f):
        return _call_numpy(cx, f, args, kwargs)
    method = look_up(kind, "__call__")
    if type(method) is types.FunctionType:
        return call(cx, access.get_attribute(cx, f, "__call__"), args, kwargs, then)
    if kind.__module__.partition(".")[0] in ("torch", "operator"):
        return _run(cx, f, args, kwargs)
    if kind in (types.GenericAlias,) or kind.__module__ == "typing":
        return call(cx, f.__origin__, args, kwargs, then)
    raise Break("builtin", f"{kind.__name__} {getattr(f, '__name__', '')}")


def _call_cached(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    """A function that keeps its results is interpreted; where that breaks the graph, it gives what it keeps for plain values."""
    if not all(map(_is_plain, (*args, *kwargs.values()))):
        return _call_wrapped(cx, f, args, kwargs, then)
    handling, refusal, changes = list(cx.handling), cx.recorder.refusal, len(cx.effects.journal)
    if ("kept", f) not in cx.memo:
        try:
            return _call_wrapped(cx, f, args, kwargs, then)
        except Break:
            if len(cx.effects.journal) > changes:
                raise
            cx.memo.add(("kept", f))
            cx.handling[:], cx.recorder.refusal = handling, refusal
    for a in (*args, *kwargs.values()):
        cx.outside.expand(a)
    with private.without_modes():
        value = f(*args, **kwargs)
    return cx.outside.read_constant(value, f"what {f.__qualname__} keeps")


def _call_wrapped(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    """What it does beside giving a value is done once: by the function itself, when effects are replayed."""
    journal = cx.effects.journal
    before = len(journal)
    value = call(cx, f.__wrapped__, args, kwargs, then)
    if len(journal) > before:
        if value is not None or any(e.changes for e in journal[before:]) or not all(map(is_atom, kwargs.values())):
            raise Break("effect", f"by {f.__qualname__}, which keeps its results")
        del journal[before:]
        cx.effects.later(functools.partial(f, **kwargs), tuple(args))
    return value


def _is_plain(v: Any) -> bool:
    return all(map(_is_plain, v)) if type(v) is tuple else is_atom(v)


def _call_numpy(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A NumPy function of plain numbers that gives a number."""
    plain = all(_is_plain(tuple(a) if type(a) is list else a) for a in (*args, *kwargs.values()))
    made = _run(cx, f, args, kwargs) if plain else None
    if not plain or not is_atom(made):
        raise Break("builtin", f"NumPy's {f.__name__}")
    return made


def _call_partial(cx: Capture, f: functools.partial[Any], args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    held, named = list(f.args), dict(f.keywords)
    known = cx.outside.known.get(id(f))
    if known is not None:
        for part in ("func", "args", "keywords"):
            slot = cx.rows.derive("attr", known.slot, part, why=f"{known.name}.{part} is gone")
            value = getattr(f, part)
            cx.outside.read(value, slot, f"{known.name}.{part}", known.argument)
            cx.outside.expand(value)
    held, named = [cx.outside.see(v) for v in held], {k: cx.outside.see(v) for k, v in named.items()}
    return call(cx, f.func, [*held, *args], {**named, **kwargs}, then)


def _call_function(cx: Capture, f: types.FunctionType, args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    special = cx.functions.get(f)
    if special is not None:
        return special(cx, *args, **kwargs)
    code = f.__code__
    if code.co_name == "patched_init" and (plain := private.without_tag(f)) is not None:
        return call(cx, plain, args, kwargs, then)
    if runs_as_is(code, f.__module__ or ""):
        if is_torch_code(code) and changes_torch(f):
            raise Break("operation", f"torch's {f.__qualname__}")
        if getattr(f, "_torchdynamo_disable", False) or code.co_filename.endswith("_dynamo/eval_frame.py"):
            raise Break("disabled", f.__qualname__)
        if is_torch_code(code) and any(_is_user_callable(a) for a in (*args, *kwargs.values())):
            raise Break("builtin", f"torch's {f.__qualname__} is given a function")
        return _run(cx, f, args, kwargs)
    if is_standard_code(code) and (f.__module__ or "").partition(".")[0] in (
        "random",
        "time",
        "os",
        "threading",
        "copy",
        "asyncio",
        "subprocess",
    ):
        raise Break("builtin", f"{f.__module__}.{f.__qualname__}")
    if getattr(f, "_torchdynamo_disable", False) or getattr(f, "_tilewright_disable", False):
        raise Break("disabled", f.__qualname__)
    return cx.inline(f, args, kwargs, then)


def _is_user_callable(a: Any) -> bool:
    return isinstance(a, types.FunctionType | types.MethodType | nn.Module | functools.partial)


def _run(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call it as it is: what is in its arguments is guarded whole first."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, (*CONTAINERS, tuple)):
            cx.outside.expand(a)
    return cx.outside.see(f(*map(settled, args), **{k: settled(v) for k, v in kwargs.items()}))


# --- modules and classes ----------------------------------------------------------------------------------------------


def _call_module(cx: Capture, module: nn.Module, args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    cls = type(module)
    compiled = getattr(cls, "_tilewright", None)
    if compiled is not None:
        return call(cx, compiled.__get__(module, cls).fn, args, kwargs, then)
    if cx.class_lookup(cls, "__call__") is not nn.Module.__call__:
        return call(cx, access.get_attribute(cx, module, "__call__"), args, kwargs, then)
    return call_plainly(cx, module, args, kwargs, then)


def call_plainly(cx: Capture, module: nn.Module, args: list[Any], kwargs: dict[str, Any], then: str = "") -> Any:
    """As `nn.Module.__call__`."""
    if not has_hooks(cx, module):
        return call(cx, access.get_attribute(cx, module, "forward"), args, kwargs, then)
    return call(cx, access.get_attribute(cx, module, "_call_impl"), args, kwargs, then)


def has_hooks(cx: Capture, module: nn.Module) -> bool:
    """Whether the module's hooks, or those of all modules, must be called; guarded."""
    known = cx.outside.known.get(id(module))
    found = False
    if not cx.global_hooks_read:
        cx.global_hooks_read = True
        table = vars(torch.nn.modules.module)
        for name in _GLOBAL_HOOKS:
            hooks, why = table[name], "hooks of all modules changed"
            slot = cx.rows.derive("get", cx.rows.derive("const", table, why=why), name, why=why)
            cx.rows.test("len", slot, len(hooks), why=why)
            cx.global_hooks = cx.global_hooks or bool(hooks)
    for name in _HOOKS:
        hooks = module.__dict__[name]
        found = found or bool(hooks)
        if known is not None:
            slot = cx.rows.derive("get", cx.outside.dict_slot(known), name, why=f"{known.name}.{name} is gone")
            if ("hooks", slot) not in cx.memo:
                cx.memo.add(("hooks", slot))
                cx.rows.test("len", slot, len(hooks), why=f"{known.name}: {name} changed")
    return found or cx.global_hooks


def _construct(cx: Capture, cls: type, args: list[Any], kwargs: dict[str, Any], then: str) -> Any:
    special = cx.functions.get(cls)
    if special is not None:
        return special(cx, *args, **kwargs)
    meta = type(cls)
    if not is_python_class(cls):
        return _construct_native(cx, cls, args, kwargs)
    if type(meta.__call__) is types.FunctionType:
        if issubclass(cls, torch.Tensor):
            raise Break("operation", f"a {cls.__name__} is made")
        return _run(cx, cls, args, kwargs)  # an Enum
    if issubclass(cls, torch.Tensor):
        raise Break("operation", f"a {cls.__name__} is made")
    if cls.__module__.partition(".")[0] == "torch" and not issubclass(cls, BaseException | nn.Module):
        return _run(cx, cls, args, kwargs)  # a context such as no_grad
    new, init = cx.class_lookup(cls, "__new__"), cx.class_lookup(cls, "__init__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    if type(new) is types.FunctionType:
        o = call(cx, new, [cls, *args], kwargs)
    elif new is object.__new__ or new is object.__dict__["__new__"]:
        if init is object.__dict__["__init__"] and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        o = object.__new__(cls)
    else:
        for a in args:
            cx.outside.expand(a)
        o = new(cls, *args, **kwargs)
    cx.new_objects.append(o)
    if isinstance(o, cls):
        if type(init) is types.FunctionType:
            _initialise(cx, o, init, args, kwargs, then)
        elif init is not object.__dict__["__init__"]:
            _run(cx, init, [o, *[iterable(cx, a) for a in args]], kwargs)
    return o


def _initialise(cx: Capture, o: Any, init: Any, args: list[Any], kwargs: dict[str, Any], then: str) -> None:
    if then != PUSH or cx.frame is None:
        call(cx, init, [o, *args], kwargs)
        return
    stack = cx.frame.stack  # should the capture end within, the object lies where the caller's instruction would push it
    stack.append(o)
    call(cx, init, [o, *args], kwargs, DROP)
    stack.pop()


def _construct_native(cx: Capture, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if is_numpy_function(cls):
        return _call_numpy(cx, cls, args, kwargs)
    if len(args) == 1 and type(args[0]) is torch.SymInt and cls in (int, float, str, bool):
        return {int: lambda n: n, float: lambda n: of_size(cx.outside, n) * 1.0, str: cx.text, bool: bool}[cls](args[0])
    if cls is int and len(args) == 1 and type(args[0]) is Varying:
        return of_function(cx.outside, math.trunc, args)
    if is_opaque_class(cls):
        raise Break("builtin", f"{cls.__module__}.{cls.__qualname__}")
    if cls in (int, float, str, bool, complex, bytes) and args and is_python_class(type(args[0])) and not is_atom(args[0]):
        return _convert(cx, cls, args)
    if any(is_opaque(a) for a in args):
        raise Break("builtin", f"{cls.__name__} of a {next(type(a).__name__ for a in args if is_opaque(a))}")
    if cls is map or cls is filter:
        args = [cx.interpreted(args[0]), *[iterable(cx, a) for a in args[1:]]]
    elif cls in _ITERATING_CLASSES:
        args = [iterable(cx, a) for a in args]
    if cls is super:
        return super(*args)
    return _run(cx, cls, args, kwargs)


_ITERATING_CLASSES = frozenset(
    (list, tuple, set, frozenset, dict, enumerate, zip, reversed, collections.OrderedDict, collections.deque, collections.Counter,
     collections.defaultdict, itertools.chain, itertools.islice, itertools.product, itertools.accumulate, itertools.zip_longest,
     itertools.cycle, itertools.groupby, itertools.takewhile, itertools.dropwhile, itertools.starmap, itertools.permutations,
     itertools.combinations, itertools.pairwise)
)  # fmt: skip


def is_opaque_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in (
        "builtins", "collections", "itertools", "functools", "torch", "types", "operator", "typing", "re", "contextlib",
        "decimal", "fractions",
    )  # fmt: skip


def iterable(cx: Capture, a: Any) -> Any:
    """An argument that will be iterated without the interpreter."""
    cls = type(a)
    if type(getattr(cls, "__iter__", None)) is types.FunctionType and cls is not Fake and not cx.is_generator(a):
        if hasattr(cls, "keys") and isinstance(a, collections.abc.Mapping) and not isinstance(a, dict):
            return {k: access.get_item(cx, a, k) for k in access.iterate(cx, a)}
        return a if isinstance(a, dict | list | tuple) else access.iterate(cx, a)
    if isinstance(a, types.GeneratorType) or is_opaque(a) or (hasattr(cls, "__next__") and id(a) in cx.outside.known):
        raise Break("object", f"{cls.__name__} from outside is iterated")
    if _is_user_callable(a):
        return cx.interpreted(a)
    cx.outside.expand(a)
    return a


def _convert(cx: Capture, cls: type, args: list[Any]) -> Any:
    o = args[0]
    names = {int: ("__int__", "__index__"), float: ("__float__",), str: ("__str__", "__repr__"), bool: ("__bool__",)}.get(cls, ())
    if cls is bool:
        return access.truth(cx, o)
    for name in names:
        if type(getattr(type(o), name, None)) is types.FunctionType:
            return call(cx, access.get_attribute(cx, o, name), [], {})
    if isinstance(o, BaseException):
        cx.outside.exception_arguments(o)
    if isinstance(o, BaseException) and all(is_atom(a) for a in o.args):
        return cls(*args)
    if id(o) in cx.outside.known or (cls is str and not isinstance(o, tuple | list | dict)):
        raise Break("object", f"{cls.__name__} of a {type(o).__name__}")
    return cls(*args)


# --- functions without Python code ------------------------------------------------------------------------------------


def _call_builtin(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        special = cx.functions.get(f)
    except TypeError:
        special = None
    if special is not None:
        return special(cx, *args, **kwargs)
    owner = getattr(f, "__self__", None)
    if owner is None and args and type(f) in _DESCRIPTORS:
        owner, args = args[0], args[1:]
        if type(owner) is not Fake and isinstance(owner, f.__objclass__):
            f = f.__get__(owner, type(owner))
        else:
            return _run(cx, f, [owner, *args], kwargs)
    if owner is not None and not isinstance(owner, types.ModuleType | type) and type(owner) is not Fake:
        return _call_method(cx, f, owner, args, kwargs)
    if type(owner) is Fake:
        return _run(cx, f, args, kwargs)
    if not is_known_builtin(f) or any(is_opaque(a) for a in (*args, *kwargs.values())):
        raise Break("builtin", f"{getattr(f, '__module__', None) or ''}.{getattr(f, '__name__', f)}".lstrip("."))
    if (f.__module__ or "").startswith("torch") or isinstance(owner, type) or getattr(owner, "__name__", "").startswith("torch"):
        if changes_torch(f):
            raise Break("operation", f"torch's {f.__name__}")
        return _run(cx, f, args, kwargs)
    if f in OF_SIZES and not kwargs and args and type(args[0]) is torch.SymInt and len(args) == OF_SIZES[f].__code__.co_argcount:
        return cx.outside.see(OF_SIZES[f](*args))
    if f.__module__ == "math" and not kwargs and _some_vary(args):
        return of_function(cx.outside, f, args)
    if f in _ITERATING:
        args = [iterable(cx, a) for a in args]
        kwargs = {k: cx.interpreted(v) if k == "key" else v for k, v in kwargs.items()}
    elif any(is_python_class(type(a)) and not is_atom(a) and not isinstance(a, type | Fake) for a in args):
        return _of_objects(cx, f, args, kwargs)
    return _run(cx, f, args, kwargs)


def _some_vary(args: list[Any]) -> bool:
    """Whether all are numbers and some differ from call to call."""
    kinds = [type(a) for a in args]
    return all(k in (int, float, torch.SymInt, Varying) for k in kinds) and any(k in (torch.SymInt, Varying) for k in kinds)


_ITERATING = frozenset((sum, any, all, min, max, sorted, functools.reduce, math.prod, math.fsum))
_DUNDER = {
    len: "__len__",
    abs: "__abs__",
    round: "__round__",
    repr: "__repr__",
    hash: "__hash__",
    divmod: "__divmod__",
    operator.index: "__index__",
}


def _of_objects(cx: Capture, f: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A builtin applied to objects of classes written in Python."""
    name = _DUNDER.get(f)
    if name is not None and type(getattr(type(args[0]), name, None)) is types.FunctionType:
        return call(cx, access.get_attribute(cx, args[0], name), args[1:], kwargs)
    for symbol, (_, function) in access.BINARY.items():
        if f is function:
            return access.binary(cx, symbol, *args)
    for symbol, (_, _, function) in access.COMPARE.items():
        if f is function:
            return access.compare(cx, symbol, *args)
    if f is operator.getitem:
        return access.get_item(cx, *args)
    if all(isinstance(a, tuple | list | dict | str) or is_atom(a) for a in args) or f in (callable, hash):
        return _run(cx, f, args, kwargs)
    raise Break("builtin", f"{f.__name__} of a {type(args[0]).__name__}")


def _call_method(cx: Capture, f: Any, owner: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A bound method without Python code."""
    name = f.__name__
    if name in ("__setattr__", "__getattribute__", "__delattr__") and len(args) <= 2:
        if name == "__setattr__":
            return access.plain_set_attribute(cx, owner, *args)
        if name == "__getattribute__":
            return access.plain_attribute(cx, owner, *args)
        return access.delete_attribute(cx, owner, *args)
    if type(owner) is types.FunctionType and name == "__get__" and args and args[0] is not None:
        return types.MethodType(owner, args[0])
    if type(owner) is torch.Size and name == "numel":
        return cx.outside.see(math.prod(owner))
    if isinstance(owner, CONTAINERS):
        return container_method(cx, owner, name, args, kwargs, f)
    if isinstance(owner, logging.Logger | types.GeneratorType) or is_opaque(owner) or any(is_opaque(a) for a in args):
        raise Break("object", f"{type(owner).__name__}.{name}")
    if id(owner) in cx.outside.known and not is_atom(owner):
        home = getattr(getattr(type(owner), name, None), "__objclass__", None)
        if not is_python_class(type(owner)) or home not in (object, BaseException, Exception):
            raise Break("object", f"{type(owner).__name__}.{name}")
    if isinstance(owner, str) and name in ("format", "join", "format_map"):
        args = [cx.text(a) if name == "format" else a for a in args]
        kwargs = {k: cx.text(v) for k, v in kwargs.items()}
        args = [iterable(cx, a) for a in args] if name == "join" else args
    return _run(cx, f, args, kwargs)


# --- containers -------------------------------------------------------------------------------------------------------

_CHANGES = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "__iadd__", "__imul__", "update",
    "setdefault", "popitem",
     "move_to_end", "add", "discard", "__ior__", "__iand__", "__isub__", "__ixor__", "difference_update", "intersection_update",
     "symmetric_difference_update", "appendleft", "extendleft", "popleft", "rotate", "subtract", "__init__")
)  # fmt: skip
_IN_ORDER = frozenset((("append", list), ("extend", list), ("__iadd__", list), ("add", set), ("discard", set)))


def container_method(cx: Capture, o: Any, name: str, args: list[Any], kwargs: dict[str, Any], bound: Any = None) -> Any:
    """`o.name(*args)` of a list, dict, set or deque."""
    if name == "__setitem__":
        return (
            access.set_item(cx, o, *args)
            if type(getattr(type(o), name)) is not types.FunctionType
            else _raw_set(cx, o, *args, bound)
        )
    if name == "__getitem__" and type(getattr(type(o), name)) is not types.FunctionType:
        return access.get_item(cx, o, *args)
    if name == "__delitem__" and type(getattr(type(o), name)) is not types.FunctionType:
        return access.delete_item(cx, o, *args)
    if isinstance(o, set | frozenset | dict):
        args = [int(a) if type(a) is torch.SymInt else a for a in args]  # a size has no hash
    known = cx.outside.known.get(id(o))
    if name in ("extend", "update", "__iadd__", "__ior__", "__init__", "union", "difference", "intersection"):
        args = [iterable(cx, a) for a in args]
    if name == "sort":
        kwargs = {k: cx.interpreted(v) if k == "key" else v for k, v in kwargs.items()}
    if known is None:
        if any(is_opaque(a) for a in args) and name not in ("append", "insert", "setdefault", "add"):
            raise Break("object", f"{type(o).__name__}.{name}")
        for a in args:
            cx.outside.expand(a)
        if name in ("remove", "index", "count", "__contains__", "__eq__") and any(type(x) is Fake for x in (*args, *o)):
            raise Break("object", f"{type(o).__name__}.{name} of tensors")
        return cx.outside.see((bound or getattr(o, name))(*args, **kwargs))
    if isinstance(o, dict) and name in ("get", "setdefault", "pop", "__contains__") and not kwargs:
        return _dict_entry(cx, o, known, name, args)
    if isinstance(o, dict) and name == "update" and type(o) is dict:
        for k, v in dict(*args, **kwargs).items():
            access.set_item(cx, o, k, v)
        return None
    method = getattr(type(o), name)
    if name not in _CHANGES:
        if name in ("__len__",):
            cx.outside.length(known)
        else:
            cx.outside.expand(o)
            for a in args:
                cx.outside.expand(a)
        return cx.outside.see((bound or getattr(o, name))(*args, **kwargs))
    cx.outside.apart(known)
    in_order = (name, type(o)) in _IN_ORDER
    if in_order:
        args = [tuple(a) if name in ("extend", "__iadd__") else a for a in args]
    else:
        cx.outside.expand(o)
    return cx.outside.see(cx.effects.mutate(o, method, tuple(args), kwargs, rewrite=not in_order))


def _raw_set(cx: Capture, o: Any, key: Any, value: Any, bound: Any) -> None:
    """`dict.__setitem__` called by a subclass's own."""
    if id(o) not in cx.outside.known:
        bound(key, value)
        return
    cx.outside.apart(cx.outside.known[id(o)])
    if not isinstance(o, dict):
        raise Break("effect", f"an item of {type(o).__name__} is set")
    cx.effects.set_item(o, access._hashable(cx, key), value)


def _dict_entry(cx: Capture, o: Any, known: Any, name: str, args: list[Any]) -> Any:
    key = access._hashable(cx, args[0])
    found = cx.outside.entry(known, key)
    if name == "__contains__":
        return found is not MISSING
    if found is MISSING:
        if name == "setdefault":
            access.set_item(cx, o, key, args[1] if len(args) > 1 else None)
        if name == "pop" and len(args) < 2:
            raise KeyError(key)
        return args[1] if len(args) > 1 else None
    if name == "pop":
        access.delete_item(cx, o, key)
    return found
