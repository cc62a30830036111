"""ATen's indexing and data movement as rows. In: nodes in ATen's argument order. Out: nodes.

`take` and `gather` know no negative index: where torch's operator wraps them, the wrap is recorded too. Must not know strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..base import dtypes
from .ir import Node
from .ops import index, view
from .ops import pointwise as pw
from .promotion import as_type, full, result_type

Build = Callable[..., Any]


def wrapped(i: Node, size: Any) -> Node:
    """The index with negative ones counted from the end."""
    i = as_type(i, dtypes.i64) if i.dtype not in index.INDICES else i
    return pw.WHERE(pw.LT(i, full(0, i.dtype)), pw.ADD(i, pw.FULL(value=size, dtype=i.dtype)), i)


def _embedding(weight: Node, i: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Node:
    return index.TAKE(weight, i, dim=0)


def _index_select(x: Node, dim: int, i: Node) -> Node:
    if not x.shape:
        raise ValueError("no dim to select from")
    return index.TAKE(x, i if i.shape else view.RESHAPE(i, shape=(1,)), dim=dim % len(x.shape))


def _gather(x: Node, dim: int, i: Node, *, sparse_grad: bool = False) -> Node:
    return index.GATHER(x, i, dim=dim % len(x.shape))


def _cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Empty vectors are left out, as in eager; dtypes are promoted."""
    dtype = result_type(*tensors)
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    operands = [as_type(t, dtype) for t in kept]
    return operands[0] if len(operands) == 1 else index.CAT(*operands, dim=dim % len(operands[0].shape))


def _stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    rank = len(tensors[0].shape) + 1
    d = dim % rank
    shapes = {t.shape for t in tensors}
    if len(shapes) != 1:
        raise ValueError("tensors of one shape expected")
    one = (*tensors[0].shape[:d], 1, *tensors[0].shape[d:])
    return _cat([view.RESHAPE(t, shape=one) for t in tensors], d)


