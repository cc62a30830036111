"""A lowered graph: kernels in launch order over named values in memory.

In: what the lowering made of a graph. Out: `Program`, the input of `targets/plan.py` and of a target's code generator.
Must not know how memory is found or how code is emitted.

    Program = values (Value...), steps (Step...), folded (Step...)
    Step    = Launch(kernel, args) | Call(node, args, results, library)
    Arg     = value, offset      -- a kernel's buffer parameter is a strided view of a value
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from ..base.dims import Size
from ..base.dtypes import DType
from ..graph.ir import Node
from .ir import Kernel


class Storage(enum.Enum):
    INPUT = "input"  # the caller's tensor; `index` among the graph's inputs
    OUTPUT = "output"  # allocated anew at each call; `index` among the graph's outputs
    TEMP = "temp"  # lives in the arena
    FOLDED = "folded"  # computed by `folded` steps from parameters and constants, again only when those change


@dataclass(frozen=True)
class Value:
    """A tensor in memory. Strides are in elements; `size` counts the elements from the first to the last one, plus one."""

    id: int
    dtype: DType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    storage: Storage
    index: int = -1
    name: str = ""

    @property
    def size(self) -> Size:
        if any(s == 0 for s in self.shape):
            return 0
        return 1 + sum((s - 1) * t for s, t in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> Size:
        return self.size * self.dtype.bytes


@dataclass(frozen=True)
class Arg:
    """What a kernel parameter is bound to: a value's memory, `offset` elements in."""

    value: Value
    offset: Size = 0


@dataclass(frozen=True)
class Launch:
    """Run `kernel` with one argument a parameter; `scalars` are the sizes it takes. Equal kernels are compiled once."""

    kernel: Kernel
    args: tuple[Arg, ...]
    scalars: tuple[Size, ...] = ()

    def reads(self) -> tuple[Value, ...]:
        return tuple(a.value for a, p in zip(self.args, self.kernel.params, strict=True) if p.name not in self.kernel.outputs)

    def writes(self) -> tuple[Value, ...]:
        return tuple(a.value for a, p in zip(self.args, self.kernel.params, strict=True) if p.name in self.kernel.outputs)


@dataclass(frozen=True)
class View:
    """A strided view of a value, as torch sees it: what a call is given."""

    value: Value
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0


@dataclass(frozen=True)
class Call:
    """Run `node` by eager torch: for want of a row (`library` False), or because the schedule chose the library.

    Results are copied into `results` unless the operator writes there itself. `items`: which of the node's results those are,
    of several; empty for all of them.
    """

    node: Node
    args: tuple[View, ...]
    results: tuple[Value, ...]
    library: bool
    items: tuple[int, ...] = ()

    def reads(self) -> tuple[Value, ...]:
        return tuple(a.value for a in self.args)

    def writes(self) -> tuple[Value, ...]:
        return self.results


Step: TypeAlias = Launch | Call


@dataclass(frozen=True)
class Program:
    """`values` lists every value once. `folded` steps read inputs of kind parameter or constant and folded values, and
    write folded values; `steps` read anything and write outputs, temps, and the inputs that the graph has effects on."""

    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    folded: tuple[Step, ...] = ()

    def kernels(self) -> list[Kernel]:
        """The distinct kernels, in order of first launch."""
        return list(dict.fromkeys(s.kernel for s in (*self.folded, *self.steps) if isinstance(s, Launch)))
