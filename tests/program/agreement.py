"""A compiled function beside eager: results, printed text, arguments afterwards, and exceptions with their lines."""

import collections
import contextlib
import dataclasses
import io
import os
import traceback

import torch

import tilewright as tw

HERE = os.path.dirname(__file__)


def plain(v):
    if isinstance(v, torch.Tensor):
        return "tensor", v.dtype, tuple(v.shape), [round(x, 4) for x in v.double().flatten().tolist()]
    if isinstance(v, dict):
        return type(v).__name__, [(k, plain(x)) for k, x in v.items()]
    if isinstance(v, (list, tuple, collections.deque)):
        return type(v).__name__, [plain(x) for x in v]
    if dataclasses.is_dataclass(v) or type(v).__module__.startswith("program."):
        return type(v).__name__, plain(getattr(v, "__dict__", {}))
    return type(v).__name__, repr(v)


def outcome(f, args):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            result = plain(f(*args))
    except Exception as e:
        lines = [x.lineno for x in traceback.extract_tb(e.__traceback__) if x.filename.startswith(HERE)]
        return type(e), str(e), lines[-1], out.getvalue(), plain(args)
    return result, out.getvalue(), plain(args)


def agree(make, *calls, breaks=None, compiles=None, eager=0, natives=0):
    """`make()` gives the function; `calls` give argument tuples. The compiled twin must do as eager does, call by call."""
    want, fast = make(), tw.compile(make())
    for n, call in enumerate(calls):
        a, b = call(), call()
        torch.manual_seed(n)
        expected = outcome(want, a)
        torch.manual_seed(n)
        assert outcome(fast, b) == expected, f"call {n}"
    stats = fast.stats
    if breaks is not None:
        assert stats.graph_breaks == breaks, stats
    if compiles is not None:
        assert stats.compiles <= compiles, stats
    if eager is not None:
        assert stats.eager_calls == eager, stats
    if natives is not None:
        inner = getattr(fast, "_tilewright", fast)
        assert inner.program.native_tails == natives, inner.program.breaks
    return fast
