"""Instructions that build and call: containers, calls, functions, exceptions, contexts, generators, patterns.

In: a frame and an instruction. Out: as in `instructions`. What calls do is decided in `calls`. Must not know graphs or guards.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from . import access
from .breaks import Break
from .frames import GENERATOR, YIELD, Frame, Signal
from .instructions import NULL_BELOW, Handler, read_cell
from .opcodes import NULL, VERSION, Instruction

END_SEND = VERSION >= (3, 12)  # whether SEND leaves its receiver for END_SEND


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
    f.stack.append("".join(f.popn(i.arg)))


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


def _list_append(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].append(value)


def _set_add(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].add(value)


def _map_add(f: Frame, i: Instruction) -> None:
    key, value = f.popn(2)
    f.stack[-i.arg][key] = value


def _extend(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].extend(list(access.iterate(f.cx, value)))


def _set_update(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].update(list(access.iterate(f.cx, value)))


def _dict_update(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-i.arg].update(f.cx.mapping(value))


def _dict_merge(f: Frame, i: Instruction) -> None:
    value = f.cx.mapping(f.stack.pop())
    target = f.stack[-i.arg]
    for key, item in value.items():
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
        target[key] = item


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
    f.stack.append(f.cx.call(function, args, kwargs))


def _call_kw(f: Frame, i: Instruction) -> None:
    f.kw = f.stack.pop()
    _call(f, i)


def _zero_argument_super(f: Frame) -> Any:
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
    f.stack.append(f.cx.call(function, args, kwargs))


def _make_function(f: Frame, i: Instruction) -> None:
    code = f.stack.pop()
    closure = f.stack.pop() if i.arg & 8 else None
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


def _import_name(f: Frame, i: Instruction) -> None:
    level, names = f.popn(2)
    f.stack.append(__import__(i.value, f.globals, None, names, level))


def _import_from(f: Frame, i: Instruction) -> None:
    module = f.stack[-1]
    try:
        f.stack.append(access.get_attribute(f.cx, module, i.value))
    except AttributeError:
        raise ImportError(f"cannot import name {i.value!r} from {module.__name__!r}") from None


# --- exceptions and contexts ------------------------------------------------------------------------------------------


def _push_exc_info(f: Frame, i: Instruction) -> None:
    e = f.stack.pop()
    f.stack += [f.cx.handled, e]
    f.cx.handled = e


def _pop_except(f: Frame, i: Instruction) -> None:
    f.cx.handled = f.stack.pop()


def _check_exc_match(f: Frame, i: Instruction) -> None:
    kind = f.stack.pop()
    f.stack.append(isinstance(f.stack[-1], kind))


def _reraise(f: Frame, i: Instruction) -> None:
    raise f.stack.pop()


def _raise_varargs(f: Frame, i: Instruction) -> None:
    if i.arg == 0:
        raise f.cx.handled if f.cx.handled is not None else RuntimeError("No active exception to reraise")
    *rest, cause = f.popn(i.arg) if i.arg == 2 else (f.stack.pop(), NULL)
    e = rest[0]
    if isinstance(e, type):
        e = f.cx.call(e, [], {})
    if cause is not NULL:
        e.__cause__ = f.cx.call(cause, [], {}) if isinstance(cause, type) else cause
    raise e


def _before_with(f: Frame, i: Instruction) -> None:
    manager = f.stack.pop()
    enter = access.get_attribute(f.cx, manager, "__enter__")
    f.stack.append(access.get_attribute(f.cx, manager, "__exit__"))
    f.stack.append(f.cx.call(enter, [], {}))


def _with_except_start(f: Frame, i: Instruction) -> None:
    leave, e = f.stack[-4], f.stack[-1]
    f.stack.append(f.cx.call(leave, [type(e), e, e.__traceback__], {}))


# --- generators -------------------------------------------------------------------------------------------------------


def _return_generator(f: Frame, i: Instruction) -> Signal:
    f.at += 1
    return GENERATOR, None


def _yield_value(f: Frame, i: Instruction) -> Signal:
    f.at += 1
    return YIELD, f.stack.pop()


def _get_yield_from_iter(f: Frame, i: Instruction) -> None:
    f.stack.append(access.iterate(f.cx, f.stack.pop()))


def _send(f: Frame, i: Instruction) -> int | None:
    value = f.stack.pop()
    receiver = f.stack[-1]
    try:
        f.stack.append(
            f.cx.next(receiver) if value is None else f.cx.call(access.get_attribute(f.cx, receiver, "send"), [value], {})
        )
    except StopIteration as e:
        if END_SEND:
            f.stack.append(e.value)
        else:
            f.stack[-1] = e.value
        return i.target
    return None


def _end_send(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-1] = value


def _stop_iteration_error(f: Frame, i: Instruction) -> None:
    if isinstance(f.stack[-1], StopIteration):
        error = RuntimeError("generator raised StopIteration")
        error.__cause__ = f.stack[-1]
        f.stack[-1] = error


def _call_intrinsic_1(f: Frame, i: Instruction) -> None:
    if i.arg == 3:
        _stop_iteration_error(f, i)
    elif i.arg == 5:
        f.stack.append(+f.stack.pop())
    elif i.arg == 6:
        f.stack.append(tuple(f.stack.pop()))
    else:
        raise Break("opcode", f"CALL_INTRINSIC_1 {i.arg}")


# --- match ------------------------------------------------------------------------------------------------------------


def _match_mapping(f: Frame, i: Instruction) -> None:
    f.stack.append(bool(type(f.stack[-1]).__flags__ & 1 << 6))


def _match_sequence(f: Frame, i: Instruction) -> None:
    f.stack.append(bool(type(f.stack[-1]).__flags__ & 1 << 5))


def _match_keys(f: Frame, i: Instruction) -> None:
    subject, keys = f.stack[-2], f.stack[-1]
    if all(access.contains(f.cx, subject, k) for k in keys):
        f.stack.append(tuple(access.get_item(f.cx, subject, k) for k in keys))
    else:
        f.stack.append(None)


def _match_class(f: Frame, i: Instruction) -> None:
    subject, cls, names = f.popn(3)
    if not f.cx.call(isinstance, [subject, cls], {}):
        f.stack.append(None)
        return
    values = []
    if i.arg:
        if cls in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple):
            values = [subject][: i.arg]
        else:
            match_args = f.cx.call(getattr, [cls, "__match_args__", ()], {})
            if len(match_args) < i.arg:
                raise TypeError(f"{cls.__name__}() accepts {len(match_args)} positional sub-patterns ({i.arg} given)")
            names = (*match_args[: i.arg], *names)
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
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "CHECK_EXC_MATCH": _check_exc_match, "RERAISE": _reraise,
    "RAISE_VARARGS": _raise_varargs, "BEFORE_WITH": _before_with, "WITH_EXCEPT_START": _with_except_start,
    "RETURN_GENERATOR": _return_generator, "YIELD_VALUE": _yield_value, "GET_YIELD_FROM_ITER": _get_yield_from_iter, "SEND":
    _send,
    "END_SEND": _end_send, "STOPITERATION_ERROR": _stop_iteration_error, "CALL_INTRINSIC_1": _call_intrinsic_1,
    "MATCH_MAPPING": _match_mapping, "MATCH_SEQUENCE": _match_sequence, "MATCH_KEYS": _match_keys, "MATCH_CLASS": _match_class,
    "GET_LEN": _get_len,
}  # fmt: skip
