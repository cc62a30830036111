"""Writes to computed places: a node whose result is one operand with another's elements put into it.

In: a scatter group. Out: groups that `lower_pointwise` understands, one a launch, in order. Must not know kernels.
"""

from __future__ import annotations

import math

from ..fuse import Group, new_group
from .space import reshape_index


def scatter_steps(group: Group) -> list[Group]:
    """First everything of the operand, then the elements that replace some."""
    n = group.members[0]
    x, src = n.args
    base = new_group("scatter_base", n.shape, group.folded, group.order)  # type: ignore[arg-type]
    base.add(n, base.domain)
    base.sources[n] = x
    if src.tensor.numel == 0:
        return [base]
    over = new_group("scatter_source", src.shape, group.folded, group.order)  # type: ignore[arg-type]
    flat = over.space.linear(over.domain, n.attrs.strides, n.attrs.offset)  # type: ignore[attr-defined]
    over.add(n, reshape_index(over.space, (flat,), (math.prod(n.shape),), n.shape))  # type: ignore[arg-type]
    over.sources[n] = src
    return [base, over]
