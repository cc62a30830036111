"""Where a capture of a call begins: the frame of what `tw.compile` was given.

In: a callable and the arguments of a call. Out: `Captured`. Must not know bytecode.
"""

from __future__ import annotations

import types
from typing import Any

from torch import nn

from . import access, calls
from .breaks import Break
from .capture import Capture, Captured, run
from .frames import Frame
from .opcodes import decode
from .sizes import Policy
from .sources import look_up
from .units import read_argument


def capture_call(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stop: int = -1, policy: Policy | None = None
) -> Captured:
    """Interpret `fn(*args, **kwargs)` up to the stop-th instruction of its own (-1: to its end). Raises Break, UserError."""
    kwnames = tuple(kwargs)

    def start(cx: Capture) -> list[Frame]:
        values = [read_argument(cx.outside, v, i, i) for i, v in enumerate(args)]
        named = {k: read_argument(cx.outside, kwargs[k], len(args) + i, k) for i, k in enumerate(kwnames)}
        function, first = _function(cx, fn)
        if function is None:
            return [Frame(cx, decode(_invoke.__code__), _invoke.__globals__, [fn, tuple(values), named], 0)]
        if function.__code__.co_flags & 0x2A0:
            raise Break("coroutine", function.__qualname__)
        slots = cx.bind(function, [*first, *values], named)
        return [Frame(cx, decode(function.__code__), function.__globals__, slots, 0)]

    return run(start, len(args), kwnames, stop, policy or Policy())


def _invoke(f, args, kwargs):  # type: ignore[no-untyped-def]
    return f(*args, **kwargs)


def _function(cx: Capture, fn: Any) -> tuple[types.FunctionType | None, list[Any]]:
    """The Python function that a call of `fn` runs, and what is put before the arguments."""
    cx.outside.constant(fn, "module" if isinstance(fn, nn.Module) else getattr(fn, "__name__", "the callable"))
    if isinstance(fn, nn.Module):
        name = "__call__"
        if cx.class_lookup(type(fn), "__call__") is nn.Module.__call__:
            name = "_call_impl" if calls.has_hooks(cx, fn) else "forward"
        fn = access.get_attribute(cx, fn, name)
    elif (
        not isinstance(fn, types.FunctionType | types.MethodType | type)
        and type(look_up(type(fn), "__call__")) is types.FunctionType
    ):
        fn = access.get_attribute(cx, fn, "__call__")
    if type(fn) is types.MethodType:
        cx.outside.constant(fn.__self__, "module" if isinstance(fn.__self__, nn.Module) else "self")
        if type(fn.__func__) is types.FunctionType:
            return fn.__func__, [fn.__self__]
    return (fn, []) if type(fn) is types.FunctionType else (None, [])
