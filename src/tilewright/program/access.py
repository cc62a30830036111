"""Attributes, items, truth, iteration and operators of a captured program's values.

In: the capture and values as the program sees them. Out: results; guards for whatever is read outside; effects for what is
changed
there. Python-level hooks (properties, descriptors, `__getattr__`, operators) are interpreted. Must not know bytecode.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..graph.fake import Fake
from ..graph.symbolic import plain
from .breaks import Break
from .outside import CONTAINERS
from .sources import MISSING, is_atom, look_up
from .trust import is_opaque, is_python_class, is_trusted_module, skips_guard
from .varying import Varying, of_size

if TYPE_CHECKING:
    from .capture import Capture

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_NATIVE_DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType,
    classmethod, staticmethod,
)  # fmt: skip
_C_DATA = (types.MemberDescriptorType, types.GetSetDescriptorType)


def attributes_of(o: Any) -> dict[str, Any] | None:
    """The object's own `__dict__`."""
    try:
        found = object.__getattribute__(o, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def get_attribute(cx: Capture, o: Any, name: str) -> Any:
    """`o.name`."""
    cls = type(o)
    if cls is Fake:
        return _tensor_attribute(cx, o, name)
    if isinstance(o, types.ModuleType):
        return _module_attribute(cx, o, name)
    if isinstance(o, type):
        return _class_attribute(cx, o, name)
    if cls is super:
        return _super_attribute(cx, o, name)
    if cls is torch.SymInt:
        return getattr(int(o), name)
    if is_atom(o) and not is_python_class(cls):
        return getattr(o, name)
    getter = cls.__getattribute__
    if type(getter) is types.FunctionType and not issubclass(cls, nn.Module):
        return cx.call(getter, [o, name], {})
    return plain_attribute(cx, o, name)


def plain_attribute(cx: Capture, o: Any, name: str) -> Any:
    """As `object.__getattribute__`, then `__getattr__`."""
    cls = type(o)
    if name == "__class__":
        return cls
    if not is_python_class(cls):
        return _native_attribute(cx, o, name)
    found = cx.class_lookup(cls, name)
    known = cx.outside.known.get(id(o))
    if found is not MISSING:
        if type(found) is property:
            if found.fget is None:
                raise AttributeError(f"property {name!r} of {cls.__name__!r} object has no getter")
            return cx.call(found.fget, [o], {})
        if type(found) in _C_DATA and name != "__dict__":
            value = found.__get__(o, cls)
            return cx.outside.see(value) if known is None else cx.outside.member(known, value, name)
        if hasattr(type(found), "__set__") and type(getattr(type(found), "__get__", None)) is types.FunctionType:
            return cx.call(type(found).__get__, [found, o, cls], {})
    attributes = attributes_of(o)
    if attributes is not None:
        if name == "__dict__":
            if known is not None:
                cx.outside._note(attributes, cx.outside.dict_slot(known), f"{known.name}.__dict__", False, known.argument)
            return attributes
        value = cx.outside.see(attributes.get(name, MISSING)) if known is None else cx.outside.attribute(known, attributes, name)
        if value is not MISSING:
            return value
    if found is not MISSING:
        return bind(cx, found, o, cls, name)
    return _missing_attribute(cx, o, name, known)


def bind(cx: Capture, found: Any, o: Any, cls: type, name: str) -> Any:
    """What a class attribute becomes when it is read from an instance (or, for `o` None, from the class)."""
    kind = type(found)
    if kind is types.FunctionType:
        return found if o is None else types.MethodType(found, o)
    if kind is property and o is None:
        return found
    if kind is functools.cached_property and o is not None:
        value = cx.call(found.func, [o], {})
        set_attribute(cx, o, found.attrname, value)
        return value
    if isinstance(found, _NATIVE_DESCRIPTORS):
        return found.__get__(o, cls) if hasattr(kind, "__get__") else found
    getter = getattr(kind, "__get__", None)
    if type(getter) is types.FunctionType:
        return cx.call(getter, [found, o, cls], {})
    if getter is not None:
        return _native_get(cx, found, o, cls, name)
    return cx.outside.see(found) if cx.is_new(cls) else cx.outside.read_constant(found, f"{cls.__name__}.{name}")


_TupleGetter = type(collections.namedtuple("_", "x").x)  # type: ignore[attr-defined, misc]


def _native_get(cx: Capture, found: Any, o: Any, cls: type, name: str) -> Any:
    """What a descriptor without Python code gives."""
    if type(found) is _TupleGetter and o is not None:
        return get_item(cx, o, found.__reduce__()[1][0])
    value = found.__get__(o, cls)
    if id(o) in cx.outside.known and not (is_atom(value) or callable(value)):
        raise Break("object", f"{cls.__name__}.{name}")
    return value


def _missing_attribute(cx: Capture, o: Any, name: str, known: Any) -> Any:
    cls = type(o)
    hook = look_up(cls, "__getattr__")
    if isinstance(o, nn.Module) and hook is nn.Module.__dict__["__getattr__"]:
        for table in MODULE_TABLES:
            held = o.__dict__.get(table)
            if held is not None and name in held:
                return cx.outside.see(held[name]) if known is None else cx.outside.module_tensor(known, o, table, name)
        if known is not None:
            for table in MODULE_TABLES:
                slot = cx.rows.derive("get", cx.outside.dict_slot(known), table, why=f"{known.name}.{table} is gone")
                cx.outside._absent(slot, name, f"{known.name}.{name}")
    elif type(hook) is types.FunctionType:
        cx.class_lookup(cls, "__getattr__")
        return cx.call(hook, [o, name], {})
    raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")


def _native_attribute(cx: Capture, o: Any, name: str) -> Any:
    """Of an object without Python code: methods, and data of what nobody outside can change."""
    if type(o) in (types.FunctionType, types.MethodType) and name not in ("__self__", "__func__"):
        return _function_attribute(cx, o, name)
    own, known = attributes_of(o), cx.outside.known.get(id(o))
    if own is not None and known is not None and name in own and look_up(type(o), name) is MISSING:
        return cx.outside.attribute(known, own, name)
    value = getattr(o, name)
    if isinstance(o, BaseException) and id(o) in cx.outside.known and not callable(value):
        return cx.outside.member(cx.outside.known[id(o)], value, name)
    if callable(value) or is_atom(value) or isinstance(o, types.CodeType):
        return value
    if is_opaque(o) or (
        id(o) in cx.outside.known and type(o) not in CONTAINERS and not isinstance(o, types.MethodType | functools.partial)
    ):
        raise Break("object", f"{type(o).__name__}.{name}")
    return cx.outside.see(value)


def _function_attribute(cx: Capture, o: Any, name: str) -> Any:
    function = o.__func__ if type(o) is types.MethodType else o
    own = attributes_of(function) if type(function) is types.FunctionType else None
    if own is not None and name in own and id(function) in cx.outside.known:
        return cx.outside.attribute(cx.outside.known[id(function)], own, name)
    value = getattr(o, name)
    return value if is_atom(value) or callable(value) else cx.outside.read_constant(value, f"{function.__qualname__}.{name}")


def _tensor_attribute(cx: Capture, o: Fake, name: str) -> Any:
    real = cx.real(o)
    if real is not None and name in getattr(real, "__dict__", ()):
        raise Break("tensor attribute", name)
    if name == "__class__":
        return torch.Tensor if real is None else type(real)
    if name == "__dict__":
        raise Break("tensor attribute", name)
    return cx.outside.see(getattr(o, name))


def _module_attribute(cx: Capture, o: types.ModuleType, name: str) -> Any:
    table = vars(o)
    if name not in table or is_trusted_module(o.__name__):
        value = getattr(o, name)
        return value if skips_guard(value) or is_atom(value) else cx.outside.read_constant(value, f"{o.__name__}.{name}")
    return cx.outside.global_(table, name)


def _class_attribute(cx: Capture, cls: type, name: str) -> Any:
    if name in ("__dict__", "__mro__", "__bases__", "__name__", "__qualname__", "__module__", "__class__"):
        return getattr(cls, name)
    found = cx.class_lookup(cls, name)
    if found is MISSING or is_atom(getattr(cls, name, MISSING)):
        return getattr(cls, name)
    return bind(cx, found, None, cls, name)


def _super_attribute(cx: Capture, o: Any, name: str) -> Any:
    if name == "__class__":
        return super
    mro = o.__self_class__.__mro__
    for cls in mro[mro.index(o.__thisclass__) + 1 :]:
        found = cls.__dict__.get(name, MISSING)
        if found is not MISSING:
            cx.class_lookup(cls, name)
            if type(found) is property:
                return cx.call(found.fget, [o.__self__], {})
            if type(found) is types.FunctionType and not isinstance(o.__self__, type):
                return types.MethodType(found, o.__self__)
            return getattr(o, name)
    return getattr(o, name)


# --- changes ----------------------------------------------------------------------------------------------------------


def set_attribute(cx: Capture, o: Any, name: str, value: Any) -> None:
    """`o.name = value`."""
    cls = type(o)
    if cls is Fake:
        raise Break("tensor attribute", name)
    if isinstance(o, types.ModuleType):
        cx.outside.constant(vars(o), o.__name__)
        cx.effects.set_item(vars(o), name, value)
    elif isinstance(o, type):
        if not cx.is_new(o):
            raise Break("effect", f"the class attribute {o.__qualname__}.{name} is set")
        setattr(o, name, value)
    elif isinstance(o, nn.Module) and cls.__setattr__ is nn.Module.__setattr__:
        _set_module_attribute(cx, o, name, value)
    elif type(cls.__setattr__) is types.FunctionType:
        cx.class_lookup(cls, "__setattr__")
        cx.call(cls.__setattr__, [o, name, value], {})
    else:
        plain_set_attribute(cx, o, name, value)


def plain_set_attribute(cx: Capture, o: Any, name: str, value: Any) -> None:
    """As `object.__setattr__`."""
    cls = type(o)
    found = cx.class_lookup(cls, name) if is_python_class(cls) else look_up(cls, name)
    if type(found) is property:
        if found.fset is None:
            raise AttributeError(f"property {name!r} of {cls.__name__!r} object has no setter")
        cx.call(found.fset, [o, value], {})
        return
    if type(getattr(type(found), "__set__", None)) is types.FunctionType:
        cx.call(type(found).__set__, [found, o, value], {})
        return
    known = cx.outside.known.get(id(o))
    if known is None:
        if is_opaque(o):
            raise Break("effect", f"{cls.__name__}.{name} is set")
        object.__setattr__(o, name, value)
        return
    cx.outside.apart(known)
    attributes = attributes_of(o)
    if type(found) in _C_DATA:
        cx.effects.set_member(o, name, value)
    elif attributes is None or not (is_python_class(cls) or cls is types.FunctionType):
        raise Break("effect", f"{cls.__name__}.{name} is set")
    else:
        if not cx.effects.is_written(attributes, name) and type(attributes.get(name, MISSING)) in (bool, type(None), str):
            cx.outside.attribute(known, attributes, name)
            cx.effects.guarded.add((id(attributes), name))
        cx.effects.set_attribute(o, attributes, name, value)


def _set_module_attribute(cx: Capture, o: nn.Module, name: str, value: Any) -> None:
    tables = o.__dict__
    if id(o) not in cx.outside.known and "_parameters" in tables and type(look_up(type(o), name)) is not property:
        nn.Module.__setattr__(o, name, value)
        return
    if isinstance(value, nn.Module) or (type(value) is Fake and isinstance(cx.real(value), nn.Parameter)):
        raise Break("effect", f"{type(o).__name__}.{name} becomes a module or parameter")
    if name in tables.get("_parameters", ()) or name in tables.get("_modules", ()):
        raise Break("effect", f"the parameter or module {type(o).__name__}.{name} is set")
    if name in tables.get("_buffers", ()):
        if not (value is None or type(value) is Fake):
            raise TypeError(f"cannot assign '{type(value).__name__}' object to buffer '{name}' (torch Tensor or None required)")
        if id(o) in cx.outside.known:
            known = cx.outside.known[id(o)]
            slot = cx.rows.derive("get", cx.outside.dict_slot(known), "_buffers", why=f"{known.name}._buffers is gone")
            cx.outside._note(tables["_buffers"], slot, f"{known.name}._buffers", False, known.argument)
            cx.effects.set_item(tables["_buffers"], name, value)
        else:
            tables["_buffers"][name] = value
        return
    plain_set_attribute(cx, o, name, value)


def delete_attribute(cx: Capture, o: Any, name: str) -> None:
    """`del o.name`."""
    cls = type(o)
    known = cx.outside.known.get(id(o))
    if isinstance(o, type) and cx.is_new(o):
        delattr(o, name)
        return
    attributes = attributes_of(o) if not isinstance(o, type) else None
    if attributes is None or type(cls.__delattr__) is types.FunctionType or type(look_up(cls, name)) is property:
        raise Break("effect", f"{cls.__name__}.{name} is deleted")
    if known is None:
        delattr(o, name)
    elif get_own(cx, known, attributes, name) is MISSING:
        raise AttributeError(name)
    else:
        cx.effects.delete_attribute(o, attributes, name)


def get_own(cx: Capture, known: Any, attributes: dict[str, Any], name: str) -> Any:
    return cx.outside.attribute(known, attributes, name)


# --- items ------------------------------------------------------------------------------------------------------------


def get_item(cx: Capture, o: Any, key: Any) -> Any:
    """`o[key]`."""
    cls = type(o)
    if cls is Fake:
        return o[key]
    if type(key) is torch.SymInt:
        key = int(key)
    method = getattr(cls, "__getitem__", None)
    if type(method) is types.FunctionType:
        return cx.call(get_attribute(cx, o, "__getitem__"), [key], {})
    known = cx.outside.known.get(id(o))
    if known is not None and not isinstance(o, type):
        if isinstance(o, dict):
            value = cx.outside.entry(known, _hashable(cx, key))
            if value is not MISSING:
                return value
            return _missing_item(cx, o, key)
        if isinstance(o, (list, tuple)) and type(key) is int and not cx.effects.is_changed(o) and -len(o) <= key < len(o):
            return cx.outside.position(known, key)
        if not isinstance(o, CONTAINERS):
            raise Break("object", f"{cls.__name__}[...]")
        cx.outside.expand(o)
    elif is_opaque(o):
        raise Break("object", f"{cls.__name__}[...]")
    elif isinstance(o, dict) and key not in o:
        return _missing_item(cx, o, key)
    return cx.outside.see(o[key])


def _missing_item(cx: Capture, o: Any, key: Any) -> Any:
    missing = getattr(type(o), "__missing__", None)
    if missing is None:
        raise KeyError(key)
    if type(missing) is types.FunctionType:
        return cx.call(missing, [o, key], {})
    value = cx.call(o.default_factory, [], {})  # a defaultdict
    set_item(cx, o, key, value)
    return value


def _hashable(cx: Capture, key: Any) -> Any:
    if type(key) is Varying:
        return key.known()
    if type(key) is torch.SymInt:
        return int(key)
    if type(key) is torch.Size:
        return torch.Size(map(int, key))
    if type(key) is tuple:
        settled = tuple([_hashable(cx, k) for k in key])
        return key if all(a is b for a, b in zip(key, settled)) else settled
    if type(key) is Fake:
        raise Break("object", "a tensor as a key")
    if is_opaque(key):
        raise Break("object", f"a {type(key).__name__} as a key")
    return key


def set_item(cx: Capture, o: Any, key: Any, value: Any) -> None:
    """`o[key] = value`."""
    cls = type(o)
    if cls is Fake:
        o[key] = value.operand(o) if type(value) is Varying else value
        return
    if type(getattr(cls, "__setitem__", None)) is types.FunctionType:
        cx.call(get_attribute(cx, o, "__setitem__"), [key, value], {})
        return
    known = cx.outside.known.get(id(o))
    if known is None:
        if is_opaque(o):
            raise Break("effect", f"{cls.__name__}[...] is set")
        o[key] = value
        return
    cx.outside.apart(known)
    if isinstance(o, dict):
        cx.effects.set_item(o, _hashable(cx, key), value)
    elif isinstance(o, list):
        cx.outside.expand(o)
        cx.effects.mutate(o, list.__setitem__, (key, value), {}, rewrite=type(key) is not int)
    else:
        raise Break("effect", f"{cls.__name__}[...] is set")


def delete_item(cx: Capture, o: Any, key: Any) -> None:
    """`del o[key]`."""
    cls = type(o)
    if type(getattr(cls, "__delitem__", None)) is types.FunctionType:
        cx.call(get_attribute(cx, o, "__delitem__"), [key], {})
        return
    known = cx.outside.known.get(id(o))
    if known is None and not is_opaque(o):
        del o[key]
    elif known is not None and isinstance(o, dict):
        if cx.outside.entry(known, _hashable(cx, key)) is MISSING:
            raise KeyError(key)
        cx.outside.apart(known)
        cx.effects.delete_item(o, key)
    elif known is not None and isinstance(o, list):
        cx.outside.expand(o)
        cx.outside.apart(known)
        cx.effects.mutate(o, list.__delitem__, (key,), {}, rewrite=True)
    else:
        raise Break("effect", f"an item of {cls.__name__} is deleted")


# --- truth, iteration -------------------------------------------------------------------------------------------------


def truth(cx: Capture, v: Any) -> bool:
    """`bool(v)`."""
    cls = type(v)
    if cls is bool or v is None or cls is int or cls is str or cls is torch.SymInt:
        return bool(v)
    if cls is Fake:
        return bool(v)
    for name in ("__bool__", "__len__"):
        method = getattr(cls, name, None)
        if type(method) is types.FunctionType:
            return bool(cx.call(get_attribute(cx, v, name), [], {}))
        if method is not None:
            break
    known = cx.outside.known.get(id(v))
    if known is not None and isinstance(v, CONTAINERS):
        cx.outside.length(known)
    elif is_opaque(v):
        raise Break("object", f"the truth of a {cls.__name__}")
    return bool(v)


def iterate(cx: Capture, o: Any) -> Any:
    """`iter(o)`: a Python iterator."""
    cls = type(o)
    if cls is Fake:
        return iter(o)
    method = getattr(cls, "__iter__", None)
    if type(method) is types.FunctionType and not cx.is_generator(o):
        return cx.call(get_attribute(cx, o, "__iter__"), [], {})
    if isinstance(o, types.GeneratorType) or is_opaque(o):
        raise Break("object", f"{cls.__name__} from outside is iterated")
    known = cx.outside.known.get(id(o))
    if known is not None and not isinstance(o, CONTAINERS) and not is_atom(o) and not isinstance(o, type):
        raise Break("object", f"{cls.__name__} from outside is iterated")
    cx.outside.expand(o)
    if method is None and type(getattr(cls, "__getitem__", None)) is types.FunctionType:
        raise Break("object", f"{cls.__name__} is iterated by index")
    return iter(o)


def contains(cx: Capture, container: Any, value: Any) -> bool:
    """`value in container`."""
    cls = type(container)
    method = getattr(cls, "__contains__", None)
    if type(method) is types.FunctionType and cls is not Fake:
        return truth(cx, cx.call(get_attribute(cx, container, "__contains__"), [value], {}))
    known = cx.outside.known.get(id(container))
    if known is not None and isinstance(container, dict):
        return cx.outside.entry(known, _hashable(cx, value)) is not MISSING
    if method is None and cls is not Fake and getattr(cls, "__iter__", None) is not None:
        return any(v is value or truth(cx, compare(cx, "==", v, value)) for v in iterate(cx, container))
    if is_opaque(container) or is_opaque(value):
        raise Break("object", f"in {cls.__name__}")
    cx.outside.expand(container)
    return value in container


# --- operators --------------------------------------------------------------------------------------------------------

BINARY = {
    "+": ("add", operator.add), "&": ("and", operator.and_), "//": ("floordiv", operator.floordiv), "<<": ("lshift",
    operator.lshift),
    "@": ("matmul", operator.matmul), "*": ("mul", operator.mul), "%": ("mod", operator.mod), "|": ("or", operator.or_),
    "**": ("pow", operator.pow), ">>": ("rshift", operator.rshift), "-": ("sub", operator.sub), "/": ("truediv",
    operator.truediv),
    "^": ("xor", operator.xor),
}  # fmt: skip
IN_PLACE = {
    "+": operator.iadd, "&": operator.iand, "//": operator.ifloordiv, "<<": operator.ilshift, "@": operator.imatmul,
    "*": operator.imul, "%": operator.imod, "|": operator.ior, "**": operator.ipow, ">>": operator.irshift, "-": operator.isub,
    "/": operator.itruediv, "^": operator.ixor,
}  # fmt: skip
COMPARE = {
    "<": ("lt", "gt", operator.lt), "<=": ("le", "ge", operator.le), "==": ("eq", "eq", operator.eq),
    "!=": ("ne", "ne", operator.ne), ">": ("gt", "lt", operator.gt), ">=": ("ge", "le", operator.ge),
}  # fmt: skip
_SIMPLE = frozenset((int, float, bool, str, Fake, type(None), torch.SymInt))


def binary(cx: Capture, symbol: str, a: Any, b: Any, in_place: bool = False) -> Any:
    """`a + b` and its kind; `a += b` where `in_place`."""
    name, native = BINARY[symbol]
    if in_place:
        native = IN_PLACE[symbol]
        if type(a) is Fake and type(b) is Varying:
            return native(a, b.operand(a))
    if type(a) is torch.SymInt or type(b) is torch.SymInt:
        a, b = _beside(cx, symbol, a, b), _beside(cx, symbol, b, a)
    if type(a) in _SIMPLE and type(b) in _SIMPLE:
        return plain(native(a, b))
    if in_place and isinstance(a, CONTAINERS) and id(a) in cx.outside.known and not isinstance(a, (tuple, frozenset)):
        method = getattr(type(a), f"__i{name}__", None)
        if method is not None:
            return cx.container_method(a, f"__i{name}__", [b], {})
    if in_place and type(getattr(type(a), f"__i{name}__", None)) is types.FunctionType:
        result = cx.call(get_attribute(cx, a, f"__i{name}__"), [b], {})
        if result is not NotImplemented:
            return result
    return _dispatch(cx, f"__{name}__", f"__r{name}__", native, a, b)


def compare(cx: Capture, symbol: str, a: Any, b: Any) -> Any:
    """`a < b` and its kind."""
    name, reflected, native = COMPARE[symbol]
    if type(a) in _SIMPLE and type(b) in _SIMPLE:
        return plain(native(a, b))
    return _dispatch(cx, f"__{name}__", f"__{reflected}__", native, a, b)


def _beside(cx: Capture, symbol: str, a: Any, b: Any) -> Any:
    """An operand: a size whose sum with the other, or the like, is no size counts as a number that varies."""
    other = type(b)
    if type(a) is torch.SymInt and (other is float or other is Varying or (symbol == "/" and other in (int, torch.SymInt))):
        return of_size(cx.outside, a)
    return a


def _dispatch(cx: Capture, name: str, reflected: str, native: Any, a: Any, b: Any) -> Any:
    ours = type(getattr(type(a), name, None)) is types.FunctionType and type(a) is not Fake
    theirs = type(getattr(type(b), reflected, None)) is types.FunctionType and type(b) is not Fake
    if theirs and type(b) is not type(a) and issubclass(type(b), type(a)):
        result = cx.call(get_attribute(cx, b, reflected), [a], {})
        if result is not NotImplemented:
            return result
        theirs = False
    if ours:
        result = cx.call(get_attribute(cx, a, name), [b], {})
        if result is not NotImplemented:
            return result
    if theirs:
        result = cx.call(get_attribute(cx, b, reflected), [a], {})
        if result is not NotImplemented:
            return result
    if name == "__ne__" and type(getattr(type(a), "__eq__", None)) is types.FunctionType and type(a) is not Fake:
        result = cx.call(get_attribute(cx, a, "__eq__"), [b], {})
        if result is not NotImplemented:
            return not truth(cx, result)
    if is_opaque(a) or is_opaque(b):
        raise Break("object", f"{name} of {type(a).__name__} and {type(b).__name__}")
    if ours or theirs:
        if name in ("__eq__", "__ne__"):
            return (a is b) == (name == "__eq__")
        raise TypeError(f"{name}: unsupported operand types {type(a).__name__!r} and {type(b).__name__!r}")
    cx.outside.expand(a)
    cx.outside.expand(b)
    return cx.outside.see(native(a, b))


def same(cx: Capture, a: Any, b: Any) -> bool:
    """`a is b`."""
    x, y = cx.slot_of(a), cx.slot_of(b)
    if a is not b and x is not None and y is not None and x != y:
        cx.rows.test("differ", x, y, why="two objects are one now")
    return a is b
