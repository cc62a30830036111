"""Interpreted generators: suspended, their frame waits here; resumed, it runs on with its own handled exceptions.

In: the frame of a generator function. Out: what iteration, `send`, `throw` and `close` give, as CPython's generators do.
Must not know graphs or guards.
"""

from __future__ import annotations

from typing import Any

from . import access
from .breaks import Break
from .frames import YIELD, Frame
from .instructions_flow import sent


class Generator:
    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.running = self.done = self.started = False
        self.handled: BaseException | None = None

    def __iter__(self) -> Generator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self.running:
            raise ValueError("generator already executing")
        if self.done:
            raise StopIteration
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        return self._resume(value, None)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        error = value if isinstance(value, BaseException) else kind
        if isinstance(error, type):
            error = error(*(() if value is None else (value,)))
        return self._throw(error)

    def _throw(self, error: BaseException) -> Any:
        if self.running:
            raise ValueError("generator already executing")
        self.frame.cx.raised = error, self.frame.location()
        if self.done or not self.started:
            self.done = True
            raise error
        inner = self._delegate()
        if inner is not None:
            try:
                if isinstance(error, GeneratorExit):
                    _method(self.frame, inner, "close", [])
                else:
                    return _method(self.frame, inner, "throw", [error])
            except StopIteration as e:
                send = self._send_instruction()
                self.frame.at = sent(self.frame, send, e.value)
                return self._resume(None, None, pushed=True)
            except Exception as e:
                error = e
        return self._resume(None, error)

    def close(self) -> None:
        if self.done or not self.started:
            self.done = True
            return
        try:
            self._throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def __del__(self) -> None:
        """Dropped in the program: closed. A capture that has ended leaves it."""
        cx = self.frame.cx
        if self.started and not self.done and cx.running:
            try:
                self.close()
            except Break as b:
                cx.lost = b

    def _delegate(self) -> Any:
        """The iterator that a suspended `yield from` reads; None elsewhere."""
        at = self.frame.code.instructions[self.frame.at]
        return self.frame.stack[-1] if at.op == "RESUME" and at.arg & 3 >= 2 else None

    def _send_instruction(self) -> Any:
        instructions = self.frame.code.instructions
        return instructions[instructions[self.frame.at + 1].target]  # RESUME, then the jump back to SEND

    def _resume(self, value: Any, error: BaseException | None, pushed: bool = False) -> Any:
        frame, cx = self.frame, self.frame.cx
        self.started = self.running = True
        cx.handling.append(self.handled)
        try:
            if not pushed:
                frame.stack.append(value)
            if error is not None:
                frame.at -= 1  # at the YIELD_VALUE
                frame.unwind(error)
            kind, value = frame.run()
        except BaseException as e:
            self.done = True
            if isinstance(e, StopIteration):
                raise RuntimeError("generator raised StopIteration") from e  # PEP 479; from 3.12 on in the generator's code
            raise
        finally:
            self.running = False
            self.handled = cx.handling.pop()
        if kind == YIELD:
            return value
        self.done = True
        raise StopIteration(value)


def _method(frame: Frame, o: Any, name: str, args: list[Any]) -> Any:
    """Call a method that an iterator need not have."""
    try:
        method = access.get_attribute(frame.cx, o, name)
    except AttributeError:
        if name == "throw":
            raise args[0] from None
        return None
    return frame.cx.call(method, args, {})
