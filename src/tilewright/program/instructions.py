"""Instructions that move values: stack, variables, attributes, items, operators, jumps.

In: a frame and an instruction. Out: the frame changed; the index to go on at, or a signal, where that is not the next
instruction. What
values do is decided in `access`. Must not know graphs or guards.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

import torch

from . import access
from .breaks import Break
from .frames import RETURN, Frame, Signal
from .opcodes import NULL, UNSET, VERSION, Instruction
from .sources import MISSING
from .trust import is_opaque

NULL_BELOW = VERSION < (3, 13)  # whether the NULL of a call lies below the callable
AFTER_END_FOR = VERSION >= (3, 13)  # whether a POP_TOP follows END_FOR

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


def _unbound(f: Frame, number: int) -> NameError:
    name = f.code.names[number]
    if number >= f.code.cells:
        return NameError(f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope")
    return UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")


def _load_fast(f: Frame, i: Instruction) -> None:
    value = f.slots[i.arg]
    if value is UNSET:
        raise _unbound(f, i.arg)
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
        raise _unbound(f, i.arg)
    f.slots[i.arg] = UNSET


def _make_cell(f: Frame, i: Instruction) -> None:
    value = f.slots[i.arg]
    f.slots[i.arg] = types.CellType() if value is UNSET else types.CellType(value)
    f.cx.new_objects.append(f.slots[i.arg])


def _load_deref(f: Frame, i: Instruction) -> None:
    f.stack.append(read_cell(f, i.arg))


def read_cell(f: Frame, number: int) -> Any:
    cell = f.slots[number]
    try:
        known = f.cx.outside.known.get(id(cell))
        return cell.cell_contents if known is None else f.cx.outside.cell(cell, known.slot, f.code.names[number])
    except ValueError:
        raise _unbound(f, number) from None


def _load_classderef(f: Frame, i: Instruction) -> None:
    name = f.code.names[i.arg]
    f.stack.append(f.namespace[name] if name in f.namespace else read_cell(f, i.arg))


def _load_from_dict_or_deref(f: Frame, i: Instruction) -> None:
    namespace, name = f.stack.pop(), f.code.names[i.arg]
    f.stack.append(namespace[name] if name in namespace else read_cell(f, i.arg))


def _store_deref(f: Frame, i: Instruction) -> None:
    _write_cell(f, f.slots[i.arg], f.stack.pop())


def _delete_deref(f: Frame, i: Instruction) -> None:
    read_cell(f, i.arg)
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


def _delete_global(f: Frame, i: Instruction) -> None:
    if i.value not in f.globals:
        raise NameError(f"name {i.value!r} is not defined")
    f.cx.outside.constant(f.globals, "globals")
    f.cx.effects.delete_item(f.globals, i.value)


def _in_namespace(f: Frame, namespace: Any, name: str) -> Any:
    """What a class body's namespace, which `__prepare__` may have made, holds; else the global variable."""
    try:
        return access.get_item(f.cx, namespace, name)
    except KeyError:
        return f.cx.global_variable(f.globals, name)


def _load_name(f: Frame, i: Instruction) -> None:
    f.stack.append(_in_namespace(f, f.namespace, i.value))


def _load_locals(f: Frame, i: Instruction) -> None:
    f.stack.append(f.namespace)


def _load_from_dict_or_globals(f: Frame, i: Instruction) -> None:
    f.stack.append(_in_namespace(f, f.stack.pop(), i.value))


def _store_name(f: Frame, i: Instruction) -> None:
    access.set_item(f.cx, f.namespace, i.value, f.stack.pop())


def _delete_name(f: Frame, i: Instruction) -> None:
    try:
        access.delete_item(f.cx, f.namespace, i.value)
    except KeyError:
        raise NameError(f"name {i.value!r} is not defined") from None


def _setup_annotations(f: Frame, i: Instruction) -> None:
    if not access.contains(f.cx, f.namespace, "__annotations__"):
        access.set_item(f.cx, f.namespace, "__annotations__", {})


def _load_build_class(f: Frame, i: Instruction) -> None:
    f.stack.append(builtins.__build_class__)


def _load_assertion_error(f: Frame, i: Instruction) -> None:
    f.stack.append(AssertionError)


# --- attributes and items ---------------------------------------------------------------------------------------------


def _load_attr(f: Frame, i: Instruction) -> None:
    f.stack.append(access.get_attribute(f.cx, f.stack.pop(), i.value))


