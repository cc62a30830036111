"""The tensors that user code sees while it is recorded.

In: a real tensor's or a result's metadata. Out: `Fake`, a tensor without memory that knows its value in the graph. Its
operations come to the recorder's modes. Must not know how an operation is recorded.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from ..base.errors import RecordError
from . import symbolic
from . import torch_private as private
from .functionalize import Chain, Memory
from .ir import Node
from .ops.torch_dtypes import to_torch
from .strides import Sizes


class Fake(torch.Tensor):
    """A view (`chain`) of a `memory`. `node` is its value when the memory was at `version`.

    `detached`: whether eager's tensor would be cut off from the gradients of its memory. `sizes`, `strides` and `offset`
    repeat the metadata as plain tuples. `twin`: see the function of that name.
    """

    memory: Memory
    chain: Chain
    node: Node
    version: int
    detached: bool
    sizes: Sizes
    strides: Sizes
    offset: int
    twin: torch.Tensor | None

    __torch_function__ = private.plain_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RecordError(
            what=str(func), reason="its operand belongs to a recording that is over",
            hint="do not keep tensors of a compiled function in globals or attributes",
        )  # fmt: skip


def fresh(node: Node, strides: Sizes, device: torch.device, tracked: bool) -> Fake:
    """A tensor in memory of its own. `node` has one result."""
    shape: Sizes = node.shape
    return of(Memory(node, shape, strides, 0, tracked=tracked), (), node, shape, strides, 0, device)


def of(
    memory: Memory,
    chain: Chain,
    node: Node,
    shape: Sizes,
    strides: Sizes,
    offset: int,
    device: torch.device,
    detached: bool = False,
) -> Fake:
    sizes, steps, first = symbolic.to_symints(shape), symbolic.to_symints(strides), symbolic.to_symint(offset)
    fake: Fake = private.wrapper(Fake, sizes, steps, first, to_torch(node.dtype), device)
    fake.memory = memory
    fake.chain = chain
    fake.node = node
    fake.version = memory.version
    fake.detached = detached
    fake.sizes = shape
    fake.strides = strides
    fake.offset = offset
    fake.twin = None
    return fake


def value(fake: Fake) -> Node:
    """What the tensor holds now."""
    memory = fake.memory
    if fake.version != memory.version:
        fake.node = memory.read(fake.chain)
        fake.version = memory.version
    return fake.node


def tracked(fake: Fake) -> bool:
    """Whether eager's tensor would require grad."""
    return fake.memory.tracked and not fake.detached


def write(fake: Fake, node: Node) -> None:
    """Let the tensor, and all that share its memory, hold `node`. Raises functionalize.Unsupported."""
    fake.memory.write(fake.chain, node)
    fake.node = node
    fake.version = fake.memory.version


def geometry(seen: torch.Tensor) -> tuple[Sizes, Sizes, int]:
    """A twin's shape, strides and offset."""
    return symbolic.sizes_of(seen.shape), symbolic.sizes_of(seen.stride()), symbolic.size_of(seen.storage_offset())


def kernels() -> contextlib.AbstractContextManager[Any]:
    """Within, torch's kernels run on twins, of symbolic sizes too."""
    return private.symbolic_kernels() if symbolic.is_open() else _NOTHING


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def twin(fake: Fake) -> torch.Tensor:
    """A meta tensor of the same metadata, on which torch works out views. Modes must be off."""
    if fake.twin is None:
        reach = (
            fake.offset + 1 + sum((n - 1) * s for n, s in zip(fake.sizes, fake.strides)) if math.prod(fake.sizes) else fake.offset
        )
        with kernels():
            base = torch.empty((symbolic.to_symint(reach),), dtype=fake.dtype, device="meta")
            sizes, strides = symbolic.to_symints(fake.sizes), symbolic.to_symints(fake.strides)
            fake.twin = torch.ops.aten.as_strided.default(base, sizes, strides, symbolic.to_symint(fake.offset))
    return fake.twin
