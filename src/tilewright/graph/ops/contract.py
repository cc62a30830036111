"""Contractions: matmul and attention. In: float operands of one dtype. Out: rows of the CONTRACT family.

16-bit floats accumulate in float32 and the result has the operands' dtype. Must not know tiles, packing or libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...base import dtypes
from ..ir import Attrs, Family, Node, Op, TensorType, Type
from . import composite, pointwise, view
from .index import IOTA
from .reduce import AMAX
from .rules import BOOL, FLOATS, NumberAttrs, admit, broadcast, one_dtype, require


def _infer_matmul(attrs: Attrs, a: Type, b: Type) -> TensorType:
    x, y = admit(a, FLOATS), admit(b, FLOATS)
    require(x.rank >= 2 and y.rank >= 2, "operands of rank 2 or more expected")
    require(x.shape[-1] == y.shape[-2], f"contracted sizes {x.shape[-1]} and {y.shape[-2]} differ")
    return TensorType(one_dtype((x, y)), broadcast(x.shape[:-2], y.shape[:-2]) + (x.shape[-2], y.shape[-1]))


MATMUL = Op("matmul", Family.CONTRACT, _infer_matmul, lambda attrs, a, b: torch.matmul(a, b), arity=2, dtypes=FLOATS)


@dataclass(frozen=True, eq=False)
class AttentionAttrs(NumberAttrs):
    """`scale` multiplies q k^T; `causal` lets query i attend to keys 0..i (aligned at the top left), and excludes a mask.

    A query whose scores are all -inf gives zeros where `safe`, as eager's operator does, else NaN, as a plain softmax does.
    """

    scale: float
    causal: bool = False
    safe: bool = True


def _infer_attention(attrs: AttentionAttrs, q: Type, k: Type, v: Type, *mask: Type) -> TensorType:
    tq, tk, tv = admit(q, FLOATS), admit(k, FLOATS), admit(v, FLOATS)
    dtype = one_dtype((tq, tk, tv))
    require(tq.rank == tk.rank == tv.rank and tq.rank >= 3, "q, k and v of one rank, 3 or more, expected")
    require(tq.shape[:-3] == tk.shape[:-3] == tv.shape[:-3], "batch dims of q, k and v differ")
    require(tk.shape[-3:-1] == tv.shape[-3:-1], f"k {tk.shape} and v {tv.shape} differ in heads or length")
    require(tq.shape[-1] == tk.shape[-1], f"q and k have head sizes {tq.shape[-1]} and {tk.shape[-1]}")
    heads, groups = tq.shape[-3], tk.shape[-3]
    require(heads == groups or (groups != 0 and heads % groups == 0), f"{heads} query heads are no multiple of {groups}")
    require(len(mask) <= 1, "one mask at most")
    for m in mask:
        require(not attrs.causal, "a mask and causal exclude each other")
        t = admit(m, (dtype, *BOOL))
        scores = tq.shape[:-1] + (tk.shape[-2],)
        require(broadcast(t.shape, scores) == scores, f"mask {t.shape} does not broadcast to {scores}")
    return TensorType(dtype, tq.shape[:-1] + (tv.shape[-1],))


def _attention(attrs: AttentionAttrs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
    if not attrs.safe:
        return _plain_attention(attrs, q, k, v, *mask)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask[0] if mask else None, is_causal=attrs.causal, scale=attrs.scale, enable_gqa=q.shape[-3] != k.shape[-3]
    )


def _plain_attention(
    attrs: AttentionAttrs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor
) -> torch.Tensor:
    wide = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    k, v = (x.repeat_interleave(q.shape[-3] // max(1, x.shape[-3]), -3).to(wide) for x in (k, v))
    scores = q.to(wide) @ k.mT * attrs.scale
    if attrs.causal:
        mask = (torch.ones(scores.shape[-2:], dtype=torch.bool).tril(),)
    if mask:
        bias = mask[0]
        scores = scores.masked_fill(bias.logical_not(), -math.inf) if bias.dtype is torch.bool else scores + bias.to(wide)
    return (torch.softmax(scores, -1) @ v).to(q.dtype)


def _expand_attention(attrs: AttentionAttrs, q: Node, k: Node, v: Node, *mask: Node) -> Node:
    """Scores, mask, softmax, product, all in the compute type."""
    dtype, wide = q.dtype, q.dtype.compute
    q, k, v = composite.widened(q), _grouped(composite.widened(k), q), _grouped(composite.widened(v), q)
    rank = len(q.shape)
    transposed = view.PERMUTE(k, dims=tuple(range(rank - 2)) + (rank - 1, rank - 2))
    scores = pointwise.MUL(MATMUL(q, transposed), pointwise.FULL(value=attrs.scale, dtype=wide))
    allowed = _causal(scores) if attrs.causal else mask[0] if mask else None
    if allowed is not None and allowed.dtype is dtypes.b1:
        scores = pointwise.WHERE(allowed, scores, pointwise.FULL(value=-math.inf, dtype=wide))
    elif mask:
        scores = pointwise.ADD(scores, composite.widened(mask[0]))
    weights = composite.SOFTMAX(scores, dim=rank - 1)
    if attrs.safe and mask and scores.shape[-1] != 0:
        weights = _without_masked_rows(scores, weights)
    return composite.narrowed(MATMUL(weights, v), dtype)


def _causal(scores: Node) -> Node:
    rows, columns = scores.shape[-2:]
    row = view.RESHAPE(IOTA(size=rows), shape=(rows, 1))
    return pointwise.LE(IOTA(size=columns), row)


def _without_masked_rows(scores: Node, weights: Node) -> Node:
    highest = AMAX(scores, dims=(len(scores.shape) - 1,), keepdim=True)
    nothing = pointwise.EQ(highest, pointwise.FULL(value=-math.inf, dtype=scores.dtype))
    return pointwise.WHERE(nothing, pointwise.FULL(value=0.0, dtype=scores.dtype), weights)


def _grouped(x: Node, q: Node) -> Node:
    """k or v with each head repeated for the query heads that share it."""
    heads, groups = q.shape[-3], x.shape[-3]
    if heads == groups:
        return x
    batch, tail = x.shape[:-3], x.shape[-2:]
    one = view.RESHAPE(x, shape=batch + (groups, 1) + tail)
    many = view.EXPAND(one, shape=batch + (groups, heads // groups) + tail)
    return view.RESHAPE(many, shape=batch + (heads,) + tail)


ATTENTION = Op(
    "attention", Family.CONTRACT, _infer_attention, _attention, AttentionAttrs, expand=_expand_attention, dtypes=FLOATS
)

ROWS = (MATMUL, ATTENTION)
