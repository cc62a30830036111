"""Instructions of control flow beyond jumps: exceptions, contexts, generators; intrinsics; and those that end the graph.

In: a frame and an instruction. Out: as in `instructions`. Must not know graphs or guards.
"""

from __future__ import annotations

from typing import Any

from . import access, instructions
from .breaks import Break
from .frames import GENERATOR, PUSH, YIELD, Frame, Handled, Signal
from .instructions import Handler
from .opcodes import NULL, VERSION, Instruction, run_native

END_SEND = VERSION >= (3, 12)  # whether SEND leaves its receiver for END_SEND


# --- exceptions and contexts ------------------------------------------------------------------------------------------


def _push_exc_info(f: Frame, i: Instruction) -> None:
    e = f.stack.pop()
    f.stack += [Handled(f.cx.handling[-1]), e]
    f.cx.handling[-1] = e


def _pop_except(f: Frame, i: Instruction) -> None:
    f.cx.handling[-1] = f.stack.pop().previous


def _check_exc_match(f: Frame, i: Instruction) -> None:
    kind = f.stack.pop()
    f.stack.append(any(k in type(f.stack[-1]).__mro__ for k in _exception_classes(kind)))


def _exception_classes(kind: Any) -> tuple[type, ...]:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return kinds


def _check_eg_match(f: Frame, i: Instruction) -> None:
    e, kind = f.popn(2)
    kinds = _exception_classes(kind)
    if any(issubclass(k, BaseExceptionGroup) for k in kinds):
        raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    if isinstance(e, BaseExceptionGroup):
        match, rest = e.split(kinds)
    elif isinstance(e, kinds):
        match, rest = (ExceptionGroup if isinstance(e, Exception) else BaseExceptionGroup)("", [e]), None
    else:
        match, rest = None, e
    f.stack += [rest, match]
    if match is not None:
        f.cx.handling[-1] = match


def _prepare_reraise(f: Frame, i: Instruction) -> None:
    e, raised = f.popn(2)
    f.stack.append(run_native(i.op, i.arg, (e, raised), f.globals))


def _reraise(f: Frame, i: Instruction) -> int:
    f.unwind(f.stack.pop())  # not by `raise`, which would add to its traceback
    return f.at


