"""The interpreter's frames: a stack, local variables, and what each bytecode instruction does to them.

In: decoded code and values as the program sees them. Out: what the frame returns or yields, or the exception that leaves it. What values
do is decided in `access` and `calls`. Must not know graphs or guards.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base.errors import Location, TilewrightError
from . import access
from .breaks import Break
from .opcodes import NULL, UNSET, VERSION, Code, Instruction, decode
from .sources import MISSING

if TYPE_CHECKING:
    from .capture import Capture

RETURN, YIELD, GENERATOR, STOP = "return", "yield", "generator", "stop"
Signal = tuple[str, Any]


class Frame:
    """One activation of a code object. `depth` 0 is the function that is captured."""

    __slots__ = ("at", "cells", "code", "count", "cx", "depth", "globals", "kw", "namespace", "slots", "stack")

    def __init__(self, cx: Capture, code: Code, globals_: dict[str, Any], slots: list[Any], depth: int) -> None:
        self.cx = cx
        self.code = code
        self.globals = globals_
        self.slots = slots
        self.depth = depth
        self.stack: list[Any] = []
        self.at = 0
        self.count = 0
        self.kw: tuple[str, ...] = ()
        self.namespace: Any = None  # of a class body

    def location(self) -> Location:
        return Location.of_instruction(self.code.code, self.code.instructions[self.at].offset)

    def run(self) -> Signal:
        """Execute until the frame returns, yields or stops. Raises what leaves it."""
        cx, instructions, handlers = self.cx, self.code.instructions, HANDLERS
        outer = cx.frame
        cx.frame = self
        try:
            while True:
                instruction = instructions[self.at]
                if self.depth == 0:
                    if self.count == cx.stop:
                        return STOP, instruction
                    self.count += 1
                try:
                    handler = handlers.get(instruction.op)
                    if handler is None:
                        raise Break("opcode", instruction.op)
                    result = handler(self, instruction)
                except Break as b:
                    b.at = b.at or self.location()
                    if self.depth == 0:
                        b.count = self.count - 1
                    raise
                except TilewrightError as e:
                    b = cx.refused(e, self.location())
                    b.count = self.count - 1 if self.depth == 0 else -1
                    raise b from None
                except Exception as e:
                    self.unwind(e)
                    continue
                if result is None:
                    self.at += 1
                elif type(result) is int:
                    self.at = result
                else:
                    return result  # type: ignore[return-value]
        finally:
            cx.frame = outer

    def unwind(self, e: Exception) -> None:
        """Go to the handler of an exception; raise it again where there is none."""
        cx = self.cx
        cx.spend()
        if e.__context__ is None and cx.handled is not None and cx.handled is not e:
            e.__context__ = cx.handled
        if cx.raised is None or cx.raised[0] is not e:
            cx.raised = e, self.location()
        handler = self.code.handler(self.at)
        if handler is None:
            raise e
        del self.stack[handler.depth :]
        if handler.lasti:
            self.stack.append(self.code.instructions[self.at].offset)
        self.stack.append(e)
        self.at = handler.target
        self.kw = ()

    def popn(self, n: int) -> list[Any]:
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values


Handler = Callable[[Frame, Instruction], Any]


def _nothing(f: Frame, i: Instruction) -> None:
    pass


# --- stack and variables ----------------------------------------------------------------------------------------------


def _pop_top(f: Frame, i: Instruction) -> None:
    f.stack.pop()


def _push_null(f: Frame, i: Instruction) -> None:
    f.stack.append(NULL)


def _copy(f: Frame, i: Instruction) -> None:
    f.stack.append(f.stack[-i.arg])


def _swap(f: Frame, i: Instruction) -> None:
    f.stack[-1], f.stack[-i.arg] = f.stack[-i.arg], f.stack[-1]


def _load_const(f: Frame, i: Instruction) -> None:
    f.stack.append(i.value)


def _load_fast(f: Frame, i: Instruction) -> None:
    value = f.slots[i.arg]
    if value is UNSET:
        raise UnboundLocalError(f"cannot access local variable {f.code.names[i.arg]!r} where it is not associated with a value")
    f.stack.append(value)


def _load_fast_and_clear(f: Frame, i: Instruction) -> None:
    f.stack.append(f.slots[i.arg])
    f.slots[i.arg] = UNSET


def _load_closure(f: Frame, i: Instruction) -> None:
    f.stack.append(f.slots[i.arg])


def _store_fast(f: Frame, i: Instruction) -> None:
    f.slots[i.arg] = f.stack.pop()


def _delete_fast(f: Frame, i: Instruction) -> None:
    if f.slots[i.arg] is UNSET:
        raise UnboundLocalError(f"cannot access local variable {f.code.names[i.arg]!r} where it is not associated with a value")
    f.slots[i.arg] = UNSET


def _two_fast(first: str, second: str) -> Handler:
    def handler(f: Frame, i: Instruction) -> None:
        for op, number in ((first, i.arg >> 4), (second, i.arg & 15)):
            HANDLERS[op](f, Instruction(op, number, None, -1, i.offset))

    return handler


def _make_cell(f: Frame, i: Instruction) -> None:
    value = f.slots[i.arg]
    f.slots[i.arg] = types.CellType() if value is UNSET else types.CellType(value)
    f.cx.new_objects.append(f.slots[i.arg])


def _load_deref(f: Frame, i: Instruction) -> None:
    f.stack.append(_read_cell(f, i.arg))


def _read_cell(f: Frame, number: int) -> Any:
    cell = f.slots[number]
    try:
        known = f.cx.outside.known.get(id(cell))
        return cell.cell_contents if known is None else f.cx.outside.cell(cell, known.slot, f.code.names[number])
    except ValueError:
        raise NameError(f"cannot access free variable {f.code.names[number]!r} where it is not associated with a value") from None


def _load_classderef(f: Frame, i: Instruction) -> None:
    name = f.code.names[i.arg]
    f.stack.append(f.namespace[name] if name in f.namespace else _read_cell(f, i.arg))


def _load_from_dict_or_deref(f: Frame, i: Instruction) -> None:
    namespace, name = f.stack.pop(), f.code.names[i.arg]
    f.stack.append(namespace[name] if name in namespace else _read_cell(f, i.arg))


def _store_deref(f: Frame, i: Instruction) -> None:
    _write_cell(f, f.slots[i.arg], f.stack.pop())


def _delete_deref(f: Frame, i: Instruction) -> None:
    _read_cell(f, i.arg)
    _write_cell(f, f.slots[i.arg], MISSING)


def _write_cell(f: Frame, cell: types.CellType, value: Any) -> None:
    if id(cell) in f.cx.outside.known:
        f.cx.effects.set_cell(cell, value)
    elif value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _load_global(f: Frame, i: Instruction) -> None:
    if i.arg & 1 and NULL_BELOW:
        f.stack.append(NULL)
    f.stack.append(f.cx.global_variable(f.globals, i.value))
    if i.arg & 1 and not NULL_BELOW:
        f.stack.append(NULL)


def _store_global(f: Frame, i: Instruction) -> None:
    f.cx.outside.constant(f.globals, "globals")
    f.cx.effects.set_item(f.globals, i.value, f.stack.pop())


def _load_name(f: Frame, i: Instruction) -> None:
    if i.value in f.namespace:
        f.stack.append(f.namespace[i.value])
    else:
        f.stack.append(f.cx.global_variable(f.globals, i.value))


def _load_locals(f: Frame, i: Instruction) -> None:
    f.stack.append(f.namespace)


def _load_from_dict_or_globals(f: Frame, i: Instruction) -> None:
    namespace = f.stack.pop()
    f.stack.append(namespace[i.value] if i.value in namespace else f.cx.global_variable(f.globals, i.value))


def _store_name(f: Frame, i: Instruction) -> None:
    f.namespace[i.value] = f.stack.pop()


def _delete_name(f: Frame, i: Instruction) -> None:
    del f.namespace[i.value]


def _load_build_class(f: Frame, i: Instruction) -> None:
    f.stack.append(__builtins__["__build_class__"] if isinstance(__builtins__, dict) else __builtins__.__build_class__)


def _load_assertion_error(f: Frame, i: Instruction) -> None:
    f.stack.append(AssertionError)


# --- attributes and items ---------------------------------------------------------------------------------------------


def _load_attr(f: Frame, i: Instruction) -> None:
    f.stack.append(access.get_attribute(f.cx, f.stack.pop(), i.value))


def _load_method(f: Frame, i: Instruction) -> None:
    found = access.get_attribute(f.cx, f.stack.pop(), i.value)
    f.stack += [NULL, found] if NULL_BELOW else [found, NULL]


def _load_super_attr(f: Frame, i: Instruction) -> None:
    _, cls, o = f.popn(3)
    found = access.get_attribute(f.cx, super(cls, o), i.value)
    if i.arg & 1:
        f.stack += [NULL, found] if NULL_BELOW else [found, NULL]
    else:
        f.stack.append(found)


def _store_attr(f: Frame, i: Instruction) -> None:
    value, o = f.popn(2)
    access.set_attribute(f.cx, o, i.value, value)


def _delete_attr(f: Frame, i: Instruction) -> None:
    access.delete_attribute(f.cx, f.stack.pop(), i.value)


def _binary_subscr(f: Frame, i: Instruction) -> None:
    o, key = f.popn(2)
    f.stack.append(access.get_item(f.cx, o, key))


def _binary_slice(f: Frame, i: Instruction) -> None:
    o, start, stop = f.popn(3)
    f.stack.append(access.get_item(f.cx, o, slice(start, stop)))


def _store_subscr(f: Frame, i: Instruction) -> None:
    value, o, key = f.popn(3)
    access.set_item(f.cx, o, key, value)


def _store_slice(f: Frame, i: Instruction) -> None:
    value, o, start, stop = f.popn(4)
    access.set_item(f.cx, o, slice(start, stop), value)


def _delete_subscr(f: Frame, i: Instruction) -> None:
    o, key = f.popn(2)
    access.delete_item(f.cx, o, key)


# --- operators --------------------------------------------------------------------------------------------------------

_OPERATORS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


def _binary_op(f: Frame, i: Instruction) -> None:
    a, b = f.popn(2)
    f.stack.append(access.binary(f.cx, _OPERATORS[i.arg % 13], a, b, i.arg >= 13))


def _compare_op(f: Frame, i: Instruction) -> None:
    a, b = f.popn(2)
    result = access.compare(f.cx, i.value, a, b)
    f.stack.append(access.truth(f.cx, result) if i.arg else result)


def _is_op(f: Frame, i: Instruction) -> None:
    a, b = f.popn(2)
    f.stack.append(access.same(f.cx, a, b) != bool(i.arg))


def _contains_op(f: Frame, i: Instruction) -> None:
    value, container = f.popn(2)
    f.stack.append(access.contains(f.cx, container, value) != bool(i.arg))


def _unary(name: str, native: Callable[[Any], Any]) -> Handler:
    def handler(f: Frame, i: Instruction) -> None:
        value = f.stack.pop()
        if type(getattr(type(value), name, None)) is types.FunctionType and not hasattr(value, "dtype"):
            f.stack.append(f.cx.call(access.get_attribute(f.cx, value, name), [], {}))
        elif access.is_opaque(value):
            raise Break("object", f"{name} of a {type(value).__name__}")
        else:
            f.stack.append(native(value))

    return handler


def _unary_not(f: Frame, i: Instruction) -> None:
    f.stack.append(not access.truth(f.cx, f.stack.pop()))


def _to_bool(f: Frame, i: Instruction) -> None:
    f.stack.append(access.truth(f.cx, f.stack.pop()))


# --- jumps ------------------------------------------------------------------------------------------------------------


def _jump(f: Frame, i: Instruction) -> int:
    f.cx.spend()
    return i.target


def _pop_jump(want: bool) -> Handler:
    def handler(f: Frame, i: Instruction) -> int | None:
        value = f.stack[-1]
        holds = value if value is True or value is False else access.truth(f.cx, value)
        f.stack.pop()
        return i.target if holds is want else None

    return handler


def _jump_or_pop(want: bool) -> Handler:
    def handler(f: Frame, i: Instruction) -> int | None:
        if access.truth(f.cx, f.stack[-1]) is want:
            return i.target
        f.stack.pop()
        return None

    return handler


def _pop_jump_none(want: bool) -> Handler:
    def handler(f: Frame, i: Instruction) -> int | None:
        return i.target if (f.stack.pop() is None) is want else None

    return handler


def _get_iter(f: Frame, i: Instruction) -> None:
    f.stack.append(access.iterate(f.cx, f.stack.pop()))


def _for_iter(f: Frame, i: Instruction) -> int | None:
    try:
        f.stack.append(f.cx.next(f.stack[-1]))
    except StopIteration:
        f.stack.pop()
        if f.code.instructions[i.target].op == "END_FOR":
            return i.target + (2 if AFTER_END_FOR else 1)
        return i.target
    return None


def _return_value(f: Frame, i: Instruction) -> Signal:
    return RETURN, f.stack.pop()


def _return_const(f: Frame, i: Instruction) -> Signal:
    return RETURN, i.value


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
    cls = _read_cell(f, f.code.names.index("__class__"))
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
        made.__annotations__ = annotations if isinstance(annotations, dict) else dict(zip(annotations[::2], annotations[1::2], strict=True))
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
        f.stack.append(f.cx.next(receiver) if value is None else f.cx.call(access.get_attribute(f.cx, receiver, "send"), [value], {}))
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


NULL_BELOW = VERSION < (3, 13)
END_SEND = VERSION >= (3, 12)
AFTER_END_FOR = VERSION >= (3, 13)

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("RESUME", "NOP", "PRECALL", "COPY_FREE_VARS", "CACHE"), _nothing),
    "POP_TOP": _pop_top, "PUSH_NULL": _push_null, "COPY": _copy, "SWAP": _swap, "LOAD_CONST": _load_const,
    "LOAD_FAST": _load_fast, "LOAD_FAST_CHECK": _load_fast, "LOAD_FAST_AND_CLEAR": _load_fast_and_clear, "LOAD_CLOSURE": _load_closure,
    "STORE_FAST": _store_fast, "DELETE_FAST": _delete_fast, "LOAD_FAST_LOAD_FAST": _two_fast("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": _two_fast("STORE_FAST", "STORE_FAST"), "STORE_FAST_LOAD_FAST": _two_fast("STORE_FAST", "LOAD_FAST"),
    "MAKE_CELL": _make_cell, "LOAD_DEREF": _load_deref, "LOAD_CLASSDEREF": _load_classderef, "STORE_DEREF": _store_deref,
    "LOAD_FROM_DICT_OR_DEREF": _load_from_dict_or_deref, "DELETE_DEREF": _delete_deref, "LOAD_GLOBAL": _load_global,
    "STORE_GLOBAL": _store_global, "LOAD_NAME": _load_name, "STORE_NAME": _store_name, "DELETE_NAME": _delete_name,
    "LOAD_LOCALS": _load_locals, "LOAD_FROM_DICT_OR_GLOBALS": _load_from_dict_or_globals, "LOAD_BUILD_CLASS": _load_build_class,
    "LOAD_ASSERTION_ERROR": _load_assertion_error,
    "LOAD_ATTR": _load_attr, "LOAD_METHOD": _load_method, "LOAD_SUPER_ATTR": _load_super_attr, "STORE_ATTR": _store_attr,
    "DELETE_ATTR": _delete_attr, "BINARY_SUBSCR": _binary_subscr, "BINARY_SLICE": _binary_slice, "STORE_SUBSCR": _store_subscr,
    "STORE_SLICE": _store_slice, "DELETE_SUBSCR": _delete_subscr,
    "BINARY_OP": _binary_op, "COMPARE_OP": _compare_op, "IS_OP": _is_op, "CONTAINS_OP": _contains_op,
    "UNARY_NEGATIVE": _unary("__neg__", lambda v: -v), "UNARY_POSITIVE": _unary("__pos__", lambda v: +v),
    "UNARY_INVERT": _unary("__invert__", lambda v: ~v), "UNARY_NOT": _unary_not, "TO_BOOL": _to_bool,
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"), _jump),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE"), _pop_jump(True)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE"), _pop_jump(False)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE"), _pop_jump_none(True)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE"), _pop_jump_none(False)),
    "JUMP_IF_TRUE_OR_POP": _jump_or_pop(True), "JUMP_IF_FALSE_OR_POP": _jump_or_pop(False),
    "GET_ITER": _get_iter, "FOR_ITER": _for_iter, "RETURN_VALUE": _return_value, "RETURN_CONST": _return_const,
    "BUILD_TUPLE": _build(tuple), "BUILD_LIST": _build(list), "BUILD_SET": _build(set), "BUILD_MAP": _build_map,
    "BUILD_CONST_KEY_MAP": _build_const_key_map, "BUILD_SLICE": _build_slice, "BUILD_STRING": _build_string,
    "FORMAT_VALUE": _format_value, "CONVERT_VALUE": _convert_value, "FORMAT_SIMPLE": _format_simple,
    "FORMAT_WITH_SPEC": _format_with_spec, "LIST_APPEND": _list_append, "SET_ADD": _set_add, "MAP_ADD": _map_add,
    "LIST_EXTEND": _extend, "SET_UPDATE": _set_update, "DICT_UPDATE": _dict_update, "DICT_MERGE": _dict_merge,
    "LIST_TO_TUPLE": _list_to_tuple, "UNPACK_SEQUENCE": _unpack_sequence, "UNPACK_EX": _unpack_ex,
    "CALL": _call, "CALL_KW": _call_kw, "KW_NAMES": _kw_names, "CALL_FUNCTION_EX": _call_function_ex, "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": _set_function_attribute, "IMPORT_NAME": _import_name, "IMPORT_FROM": _import_from,
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "CHECK_EXC_MATCH": _check_exc_match, "RERAISE": _reraise,
    "RAISE_VARARGS": _raise_varargs, "BEFORE_WITH": _before_with, "WITH_EXCEPT_START": _with_except_start,
    "RETURN_GENERATOR": _return_generator, "YIELD_VALUE": _yield_value, "GET_YIELD_FROM_ITER": _get_yield_from_iter, "SEND": _send,
    "END_SEND": _end_send, "STOPITERATION_ERROR": _stop_iteration_error, "CALL_INTRINSIC_1": _call_intrinsic_1,
    "MATCH_MAPPING": _match_mapping, "MATCH_SEQUENCE": _match_sequence, "MATCH_KEYS": _match_keys, "MATCH_CLASS": _match_class,
    "GET_LEN": _get_len,
}  # fmt: skip


def new_frame(cx: Capture, function: types.FunctionType, slots: list[Any], depth: int) -> Frame:
    return Frame(cx, decode(function.__code__), function.__globals__, slots, depth)
