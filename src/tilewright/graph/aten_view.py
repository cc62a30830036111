"""ATen's view overloads as chains of view rows.

In: a chain builder at the operand, the result's shape (torch has worked it out), ATen's further arguments. Out: the longer
chain; of operators with several results, one chain a result. Must not know memory or strides, but for `as_strided`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import strides as st
from .functionalize import Builder
from .strides import Sizes


def _reshape(b: Builder, out: Sizes, *args: Any, **kwargs: Any) -> Builder:
    return b.reshape(out)


def _same(b: Builder, out: Sizes, *args: Any, **kwargs: Any) -> Builder:
    return b


def _transpose(b: Builder, out: Sizes, dim0: int, dim1: int) -> Builder:
    rank = len(out)
    if rank == 0:
        return b
    dims = list(range(rank))
    i, j = dim0 % rank, dim1 % rank
    dims[i], dims[j] = dims[j], dims[i]
    return b.permute(tuple(dims))


def _t(b: Builder, out: Sizes) -> Builder:
    return b.permute((1, 0)) if len(out) == 2 else b


def _permute(b: Builder, out: Sizes, dims: Any) -> Builder:
    return b.permute(tuple(d % len(out) for d in dims))


def _expand(b: Builder, out: Sizes, size: Any = None, *, implicit: bool = False) -> Builder:
    return b.expand(out)


def _slice(b: Builder, out: Sizes, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Builder:
    dim %= len(b.shape)
    size = b.shape[dim]
    first = _bound(0 if start is None else start, size)
    return b.slice(dim, first, max(first, _bound(size if end is None else end, size)), step)


def _bound(at: int, size: int) -> int:
    return min(max(at + size if at < 0 else at, 0), size)


def _select(b: Builder, out: Sizes, dim: int, index: int) -> Builder:
    dim %= len(b.shape)
    index = index + b.shape[dim] if index < 0 else index
    return b.slice(dim, index, index + 1).reshape(out)


def _unfold(b: Builder, out: Sizes, dim: int, size: int, step: int) -> Builder:
    if not b.shape:
        return b.reshape(out)
    strides = list(st.contiguous(b.shape))
    dim %= len(strides)
    inner = strides[dim]
    strides[dim] = inner * step
    return b.strided(out, (*strides, inner), 0)


def _diagonal(b: Builder, out: Sizes, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Builder:
    strides, rank = list(st.contiguous(b.shape)), len(b.shape)
    i, j = dim1 % rank, dim2 % rank
    first = (offset * strides[j] if offset >= 0 else -offset * strides[i]) if out[-1] else 0
    rest = [s for d, s in enumerate(strides) if d not in (i, j)]
    return b.strided(out, (*rest, strides[i] + strides[j]), first)


Single = Callable[..., Builder]

SINGLE: dict[str, Single] = {
    **dict.fromkeys(
        (
            "aten.view.default", "aten._unsafe_view.default", "aten._reshape_alias.default", "aten.unsqueeze.default",
            "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
        ),
        _reshape,
    ),
    **dict.fromkeys(("aten.alias.default", "aten.detach.default", "aten.view_as.default", "aten.lift.default"), _same),
    "aten.transpose.int": _transpose, "aten.t.default": _t, "aten.permute.default": _permute, "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice, "aten.select.int": _select, "aten.unfold.default": _unfold, "aten.diagonal.default": _diagonal,
}  # fmt: skip


def _parts(dim: int, sizes: list[int]) -> list[tuple[int, int, int]]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [(dim, start, start + n) for start, n in zip(starts, sizes)]


def _split(shape: Sizes, outs: list[Sizes], size: Any, dim: int = 0) -> list[tuple[int, int, int]]:
    dim %= len(shape)
    return _parts(dim, [out[dim] for out in outs])


def _unbind(shape: Sizes, outs: list[Sizes], dim: int = 0) -> list[tuple[int, int, int]]:
    return [(dim % len(shape), i, i + 1) for i in range(len(outs))]


SEVERAL: dict[str, Callable[..., list[tuple[int, int, int]]]] = {
    "aten.split.Tensor": _split, "aten.split_with_sizes.default": _split, "aten.unsafe_split.Tensor": _split,
    "aten.unsafe_split_with_sizes.default": _split, "aten.unbind.int": _unbind,
}  # fmt: skip
"""As (dim, start, stop) of each result, which is then reshaped to its own shape."""
