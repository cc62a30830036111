"""Writes to computed places: a node whose result is one operand with another's elements put into it.

In: a scatter group. Out: groups that `lower_pointwise` understands, one a launch, in order. Must not know kernels.
"""

from __future__ import annotations

import math

from ...graph.ops.index import AsStridedScatterAttrs
from ..fuse import Group, new_group
from .space import reshape_index, shape_of


def scatter_steps(group: Group) -> list[Group]:
    """First everything of the operand, then the elements that replace some."""
    n = group.members[0]
    assert isinstance(n.attrs, AsStridedScatterAttrs)
    x, src = n.args
    shape = shape_of(n)
    base = new_group("scatter_base", shape, group.folded, group.order)
    base.add(n, base.domain)
    base.sources[n] = x
    if src.tensor.numel == 0:
        return [base]
    over = new_group("scatter_source", shape_of(src), group.folded, group.order)
    flat = over.space.linear(over.domain, n.attrs.strides, n.attrs.offset)
    over.add(n, reshape_index(over.space, (flat,), (math.prod(shape),), shape))
    over.sources[n] = src
    return [base, over]