def _load_method(f: Frame, i: Instruction) -> None:
    found = access.get_attribute(f.cx, f.stack.pop(), i.value)
    f.stack += [NULL, found] if NULL_BELOW else [found, NULL]


def _load_super_attr(f: Frame, i: Instruction) -> None:
    function, cls, o = f.popn(3)
    above = super(cls, o) if function is super else f.cx.call(function, [cls, o] if i.arg & 2 else [], {})
    found = access.get_attribute(f.cx, above, i.value)
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

OPERATORS = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")


def _binary_op(f: Frame, i: Instruction) -> None:
    a, b = f.popn(2)
    f.stack.append(access.binary(f.cx, OPERATORS[i.arg % 13], a, b, i.arg >= 13))


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
        if type(value) is torch.SymInt:
            f.stack.append(f.cx.outside.see(native(value)))
        elif type(getattr(type(value), name, None)) is types.FunctionType and not hasattr(value, "dtype"):
            f.stack.append(f.cx.call(access.get_attribute(f.cx, value, name), [], {}))
        elif is_opaque(value):
            raise Break("object", f"{name} of a {type(value).__name__}")
        else:
            f.stack.append(native(value))

    return handler


def _inverted(v: Any) -> Any:
    return -v - 1 if type(v) is torch.SymInt else ~v


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


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("RESUME", "NOP", "PRECALL", "COPY_FREE_VARS", "CACHE"), _nothing),
    "POP_TOP": _pop_top, "PUSH_NULL": _push_null, "COPY": _copy, "SWAP": _swap, "LOAD_CONST": _load_const,
    "LOAD_FAST": _load_fast, "LOAD_FAST_CHECK": _load_fast, "LOAD_FAST_AND_CLEAR": _load_fast_and_clear, "LOAD_CLOSURE":
    _load_closure,
    "STORE_FAST": _store_fast, "DELETE_FAST": _delete_fast,
    "MAKE_CELL": _make_cell, "LOAD_DEREF": _load_deref, "LOAD_CLASSDEREF": _load_classderef, "STORE_DEREF": _store_deref,
    "LOAD_FROM_DICT_OR_DEREF": _load_from_dict_or_deref, "DELETE_DEREF": _delete_deref, "LOAD_GLOBAL": _load_global,
    "STORE_GLOBAL": _store_global, "DELETE_GLOBAL": _delete_global,
    "SETUP_ANNOTATIONS": _setup_annotations, "LOAD_NAME": _load_name, "STORE_NAME": _store_name, "DELETE_NAME": _delete_name,
    "LOAD_LOCALS": _load_locals, "LOAD_FROM_DICT_OR_GLOBALS": _load_from_dict_or_globals, "LOAD_BUILD_CLASS": _load_build_class,
    "LOAD_ASSERTION_ERROR": _load_assertion_error,
    "LOAD_ATTR": _load_attr, "LOAD_METHOD": _load_method, "LOAD_SUPER_ATTR": _load_super_attr, "STORE_ATTR": _store_attr,
    "DELETE_ATTR": _delete_attr, "BINARY_SUBSCR": _binary_subscr, "BINARY_SLICE": _binary_slice, "STORE_SUBSCR": _store_subscr,
    "STORE_SLICE": _store_slice, "DELETE_SUBSCR": _delete_subscr,
    "BINARY_OP": _binary_op, "COMPARE_OP": _compare_op, "IS_OP": _is_op, "CONTAINS_OP": _contains_op,
    "UNARY_NEGATIVE": _unary("__neg__", lambda v: -v), "UNARY_POSITIVE": _unary("__pos__", lambda v: +v),
    "UNARY_INVERT": _unary("__invert__", _inverted), "UNARY_NOT": _unary_not, "TO_BOOL": _to_bool,
    **dict.fromkeys(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"), _jump),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE"), _pop_jump(True)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE"), _pop_jump(False)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE"), _pop_jump_none(True)),
    **dict.fromkeys(("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE"),
    _pop_jump_none(False)),
    "JUMP_IF_TRUE_OR_POP": _jump_or_pop(True), "JUMP_IF_FALSE_OR_POP": _jump_or_pop(False),
    "GET_ITER": _get_iter, "FOR_ITER": _for_iter, "RETURN_VALUE": _return_value, "RETURN_CONST": _return_const,
}  # fmt: skip
