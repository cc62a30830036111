"""Attention: softmax(q k^T * scale + mask) v, written out in matmuls, becomes the `attention` operator.

In: a graph with composed views. Out: the same graph, where each such pattern is one node whose scores never reach memory;
masks that are causal or attend to everything are recognised by value; repeated key and value heads become grouped heads.
Must not know how attention is computed.

A pattern whose scores or weights something else reads stays as it is. The scale is applied to float32 scores, up to
rounding; a row that may attend to nothing keeps softmax's NaN (`safe` is False).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ..ir import Attrs, Graph, Node, make, over, users
from ..ops.composite import SOFTMAX, SoftmaxAttrs
from ..ops.contract import ATTENTION, MATMUL, AttentionAttrs
from ..ops.index import TAKE, DimAttrs
from ..ops.pointwise import ADD, CAST, DIV, MUL, NOT, WHERE
from ..ops.view import EXPAND, RESHAPE, PermuteAttrs
from .constants import known_value, scalar_of
from .outward import pointwise
from .views import permute, reshape

_VANISHES = -1e30  # a score at or below this beside an ordinary one has the weight 0


def find_attention(graph: Graph) -> Graph:
    roots = set(graph.roots)
    reads = {n: len(by) + (n in roots) for n, by in users(graph).items()}
    masks = Masks()
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        found = _match(n, reads, masks) if n.op is MATMUL else None
        if found is not None:
            new[n] = found.build(new.__getitem__, masks)
        elif isinstance(n.attrs, AttentionAttrs):
            new[n] = _simplified(n.attrs, [new[a] for a in n.args], masks)
        else:
            new[n] = over(n, tuple([new[a] for a in n.args]))
    return graph.with_roots(new.__getitem__)


@dataclass(frozen=True)
class Found:
    """An attention in nodes of the graph before the pass; `keys` is k^T. `negated`: the mask tells what is left out."""

    q: Node
    keys: Node
    v: Node
    attrs: AttentionAttrs
    mask: Node | None = None
    negated: bool = False

    def build(self, new: Callable[[Node], Node], masks: Masks) -> Node:
        order = (*range(len(self.keys.shape) - 2), len(self.keys.shape) - 1, len(self.keys.shape) - 2)
        operands = [new(self.q), permute(new(self.keys), order), new(self.v)]
        if self.mask is not None:
            mask = new(self.mask)
            operands.append(pointwise(NOT, (mask,), Attrs(), mask.shape) if self.negated else mask)
        return _simplified(self.attrs, operands, masks)


def _match(n: Node, reads: dict[Node, int], masks: Masks) -> Found | None:
    """The attention that ends in the matmul `n`, if there is one."""
    weights, v = n.args
    if weights.op is CAST and reads[weights] == 1:
        weights = weights.args[0]
    if weights.op is not SOFTMAX or weights.attrs != SoftmaxAttrs(len(weights.shape) - 1) or reads[weights] != 1:
        return None
    found = _scores(weights.args[0], reads, masks, 1.0, None, False)
    if found is None or found.q.dtype is not v.dtype or weights.dtype not in (v.dtype, v.dtype.compute):
        return None
    batch = found.q.shape[:-2]
    fits = batch == found.keys.shape[:-2] == v.shape[:-2] and weights.shape == (*batch, found.q.shape[-2], found.keys.shape[-1])
    return replace(found, v=v) if fits and len(batch) >= 1 else None


def _scores(s: Node, reads: dict[Node, int], masks: Masks, scale: float, mask: Node | None, negated: bool) -> Found | None:
    """From the softmax's operand down to the matmul, through scales, at most one mask, and casts to the compute type.

    The mask comes after the scales, so it is met first.
    """
    while reads[s] == 1 and s.op is not MATMUL:
        factor = _factor(s)
        if s.op is CAST and s.args[0].dtype.compute is s.dtype:
            s = s.args[0]
        elif factor is not None:
            s, by = factor
            scale *= by
        elif mask is None and scale == 1.0 and s.op is WHERE:
            return _under_where(s, reads, masks)
        elif mask is None and scale == 1.0 and s.op is ADD:
            x, y = s.args
            first = _scores(x, reads, masks, 1.0, y, False)
            return first or _scores(y, reads, masks, 1.0, x, False)
        else:
            return None
    if s.op is not MATMUL or reads[s] != 1 or (mask is not None and mask.dtype is not s.dtype and not _is_test(mask)):
        return None
    q, keys = s.args
    return Found(q, keys, keys, AttentionAttrs(scale=scale, causal=False, safe=False), mask, negated)


def _is_test(mask: Node) -> bool:
    return mask.dtype.kind == "bool"


def _factor(s: Node) -> tuple[Node, float] | None:
    """(x, c) where `s` is x * c, c * x or x / c with a constant c."""
    if s.op is not MUL and s.op is not DIV:
        return None
    x, y = s.args
    if s.op is MUL and scalar_of(y) is None:
        x, y = y, x
    c = scalar_of(y)
    if c is None or not math.isfinite(c) or c == 0:
        return None
    if x.shape != s.shape:
        return None
    return (x, float(c)) if s.op is MUL else (x, 1.0 / float(c))


def _under_where(s: Node, reads: dict[Node, int], masks: Masks) -> Found | None:
    """Scores replaced by a constant: -inf always is a mask; a finite one where each row is known to keep a score."""
    test, kept, left = s.args
    negated = scalar_of(kept) is not None
    if negated:
        kept, left = left, kept
    fill = scalar_of(left)
    if fill is None or kept.shape != s.shape:
        return None
    if fill != -math.inf and not (fill <= _VANISHES and masks.every_row_attends(test, negated)):
        return None
    return _scores(kept, reads, masks, 1.0, test, negated)


def _simplified(attrs: AttentionAttrs, operands: Sequence[Node], masks: Masks) -> Node:
    """The operator without repeated heads and with its mask in the simplest form."""
    q, k, v, *rest = operands
    keys, values = _unrepeated(k), _unrepeated(v)
    if keys is not None and values is not None and keys.shape[:-1] == values.shape[:-1]:
        k, v = keys, values
    rest = [m.args[0] if m.op is EXPAND else m for m in rest]
    if rest:
        kind = masks.kind(rest[0], q.shape[-2], k.shape[-2])
        if kind == "causal":
            attrs = replace(attrs, causal=True)
        rest = [_gathered_in_order(rest[0])] if kind == "other" else []
    return make(ATTENTION, (q, k, v, *rest), attrs)


def _unrepeated(x: Node) -> Node | None:
    """The heads that `x` repeats: x is [B.., g * n, S, D], each of g heads n times in turn."""
    if x.op is not RESHAPE or x.args[0].op is not EXPAND:
        return None
    repeated = x.args[0]
    heads = repeated.args[0]
    if len(repeated.shape) != len(x.shape) + 1 or len(heads.shape) != len(repeated.shape) or heads.shape[-3] != 1:
        return None
    batch, tail = x.shape[:-3], x.shape[-2:]
    groups = heads.shape[-4]
    if heads.shape != (*batch, groups, 1, *tail) or repeated.shape[:-3] != (*batch, groups) or repeated.shape[-2:] != tail:
        return None
    return reshape(heads, (*batch, groups, *tail))


def _gathered_in_order(mask: Node) -> Node:
    """A bias looked up in a table [positions, heads] and then permuted to [heads, rows, columns]: looked up in that order."""
    x = mask.args[0] if mask.op is RESHAPE else mask
    if not isinstance(x.attrs, PermuteAttrs):
        return mask
    source = x.args[0]
    looked_up = source.args[0] if source.op is RESHAPE else source
    rows = source.shape[:-1]
    if x.attrs.dims != (len(rows), *range(len(rows))) or looked_up.op is not TAKE or looked_up.attrs != DimAttrs(0):
        return mask
    table, index = looked_up.args
    if len(table.shape) != 2 or source.shape[-1] != table.shape[1]:
        return mask
    return reshape(TAKE(permute(table, (1, 0)), reshape(index, rows), dim=1), mask.shape)


class Masks:
    """What masks hold, where they depend on no input; each is computed once."""

    def __init__(self) -> None:
        self._values: dict[Node, torch.Tensor | None] = {}

    def value(self, mask: Node) -> torch.Tensor | None:
        if mask not in self._values:
            self._values[mask] = known_value(mask)
        return self._values[mask]

    def every_row_attends(self, mask: Node, negated: bool) -> bool:
        value = self.value(mask)
        if value is None or not mask.shape:
            return False
        return bool((value.logical_not() if negated else value).any(-1).all())

    def kind(self, mask: Node, rows: object, columns: object) -> str:
        """ "all" attends to everything, "causal" to columns 0..row; "other" is neither or unknown."""
        value = self.value(mask)
        if value is None or not isinstance(rows, int) or not isinstance(columns, int):
            return "other"
        attends = value if value.dtype is torch.bool else value == 0
        if value.dtype is not torch.bool and not bool((attends | (value == -math.inf)).all()):
            return "other"
        if bool(attends.all()):
            return "all"
        lower = torch.ones(rows, columns, dtype=torch.bool).tril()
        return "causal" if bool((attends == lower).all()) else "other"
