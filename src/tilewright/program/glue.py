"""What is done at a graph break: the one instruction that broke the graph, for real, then the rest of the function.

In: the stopped frame. Out: lines of Python that compute what the instruction computes and call the next piece; where an
instruction has
no such form, lines that run the rest without the interpreter. Must not know guards.
"""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import native
from .access import BINARY, COMPARE, IN_PLACE
from .breaks import Break
from .frames import Frame, Handled, Origin
from .instructions import AFTER_END_FOR, NULL_BELOW, OPERATORS
from .instructions_calls import call_operands
from .opcodes import NULL, UNSET, Instruction
from .rebuild import ITERATORS, Rebuild
from .resume import place_of, tail
from .sources import MISSING
from .varying import Varying

if TYPE_CHECKING:
    from .units import Program

_STACK_ITERATORS = (*ITERATORS, enumerate, zip)


def break_lines(program: Program, frames: list[Frame], r: Rebuild, why: Break | None) -> list[str]:
    """The lines after a capture that stopped before the current instruction of the first frame, which the others called."""
    handled = frames[0].cx.handling[-1]
    for v in (v for f in frames for v in reversed(f.stack)):
        if type(v) is Handled:
            v.current, handled = handled, v.previous
    frame = frames[0]
    i = frame.code.instructions[frame.at]
    writer = _Writer(program, frames, r)
    stack = list(frame.stack)
    try:
        lines = _one_instruction(writer, frame, i, why)
    finally:
        frame.stack = stack
    if lines is not None:
        return lines
    at = frame.at
    while frame.kw and frame.code.instructions[at].op != "KW_NAMES":
        at -= 1
    return [writer.go_on(at, [*stack], wanted=False)]


class _Writer:
    def __init__(self, program: Program, frames: list[Frame], r: Rebuild) -> None:
        self.program = program
        self.frames = frames
        self.frame = frames[0]
        self.r = r
        self.saved: list[Any] = []
        self.uses = collections.Counter(id(v) for f in frames for u in (*f.slots, *f.stack) for v in _iterators(u))
        for f in frames:
            for v in (*f.slots, *f.stack):
                if v is not UNSET and not isinstance(v, (*_STACK_ITERATORS, Handled, Origin)):
                    r.expression(v)  # it may hold iterators

    def is_apart(self, v: Any) -> bool:
        """Whether it is an iterator that nothing else holds, so that it need not stay the object it is."""
        return isinstance(v, _STACK_ITERATORS) and all(
            self.uses[id(u)] < 2 and not self.r.is_made(u) and id(u) not in self.frame.cx.outside.known for u in _iterators(v)
        )

    def go_on(self, at: int, stack: list[Any], wanted: bool = True, extra: tuple[Any, ...] = (), callers: int = 0) -> str:
        """`return` the next piece's result. `extra`: the stack's top: names of results, and NULL. `callers`: frames to leave."""
        places, operands, varying = [], [], []
        for frame in self.frames[callers:]:
            first = frame is self.frames[callers]
            values = [*(stack if first else frame.stack), *(_Name(e) if isinstance(e, str) else e for e in extra if first)]
            place, leaves = place_of(frame, at if first else frame.at, values, self.is_apart)
            tail(place)  # where the rest cannot run without the interpreter, say so now
            places.append(place)
            varying += [len(operands) + n for n, v in enumerate(leaves) if type(v) in (_Name, Varying, torch.SymInt)]
            operands += [v if type(v) is _Name else self.r.expression(v) for v in leaves]
        tables = tuple(f.globals for f in self.frames[callers:])
        piece = self.program.rest(tuple(places), tables, wanted)
        piece.data.update(varying)
        rest = self.r.constant(piece)
        self.r.constants["ran"] = self.program.ran
        go_on = self.r.constant(native.go_on)
        return f"ran.append({rest}); return {go_on}({', '.join([rest, *operands])})"

    def guarded(self, statement: str) -> list[str]:
        """The statement; an exception it raises goes to the handler that covers the instruction, or a caller's."""
        lines = [statement]
        handled = self.frame.cx.handling[-1]
        if handled is not None:  # what looks for it, and what is raised, shall find it
            h = self.r.expression(handled)
            lines = [f"t = {h}.__traceback__", f"try: raise {h}", "except BaseException:"]
            lines += [f"    {h}.__traceback__ = t", f"    {statement}"]
        for n, frame in enumerate(self.frames):
            handler = frame.code.handler(frame.at)
            if handler is not None:
                stack = (frame.stack if n else self.saved)[: handler.depth]
                if handler.lasti:
                    stack = [*stack, Origin(frame.code.instructions[frame.at].offset)]
                go_on = self.go_on(handler.target, stack, extra=("e",), callers=n)
                caught = ["except BaseException as error:", "    e = error", f"if e is not None: {go_on}"]
                return ["e = None", "try:", *[f"    {line}" for line in lines], *caught]
        return lines


class _Name(str):
    """A name in the glue, not a value."""

    __slots__ = ()


