"""Runs recordings by the reference interpreter and holds them against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tilewright.graph.interpret import interpret
from tilewright.graph.record import ArgSource, ParameterSource, Recorded, record
from tilewright.graph.verify import verify


def source_tensor(source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The tensor of a source in a call with these arguments."""
    if isinstance(source, ArgSource):
        first, *rest = source.path
        value = args[first] if isinstance(first, int) else kwargs[first]
        for step in rest:
            value = value[step] if not isinstance(step, str) or isinstance(value, dict) else getattr(value, step)
        return value
    if isinstance(source, ParameterSource):
        return getattr(source.module, source.kind)[source.key]
    return source.tensor


def run(recorded: Recorded, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """The result of the recorded program on arguments."""
    inputs = [source_tensor(s, args, kwargs or {}) for s in recorded.inputs]
    with torch.no_grad():
        outputs = interpret(recorded.graph, inputs)
    for i in recorded.identities:
        outputs[i] = inputs[recorded.graph.outputs[i].alias.index]
    return recorded.rebuild(outputs) if recorded.rebuild is not None else outputs[0]


def calls(recorded: Recorded) -> list[str]:
    """The opaque calls in a recording."""
    return [n.attrs.overload for n in recorded.graph.nodes() if n.op.name == "call"]


def ops(recorded: Recorded) -> list[str]:
    return [n.op.name for n in recorded.graph.nodes() if n.op.name != "input"]


def leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def sharing(tensors: list[torch.Tensor]) -> list[Any]:
    """For each pair that overlaps in memory, the distance between their first elements; and which are one object."""
    found = []
    for i, a in enumerate(tensors):
        for j, b in enumerate(tensors[:i]):
            if a is b:
                found.append((i, j, "same"))
            elif (
                a.numel()
                and b.numel()
                and shares(a, b)
                and _interval(a)[0] < _interval(b)[1]
                and _interval(b)[0] < _interval(a)[1]
            ):
                found.append((i, j, a.storage_offset() - b.storage_offset()))
    return found


def _interval(t: torch.Tensor) -> tuple[int, int]:
    return t.storage_offset(), t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def check(
    fn: Callable[..., Any], *args: Any, opaque: tuple[str, ...] = (), tolerance: float | None = None, **kwargs: Any
) -> Recorded:
    """Recorded and interpreted, `fn` gives eager's values, dtypes, strides, sharing of memory, and writes.

    `opaque`: the calls that may have no row. Recording must leave the arguments as they are.
    """
    ours, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    recorded = record(fn, *ours)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(leaves(ours), leaves((args, kwargs)), None)
    verify(recorded.graph)
    assert sorted(calls(recorded)) == sorted(opaque)
    want = fn(*theirs[0], **theirs[1])
    torch.manual_seed(0)
    got = run(recorded, *ours)
    a, b = leaves(got), leaves(want)
    assert_same(a, b, tolerance)
    assert_same(leaves(ours), leaves(theirs), tolerance)  # writes into the arguments
    tensors = [[t for t in (*leaves(x), *y) if isinstance(t, torch.Tensor)] for x, y in ((ours, a), (theirs, b))]
    assert sharing(tensors[0]) == sharing(tensors[1])
    return recorded


def assert_same(got: list[Any], want: list[Any], tolerance: float | None) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        assert a.device == b.device
        a, b = a.detach(), b.detach()
        if tolerance is None:
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