def _raise_varargs(f: Frame, i: Instruction) -> int:
    if i.arg == 0:
        if f.cx.handled is None:
            raise RuntimeError("No active exception to reraise")
        f.unwind(f.cx.handled)
        return f.at
    e, cause = f.popn(2) if i.arg == 2 else (f.stack.pop(), NULL)
    if isinstance(e, type) and issubclass(e, BaseException):
        e = f.cx.call(e, [], {})
    if not isinstance(e, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if cause is not NULL:
        cause = f.cx.call(cause, [], {}) if isinstance(cause, type) and issubclass(cause, BaseException) else cause
        if cause is not None and not isinstance(cause, BaseException):
            raise TypeError("exception causes must derive from BaseException")
        e.__cause__ = cause
    f.cx.set_context(e)
    f.cx.raised = e, f.location()
    raise e


def _before_with(f: Frame, i: Instruction) -> None:
    manager = f.stack.pop()
    methods = []
    for name, missed in (("__enter__", ""), ("__exit__", " (missed __exit__ method)")):
        try:
            methods.append(access.get_attribute(f.cx, manager, name))
        except AttributeError:
            kind = type(manager).__name__
            raise TypeError(f"{kind!r} object does not support the context manager protocol{missed}") from None
    f.stack.append(methods[1])
    f.stack.append(f.cx.call(methods[0], [], {}, PUSH))


def _with_except_start(f: Frame, i: Instruction) -> None:
    leave, e = f.stack[-4], f.stack[-1]
    f.stack.append(f.cx.call(leave, [type(e), e, e.__traceback__], {}, PUSH))


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
        return sent(f, i, e.value)
    return None


def sent(f: Frame, i: Instruction, value: Any) -> int:
    """`yield from` ends with this value: where SEND goes on."""
    if END_SEND:
        f.stack.append(value)
    else:
        f.stack[-1] = value
    return i.target


def _end_send(f: Frame, i: Instruction) -> None:
    value = f.stack.pop()
    f.stack[-1] = value


def _cleanup_throw(f: Frame, i: Instruction) -> int | None:
    e = f.stack[-1]
    if not isinstance(e, StopIteration):
        return _reraise(f, i)
    del f.stack[-3:]
    f.stack += [None, e.value]
    return None


def _stop_iteration_error(f: Frame, i: Instruction) -> None:
    e = f.stack[-1]
    if isinstance(e, StopIteration):
        error = RuntimeError("generator raised StopIteration")
        error.__cause__ = error.__context__ = e
        f.stack[-1] = error


# --- intrinsics -------------------------------------------------------------------------------------------------------


def _unary_positive(f: Frame, i: Instruction) -> None:
    instructions.HANDLERS["UNARY_POSITIVE"](f, i)


def _list_to_tuple(f: Frame, i: Instruction) -> None:
    f.stack.append(tuple(f.stack.pop()))


def _native(count: int) -> Handler:
    """CPython's own instruction, which makes an object of the typing module."""

    def handler(f: Frame, i: Instruction) -> None:
        f.stack.append(run_native(i.op, i.arg, tuple(f.popn(count)), f.globals))

    return handler


def _set_type_params(f: Frame, i: Instruction) -> None:
    made, params = f.popn(2)
    made.__type_params__ = params
    f.stack.append(made)


INTRINSICS_1: dict[str, Handler] = {
    "INTRINSIC_STOPITERATION_ERROR": _stop_iteration_error, "INTRINSIC_UNARY_POSITIVE": _unary_positive,
    "INTRINSIC_LIST_TO_TUPLE": _list_to_tuple,
    **dict.fromkeys(
        ("INTRINSIC_TYPEVAR", "INTRINSIC_PARAMSPEC", "INTRINSIC_TYPEVARTUPLE", "INTRINSIC_SUBSCRIPT_GENERIC",
         "INTRINSIC_TYPEALIAS"), _native(1)
    ),
}  # fmt: skip
INTRINSICS_2: dict[str, Handler] = {
    "INTRINSIC_PREP_RERAISE_STAR": _prepare_reraise, "INTRINSIC_SET_FUNCTION_TYPE_PARAMS": _set_type_params,
    **dict.fromkeys(
        ("INTRINSIC_TYPEVAR_WITH_BOUND", "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS", "INTRINSIC_SET_TYPEPARAM_DEFAULT"), _native(2)
    ),
}  # fmt: skip


def _call_intrinsic(table: dict[str, Handler]) -> Handler:
    def handler(f: Frame, i: Instruction) -> Any:
        found = table.get(i.value)
        if found is None:
            raise Break(REFUSED.get(i.value, "opcode"), i.value)
        return found(f, i)

    return handler


# Instructions and intrinsics that end the graph, by the row of the break table that says why.
REFUSED = {
    **dict.fromkeys(
        ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP",
         "INTRINSIC_ASYNC_GEN_WRAP"), "coroutine"
    ),
    **dict.fromkeys(
        ("PRINT_EXPR", "IMPORT_STAR", "INTRINSIC_1_INVALID", "INTRINSIC_PRINT", "INTRINSIC_IMPORT_STAR", "INTRINSIC_2_INVALID"),
        "opcode",  # of the interactive prompt and of modules alone
    ),
}  # fmt: skip


def _refuse(reason: str) -> Handler:
    def handler(f: Frame, i: Instruction) -> None:
        raise Break(reason, i.op)

    return handler


HANDLERS: dict[str, Handler] = {
    "PUSH_EXC_INFO": _push_exc_info, "POP_EXCEPT": _pop_except, "CHECK_EXC_MATCH": _check_exc_match,
    "CHECK_EG_MATCH": _check_eg_match, "PREP_RERAISE_STAR": _prepare_reraise, "RERAISE": _reraise,
    "RAISE_VARARGS": _raise_varargs, "BEFORE_WITH": _before_with, "WITH_EXCEPT_START": _with_except_start,
    "RETURN_GENERATOR": _return_generator, "YIELD_VALUE": _yield_value, "GET_YIELD_FROM_ITER": _get_yield_from_iter,
    "SEND": _send, "END_SEND": _end_send, "CLEANUP_THROW": _cleanup_throw,
    "CALL_INTRINSIC_1": _call_intrinsic(INTRINSICS_1), "CALL_INTRINSIC_2": _call_intrinsic(INTRINSICS_2),
    **{op: _refuse(reason) for op, reason in REFUSED.items() if not op.startswith("INTRINSIC")},
}  # fmt: skip
