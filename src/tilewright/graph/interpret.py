"""The reference interpreter: what a graph means, by the eager rows of the op table.

In: a `Graph` and one tensor an input. Out: the output tensors with the strides and the shared memory that the graph states;
effects are written into the inputs. `evaluate_body` does the same for scalar bodies. Must not know kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..base import dims, scalar
from ..base.dims import Size, Symbol
from ..base.scalar import Binary, Cast, Const, Expr, Select, Unary, Var, walk
from .ir import INPUT, Graph, Node, Output
from .ops.rules import field_names
from .ops.torch_dtypes import to_torch

# --- graphs -----------------------------------------------------------------------------------------------------------


def interpret(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The graph's outputs. Effects are written last, after every output that shares no input's memory was computed.

    Raises ValueError where the inputs are not the graph's in number, dtype or shape. Symbolic sizes are read off the inputs.
    """
    sizes = _bind(graph, inputs)
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for n in graph.in_sequence():
        if n.op is not INPUT:
            values[n] = _run(n, [values[a] for a in n.args], sizes)
    fresh = _fresh_outputs(graph, values, sizes)
    written = [(inputs[e.index], values[e.node].clone()) for e in graph.effects]
    for target, value in written:
        target.copy_(value)
    return [fresh[i] if i in fresh else _seen(inputs[_alias_index(o)], o, sizes) for i, o in enumerate(graph.outputs)]


