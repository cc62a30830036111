"""Instructions that build and call: containers, calls, functions, imports, patterns.

In: a frame and an instruction. Out: as in `instructions`. What calls do is decided in `calls`. Must not know graphs or guards.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

from . import access
from .breaks import Break
from .frames import PUSH, Frame
from .instructions import NULL_BELOW, Handler, read_cell
from .opcodes import NULL, Instruction

# --- containers -------------------------------------------------------------------------------------------------------


def _build(make: Callable[[list[Any]], Any]) -> Handler:
    def handler(f: Frame, i: Instruction) -> None:
        f.stack.append(make(f.popn(i.arg)))

    return handler


def _build_map(f: Frame, i: Instruction) -> None:
    values = f.popn(2 * i.arg)
    f.stack.append(dict(zip(values[::2], values[1::2], strict=True)))


def _build_const_key_map(f: Frame, i: Instruction) -> None:
    keys = f.stack.pop()
    f.stack.append(dict(zip(keys, f.popn(i.arg), strict=True)))


def _build_slice(f: Frame, i: Instruction) -> None:
    f.stack.append(slice(*f.popn(i.arg)))


def _build_string(f: Frame, i: Instruction) -> None:
    f.stack.append("".join([str(v) for v in f.popn(i.arg)]))  # a text that varies has no `str`


def _format_value(f: Frame, i: Instruction) -> None:
    spec = f.stack.pop() if i.arg & 4 else ""
    f.stack.append(f.cx.formatted(f.stack.pop(), (None, str, repr, ascii)[i.arg & 3], spec))


def _convert_value(f: Frame, i: Instruction) -> None:
    f.stack.append(f.cx.text(f.stack.pop(), (None, str, repr, ascii)[i.arg]))


def _format_simple(f: Frame, i: Instruction) -> None:
    f.stack.append(f.cx.formatted(f.stack.pop(), None, ""))


def _format_with_spec(f: Frame, i: Instruction) -> None:
    value, spec = f.popn(2)
    f.stack.append(f.cx.formatted(value, None, spec))


def _change(f: Frame, container: Any, method: str, *operands: Any) -> None:
    """Fill a display or comprehension, which an earlier piece of the program may have begun."""
    if id(container) in f.cx.outside.known:
        f.cx.container_method(container, method, list(operands), {})
    else:
        getattr(container, method)(*operands)


def _list_append(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    _change(f, f.stack[-i.arg], "append", value)


def _set_add(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    _change(f, f.stack[-i.arg], "add", value)


def _map_add(f: Frame, i: Instruction) -> None:
    key, value = f.popn(2)
    _change(f, f.stack[-i.arg], "__setitem__", key, value)


def _extend(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    _change(f, f.stack[-i.arg], "extend", f.cx.take(access.iterate(f.cx, value), -1))


def _set_update(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    _change(f, f.stack[-i.arg], "update", f.cx.take(access.iterate(f.cx, value), -1))


def _dict_update(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    _change(f, f.stack[-i.arg], "update", f.cx.mapping(value))


def _dict_merge(f: Frame, i: Instruction) -> None:
    value = f.cx.mapping(f.stack.pop())
    target = f.stack[-i.arg]
    for key, item in value.items():
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
        _change(f, target, "__setitem__", key, item)


def _list_to_tuple(f: Frame, i: Instruction) -> None:
    f.stack.append(tuple(f.stack.pop()))


def _unpack_sequence(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    values = [f.cx.outside.see(v) for v in value] if type(value) is tuple and id(value) not in f.cx.outside.known else None
    if values is None:
        values = f.cx.take(access.iterate(f.cx, value), i.arg + 1)
    if len(values) > i.arg:
        raise ValueError(f"too many values to unpack (expected {i.arg})")
    if len(values) < i.arg:
        raise ValueError(f"not enough values to unpack (expected {i.arg}, got {len(values)})")
    f.stack += reversed(values)


def _unpack_ex(f: Frame, i: Instruction) -> None:
    before, after = i.arg & 255, i.arg >> 8
    values = f.cx.take(access.iterate(f.cx, f.stack.pop()), -1)
    if len(values) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(values)})")
    middle = len(values) - after
    f.stack += reversed([*values[:before], values[before:middle], *values[middle:]])


# --- calls ------------------------------------------------------------------------------------------------------------


def call_operands(f: Frame, i: Instruction) -> tuple[Any, list[Any], dict[str, Any]]:
    """Pop a CALL's callable and arguments."""
    args = f.popn(i.arg)
    if NULL_BELOW:
        function, receiver = f.popn(2)
        if function is NULL:
            function = receiver
        else:
            args.insert(0, receiver)
    else:
        function, receiver = f.popn(2)
        if receiver is not NULL:
            args.insert(0, receiver)
    names, f.kw = f.kw, ()
    kwargs = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :], strict=True))
        del args[-len(names) :]
    return function, args, kwargs


