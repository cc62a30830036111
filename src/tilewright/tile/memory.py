"""The simulator's memory: flat arrays seen through a buffer's strides or layout, with what is defined and who touched it.

In: NumPy arrays, buffers whose sizes are known. Out: reads and writes of elements by address. Must not know statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.dtypes import DType
from .evaluate import Array, decode, encode, evaluate, stored
from .ir import Buffer, Expr, Var


@dataclass(eq=False)
class Memory:
    """Elements behind a pointer: a flat, writable 1-D array and the element that the pointer stands at.

    bfloat16 is kept as its bits in uint16, or as rounded values in float32; 8-bit floats likewise (uint8); bool as bool.
    `defined` marks the elements that hold a value; None stands for all of them.
    """

    flat: np.ndarray
    offset: int = 0
    defined: np.ndarray | None = None

    @staticmethod
    def undefined(dtype: DType, size: int, track: bool = True) -> Memory:
        """`size` elements without a value: NaN in floats, a large pattern in integers."""
        kind = stored(dtype)
        flat = np.full(size, np.nan, kind) if kind.kind in "fc" else np.full(size * kind.itemsize, 0x7F, np.uint8).view(kind)
        return Memory(flat, 0, np.zeros(size, np.bool_) if track else None)

    def at(self, offset: int) -> Memory:
        """The same memory, `offset` elements further on."""
        return Memory(self.flat, self.offset + offset, self.defined)


class Races:
    """Who read and wrote each element of one memory during one parallel phase.

    A toucher is a stamp; stamps of one phase are larger than all earlier ones, so nothing needs clearing: `base` itself
    stands for "several readers", `base + 1` for atomic updates, iterations count from `base + FIRST`.
    """

    FIRST = 2

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, -1, np.int64)
        self.reader = np.full(size, -1, np.int64)

    def read(self, address: Array, stamp: Array, base: int) -> bool:
        """Note reads; False where another iteration wrote an element."""
        writer, reader = self.writer[address], self.reader[address]
        clean = not np.any((writer >= base) & (writer != stamp))
        self.reader[address] = np.where((reader >= base) & (reader != stamp), base, stamp)
        again = self.reader[address]
        if np.any(shared := (again != stamp) & (again != base)):
            self.reader[np.broadcast_to(address, shared.shape)[shared]] = base
        return clean

    def write(self, address: Array, stamp: Array, base: int) -> bool:
        """Note writes; False where another iteration read or wrote an element."""
        writer, reader = self.writer[address], self.reader[address]
        clean = not np.any(((writer >= base) & (writer != stamp)) | ((reader >= base) & (reader != stamp)))
        self.writer[address] = stamp
        return clean and not np.any(self.writer[address] != stamp)


@dataclass(eq=False)
class Bound:
    """A buffer bound to memory: its sizes evaluated."""

    buffer: Buffer
    memory: Memory
    shape: tuple[int, ...]
    steps: tuple[int, ...] | None  # None: by the layout
    layout_sizes: dict[Expr, Array] = field(default_factory=dict)  # the scalars that the layout's address may name
    fits: bool = field(init=False)  # every element of the shape is known to lie in the memory

    def __post_init__(self) -> None:
        self.fits = False
        if self.steps is not None and all(t >= 0 for t in self.steps):
            last = self.memory.offset + sum((n - 1) * t for n, t in zip(self.shape, self.steps, strict=True))
            self.fits = last < self.memory.flat.size

    def address(self, index: Sequence[Array]) -> Array:
        """The element of `memory.flat` at each index; indices broadcast. Nothing is checked."""
        if self.steps is not None:
            start = self.memory.offset
            total: Any = None
            for i, step in zip(index, self.steps, strict=True):
                if not i.ndim:
                    start += int(i) * step
                elif step:
                    part = i if step == 1 else i * step
                    total = part if total is None else total + part
            return np.int64(start) if total is None else total + start
        layout = self.buffer.layout
        assert layout is not None
        sizes, known = self.layout_sizes, dict(zip(layout.vars, index, strict=True))
        where = evaluate(layout.address, lambda e: known[e] if isinstance(e, Var) and e in known else sizes[e])
        return where + self.memory.offset

    def load(self, address: Array) -> Array:
        return decode(self.memory.flat[address], self.buffer.dtype)

    def store(self, address: Array, value: Array) -> None:
        flat = self.memory.flat
        flat[address] = encode(value, self.buffer.dtype, flat.dtype)
        if self.memory.defined is not None:
            self.memory.defined[address] = True

    def undefined(self, address: Array) -> bool:
        """Whether some element of these holds no value."""
        defined = self.memory.defined
        return defined is not None and not defined[address].all()
