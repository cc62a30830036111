"""Why two groups of a partition are two kernels: a sentence for each value that one leaves in memory for the other.

In: a partition after fusion and inlining. Out: `Boundary`s. The reasons are read off the groups as they are, by the rules that
`tile/fuse.py` and `tile/lower/inline.py` follow; nothing here decides anything. Must not know kernels, memory or targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..graph.ir import Family, Node
from ..tile.fuse import MOST_MEMBERS, Group, Partition
from ..tile.lower.inline import external_reads
from ..tile.lower.views import is_view


@dataclass(frozen=True, eq=False)
class Boundary:
    """`producer` leaves `value` in memory, from where `consumer` reads it."""

    producer: Group
    consumer: Group
    value: Node
    reason: str


def boundaries(parts: Partition, groups: Iterable[Group]) -> list[Boundary]:
    """One entry for each value that a group of `groups` reads from another one."""
    found = []
    for consumer in groups:
        for value in external_reads(parts, consumer):
            producer = parts.group_of.get(value)
            if producer is not None and producer is not consumer:
                found.append(Boundary(producer, consumer, value, reason(parts, producer, consumer, value)))
    return found


_CORES = {
    "contract": "an operand of a product is read once for every block of the result, so it is computed before",
    "attention": "attention reads its operands in blocks, several times over, so they are computed before",
    "scan": "a scan reads its operand along the whole dimension",
}
_ENDS = {
    "attention": "attention takes no operators behind it",
    "scan": "a scan takes no operators behind it",
    "scatter": "writing into part of a tensor is a kernel of its own",
    "pack": "packed weights are made for another layout",
    "copy": "a copy is made where strides cannot express a view",
}


def reason(parts: Partition, producer: Group, consumer: Group, value: Node) -> str:
    """The first rule that keeps the two apart."""
    readers = list(_readers(parts, consumer, value))
    if producer.folded and not consumer.folded:
        return "it depends on weights only: computed once, and again when they change"
    if "call" in (producer.kind, consumer.kind):
        return "an eager call runs outside of kernels"
    if consumer.core is not None and consumer.core in readers and consumer.kind in _CORES:
        return _CORES[consumer.kind]
    if consumer.effect is not None:
        return "an argument is written in place after everything was read"
    if producer.kind in _ENDS:
        return _ENDS[producer.kind]
    if consumer.kind in ("copy", "scatter", "pack"):
        return _ENDS[consumer.kind]
    if len(producer.members) >= MOST_MEMBERS:
        return f"the kernel already has {MOST_MEMBERS} operators"
    if any(r.op.family is Family.INDEX for r in readers):
        return "it is read at other places than where it is computed"
    if consumer.kind == "rows":
        return _rows_reason(producer, consumer)
    if _need_later(parts, producer, readers):
        return "its reader is part of the kernel of another operand, which comes later"
    if len({r.shape for r in readers} | {value.shape}) > 1 or producer.shape != consumer.shape:
        return f"different iteration spaces: {_space(producer)} and {_space(consumer)}"
    return "computing it again in each kernel that reads it would cost more than reading it back"


def _rows_reason(producer: Group, consumer: Group) -> str:
    if producer.kind == "contract":
        return "a row is reduced whole, and a block of a product holds part of a row"
    if producer.kind == "rows" and (producer.shape, producer.reduced) != (consumer.shape, consumer.reduced):
        return f"reductions over other dimensions: {_space(producer)} and {_space(consumer)}"
    if producer.shape != consumer.shape:
        return f"different iteration spaces: {_space(producer)} and {_space(consumer)}"
    return "computing it again in each kernel that reads it would cost more than reading it back"


def _space(group: Group) -> str:
    text = " × ".join(map(str, group.shape)) or "one element"
    return f"{text} reduced over {', '.join(map(str, group.reduced))}" if group.reduced else text


def _readers(parts: Partition, consumer: Group, value: Node) -> Iterator[Node]:
    """The nodes that the consumer computes and that read the value, perhaps through views."""
    for n in (*consumer.members, *consumer.inlined):
        if any(parts.base(a) is value for a in n.args) or (is_view(n) and parts.base(n) is value):
            yield n


def _need_later(parts: Partition, producer: Group, readers: list[Node]) -> bool:
    """Whether a reader has an operand from a later group than the producer."""
    groups = (parts.group_of.get(parts.base(a)) for r in readers for a in r.args)
    return any(g is not None and g.order > producer.order for g in groups)