def _call(f: Frame, i: Instruction) -> None:
    function, args, kwargs = call_operands(f, i)
    if function is super and not args:
        f.stack.append(_zero_argument_super(f))
        return
    f.stack.append(f.cx.call(function, args, kwargs, PUSH))


def _call_kw(f: Frame, i: Instruction) -> None:
    f.kw = f.stack.pop()
    _call(f, i)


def _zero_argument_super(f: Frame) -> Any:
    if not f.code.code.co_argcount and not f.code.code.co_flags & 4:
        raise RuntimeError("super(): no arguments")
    cls = read_cell(f, f.code.names.index("__class__"))
    first = f.slots[0]
    return super(cls, first.cell_contents if isinstance(first, types.CellType) else first)


def _kw_names(f: Frame, i: Instruction) -> None:
    f.kw = i.value


def _call_function_ex(f: Frame, i: Instruction) -> None:
    kwargs = dict(f.cx.mapping(f.stack.pop())) if i.arg & 1 else {}
    args = f.stack.pop()
    args = [f.cx.outside.see(a) for a in (args if type(args) is tuple else access.iterate(f.cx, args))]
    if NULL_BELOW:
        _, function = f.popn(2)
    else:
        function, _ = f.popn(2)
    f.stack.append(f.cx.call(function, args, kwargs, PUSH))


def _make_function(f: Frame, i: Instruction) -> None:
    code = f.stack.pop()
    closure = f.stack.pop() if i.arg & 8 else tuple(types.CellType() for _ in code.co_freevars)  # set by what follows
    annotations = f.stack.pop() if i.arg & 4 else None
    keyword_defaults = f.stack.pop() if i.arg & 2 else None
    defaults = f.stack.pop() if i.arg & 1 else None
    made = types.FunctionType(code, f.globals, code.co_name, defaults, closure)
    made.__kwdefaults__ = keyword_defaults
    if annotations:
        made.__annotations__ = (
            annotations if isinstance(annotations, dict) else dict(zip(annotations[::2], annotations[1::2], strict=True))
        )
    f.cx.new_objects.append(made)
    f.stack.append(made)


def _set_function_attribute(f: Frame, i: Instruction) -> None:
    value, made = f.popn(2)
    names = {1: "__defaults__", 2: "__kwdefaults__", 4: "__annotations__"}
    if i.arg == 8:
        new = types.FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, value)
        new.__kwdefaults__, new.__annotations__ = made.__kwdefaults__, made.__annotations__
        f.cx.new_objects.append(new)
        made = new
    elif i.arg == 4 and not isinstance(value, dict):
        made.__annotations__ = dict(zip(value[::2], value[1::2], strict=True))
    else:
        setattr(made, names[i.arg], value)
    f.stack.append(made)


_IMPORTED: set[tuple[str, tuple[str, ...]]] = set()  # imports that a run in eager has done


def _check_imported(name: str, names: tuple[str, ...]) -> None:
    """Raise what ends the capture where an import would run code: that is the program's, not to be captured."""
    root = name.partition(".")[0]
    module = sys.modules.get(name)
    if module is None:
        if root not in sys.modules and importlib.util.find_spec(root) is None:
            raise ModuleNotFoundError(f"No module named {root!r}", name=root)
        if (name, names) in _IMPORTED:
            raise Break("builtin", f"import of {name}")
    elif (name, names) in _IMPORTED or all(n in vars(module) or f"{name}.{n}" in sys.modules for n in names):
        return
    _IMPORTED.add((name, names))
    raise Break("import", name)


def _import_name(f: Frame, i: Instruction) -> None:
    level, names = f.popn(2)
    name = importlib.util.resolve_name("." * level + i.value, f.globals.get("__package__")) if level else i.value
    _check_imported(name, tuple(names or ()))
    f.stack.append(__import__(i.value, f.globals, None, names, level))


