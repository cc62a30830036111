"""Eager's own errors. In: a call that the recorder cannot record as it stands. Out: the exception that eager raises for it,
if it raises one. Must not know why the recorder asks.

The call is run on tensors of the same metadata and the same sharing of memory, filled with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import torch_private as private
from .fake import Fake
from .functionalize import Memory
from .recorder import Recorder
from .symbolic import hint_of

LARGEST = 1 << 24  # bytes of all operands: beyond it, nothing is run


def eager_error(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Run the call on stand-ins and let its exception out. Random state is restored; division by zero is not the user's."""
    buffers: dict[Memory, torch.Tensor] = {}
    with private.without_modes(), torch.no_grad(), private.own_random_state():
        stand_in = _StandIns(recorder, buffers)
        positional = [stand_in(a) for a in args]
        named = {k: stand_in(v) for k, v in kwargs.items()}
        if sum(b.numel() * b.element_size() for b in buffers.values()) > LARGEST:
            return
        try:
            func(*positional, **named)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as e:
            if "ZeroDivision" not in str(e):
                raise


_ADMITTED: set[Any] = set()  # dtypes and numbers for which calls raise nothing


def number_error(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any], fakes: Sequence[Fake]) -> None:
    """Where eager may refuse a pointwise call's dtypes or numbers (bool, an integer zero, a number too large for float16), the
    call is run on single elements, and its exception let out."""
    numbers = [a for a in (*args, *kwargs.values()) if isinstance(a, int | float)]
    dtypes = [f.dtype for f in fakes]
    narrow = any(d is torch.float16 or not d.is_floating_point for d in dtypes)
    if torch.bool not in dtypes and not any(isinstance(n, bool) for n in numbers) and not (numbers and narrow):
        return
    key = (func, *dtypes, *(len(f.sizes) for f in fakes), *map(repr, numbers))
    if key in _ADMITTED:
        return

    def one(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [one(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return hint_of(value)
        fake = value if isinstance(value, Fake) else recorder.fake_of(value)
        return torch.ones((1,) * len(fake.sizes), dtype=fake.dtype, device=fake.device)

    with private.without_modes(), torch.no_grad(), private.own_random_state():
        func(*[one(a) for a in args], **{k: one(v) for k, v in kwargs.items()})
    if len(_ADMITTED) > 4096:
        _ADMITTED.clear()
    _ADMITTED.add(key)


class _StandIns:
    def __init__(self, recorder: Recorder, buffers: dict[Memory, torch.Tensor]) -> None:
        self._recorder = recorder
        self._buffers = buffers

    def __call__(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return hint_of(value)
        fake = value if isinstance(value, Fake) else self._recorder.fake_of(value)
        sizes, strides, offset = tuple(map(hint_of, fake.sizes)), tuple(map(hint_of, fake.strides)), hint_of(fake.offset)
        reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
        buffer = self._buffers.get(fake.memory)
        if buffer is None or buffer.numel() < reach:
            m = fake.memory
            whole = hint_of(m.offset) + 1 + sum((hint_of(n) - 1) * hint_of(s) for n, s in zip(m.shape, m.strides))
            buffer = self._buffers[fake.memory] = torch.zeros(max(reach, whole, 1), dtype=fake.dtype, device=fake.device)
        return buffer.as_strided(sizes, strides, offset)