def _iterators(v: Any) -> Iterator[Any]:
    """The iterator, and those that it reads."""
    if isinstance(v, _STACK_ITERATORS):
        yield v
        for operand in v.__reduce__()[1]:
            yield from _iterators(operand)


def _one_instruction(w: _Writer, frame: Frame, i: Instruction, why: Break | None) -> list[str] | None:
    """Lines for the instruction and what follows; None where it has no such form."""
    w.saved = list(frame.stack)
    r, op = w.r, i.op
    if op in ("CALL", "CALL_KW"):
        return _call(w, frame, i, why)
    if op == "CALL_FUNCTION_EX":
        kwargs = r.expression(frame.stack.pop()) if i.arg & 1 else None
        args = r.expression(frame.stack.pop())
        first, second = frame.popn(2)
        function = r.expression(second if first is NULL else first)
        call = f"c = {_routed(w, function, why)}(*{args}{f', **{kwargs}' if kwargs else ''})"
        return [*w.guarded(call), w.go_on(frame.at + 1, frame.stack, extra=("c",))]
    if "JUMP" in op and op.endswith(("IF_TRUE", "IF_FALSE")):
        condition = r.expression(frame.stack.pop())
        target, following = w.go_on(i.target, frame.stack), w.go_on(frame.at + 1, frame.stack)
        yes, no = (target, following) if op.endswith("TRUE") else (following, target)
        return [*w.guarded(f"c = bool({condition})"), f"if c: {yes}", no]
    if op in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
        condition = r.expression(frame.stack[-1])
        target = w.go_on(i.target, frame.stack)
        following = w.go_on(frame.at + 1, frame.stack[:-1])
        yes, no = (target, following) if "TRUE" in op else (following, target)
        return [*w.guarded(f"c = bool({condition})"), f"if c: {yes}", no]
    written = _WRITERS.get(op)
    if written is not None:
        return written(w, frame, i)
    if op == "LOAD_METHOD":
        method = f"c = getattr({r.expression(frame.stack.pop())}, {i.value!r})"
        extra: tuple[Any, ...] = (NULL, "c") if NULL_BELOW else ("c", NULL)
        return [*w.guarded(method), w.go_on(frame.at + 1, frame.stack, extra=extra)]
    form = _FORMS.get(op)
    if form is None:
        return None
    pops, make, pushes = form
    operands = frame.popn(pops)
    statement = make(r, i, [r.expression(v) for v in operands])
    extra = ("c",) if pushes else ()
    return [*w.guarded(statement if not pushes else f"c = {statement}"), w.go_on(frame.at + 1, frame.stack, extra=extra)]


def _call(w: _Writer, frame: Frame, i: Instruction, why: Break | None) -> list[str] | None:
    if i.op == "CALL_KW":
        frame.kw = frame.stack.pop()
    names = frame.kw
    function, args, kwargs = call_operands(frame, i)
    frame.kw = names
    if function in _FRAME_BOUND if isinstance(function, types.BuiltinFunctionType | type) else _looks_at_frames(function):
        return None
    r = w.r
    operands = [r.expression(a) for a in args] + [f"{k}={r.expression(v)}" for k, v in kwargs.items()]
    call = f"c = {_routed(w, r.expression(function), why)}({', '.join(operands)})"
    return [*w.guarded(call), w.go_on(frame.at + 1, frame.stack, extra=("c",))]


def _routed(w: _Writer, function: str, why: Break | None) -> str:
    if why is not None and why.reason in ("disabled", "coroutine"):
        return function
    w.r.constants["route"] = w.program.route
    return f"route({function})"


