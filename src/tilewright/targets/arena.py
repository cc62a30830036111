"""Places blocks of memory that live for a while into one arena. In: sizes and lifetimes. Out: offsets and the arena's size,
and which block lies below which, so that sizes known at run time only can be placed then.

Must not know what the blocks hold. Greedy by size over lifetimes with best fit, as surveyed in Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference" (2020); several orders are tried and the smallest arena taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(frozen=True)
class Block:
    """`size` bytes that hold something from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def arrange(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """An offset a block, aligned, such that blocks alive at one step do not overlap; and the bytes up to the last end."""
    numbered = range(len(blocks))
    orders = (
        sorted(numbered, key=lambda i: (-blocks[i].size, blocks[i].first, i)),
        sorted(numbered, key=lambda i: (blocks[i].first, -blocks[i].size, i)),
        sorted(numbered, key=lambda i: (-blocks[i].size * (blocks[i].last - blocks[i].first + 1), i)),
    )
    least = live_bytes(blocks)
    best: tuple[list[int], int] | None = None
    for order in orders:
        found = _placed(blocks, order)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == least:
            break
    assert best is not None  # there are orders
    return best


def directly_below(blocks: Sequence[Block], offsets: Sequence[int]) -> list[tuple[int, ...]]:
    """For each block those that it may begin right behind: of two blocks alive together, the arrangement has one below the other.

    What lies below one of them, again, is left out. Blocks of any size that keep this order do not overlap.
    """
    together = _together(blocks)
    beneath = [0] * len(blocks)  # a bit a block that lies below, at any distance
    direct: list[tuple[int, ...]] = [()] * len(blocks)
    for i in sorted(range(len(blocks)), key=lambda i: offsets[i]):
        found = []
        for j in sorted((j for j in together[i] if offsets[j] < offsets[i]), key=lambda j: -offsets[j]):
            if not beneath[i] >> j & 1:
                found.append(j)
                beneath[i] |= beneath[j] | 1 << j
        direct[i] = tuple(found)
    return direct


def _together(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks that are alive at some step with each one; blocks of no size are with none."""
    found: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for i in sorted((i for i, b in enumerate(blocks) if b.size), key=lambda i: blocks[i].first):
        alive = [j for j in alive if blocks[j].last >= blocks[i].first]
        for j in alive:
            found[i].append(j)
            found[j].append(i)
        alive.append(i)
    return found


def live_bytes(blocks: Iterable[Block]) -> int:
    """The most bytes that are alive at one step: no arena can be smaller."""
    changes: dict[int, int] = {}
    for b in blocks:
        changes[b.first] = changes.get(b.first, 0) + aligned(b.size)
        changes[b.last + 1] = changes.get(b.last + 1, 0) - aligned(b.size)
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def _placed(blocks: Sequence[Block], order: Iterable[int]) -> tuple[list[int], int]:
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, int, int]] = []  # start, end, first step, last step
    total = 0
    for i in order:
        b = blocks[i]
        size = aligned(b.size)
        if size:
            taken = sorted((start, end) for start, end, first, last in placed if first <= b.last and b.first <= last)
            offsets[i] = _best_gap(taken, size)
            placed.append((offsets[i], offsets[i] + size, b.first, b.last))
            total = max(total, offsets[i] + size)
    return offsets, total


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds `size`, or the end of what is taken."""
    best, room = -1, -1
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < room):
            best, room = end, gap
        end = max(end, stop)
    return end if best < 0 else best
