"""Example tensors for types. In: a type's text or a `TensorType`, with strides. Out: tensors. Must not know what reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from ..base import dims, dtypes, errors
from ..base.dims import Size
from ..graph.ir import Graph, TensorType
from ..graph.ops.torch_dtypes import to_torch

_TYPE = re.compile(r"(\w+)\[([\d,\s]*)\]")


def parse_type(text: str) -> TensorType:
    """The type of a text such as "f32[8, 256]". Raises OptionError."""
    m = _TYPE.fullmatch(text.strip())
    if m is None or m[1] not in dtypes.BY_NAME:
        raise errors.OptionError(option="type", choices="a type such as f32[8, 256]", value=text)
    return TensorType(dtypes.named(m[1]), tuple(int(n) for n in m[2].split(",") if n.strip()))


def example(type_: TensorType, strides: Sequence[Size] | None = None) -> torch.Tensor:
    """Random floats; zeros and ones of other types, which are valid indices of most tables. Sizes must be constants."""
    dtype, shape = to_torch(type_.dtype), dims.as_ints(type_.shape)
    values = torch.randn(shape) if type_.dtype.is_float else torch.randint(0, 2, shape)
    if strides is None:
        return values.to(dtype)
    made = torch.empty_strided(shape, dims.as_ints(strides), dtype=dtype)
    return made.copy_(values) if 0 not in made.stride() else values.to(dtype)[_firsts(made)].as_strided(shape, made.stride())


def _firsts(t: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(0, 1) if step == 0 else slice(None) for step in t.stride())


def examples(graph: Graph) -> list[torch.Tensor]:
    """One tensor an input, with the input's strides."""
    return [example(n.tensor, s) for n, s in zip(graph.inputs, graph.strides, strict=True)]