def _for_iter(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    iterator, end = w.r.expression(frame.stack.pop()), w.r.constant(MISSING)
    after = i.target + (0 if frame.code.instructions[i.target].op != "END_FOR" else 2 if AFTER_END_FOR else 1)
    following, done = w.go_on(frame.at + 1, frame.stack, extra=("i", "c")), w.go_on(after, frame.stack)
    return [f"i = {iterator}", *w.guarded(f"c = next(i, {end})"), f"if c is not {end}: {following}", done]


def _before_with(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    enter = f"m = {w.r.expression(frame.stack.pop())}; x, c = m.__exit__, {w.r.constant(_enter)}(m)"
    return [*w.guarded(enter), w.go_on(frame.at + 1, frame.stack, extra=("x", "c"))]


def _enter(manager: Any) -> Any:
    return type(manager).__enter__(manager)


def _with_except_start(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    leave, e = w.r.expression(frame.stack[-4]), w.r.expression(frame.stack[-1])
    return [*w.guarded(f"c = {leave}(type({e}), {e}, {e}.__traceback__)"), w.go_on(frame.at + 1, frame.stack, extra=("c",))]


def _unpack(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    before, after, star = (i.arg & 255, i.arg >> 8, 1) if i.op == "UNPACK_EX" else (i.arg, 0, 0)
    names = [f"c{n}" for n in range(before + star + after)]
    targets = [f"*{n}" if star and k == before else n for k, n in enumerate(names)]
    statement = f"[{', '.join(targets)}] = {w.r.expression(frame.stack.pop())}"
    return [*w.guarded(statement), w.go_on(frame.at + 1, frame.stack, extra=tuple(reversed(names)))]


def _extend(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    value = w.r.expression(frame.stack.pop())
    method = "extend" if i.op == "LIST_EXTEND" else "update"
    return [*w.guarded(f"{w.r.expression(frame.stack[-i.arg])}.{method}({value})"), w.go_on(frame.at + 1, frame.stack)]


def _format_value(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    spec = w.r.expression(frame.stack.pop()) if i.arg & 4 else "''"
    value = w.r.expression(frame.stack.pop())
    text = f"{('', 'str', 'repr', 'ascii')[i.arg & 3]}({value})"
    return [*w.guarded(f"c = format({text}, {spec})"), w.go_on(frame.at + 1, frame.stack, extra=("c",))]


def _build_string(w: _Writer, frame: Frame, i: Instruction) -> list[str]:
    parts = ", ".join([w.r.expression(v) for v in frame.popn(i.arg)])
    return [f"c = ''.join([{parts}])", w.go_on(frame.at + 1, frame.stack, extra=("c",))]


_WRITERS = {
    "BUILD_STRING": _build_string, "FOR_ITER": _for_iter, "BEFORE_WITH": _before_with, "WITH_EXCEPT_START": _with_except_start,
    "UNPACK_SEQUENCE": _unpack, "UNPACK_EX": _unpack, "LIST_EXTEND": _extend, "SET_UPDATE": _extend, "DICT_UPDATE": _extend,
    "FORMAT_VALUE": _format_value,
}  # fmt: skip


def _convert(r: Rebuild, i: Instruction, operands: list[str]) -> str:
    return f"{(None, 'str', 'repr', 'ascii')[i.arg]}({operands[0]})"


def _binary(r: Rebuild, i: Instruction, operands: list[str]) -> str:
    symbol = OPERATORS[i.arg % 13]
    native = IN_PLACE[symbol] if i.arg >= 13 else BINARY[symbol][1]
    return f"{r.constant(native)}({', '.join(operands)})"


def _compare(r: Rebuild, i: Instruction, operands: list[str]) -> str:
    text = f"{r.constant(COMPARE[i.value][2])}({', '.join(operands)})"
    return f"bool({text})" if i.arg else text


_FRAME_BOUND = frozenset((locals, globals, vars, dir, eval, exec, super, sys._getframe))


def _looks_at_frames(function: Any) -> bool:
    """Whether a function asks who called it."""
    return getattr(function, "__module__", "") in ("inspect", "traceback", "warnings", "logging")


_FORMS: dict[str, tuple[int, Any, bool]] = {
    "BINARY_OP": (2, _binary, True),
    "COMPARE_OP": (2, _compare, True),
    "BINARY_SUBSCR": (2, lambda r, i, v: f"{r.constant(operator.getitem)}({v[0]}, {v[1]})", True),
    "CONTAINS_OP": (2, lambda r, i, v: f"{v[0]} {'not ' if i.arg else ''}in {v[1]}", True),
    "STORE_SUBSCR": (3, lambda r, i, v: f"{r.constant(operator.setitem)}({v[1]}, {v[2]}, {v[0]})", False),
    "DELETE_SUBSCR": (2, lambda r, i, v: f"{r.constant(operator.delitem)}({v[0]}, {v[1]})", False),
    "LOAD_ATTR": (1, lambda r, i, v: f"getattr({v[0]}, {i.value!r})", True),
    "BINARY_SLICE": (3, lambda r, i, v: f"{r.constant(operator.getitem)}({v[0]}, slice({v[1]}, {v[2]}))", True),
    "STORE_SLICE": (4, lambda r, i, v: f"{r.constant(operator.setitem)}({v[1]}, slice({v[2]}, {v[3]}), {v[0]})", False),
    "STORE_ATTR": (2, lambda r, i, v: f"setattr({v[1]}, {i.value!r}, {v[0]})", False),
    "DELETE_ATTR": (1, lambda r, i, v: f"delattr({v[0]}, {i.value!r})", False),
    "UNARY_NOT": (1, lambda r, i, v: f"not {v[0]}", True),
    "UNARY_NEGATIVE": (1, lambda r, i, v: f"-{v[0]}", True),
    "UNARY_INVERT": (1, lambda r, i, v: f"~{v[0]}", True),
    "TO_BOOL": (1, lambda r, i, v: f"bool({v[0]})", True),
    "GET_ITER": (1, lambda r, i, v: f"iter({v[0]})", True),
    "CONVERT_VALUE": (1, _convert, True),
    "FORMAT_WITH_SPEC": (2, lambda r, i, v: f"format({v[0]}, {v[1]})", True),
    "FORMAT_SIMPLE": (1, lambda r, i, v: f"format({v[0]})", True),
}