def _constant_pad(x: Node, pad: Sequence[int], value: Any = 0) -> Node:
    """`pad` has (before, after) of the last dim first; negative ones cut."""
    rank = len(x.shape)
    pairs = [(0, 0)] * (rank - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    for d, (lo, hi) in enumerate(pairs):
        if lo < 0 or hi < 0:
            x = view.SLICE(x, dim=d, start=max(-lo, 0), stop=x.shape[d] - max(-hi, 0), step=1)
    pads = tuple((max(lo, 0), max(hi, 0)) for lo, hi in pairs)
    kind = float if x.dtype.is_float else bool if x.dtype is dtypes.b1 else int
    return index.PAD(x, pads=pads, value=kind(value))


def _flip(x: Node, dims: Sequence[int]) -> Node:
    return view.FLIP(x, dims=tuple(sorted({d % len(x.shape) for d in dims}))) if x.shape else x


def _roll(x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    if not dims:
        flat = view.RESHAPE(x, shape=(math.prod(x.shape),))
        return view.RESHAPE(_roll(flat, shifts, (0,)), shape=x.shape)
    for shift, d in zip(shifts, dims):
        d %= len(x.shape)
        size = x.shape[d]
        start = (size - shift) % size if size else 0
        if start:
            x = index.CAT(
                view.SLICE(x, dim=d, start=start, stop=size, step=1), view.SLICE(x, dim=d, start=0, stop=start, step=1), dim=d
            )
    return x


def _repeat(x: Node, repeats: Sequence[int]) -> Node:
    own = (1,) * (len(repeats) - len(x.shape)) + x.shape
    pairs = tuple(v for n, r in zip(own, repeats) for v in (r, n))
    ones = tuple(v for n in own for v in (1, n))
    many = view.EXPAND(view.RESHAPE(x, shape=ones), shape=pairs)
    return view.RESHAPE(many, shape=tuple(n * r for n, r in zip(own, repeats)))


def _triangle(upper: bool) -> Build:
    def build(x: Node, diagonal: int = 0) -> Node:
        rows, columns = x.shape[-2:]
        return pw.WHERE(triangle(rows, columns, diagonal, upper), x, full(0, x.dtype))

    return build


def triangle(rows: Any, columns: Any, diagonal: int, upper: bool) -> Node:
    """Whether column - row >= diagonal (upper) or <= diagonal (lower)."""
    i = view.RESHAPE(index.IOTA(size=rows, start=diagonal), shape=(rows, 1))
    j = index.IOTA(size=columns)
    return (pw.GE if upper else pw.LE)(j, i)


def index_tensors(x: Node, indices: Sequence[Node | None]) -> Node:
    """`x[indices]` with integer index tensors: their broadcast shape stands where they stood, or in front if they stand apart."""
    x, at, dims = gathered_front(x, indices)
    shape = _broadcast([i.shape for i in at])
    sizes = [x.shape[d] for d in dims]
    flat = None
    for i, size in zip(at, sizes):
        place = wrapped(i, size)
        if len(at) > 1:
            place = as_type(place, dtypes.i64)
        flat = place if flat is None else pw.ADD(pw.MUL(flat, pw.FULL(value=size, dtype=dtypes.i64)), place)
    assert flat is not None
    first = dims[0]
    if len(dims) > 1:
        x = view.RESHAPE(x, shape=(*x.shape[:first], math.prod(sizes), *x.shape[first + len(dims) :]))
    if flat.shape != shape:
        flat = view.EXPAND(flat, shape=shape)
    return index.TAKE(x, flat, dim=first)


def gathered_front(x: Node, indices: Sequence[Node | None]) -> tuple[Node, list[Node], list[int]]:
    """(x permuted so that the indexed dims are adjacent, the indices, those dims)."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    at = [i for i in indices if i is not None]
    if any(i.dtype.kind == "bool" or i.dtype is dtypes.u8 for i in at):
        raise ValueError("a mask's result has no size of its own")
    if not at:
        raise ValueError("nothing is indexed")
    if dims != list(range(dims[0], dims[0] + len(dims))):
        rest = [d for d in range(len(x.shape)) if d not in dims]
        x = view.PERMUTE(x, dims=tuple(dims + rest))
        dims = list(range(len(dims)))
    return x, at, dims


def _broadcast(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    found = []
    for sizes in zip(*padded):
        wide = {s for s in sizes if s != 1}
        if len(wide) > 1:
            raise ValueError("index shapes do not broadcast")
        found.append(wide.pop() if wide else 1)
    return tuple(found)


def index_put(x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    """Only writes of one value under a mask have a row."""
    masks = [i for i in indices if i is not None]
    if accumulate or len(masks) != 1 or masks[0].dtype is not dtypes.b1 or math.prod(values.shape) != 1:
        raise ValueError("no row writes through index tensors")
    first = next(d for d, i in enumerate(indices) if i is not None)
    mask, rank = masks[0], len(masks[0].shape)
    if mask.shape != x.shape[first : first + rank] or values.dtype is not x.dtype:
        raise ValueError("the mask does not fit")
    mask = view.RESHAPE(mask, shape=mask.shape + (1,) * (len(x.shape) - first - rank))
    return pw.WHERE(mask, view.RESHAPE(values, shape=()), x)


def _index_copy(x: Node, dim: int, i: Node, source: Node) -> Node:
    """Only a write at one place has a row, as a cache of keys and values makes it."""
    if math.prod(i.shape) != 1 or source.dtype is not x.dtype or not x.shape or len(source.shape) != len(x.shape):
        raise ValueError("no row writes through index tensors")
    d, rank = dim % len(x.shape), len(x.shape)
    places = index.IOTA(size=x.shape[d], dtype=dtypes.i64)
    place = index.TAKE(places, view.RESHAPE(as_type(i, dtypes.i64), shape=(1,)), dim=0)  # which it must be one of
    written = view.RESHAPE(pw.EQ(places, place), shape=(*[1] * d, x.shape[d], *[1] * (rank - d - 1)))
    if source.shape != (*x.shape[:d], 1, *x.shape[d + 1 :]):
        raise ValueError("the source has another shape")
    return pw.WHERE(written, source, x)


def _slice_scatter(x: Node, src: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Node:
    d = dim % len(x.shape)
    size: Any = x.shape[d]
    lo = min(max(0 if start is None else start + size if start < 0 else start, 0), size)
    hi = min(max(size if end is None else end + size if end < 0 else end, lo), size)
    return index.SLICE_SCATTER(x, as_type(src, x.dtype), dim=d, start=lo, stop=hi, step=step)


def _select_scatter(x: Node, src: Node, dim: int, at: int) -> Node:
    d = dim % len(x.shape)
    at = at if at >= 0 else at + x.shape[d]  # type: ignore[assignment]
    one = view.RESHAPE(as_type(src, x.dtype), shape=(*x.shape[:d], 1, *x.shape[d + 1 :]))
    return index.SLICE_SCATTER(x, one, dim=d, start=at, stop=at + 1, step=1)


def _masked_fill(x: Node, mask: Node, value: Any) -> Node:
    if isinstance(value, Node) and value.shape:
        raise ValueError("one value expected")
    return pw.WHERE(mask, as_type(value, x.dtype), x)


def _one_hot_nll(
    log_probabilities: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> tuple[Node, Node]:
    """nll_loss over classes in dim 1 (or 0 of a vector): (loss, total weight)."""
    from .ops.reduce import SUM

    x = log_probabilities
    dim = 1 if len(x.shape) > 1 else 0
    ignored = pw.EQ(target, full(ignore_index, target.dtype))
    place = pw.WHERE(ignored, full(0, target.dtype), target)
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    picked = view.RESHAPE(index.GATHER(x, view.RESHAPE(place, shape=shape), dim=dim), shape=target.shape)
    share = full(1, x.dtype) if weight is None else index.TAKE(weight, place, dim=0)
    share = pw.WHERE(ignored, full(0, x.dtype), share)
    losses = pw.MUL(pw.NEG(picked), share)
    losses = pw.WHERE(ignored, full(0, x.dtype), losses)
    every = tuple(range(len(target.shape)))
    total = SUM(share, dims=every) if every else share
    if reduction == 0:
        return losses, full(0, x.dtype)
    loss = SUM(losses, dims=every) if every else losses
    return (pw.DIV(loss, total) if reduction == 1 else loss), total


BUILDS: dict[str, Build] = {
    "aten.embedding.default": _embedding, "aten.index_select.default": _index_select, "aten.gather.default": _gather,
    "aten.cat.default": _cat, "aten.stack.default": _stack, "aten.constant_pad_nd.default": _constant_pad,
    "aten.flip.default": _flip, "aten.roll.default": _roll, "aten.repeat.default": _repeat,
    "aten.tril.default": _triangle(False), "aten.triu.default": _triangle(True),
    "aten.slice_scatter.default": _slice_scatter, "aten.select_scatter.default": _select_scatter,
    "aten.masked_fill.Scalar": _masked_fill, "aten.masked_fill.Tensor": _masked_fill,
    "aten.index.Tensor": index_tensors, "aten._unsafe_index.Tensor": index_tensors,
    "aten.index_copy.default": _index_copy, "aten.index_put.default": index_put, "aten._unsafe_index_put.default": index_put,
    "aten.nll_loss_forward.default": _one_hot_nll, "aten.nll_loss2d_forward.default": _one_hot_nll,
}  # fmt: skip
