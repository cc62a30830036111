"""Frames of the interpreter: a stack, local variables, where execution is, and how exceptions find their handlers.

In: decoded code and values as the program sees them. Out: what the frame returns or yields, or the exception that leaves it.
Must not
know what an instruction does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.errors import Location, TilewrightError
from .breaks import Break
from .opcodes import NULL, Code

if TYPE_CHECKING:
    from .capture import Capture

RETURN, YIELD, GENERATOR, STOP = "return", "yield", "generator", "stop"
Signal = tuple[str, Any]

PUSH, DROP = "push", "drop"
"""What the caller's instruction does with a frame's result as the last thing it does; "": something else, or more."""


class Stop(BaseException):
    """The capture ends here, in the frame that raises it. Not an Exception: `except Exception` in user code must not see it."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame


class Origin:
    """On the stack, below an exception: the offset of the instruction that it left, where the handler's RERAISE wants it."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Handled:
    """On the stack while an exception is handled: the one that was handled before. `current`, at a graph break: this one."""

    __slots__ = ("current", "previous")

    def __init__(self, previous: BaseException | None, current: BaseException | None = None) -> None:
        self.previous = previous
        self.current = current


class Frame:
    """One activation of a code object. `depth` 0 is the function that is captured. `then`: what becomes of the result.

    `began`: the instructions that all frames had executed when this one's current instruction began.
    """

    __slots__ = (
        "at", "began", "cells", "code", "code_object", "cx", "depth", "globals", "kw", "namespace", "parent", "slots", "stack",
        "then",
    )  # fmt: skip

    def __init__(self, cx: Capture, code: Code, globals_: dict[str, Any], slots: list[Any], depth: int, then: str = "") -> None:
        self.cx = cx
        self.code, self.code_object = code, code.code  # which `code` does not keep alive
        self.globals = globals_
        self.slots = slots
        self.depth = depth
        self.stack: list[Any] = []
        self.at = 0
        self.began = 0
        self.then = then
        self.parent: Frame | None = None
        self.kw: tuple[str, ...] = ()
        self.namespace: Any = None  # of a class body

    def location(self) -> Location:
        return Location.of_instruction(self.code.code, self.code.instructions[self.at].offset)

    def run(self) -> Signal:
        """Execute until the frame returns, yields or stops. Raises what leaves it."""
        cx, instructions, handlers = self.cx, self.code.instructions, self.cx.handlers
        outer = cx.frame
        self.parent = self.parent if outer is None else outer
        cx.frame = self
        try:
            while True:
                instruction = instructions[self.at]
                self.began = cx.executed
                if cx.executed == cx.stop:
                    self._stop()
                cx.executed += 1
                try:
                    handler = handlers.get(instruction.op)
                    if handler is None:
                        raise Break("opcode", instruction.op)
                    result = handler(self, instruction)
                except Break as b:
                    self._broken(b)
                    raise
                except TilewrightError as e:
                    b = cx.refused(e, self.location())
                    self._broken(b)
                    raise b from None
                except BaseException as e:
                    if not isinstance(e, Exception) and not cx.is_raised(e):
                        raise
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

    def clear(self) -> None:
        """Drop what it holds, as a frame does that has returned."""
        self.stack.clear()
        self.slots[:] = [NULL] * len(self.slots)

    def _stop(self) -> None:
        if any(not f.then and f.parent is not None for f in self.chain()):
            b = Break("rebuild", "what an instruction calls")
            self._broken(b)
            raise b
        raise Stop(self)

    def _broken(self, b: Break) -> None:
        """Note where a capture may end because of the break: before the instruction of this frame, or of a caller."""
        if b.at is None:
            b.at = self.location()
        if not b.points:
            for frame in self.chain():
                b.points.append(frame.began)
                if not frame.then and frame.parent is not None:
                    b.points.clear()  # its result is not simply the caller's instruction's

    def chain(self) -> list[Frame]:
        """This frame and its callers."""
        found, frame = [], self
        while frame is not None:
            found.append(frame)
            frame = frame.parent  # type: ignore[assignment]
        return found

    def take(self, callee: Frame, result: Any, error: BaseException | None) -> None:
        """Go on with the result of the frame that the current instruction called, or with the exception that left it."""
        if error is not None:
            self.unwind(error)
            return
        if callee.then == PUSH:
            self.stack.append(result)
        self.at += 1

    def unwind(self, e: BaseException) -> None:
        """Go to the handler of an exception; raise it again where there is none."""
        cx = self.cx
        cx.spend()
        if e.__context__ is None and cx.handled is not None and cx.handled is not e:
            e.__context__ = cx.handled
        cx.origins.setdefault(id(e), (e, self.location(), self.code.code.co_name))
        if not cx.is_raised(e):
            cx.raised = e, self.location()
        handler = self.code.handler(self.at)
        if handler is None:
            raise e
        del self.stack[handler.depth :]
        if handler.lasti:
            self.stack.append(Origin(self.code.instructions[self.at].offset))
        self.stack.append(e)
        self.at = handler.target
        self.kw = ()

    def popn(self, n: int) -> list[Any]:
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values
