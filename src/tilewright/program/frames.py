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
        cx, instructions, handlers = self.cx, self.code.instructions, self.cx.handlers
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

    def unwind(self, e: BaseException) -> None:
        """Go to the handler of an exception; raise it again where there is none."""
        cx = self.cx
        cx.spend()
        if e.__context__ is None and cx.handled is not None and cx.handled is not e:
            e.__context__ = cx.handled
        if not cx.is_raised(e):
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