def _import_from(f: Frame, i: Instruction) -> None:
    module = f.stack[-1]
    try:
        f.stack.append(access.get_attribute(f.cx, module, i.value))
    except AttributeError:
        name = access.get_attribute(f.cx, module, "__name__")
        if f"{name}.{i.value}" not in sys.modules:
            raise ImportError(f"cannot import name {i.value!r} from {name!r}") from None
        f.stack.append(sys.modules[f"{name}.{i.value}"])


# --- match ------------------------------------------------------------------------------------------------------------


def _match_mapping(f: Frame, i: Instruction) -> None:
    f.stack.append(bool(type(f.stack[-1]).__flags__ & 1 << 6))


def _match_sequence(f: Frame, i: Instruction) -> None:
    f.stack.append(bool(type(f.stack[-1]).__flags__ & 1 << 5))


def _match_keys(f: Frame, i: Instruction) -> None:
    subject, keys = f.stack[-2], f.stack[-1]
    seen: list[Any] = []
    values: list[Any] = []
    get = access.get_attribute(f.cx, subject, "get")
    for k in keys:
        if k in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({k!r})")
        seen.append(k)
        values.append(f.cx.call(get, [k, NULL], {}))
    f.stack.append(None if any(v is NULL for v in values) else tuple(values))


_MATCH_SELF = 1 << 22  # Py_TPFLAGS_MATCH_SELF: a class whose instances match as a whole


def _match_class(f: Frame, i: Instruction) -> None:
    subject, cls, names = f.popn(3)
    if not isinstance(cls, type):
        raise TypeError("called match pattern must be a class")
    if not f.cx.call(isinstance, [subject, cls], {}):
        f.stack.append(None)
        return
    values = []
    if i.arg:
        match_args = f.cx.call(getattr, [cls, "__match_args__", NULL], {})
        itself = match_args is NULL and cls.__flags__ & _MATCH_SELF
        known = () if match_args is NULL else match_args
        if type(known) is not tuple:
            raise TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {type(known).__name__})")
        most = 1 if itself else len(known)
        if most < i.arg:
            raise TypeError(f"{cls.__name__}() accepts {most} positional sub-pattern{'s'[: most != 1]} ({i.arg} given)")
        values = [subject] if itself else []
        names = names if itself else (*known[: i.arg], *names)
    try:
        values += [access.get_attribute(f.cx, subject, n) for n in names]
    except AttributeError:
        f.stack.append(None)
        return
    f.stack.append(tuple(values))


def _get_len(f: Frame, i: Instruction) -> None:
    f.stack.append(f.cx.call(len, [f.stack[-1]], {}))


HANDLERS: dict[str, Handler] = {
    "BUILD_TUPLE": _build(tuple), "BUILD_LIST": _build(list), "BUILD_SET": _build(set), "BUILD_MAP": _build_map,
    "BUILD_CONST_KEY_MAP": _build_const_key_map, "BUILD_SLICE": _build_slice, "BUILD_STRING": _build_string,
    "FORMAT_VALUE": _format_value, "CONVERT_VALUE": _convert_value, "FORMAT_SIMPLE": _format_simple,
    "FORMAT_WITH_SPEC": _format_with_spec, "LIST_APPEND": _list_append, "SET_ADD": _set_add, "MAP_ADD": _map_add,
    "LIST_EXTEND": _extend, "SET_UPDATE": _set_update, "DICT_UPDATE": _dict_update, "DICT_MERGE": _dict_merge,
    "LIST_TO_TUPLE": _list_to_tuple, "UNPACK_SEQUENCE": _unpack_sequence, "UNPACK_EX": _unpack_ex,
    "CALL": _call, "CALL_KW": _call_kw, "KW_NAMES": _kw_names, "CALL_FUNCTION_EX": _call_function_ex, "MAKE_FUNCTION":
    _make_function,
    "SET_FUNCTION_ATTRIBUTE": _set_function_attribute, "IMPORT_NAME": _import_name, "IMPORT_FROM": _import_from,
    "MATCH_MAPPING": _match_mapping, "MATCH_SEQUENCE": _match_sequence, "MATCH_KEYS": _match_keys, "MATCH_CLASS": _match_class,
    "GET_LEN": _get_len,
}  # fmt: skip