def _run(n: Node, tensors: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    attrs = static_attrs(n.attrs, sizes) if sizes else n.attrs
    return n.op.eager(attrs, *tensors)


def static_attrs(attrs: Any, sizes: Mapping[str, int]) -> Any:
    """The attributes with each symbolic size replaced by its value."""

    def value(v: Any) -> Any:
        if isinstance(v, tuple):
            return tuple(value(x) for x in v)
        return dims.evaluate(v, sizes) if isinstance(v, dims.Dim) else v

    return type(attrs)(**{name: value(getattr(attrs, name)) for name in field_names(attrs)})


def _bind(graph: Graph, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The size symbols' values, from inputs that have a symbol for a size; all other sizes are checked."""
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"{len(graph.inputs)} inputs expected, got {len(inputs)}")
    sizes: dict[str, int] = {}
    for n, t in zip(graph.inputs, inputs, strict=True):
        if t.dtype != to_torch(n.dtype) or t.dim() != len(n.shape):
            raise ValueError(f"input {n} expected, got {t.dtype}{list(t.shape)}")
        for size, actual in zip(n.shape, t.shape, strict=True):
            for s in _plain_symbol(size):
                sizes.setdefault(s.name, actual)
    for n, t in zip(graph.inputs, inputs, strict=True):
        if tuple(dims.evaluate(s, sizes) for s in n.shape) != tuple(t.shape):
            raise ValueError(f"input {n} expected, got {t.dtype}{list(t.shape)}")
    return sizes


def _plain_symbol(size: Size) -> tuple[Symbol, ...]:
    if isinstance(size, int):
        return ()
    return tuple(s for s in dims.symbols(size) if s.dim is size)


# --- outputs ----------------------------------------------------------------------------------------------------------


def _alias_index(o: Output) -> int:
    assert o.alias is not None
    return o.alias.index


def _layout(o: Output, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(shape, strides, offset) as numbers; the offset is relative to the first element of the tensor it shares memory with."""
    offset = o.alias.offset if o.alias else 0
    shape, strides = (tuple(dims.evaluate(s, sizes) for s in row) for row in (o.node.shape, o.strides))
    return shape, strides, dims.evaluate(offset, sizes)


def _seen(base: torch.Tensor, o: Output, sizes: Mapping[str, int]) -> torch.Tensor:
    shape, strides, offset = _layout(o, sizes)
    return base.as_strided(shape, strides, base.storage_offset() + offset)


def _fresh_outputs(graph: Graph, values: Mapping[Node, Any], sizes: Mapping[str, int]) -> dict[int, torch.Tensor]:
    """Outputs that share no input's memory: those that share an output's are views of one buffer, which holds them all."""
    place: dict[int, tuple[int, int]] = {}  # output -> (the first output of its buffer, offset from that one's first element)
    extent: dict[int, tuple[int, int]] = {}  # first output -> the buffer's first and last element, from there
    for i, o in enumerate(graph.outputs):
        if o.alias is not None and o.alias.of == "input":
            continue
        shape, strides, offset = _layout(o, sizes)
        if o.alias is None:
            place[i] = (i, 0)
        elif o.alias.index in place:
            root, start = place[o.alias.index]
            place[i] = (root, start + offset)
        else:
            continue  # shares the memory of an output that is an input's
        root, start = place[i]
        last = start + (-1 if 0 in shape else sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))
        low, high = extent.get(root, (start, last))
        extent[root] = min(low, start), max(high, last)
    buffers = {root: values[graph.outputs[root].node].new_empty(max(0, high - low + 1)) for root, (low, high) in extent.items()}
    result = {}
    for i, (root, start) in place.items():
        shape, strides, _ = _layout(graph.outputs[i], sizes)
        result[i] = buffers[root].as_strided(shape, strides, start - extent[root][0])
        _write(result[i], values[graph.outputs[i].node])
    return result


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy, also where several indices of `target` share one element (`value` is then equal there)."""
    if target.numel() == 0:
        return
    spread = [slice(0, 1) if s == 0 else slice(None) for s in target.stride()]
    target, value = target[tuple(spread)], value[tuple(spread)]
    places = torch.zeros((), dtype=torch.int64)
    for n, s in zip(target.shape, target.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(n) * s
    if places.unique().numel() == places.numel():
        target.copy_(value)
        return
    flat = target.as_strided((int(places.max()) + 1,), (1,))
    flat[places.reshape(-1).to(target.device)] = value.reshape(-1)


# --- scalar bodies ----------------------------------------------------------------------------------------------------


def evaluate_body(root: Expr, values: Mapping[Var, torch.Tensor]) -> torch.Tensor:
    """A scalar expression over whole tensors, element by element, in the dtypes that the expression states.

    Integer division by zero raises RuntimeError, as in eager, and a shift by the width or more ValueError; a variable without a
    value and a tile's `Load` raise KeyError.
    """
    done: dict[Expr, torch.Tensor] = dict(values.items())
    for e in walk(root):
        if e not in done:
            done[e] = _evaluate(e, done)
    return done[root]


def _evaluate(e: Expr, done: Mapping[Expr, torch.Tensor]) -> torch.Tensor:
    match e:
        case Const(value, dtype):
            return torch.tensor(value, dtype=to_torch(dtype))
        case Unary(op, x):
            return UNARY[op](done[x])
        case Binary(op, x, y):
            return BINARY[op](done[x], done[y])
        case Select(cond, x, y):
            return torch.where(done[cond], done[x], done[y])
        case Cast(x, dtype):
            return done[x].to(to_torch(dtype))
    raise KeyError(f"{e} has no value")


OfTwo: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _shift(function: OfTwo) -> OfTwo:
    """Only by counts that machines agree on."""

    def shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if ((y < 0) | (y >= 8 * x.element_size())).any():
            raise ValueError("a shift by less than 0, or by the width or more")
        return function(x, y)

    return shift


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "not": torch.bitwise_not,
    "recip": torch.reciprocal,
    **{name: getattr(torch, name) for name in scalar.UNARY if name not in ("not", "recip")},
}
BINARY: dict[str, OfTwo] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floordiv": torch.floor_divide,
    "mod": torch.remainder, "quot": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "rem": torch.fmod,
    "min": torch.minimum, "max": torch.maximum,
    "pow": torch.pow, "atan2": torch.atan2, "copysign": torch.copysign, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "shl": _shift(torch.bitwise_left_shift), "shr": _shift(torch.bitwise_right_shift),
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
