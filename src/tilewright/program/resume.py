"""The rest of a function as a function of its own: from an instruction, with local variables and stack as they were there.

In: a code object, an instruction, and which variables and stack places hold values. Out: `Place`, and from it a Python
function that runs the rest without the interpreter: a prologue that fills variables and stack, then the original bytecode.
Functions that called one another are so many places. Must not know graphs.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import native
from ..base.errors import Location
from ..base.weak import remembered
from .breaks import Break
from .frames import PUSH, Frame, Handled, Origin
from .opcodes import NULL, UNSET, assemble, decode, encode_exceptions, exception_table, no_lines


@dataclass(frozen=True)
class Whole:
    """One value passes as it is."""

    width = 1

    def make(self, values: list[Any]) -> Any:
        return values[0]


@dataclass(frozen=True)
class Nothing:
    """A NULL of the stack."""

    width = 0

    def make(self, values: list[Any]) -> Any:
        return NULL


@dataclass(frozen=True)
class Iter:
    """An iterator passes as what makes it anew: `function(*operands)`, then its state."""

    function: Any
    operands: tuple[Whole | Iter, ...]
    state: bool

    @property
    def width(self) -> int:
        return sum(o.width for o in self.operands) + self.state

    def make(self, values: list[Any]) -> Any:
        rest = values[: len(values) - self.state]
        operands = []
        for o in self.operands:
            operands.append(o.make(rest[: o.width]))
            rest = rest[o.width :]
        made = self.function(*operands)
        if self.state:
            made.__setstate__(operator.index(values[-1]))
        return made


@dataclass(frozen=True)
class Method:
    """A bound method without Python code passes as the object it is bound to."""

    name: str
    width = 1

    def make(self, values: list[Any]) -> Any:
        return getattr(values[0], self.name)


@dataclass(frozen=True)
class Handling:
    """What was handled before an exception passes as that exception."""

    width = 1

    def make(self, values: list[Any]) -> Any:
        return Handled(None, values[0])


@dataclass(frozen=True)
class Offset:
    """Where an exception arose: the same in all calls."""

    offset: int
    width = 0

    def make(self, values: list[Any]) -> Any:
        return Origin(self.offset)


Form = Whole | Nothing | Iter | Method | Handling | Offset


def form_of(v: Any, is_apart: Callable[[Any], bool] = lambda v: False) -> tuple[Form, list[Any]]:
    """How a value passes, and the values that pass. `is_apart`: whether it is an iterator to be made anew from its parts."""
    if v is NULL:
        return Nothing(), []
    if type(v) is Handled:
        return Handling(), [v.current]
    if type(v) is Origin:
        return Offset(v.offset), []
    if isinstance(v, types.BuiltinFunctionType) and not isinstance(v.__self__, types.ModuleType | type | None):
        return Method(v.__name__), [v.__self__]
    if not is_apart(v):
        return Whole(), [v]
    function, operands, *rest = v.__reduce__()
    state = [s for s in rest if s is not None]
    forms, leaves = [], []
    for o in operands:
        form, values = form_of(o, is_apart)
        forms.append(form)
        leaves += values
    return Iter(function, tuple(forms), bool(state)), leaves + state  # type: ignore[arg-type]


@dataclass(frozen=True)
class Place:
    """An instruction of a function; `slots`: the variables that hold values; `forms`: how their values, then the stack's, pass.

    `then`: what the caller, if it has a place too, does with the result. `suspended`: of a generator, behind its `yield`.
    """

    code: types.CodeType
    at: int
    slots: tuple[int, ...]
    forms: tuple[Form, ...]
    then: str = ""
    suspended: bool = False

    @property
    def line(self) -> int:
        """The instruction's line in its file."""
        return Location.of_instruction(self.code, decode(self.code).instructions[self.at].offset).line

    @property
    def width(self) -> int:
        """How many values pass."""
        return sum(f.width for f in self.forms)

    def split(self, values: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """(all variables, the stack) from the values that were passed."""
        rest, made = list(values), []
        for form in self.forms:
            made.append(form.make(rest[: form.width]))
            rest = rest[form.width :]
        slots: list[Any] = [UNSET] * len(decode(self.code).names)
        for n, v in zip(self.slots, made):
            slots[n] = v
        return slots, made[len(self.slots) :]

    def with_iterators(self, values: tuple[Any, ...]) -> tuple[Place, list[Any]]:
        """The same place where iterators pass as themselves, and the values that pass then."""
        forms, passed, rest = [], [], list(values)
        for form in self.forms:
            own, rest = rest[: form.width], rest[form.width :]
            forms.append(Whole() if isinstance(form, Iter) else form)
            passed += [form.make(own)] if isinstance(form, Iter) else own
        return replace(self, forms=tuple(forms)), passed

    def native(self, globals_: dict[str, Any], values: tuple[Any, ...]) -> Any:
        """Run the rest of the function without the interpreter."""
        slots, stack = self.split(values)
        return _run(self, globals_, slots, stack)

    def native_on(
        self, globals_: dict[str, Any], values: tuple[Any, ...], callee: Place, result: Any, error: BaseException | None
    ) -> Any:
        """As `native`, from behind the current instruction, with the result of the function that it called."""
        slots, stack = self.split(values)
        if error is None:
            stack = [*stack, result] if callee.then == PUSH else stack
            at = self.at + 1
        else:
            handler = decode(self.code).handler(self.at)
            if handler is None:
                raise error
            origin = [Origin(decode(self.code).instructions[self.at].offset)] if handler.lasti else []
            stack, at = [*stack[: handler.depth], *origin, error], handler.target
        forms = (*self.forms[: len(self.slots)], *[form_of(v)[0] for v in stack])
        return _run(Place(self.code, at, self.slots, forms), globals_, slots, stack)


def place_of(
    frame: Frame, at: int, stack: list[Any], is_apart: Callable[[Any], bool] = lambda v: False, suspended: bool = False
) -> tuple[Place, list[Any]]:
    """Where a frame goes on, and the values that pass."""
    slots = tuple(n for n, v in enumerate(frame.slots) if v is not UNSET)
    forms, leaves = [], []
    for v in (*[frame.slots[n] for n in slots], *stack):
        form, values = form_of(v, is_apart)
        forms.append(form)
        leaves += values
    return Place(frame.code.code, at, slots, tuple(forms), frame.then, suspended), leaves


def run_natively(places: tuple[Place, ...], tables: tuple[dict[str, Any], ...], values: tuple[Any, ...]) -> Any:
    """The rest of functions that called one another, the innermost first, without the interpreter."""
    result, error = None, None
    for n, (place, globals_) in enumerate(zip(places, tables, strict=True)):
        own, values = values[: place.width], values[place.width :]
        try:
            result = place.native_on(globals_, own, places[n - 1], result, error) if n else place.native(globals_, own)
            error = None
        except BaseException as e:
            error = e
    if error is not None:
        raise error
    return result


def _run(place: Place, globals_: dict[str, Any], slots: list[Any], stack: list[Any]) -> Any:
    code = tail(place)
    cells = len(place.code.co_freevars)
    closure = tuple(slots[len(slots) - cells :]) if cells else ()
    function = types.FunctionType(
        code, globals_, code.co_name, None, tuple(c if isinstance(c, types.CellType) else types.CellType() for c in closure)
    )
    passed = [slots[n] for n in place.slots]
    passed += [v.current if type(v) is Handled else v for v in stack if v is not NULL and type(v) is not Origin]
    if code.co_nlocals:
        return function(passed)
    function.__code__ = code.replace(co_consts=(*code.co_consts[:-1], passed))
    native.skip(function.__code__)
    return function()


def generator(place: Place, globals_: dict[str, Any], *values: Any) -> Any:
    """A generator that goes on from the place."""
    made = place.native(globals_, values)
    if place.suspended:
        next(made)
    return made


@remembered
def _tails(code: types.CodeType) -> dict[Any, types.CodeType]:
    """The rests of a function that were made, by where they begin."""
    return {}


def tail(place: Place) -> types.CodeType:
    """The rest as a code object of one argument, the list of values; where the function has no variable that could hold it, of
    none, and the list belongs in the place of the last constant. A generator's yields once where it stands suspended.

    Raises Break for coroutines.
    """
    made, key = _tails(place.code), (place.at, place.slots, place.forms, place.suspended)
    if key not in made:
        made[key] = _make_tail(place)
        native.skip(made[key])
    return made[key]


def _make_tail(place: Place) -> types.CodeType:
    code = place.code
    if code.co_flags & 0x280:
        raise Break("rebuild", f"the rest of {code.co_name}")
    first, stack = len(code.co_consts), place.forms[len(place.slots) :]
    count = len(place.slots) + sum(not isinstance(f, Nothing | Offset) for f in stack)
    origins = [f.offset for f in stack if isinstance(f, Offset)]
    held = assemble("LOAD_FAST", 0) if code.co_nlocals else assemble("LOAD_CONST", first + count + len(origins))

    def value(n: int) -> bytes:
        return held + assemble("LOAD_CONST", first + n) + assemble("BINARY_SUBSCR")

    decoded = decode(code)
    begun = all(i.op != "RETURN_GENERATOR" for i in decoded.instructions[place.at :])  # else the rest makes the generator itself
    pieces = [assemble("RETURN_GENERATOR"), assemble("POP_TOP")] if code.co_flags & 0x20 and begun else []
    pieces += [assemble("RESUME", 0)] if begun else []
    at, offsets = len(place.slots), first + count
    for form in stack:
        if isinstance(form, Nothing):
            pieces.append(assemble("PUSH_NULL"))
        elif isinstance(form, Offset):
            pieces.append(assemble("LOAD_CONST", offsets))
            offsets += 1
        else:
            pieces.append(value(at))
            at += 1
        if isinstance(form, Handling):
            pieces += [assemble("PUSH_EXC_INFO"), assemble("POP_TOP")]
    for n, slot in sorted(enumerate(place.slots), key=lambda pair: -pair[1]):  # the variable that holds them last
        pieces += [value(n), assemble("STORE_FAST", slot)]
    if code.co_nlocals and 0 not in place.slots:
        pieces.append(assemble("DELETE_FAST", 0))
    offset = decoded.instructions[place.at].offset
    if decoded.index[offset] != place.at:  # the second half of a pair
        pieces.append(assemble(decoded.instructions[place.at].op, decoded.instructions[place.at].arg))
        offset = decoded.instructions[place.at + 1].offset
    rows = []
    if place.suspended:
        pieces.append(assemble("LOAD_CONST", first + count + len(origins)))
        before, behind = decoded.instructions[place.at - 1 : place.at + 1]
        start, handler = sum(map(len, pieces)), decoded.handler(place.at - 1)
        pieces += [assemble("YIELD_VALUE", before.arg), assemble("RESUME", behind.arg)]
        if handler is not None:
            target = _prefixed(code, decoded.instructions[handler.target].offset)
            rows.append((start, sum(map(len, pieces)), target, handler.depth, handler.lasti))
    pieces.append(assemble("JUMP_FORWARD", _prefixed(code, offset) // 2))
    prologue = b"".join(pieces)
    n = len(prologue)
    return code.replace(
        co_code=prologue + code.co_code,
        co_exceptiontable=encode_exceptions(
            [*((s, e, t + n, d, l) for s, e, t, d, l in rows),
             *((s + n, e + n, t + n, d, l) for s, e, t, d, l in exception_table(code))]
        ),
        co_linetable=no_lines(n) + code.co_linetable, co_argcount=int(code.co_nlocals > 0),
        co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=code.co_flags & ~0x0C,
        co_consts=(*code.co_consts, *range(count), *((n + o) // 2 for o in origins), None),
        co_stacksize=code.co_stacksize + len(place.forms) + 4,
    )  # fmt: skip


def _prefixed(code: types.CodeType, offset: int) -> int:
    """Where the instruction's EXTENDED_ARG prefixes begin."""
    index = decode(code).index
    while offset >= 2 and index.get(offset - 2) == index[offset]:
        offset -= 2
    return offset
