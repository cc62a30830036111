"""The graph-break table: every reason for which a capture ends a graph, with an explanation and a hint.

In: a row's name and what it is about. Out: `Break`, which no user code can catch. Must not know how a capture goes on after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import GraphBreak, Location


@dataclass(frozen=True)
class Reason:
    explanation: str
    hint: str


REASONS: dict[str, Reason] = {
    "value": Reason(
        "a tensor's data is needed as a Python value", "compute with the tensor itself, or read it outside the compiled function"
    ),
    "branch": Reason(
        "Python branches on a tensor's data",
        "keep the decision on the tensor (torch.where), or move it out of the compiled function",
    ),
    "varying": Reason("a Python value is needed that changes from call to call", "keep it in a tensor"),
    "operation": Reason("a tensor operation cannot be recorded", "call it outside the compiled function"),
    "opcode": Reason("the interpreter does not know a bytecode instruction", "rewrite the statement in simpler ones"),
    "builtin": Reason(
        "a function without Python code is called, of which nothing is known", "call it outside the compiled function"
    ),
    "object": Reason(
        "an object without Python code is used, of which nothing is known", "pass what is needed of it as an argument"
    ),
    "effect": Reason("Python state is changed in a way that cannot be replayed", "change it outside the compiled function"),
    "tensor attribute": Reason("an attribute of an existing tensor is read or set", "keep it in an object of your own"),
    "unknown tensor": Reason("a tensor comes from a place that is not known", "pass it as an argument or keep it in a module"),
    "coroutine": Reason("coroutines are not captured", "compile the functions that they call"),
    "depth": Reason("calls are nested too deep", "compile the inner function by itself"),
    "long": Reason("too many instructions are executed", "compile the loop's body instead of the loop"),
    "random": Reason("Python or NumPy draws random numbers", "draw them outside and pass them"),
    "rebuild": Reason("a Python object that is alive here cannot be made anew", "avoid it across the call that breaks the graph"),
    "import": Reason("a module is imported for the first time; the next call is compiled", "import it at the top of the file"),
    "disabled": Reason(
        "the function was marked to stay uncompiled", "take the mark off, or call the function where a break costs little"
    ),
}


class Break(BaseException):
    """The graph ends here. Not an Exception: `except Exception` in user code must not see it."""

    def __init__(self, reason: str, what: str = "", at: Location | None = None) -> None:
        super().__init__(reason, what)
        self.reason = reason
        self.what = what
        self.at = at
        self.points: list[int] = []  # how many instructions were executed where a capture may end instead, the best first

    def __str__(self) -> str:
        row = REASONS[self.reason]
        text = row.explanation + (f": {self.what}" if self.what else "")
        return f"{text} ({self.at})" if self.at else text


def error_of(b: Break) -> GraphBreak:
    row = REASONS[b.reason]
    return GraphBreak(reason=row.explanation + (f": {b.what}" if b.what else ""), at=b.at, hint=row.hint)
