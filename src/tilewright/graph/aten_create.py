"""ATen's factories: tensors made from numbers alone. In: ATen's arguments without layout and device. Out: nodes.

Memory that eager leaves uninitialised is zero here. Must not know strides or devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..base import dtypes
from ..base.dims import Dim
from ..base.dtypes import DType
from .aten_index import triangle
from .ir import Node
from .ops import index
from .ops.pointwise import ADD, MUL
from .promotion import Number, as_type, default_float, full, of_number

Build = Callable[..., Node]


def _filled(value: Number) -> Build:
    return lambda size, *, dtype=None: full(value, dtype or default_float(), tuple(size))


def _full(size: Sequence[int], value: Any, *, dtype: DType | None = None) -> Node:
    return full(value, dtype or of_number(value), tuple(size))


def _filled_like(value: Number) -> Build:
    return lambda x, *, dtype=None: full(value, dtype or x.dtype, x.shape)


def _full_like(x: Node, value: Any, *, dtype: DType | None = None) -> Node:
    return full(value, dtype or x.dtype, x.shape)  # type: ignore[arg-type]


def _new_filled(value: Number) -> Build:
    return lambda x, size, *, dtype=None: full(value, dtype or x.dtype, tuple(size))


def _new_full(x: Node, size: Sequence[int], value: Any, *, dtype: DType | None = None) -> Node:
    return full(value, dtype or x.dtype, tuple(size))


def _empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None) -> Node:
    return full(0, dtype or default_float(), tuple(size))


def _new_empty_strided(x: Node, size: Sequence[int], stride: Sequence[int], *, dtype: DType | None = None) -> Node:
    return full(0, dtype or x.dtype, tuple(size))


def _arange(end: Number, *, dtype: DType | None = None) -> Node:
    return _arange_step(0, end, 1, dtype=dtype)


def _arange_start(start: Number, end: Number, *, dtype: DType | None = None) -> Node:
    return _arange_step(start, end, 1, dtype=dtype)


def _arange_step(start: Any, end: Any, step: Any = 1, *, dtype: DType | None = None) -> Node:
    whole = all(isinstance(v, int | Dim) for v in (start, end, step))
    if dtype is None:
        dtype = dtypes.i64 if whole else default_float()
    if not dtype.is_float and not whole:
        start, end, step = int(start), int(end), int(step)
    size = -(-(end - start) // step) if whole or not dtype.is_float else math.ceil((end - start) / step)
    if size < 0:
        raise ValueError("bounds do not fit the step")
    if isinstance(start, Dim) or isinstance(step, Dim):
        kind = dtype if dtype.is_integer else dtypes.i64
        steps = MUL(index.IOTA(size=size), full(step, dtypes.i64))
        return as_type(as_type(ADD(steps, full(start, dtypes.i64)), kind), dtype)
    if dtype is dtypes.b1:
        return as_type(index.IOTA(size=size, start=int(start), step=int(step)), dtype)
    return index.IOTA(size=size, dtype=dtype, start=start, step=step)


def _eye(n: int, m: int | None = None, *, dtype: DType | None = None) -> Node:
    from .ops.pointwise import BITAND

    m = n if m is None else m
    return as_type(BITAND(triangle(n, m, 0, True), triangle(n, m, 0, False)), dtype or default_float())


def _scalar_tensor(value: Number, *, dtype: DType | None = None) -> Node:
    return full(value, dtype or default_float())


BUILDS: dict[str, Build] = {
    "aten.zeros.default": _filled(0), "aten.ones.default": _filled(1), "aten.empty.memory_format": _filled(0),
    "aten.full.default": _full,
    "aten.zeros_like.default": _filled_like(0), "aten.ones_like.default": _filled_like(1),
    "aten.empty_like.default": _filled_like(0),
    "aten.full_like.default": _full_like,
    "aten.new_zeros.default": _new_filled(0), "aten.new_ones.default": _new_filled(1), "aten.new_empty.default": _new_filled(0),
    "aten.new_full.default": _new_full, "aten.empty_strided.default": _empty_strided,
    "aten.new_empty_strided.default": _new_empty_strided,
    "aten.arange.default": _arange, "aten.arange.start": _arange_start, "aten.arange.start_step": _arange_step,
    "aten.eye.default": _eye, "aten.eye.m": _eye, "aten.scalar_tensor.default": _scalar_tensor,
}  # fmt: skip

STRIDED = {"aten.empty_strided.default": 1, "aten.new_empty_strided.default": 2}
"""The position of the strides among the arguments."""
