"""Calls of eager operators that have no row. In: an ATen overload's name and its arguments. Out: `call` and `getitem` nodes.

The arguments become a hashable spec in which a `TensorArg` stands for each tensor; `spec_of` and `fill` are inverse.
Must not know where the tensors live. An effectful call (a random draw, a callback) has its own `seq`, so it is never merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...base.dims import Dim
from ..ir import Attrs, Family, Op, TensorType, TupleType, Type
from .rules import NumberAttrs, require, tensor

# None | bool | int | float | complex | str | Dim | torch.dtype | torch.device | torch.layout | torch.memory_format
# | TensorArg | a tuple of these, for the operator's lists
Spec: TypeAlias = Any
Args: TypeAlias = tuple[Spec, ...]
Kwargs: TypeAlias = tuple[tuple[str, Spec], ...]

PURE = -1  # the `seq` of a call that may be merged with an equal one

_ATOMS = (bool, int, float, complex, str, Dim, torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class TensorArg:
    """The place of operand `index` in a call's arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class CallAttrs(NumberAttrs):
    """`overload` as in "aten.foo.default"; `kwargs` in the order of names; `type` is what the call gives."""

    overload: str
    args: Args
    kwargs: Kwargs
    type: Type
    seq: int = PURE


@dataclass(frozen=True)
class GetitemAttrs(Attrs):
    index: int


def spec_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Args, Kwargs], list[Any]]:
    """((args, kwargs) as specs, the tensors in order of first appearance), the same tensor once.

    Anything that is neither an atom of a spec nor a list, tuple or dict is taken for a tensor, so nodes may stand for them.
    Raises ValueError for a generator, which no spec can hold.
    """
    tensors: list[Any] = []
    places: dict[int, TensorArg] = {}

    def walk(value: Any) -> Spec:
        if value is None or isinstance(value, _ATOMS):
            return value
        if isinstance(value, list | tuple):
            return tuple(walk(v) for v in value)
        if isinstance(value, torch.Generator):
            raise ValueError("a generator cannot be an argument of a recorded call")
        place = places.get(id(value))
        if place is None:
            place = places[id(value)] = TensorArg(len(tensors))
            tensors.append(value)
        return place

    spec = tuple(walk(a) for a in args), tuple((name, walk(kwargs[name])) for name in sorted(kwargs))
    return spec, tensors


def fill(args: Args, kwargs: Kwargs, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments again, `tensors[i]` in the place of `TensorArg(i)`; sequences are lists."""

    def walk(spec: Spec) -> Any:
        if isinstance(spec, TensorArg):
            return tensors[spec.index]
        return [walk(s) for s in spec] if isinstance(spec, tuple) else spec

    return [walk(a) for a in args], {name: walk(v) for name, v in kwargs}


def resolve(overload: str) -> Any:
    """The torch operator of "namespace.name.overload". Raises ValueError where torch has none."""
    parts = overload.split(".")
    require(len(parts) == 3, f"an overload is named namespace.name.overload, not {overload!r}")
    found: Any = torch.ops
    for part in parts:
        found = getattr(found, part, None)
        require(found is not None, f"torch has no operator {overload!r}")
    return found


def _infer_call(attrs: CallAttrs, *types: Type) -> Type:
    for t in types:
        tensor(t)
    require(_highest((attrs.args, attrs.kwargs)) == len(types) - 1, f"the spec does not name {len(types)} operands")
    return attrs.type


def _highest(spec: Spec) -> int:
    if isinstance(spec, TensorArg):
        return spec.index
    return max((_highest(s) for s in spec), default=-1) if isinstance(spec, tuple) else -1


def _call(attrs: CallAttrs, *tensors: torch.Tensor) -> Any:
    """Operands come as row-major memory: some operators take that for granted (oneDNN's recurrent layers)."""
    args, kwargs = fill(attrs.args, attrs.kwargs, [t.contiguous() for t in tensors])
    return resolve(attrs.overload)(*args, **kwargs)


def _infer_getitem(attrs: GetitemAttrs, t: Type) -> TensorType:
    if not isinstance(t, TupleType):
        raise ValueError("an operand with several results expected")
    require(0 <= attrs.index < len(t.items), f"no result {attrs.index} of {len(t.items)}")
    return t.items[attrs.index]


CALL = Op("call", Family.OPAQUE, _infer_call, _call, CallAttrs)
GETITEM = Op("getitem", Family.OPAQUE, _infer_getitem, lambda a, results: results[a.index], GetitemAttrs, arity=1)

ROWS = (CALL, GETITEM)
