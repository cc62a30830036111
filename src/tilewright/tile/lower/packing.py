"""Operands of matmul in panels: internal operators that the lowering puts in place of a matmul with a constant right side.

In: `matmul(a, b)`. Out: `packed_matmul(a, pack(b))`. Panels are [ceil(N / nr)][K][nr], zero beyond N, so that a micro-kernel
reads them in order; with pairs [ceil(N / nr)][ceil(K / 2)][nr][2], zero beyond K too. Must not know tiles or statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...base.dims import Size
from ...base.dtypes import DType
from ...graph.ir import Attrs, Family, Node, Op, TensorType, Type
from ..schedule import Machine


@dataclass(frozen=True)
class PackAttrs(Attrs):
    """`pair` consecutive rows of K lie together, as instructions that multiply pairs want them. `wide`: in the compute type."""

    nr: int
    pair: int = 1
    wide: bool = False


def _infer_pack(attrs: PackAttrs, b: Type) -> TensorType:
    assert isinstance(b, TensorType)
    *batch, k, n = b.shape
    dtype = b.dtype.compute if attrs.wide else b.dtype
    panels, pair = (n + attrs.nr - 1) // attrs.nr, attrs.pair
    if pair == 1:
        return TensorType(dtype, (*batch, panels, k, attrs.nr))
    return TensorType(dtype, (*batch, panels, (k + pair - 1) // pair, attrs.nr, pair))


@dataclass(frozen=True)
class PackedAttrs(Attrs):
    """`columns`: N, of which the last panel may hold a part only. `pair` is the packed operand's."""

    columns: Size
    pair: int = 1


def _infer_packed(attrs: PackedAttrs, a: Type, b: Type) -> TensorType:
    assert isinstance(a, TensorType) and isinstance(b, TensorType)
    batch = broadcast_shape(a.shape[:-2], b.shape[: -3 if attrs.pair == 1 else -4])
    return TensorType(a.dtype, (*batch, a.shape[-2], attrs.columns))


def _no_eager(attrs: Attrs, *tensors: Any) -> Any:
    raise NotImplementedError("an operator internal to the lowering has no eager meaning")


PACK = Op("pack", Family.INDEX, _infer_pack, _no_eager, PackAttrs, arity=1)
PACKED_MATMUL = Op("packed_matmul", Family.CONTRACT, _infer_packed, _no_eager, PackedAttrs, arity=2)


def pair_of(machine: Machine, dtype: DType, k: Size) -> int:
    """How many rows of K lie together in a packed right side; instructions for pairs want to know K."""
    return machine.pair_of(dtype, k) if isinstance(k, int) else 1


def broadcast_shape(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    return tuple(b if a == 1 else a for a, b in zip(x, y, strict=True))


def packed(n: Node, a: Node, b: Node, nr: int, pair: int = 1, wide: bool = False) -> Node:
    """The matmul `n` over `a` and a packed `b`."""
    return PACKED_MATMUL(a, PACK(b, nr=nr, pair=pair, wide=wide), columns=n.shape[-1], pair=pair)
