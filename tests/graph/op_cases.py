"""Cases for every row of the op table: attributes and operand tensors, generated from the rows' dtypes.

Out: `cases()`, deterministic. Shapes include sizes 0 and 1, broadcasting, transposed, strided and expanded operands, and one
tensor for two operands; floats include NaN, infinities, signed zeros and denormals. Operands never divide integers by zero or
index out of range, and a value that a cast to integers cannot hold does not occur.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.graph.ir import INPUT, Attrs, Family, Graph, InputKind, Node, Op, Output, TensorType, make
from tilewright.graph.ops import OPS
from tilewright.graph.ops.opaque import TensorArg
from tilewright.graph.ops.rules import ANY, FLOATS, INTS, STORED
from tilewright.graph.ops.torch_dtypes import from_torch, to_torch

OPAQUE_ROWS = ("input", "call", "getitem", "kernel")  # no cases: their meaning is their attributes'


class Case(NamedTuple):
    op: Op
    attrs: Attrs
    tensors: list[torch.Tensor]

    def __repr__(self) -> str:
        operands = ", ".join(f"{from_torch(t.dtype)}{list(t.shape)}{list(t.stride())}" for t in self.tensors)
        return f"{self.op}({operands}; {self.attrs})"

    @property
    def dtype(self) -> DType | None:
        """The dtype that the row's `dtypes` speaks of: the first operand's."""
        return from_torch(self.tensors[0].dtype) if self.tensors else None


def cases(*names: str) -> Iterator[Case]:
    """Every case of the named rows, or of all rows."""
    for name in names or tuple(n for n in OPS if n not in OPAQUE_ROWS):
        yield from _FAMILY_CASES[OPS[name].family](OPS[name])


def node_of(case: Case) -> Node:
    """The operator over one input an operand."""
    return make(case.op, tuple(input_node(i, t) for i, t in enumerate(case.tensors)), case.attrs)


def input_node(i: int, t: torch.Tensor, kind: InputKind = InputKind.USER) -> Node:
    return INPUT(index=i, name=f"x{i}", kind=kind, type=TensorType(from_torch(t.dtype), tuple(t.shape)))


def graph_of(case: Case, node: Node | None = None) -> Graph:
    """A graph of the one operator (or of `node`, over the same inputs), with a row-major output."""
    inputs = tuple(input_node(i, t) for i, t in enumerate(case.tensors))
    node = node or node_of(case)
    return Graph(inputs, (Output(node, contiguous(node.shape)),), tuple(tuple(t.stride()) for t in case.tensors))


def draw(x: Node, seq: int) -> Node:
    """A random draw, shaped as `x`."""
    return OPS["call"](x, overload="aten.rand_like.default", args=(TensorArg(0),), kwargs=(), type=x.type, seq=seq)


def contiguous(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Row-major strides, as torch gives them."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step = step * max(n, 1)
    return tuple(reversed(strides))


# --- operands ---------------------------------------------------------------------------------------------------------

SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, 1e-3, 30.0, -30.0, 88.0, -104.0, 3e4)


def values(dtype: DType, *shape: int, special: bool = False, nonzero: bool = False, finite: bool = False) -> torch.Tensor:
    """Deterministic numbers: about N(0, 2) for floats, small ones for integers.

    `special` puts `SPECIAL`, or the extreme integers, first; `nonzero` ones may divide; `finite` leaves out what overflows.
    """
    seed = zlib.crc32(repr((dtype, shape, special, nonzero)).encode())
    g = torch.Generator().manual_seed(seed)
    n = math.prod(shape)
    if dtype.is_float:
        flat = torch.randn(n, generator=g, dtype=torch.float64) * 2
        head = torch.tensor([v for v in SPECIAL if not finite or abs(v) <= 100], dtype=torch.float64)[:n]
        if special:
            flat[: len(head)] = head
        if nonzero:  # eager's own remainder is wrong for denormal divisors
            flat = torch.where((flat != 0) & (flat.abs() < 1e-30), 0.75, flat)
        return flat.to(to_torch(dtype)).reshape(shape)
    if dtype.kind == "bool":
        return torch.randint(0, 2, shape, generator=g).bool()
    low, high = (0, 12) if dtype.kind == "uint" else (-9, 12)
    flat = torch.randint(low, high, (n,), generator=g)
    if special and n > 3:
        extremes = torch.iinfo(to_torch(dtype))
        flat[0], flat[1] = extremes.max if dtype.bits < 64 or dtype.kind == "int" else 2**63 - 1, extremes.min
    if nonzero:
        flat = torch.where(flat == 0, 3, flat)
        flat = torch.where(flat == -1, 2, flat)  # the least integer divided by -1 traps
    return flat.to(to_torch(dtype)).reshape(shape)


def strided(t: torch.Tensor) -> torch.Tensor:
    """The same values in memory with gaps, transposed where there are dims for it."""
    if t.dim() == 0:
        return torch.stack([t, t])[1]
    wide = torch.empty([*t.shape[:-1], 2 * t.shape[-1] + 1], dtype=t.dtype)
    gaps = wide[..., 1::2]
    if t.dim() > 1:
        gaps = torch.empty([t.shape[-1], *t.shape[:-1]], dtype=t.dtype).movedim(0, -1)
    gaps.copy_(t)
    return gaps


# --- pointwise --------------------------------------------------------------------------------------------------------

_DIVIDING = ("floordiv", "mod", "quot", "rem")
_ATTRS: dict[str, list[dict[str, Any]]] = {
    "softplus": [{}, {"beta": 2.0, "threshold": 3.0}],
    "leaky_relu": [{}, {"slope": 0.2}],
    "elu": [{}, {"alpha": 0.7, "scale": 1.3, "input_scale": 0.5}],
    "hardtanh": [{}, {"lo": -0.5, "hi": 2.0}],
    "clamp": [{"lo": 0}, {"hi": 3}, {"lo": 1, "hi": 5}, {"lo": 4, "hi": 2}],
}


def _pointwise(op: Op) -> Iterator[Case]:
    if op.name in ("full", "where", "cast"):
        yield from {"full": _full, "where": _where, "cast": _casts}[op.name](op)
        return
    for attrs in _ATTRS.get(op.name, [{}]):
        for dtype in op.dtypes:
            shapes = _unary_operands(dtype) if op.arity == 1 else _binary_operands(op, dtype)
            for tensors in shapes:
                yield Case(op, op.attrs(**attrs), tensors)


def _unary_operands(dtype: DType) -> Iterator[list[torch.Tensor]]:
    yield [values(dtype, 37, special=True)]
    yield [values(dtype)]
    yield [values(dtype, 0, 3)]
    yield [strided(values(dtype, 3, 5, special=True))]
    yield [values(dtype, 4, 1).expand(4, 3)]


def _binary_operands(op: Op, dtype: DType) -> Iterator[list[torch.Tensor]]:
    if op.name in ("shl", "shr"):
        yield from _shift_operands(dtype)
        return
    small = op.name == "pow" and not dtype.is_float

    def second(*shape: int, special: bool = False) -> torch.Tensor:
        t = values(dtype, *shape, special=special, nonzero=op.name in _DIVIDING)
        return t.abs() if small else t

    yield [values(dtype, 3, 37, special=True), second(3, 37, special=True).flip(0)]
    yield [values(dtype, 4, 1, 3), second(2, 1)]
    yield [values(dtype, 0, 3), second(3)]
    yield [values(dtype), second()]
    yield [values(dtype, 1), second(5)]
    yield [strided(values(dtype, 3, 5, special=True)), second(3, 1).expand(3, 5)]
    if op.name not in _DIVIDING or dtype.is_float:
        x = second(19, special=True)
        yield [x, x]


def _shift_operands(dtype: DType) -> Iterator[list[torch.Tensor]]:
    counts = torch.tensor([0, 1, 2, 7, 8, 9, dtype.bits - 1, dtype.bits, 3, 100 if dtype.bits > 8 else 90], dtype=to_torch(dtype))
    yield [values(dtype, 6, 10, special=True), counts]
    yield [values(dtype, 6, 1, special=True), -counts if dtype.kind == "int" else counts]
    yield [values(dtype, 0, 3), counts[:1]]
    yield [strided(values(dtype, 3, 5)), counts[:5]]


def _full(op: Op) -> Iterator[Case]:
    for dtype in STORED:
        for shape in ((), (3, 0), (2, 5)):
            yield Case(op, op.attrs(value=1, dtype=dtype, shape=shape), [])
    for value in (math.nan, -math.inf, -0.0, 0.1, 1e-40):
        for dtype in FLOATS:
            yield Case(op, op.attrs(value=value, dtype=dtype, shape=(3,)), [])
    yield Case(op, op.attrs(value=-(2**63), dtype=dtypes.i64, shape=(2,)), [])


def _where(op: Op) -> Iterator[Case]:
    for dtype in STORED:
        x = values(dtype, 4, 5, special=True) if dtype in ANY else _stored(dtype, 4, 5)
        yield Case(op, op.attrs(), [values(dtypes.b1, 4, 5), x, _stored(dtype, 4, 5)])
        yield Case(op, op.attrs(), [values(dtypes.b1, 4, 1), _stored(dtype), strided(x)])
        yield Case(op, op.attrs(), [values(dtypes.b1, 3), _stored(dtype, 0, 3), _stored(dtype, 1)])
    c = values(dtypes.b1, 11)
    yield Case(op, op.attrs(), [c, c, c])


def _casts(op: Op) -> Iterator[Case]:
    for source in op.dtypes:
        for target in op.dtypes:
            if source.is_float and target.is_float:
                x = values(dtypes.f64, 37, special=True).to(to_torch(source))
            elif target.is_integer:  # what both can hold
                x = values(dtypes.u8, 37).to(to_torch(source))
            else:
                x = values(dtypes.f64, 37).to(to_torch(source)) if source.is_float else values(dtypes.u8, 37).to(to_torch(source))
            yield Case(op, op.attrs(dtype=target), [x])
        yield Case(op, op.attrs(dtype=dtypes.f32), [strided(values(dtypes.u8, 3, 4).to(to_torch(source)))])
        yield Case(op, op.attrs(dtype=dtypes.f32), [values(dtypes.u8, 0).to(to_torch(source))])


# --- reductions, scans and composites ---------------------------------------------------------------------------------


def _reduce(op: Op) -> Iterator[Case]:
    searches = op.name in ("argmax", "argmin")
    empty = op.name not in ("amax", "amin", "argmax", "argmin")
    for dtype in op.dtypes:
        x = values(dtype, 3, 4, 37)
        nan = values(dtype, 8, 16, special=True)
        for dims in ((2,), (0,), (1,), ()) if searches else ((2,), (0,), (1,), (0, 2), (1, 2), (0, 1, 2), ()):
            for keepdim in (False, True):
                yield Case(op, op.attrs(dims=dims, keepdim=keepdim), [x])
        yield Case(op, op.attrs(dims=(1,)), [nan])
        yield Case(op, op.attrs(dims=(0,)), [strided(nan)])
        yield Case(op, op.attrs(dims=(1,)), [values(dtype, 5, 1).expand(5, 4)])
        yield Case(op, op.attrs(dims=(1,)), [values(dtype, 0, 4)])
        yield Case(op, op.attrs(dims=()), [values(dtype)])
        if empty:
            yield Case(op, op.attrs(dims=(0,)), [values(dtype, 0, 4)])


def _scan(op: Op) -> Iterator[Case]:
    for dtype in op.dtypes:
        for dim in (0, 1):
            yield Case(op, op.attrs(dim=dim), [values(dtype, 5, 37)])
            yield Case(op, op.attrs(dim=dim), [strided(values(dtype, 4, 6, special=True))])
            yield Case(op, op.attrs(dim=dim), [values(dtype, 0, 3)])
        yield Case(op, op.attrs(dim=0), [values(dtype, 1)])


def _composite(op: Op) -> Iterator[Case]:
    for dtype in op.dtypes:
        yield from _COMPOSITE[op.name](op, dtype)


def _mean(op: Op, dtype: DType) -> Iterator[Case]:
    for dims in ((2,), (0, 1), (0, 1, 2), ()):
        yield Case(op, op.attrs(dims=dims, keepdim=len(dims) == 2), [values(dtype, 3, 4, 37)])
    yield Case(op, op.attrs(dims=(1,)), [strided(values(dtype, 6, 9, special=True))])
    yield Case(op, op.attrs(dims=(0,)), [values(dtype, 0, 4)])


def _var(op: Op, dtype: DType) -> Iterator[Case]:
    for correction in (0, 1, 2.5):
        for dims in ((2,), (0, 1), (0, 1, 2)):
            yield Case(op, op.attrs(dims=dims, correction=correction, keepdim=len(dims) == 1), [values(dtype, 3, 4, 37)])
    yield Case(op, op.attrs(dims=(1,)), [strided(values(dtype, 6, 9)) + 50])
    for n in (0, 1, 2):
        yield Case(op, op.attrs(dims=(0,), correction=2), [values(dtype, n, 4)])


def _softmax(op: Op, dtype: DType) -> Iterator[Case]:
    for dim in (0, 1, 2):
        yield Case(op, op.attrs(dim=dim), [values(dtype, 3, 4, 37)])
    yield Case(op, op.attrs(dim=1), [strided(values(dtype, 8, 16, special=True))])
    yield Case(op, op.attrs(dim=1), [torch.full((2, 3), -math.inf, dtype=to_torch(dtype))])
    yield Case(op, op.attrs(dim=0), [values(dtype, 5) * 100])
    for shape in ((0, 3), (3, 0), (4, 1)):
        yield Case(op, op.attrs(dim=1), [values(dtype, *shape)])


def _layer_norm(op: Op, dtype: DType) -> Iterator[Case]:
    x, w, b = values(dtype, 3, 4, 37), values(dtype, 37), values(dtype, 1, 37)[0]
    yield Case(op, op.attrs(), [x])
    yield Case(op, op.attrs(affine="weight", eps=1e-12), [x, w])
    yield Case(op, op.attrs(affine="both"), [x, w, b])
    yield Case(op, op.attrs(affine="both"), [x, w, w])
    yield Case(op, op.attrs(ndims=2, affine="both"), [x, values(dtype, 4, 37), values(dtype, 4, 37)])
    yield Case(op, op.attrs(affine="both"), [strided(values(dtype, 5, 6)) + 20, values(dtype, 6), values(dtype, 6)])
    yield Case(op, op.attrs(), [values(dtype, 6, 16, special=True)])
    yield Case(op, op.attrs(), [values(dtype, 0, 4)])
    yield Case(op, op.attrs(), [values(dtype, 3, 1)])


def _rms_norm(op: Op, dtype: DType) -> Iterator[Case]:
    x, w = values(dtype, 3, 4, 37), values(dtype, 37)
    yield Case(op, op.attrs(), [x])
    yield Case(op, op.attrs(eps=1e-5), [x, w])
    yield Case(op, op.attrs(ndims=2), [x, values(dtype, 4, 37)])
    yield Case(op, op.attrs(), [strided(values(dtype, 5, 6)), values(dtype, 6)])
    yield Case(op, op.attrs(), [values(dtype, 6, 16, special=True, finite=True)])
    yield Case(op, op.attrs(), [values(dtype, 0, 4)])
    yield Case(op, op.attrs(), [values(dtype, 3, 1)])


_COMPOSITE: dict[str, Callable[[Op, DType], Iterator[Case]]] = {
    "mean": _mean, "var": _var, "softmax": _softmax, "log_softmax": _softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
}  # fmt: skip

# --- views and indices ------------------------------------------------------------------------------------------------

# row -> the attributes, with a shape for each operand
_VIEWS: dict[str, list[tuple[tuple[int, ...], dict[str, Any]]]] = {
    "reshape": [
        ((3, 4, 5), {"shape": (12, 5)}), ((3, 4, 5), {"shape": (2, 30)}), ((6,), {"shape": (2, 1, 3)}), ((1, 1), {"shape": ()}),
        ((), {"shape": (1,)}), ((0, 4), {"shape": (2, 0)}), ((3, 4), {"shape": (3, 4)}),
    ],
    "permute": [((3, 4, 5), {"dims": (2, 0, 1)}), ((3, 4), {"dims": (1, 0)}), ((), {"dims": ()}), ((0, 4), {"dims": (1, 0)})],
    "expand": [
        ((3, 1), {"shape": (3, 4)}), ((3,), {"shape": (2, 3)}), ((), {"shape": (2, 2)}), ((1, 3), {"shape": (0, 3)}),
        ((2, 3), {"shape": (2, 3)}),
    ],
    "slice": [
        ((3, 9), {"dim": 1, "start": 2, "stop": 8}), ((3, 9), {"dim": 1, "start": 0, "stop": 9, "step": 4}),
        ((5, 2), {"dim": 0, "start": 3, "stop": 3}), ((5, 2), {"dim": 0, "start": 4, "stop": 5, "step": 7}),
        ((0, 2), {"dim": 0, "start": 0, "stop": 0}),
    ],
    "flip": [((3, 4), {"dims": (0, 1)}), ((3, 4), {"dims": (1,)}), ((3,), {"dims": ()}), ((0, 4), {"dims": (1,)})],
    "as_strided": [
        ((4, 6), {"shape": (3, 2), "strides": (2, 7), "offset": 3}), ((5,), {"shape": (3, 3), "strides": (1, 1)}),
        ((5,), {"shape": (2, 4), "strides": (0, 1), "offset": 1}), ((2, 2), {"shape": (), "strides": (), "offset": 3}),
        ((4,), {"shape": (0, 2), "strides": (2, 1)}),
    ],
}  # fmt: skip


def _view(op: Op) -> Iterator[Case]:
    for dtype in op.dtypes:
        for shape, attrs in _VIEWS[op.name]:
            x = _stored(dtype, *shape)
            yield Case(op, op.attrs(**attrs), [x])
            yield Case(op, op.attrs(**attrs), [strided(x)])


def _stored(dtype: DType, *shape: int) -> torch.Tensor:
    """Values of any dtype, those included that eager only stores."""
    if dtype in ANY:
        return values(dtype, *shape)
    return values(dtypes.u8, *shape).to(to_torch(dtype))


def _index(op: Op) -> Iterator[Case]:
    if op.name == "iota":
        yield from _iota(op)
        return
    for dtype in op.dtypes:
        yield from _INDEX[op.name](op, dtype)


def _iota(op: Op) -> Iterator[Case]:
    for dtype in FLOATS + INTS:
        for size, start, step in ((7, 0, 1), (0, 0, 1), (1, 5, 3), (4, 9, -2 if dtype.kind != "uint" else 2)):
            yield Case(op, op.attrs(size=size, dtype=dtype, start=start, step=step), [])
    for dtype in FLOATS:
        yield Case(op, op.attrs(size=20, dtype=dtype, start=0.25, step=-0.1), [])


def _cat(op: Op, dtype: DType) -> Iterator[Case]:
    x = _stored(dtype, 3, 4)
    yield Case(op, op.attrs(dim=0), [x, _stored(dtype, 1, 4), _stored(dtype, 0, 4)])
    yield Case(op, op.attrs(dim=1), [strided(x), _stored(dtype, 3, 1), x])
    yield Case(op, op.attrs(dim=1), [x, x])
    yield Case(op, op.attrs(dim=0), [x])


def _take(op: Op, dtype: DType) -> Iterator[Case]:
    x = _stored(dtype, 5, 4)
    for kind in (torch.int64, torch.int32):
        yield Case(op, op.attrs(dim=0), [x, torch.tensor([[4, 0, 0], [1, 2, 3]], dtype=kind)])
    yield Case(op, op.attrs(dim=1), [strided(x), torch.tensor([3, 3, 0])])
    yield Case(op, op.attrs(dim=1), [x, torch.tensor(2)])
    yield Case(op, op.attrs(dim=0), [x, torch.zeros(0, dtype=torch.int64)])
    yield Case(op, op.attrs(dim=0), [x, torch.tensor([[4, 0], [1, 2]]).t()])


def _gather(op: Op, dtype: DType) -> Iterator[Case]:
    x = _stored(dtype, 5, 4)
    for kind in (torch.int64, torch.int32):
        yield Case(op, op.attrs(dim=1), [x, torch.tensor([[3, 0, 0], [1, 2, 3]], dtype=kind)])
    yield Case(op, op.attrs(dim=0), [strided(x), torch.tensor([[4, 0, 2, 1]]).expand(6, 4)])
    yield Case(op, op.attrs(dim=0), [x, torch.zeros(0, 4, dtype=torch.int64)])


def _slice_scatter(op: Op, dtype: DType) -> Iterator[Case]:
    x = _stored(dtype, 5, 7)
    yield Case(op, op.attrs(dim=1, start=1, stop=6, step=2), [x, _stored(dtype, 5, 3)])
    yield Case(op, op.attrs(dim=0, start=2, stop=4), [strided(x), strided(_stored(dtype, 2, 7))])
    yield Case(op, op.attrs(dim=0, start=3, stop=3), [x, _stored(dtype, 0, 7)])
    yield Case(op, op.attrs(dim=0, start=0, stop=5), [x, x])


def _as_strided_scatter(op: Op, dtype: DType) -> Iterator[Case]:
    x = _stored(dtype, 4, 6)
    yield Case(op, op.attrs(strides=(12, 5), offset=3), [x, _stored(dtype, 2, 2)])
    yield Case(op, op.attrs(strides=(1, 6)), [strided(x), strided(_stored(dtype, 6, 4))])
    yield Case(op, op.attrs(strides=(), offset=23), [x, _stored(dtype)])


def _pad(op: Op, dtype: DType) -> Iterator[Case]:
    yield Case(op, op.attrs(pads=((0, 0), (2, 1)), value=1), [_stored(dtype, 3, 4)])
    yield Case(op, op.attrs(pads=((1, 0), (0, 2))), [strided(_stored(dtype, 3, 4))])
    yield Case(op, op.attrs(pads=((0, 0),)), [_stored(dtype, 3)])
    yield Case(op, op.attrs(pads=((1, 1), (0, 0))), [_stored(dtype, 0, 2)])


_INDEX: dict[str, Callable[[Op, DType], Iterator[Case]]] = {
    "cat": _cat, "take": _take, "gather": _gather, "slice_scatter": _slice_scatter, "as_strided_scatter": _as_strided_scatter,
    "pad": _pad,
}  # fmt: skip

# --- contractions -----------------------------------------------------------------------------------------------------


def _contract(op: Op) -> Iterator[Case]:
    for dtype in op.dtypes:
        yield from (_matmul if op.name == "matmul" else _attention)(op, dtype)


def _matmul(op: Op, dtype: DType) -> Iterator[Case]:
    for a, b in (((5, 7), (7, 9)), ((3, 5, 7), (7, 9)), ((2, 1, 5, 7), (3, 7, 9)), ((1, 7), (7, 33)), ((4, 1), (1, 3))):
        yield Case(op, op.attrs(), [values(dtype, *a), values(dtype, *b)])
        yield Case(op, op.attrs(), [strided(values(dtype, *a)), strided(values(dtype, *b))])
    for a, b in (((0, 7), (7, 3)), ((4, 0), (0, 3)), ((0, 2, 3), (3, 4))):
        yield Case(op, op.attrs(), [values(dtype, *a), values(dtype, *b)])
    x = values(dtype, 6, 6)
    yield Case(op, op.attrs(), [x, x])


def _attention(op: Op, dtype: DType) -> Iterator[Case]:
    q, k, v = values(dtype, 2, 4, 9, 8), values(dtype, 2, 4, 11, 8), values(dtype, 2, 4, 11, 8) / 2
    allowed = values(dtypes.b1, 9, 11)
    allowed[3] = False
    allowed[4] = True
    for causal in (False, True):
        yield Case(op, op.attrs(scale=0.35, causal=causal), [q, k, v])
        yield Case(op, op.attrs(scale=0.35, causal=causal), [q, q, q])
        yield Case(op, op.attrs(scale=0.35, causal=causal), [values(dtype, 2, 6, 9, 8), k[:, :2], v[:, :2]])
    yield Case(op, op.attrs(scale=0.35), [q, k, v, allowed])
    yield Case(op, op.attrs(scale=0.35), [q, k, v, values(dtypes.b1, 2, 1, 1, 11).logical_or(torch.arange(11) < 1)])
    yield Case(op, op.attrs(scale=1.0), [q, k, v, values(dtype, 2, 4, 9, 11)])
    yield Case(op, op.attrs(scale=0.35, safe=False), [q, k, v, allowed])
    yield Case(op, op.attrs(scale=0.35), [strided(q), strided(k), strided(v)])
    yield Case(op, op.attrs(scale=0.35), [q[0], k[0], v[0]])
    yield Case(op, op.attrs(scale=0.35), [q[..., :1, :], k, v])


_FAMILY_CASES: dict[Family, Callable[[Op], Iterator[Case]]] = {
    Family.POINTWISE: _pointwise, Family.REDUCE: _reduce, Family.SCAN: _scan, Family.COMPOSITE: _composite, Family.VIEW: _view,
    Family.INDEX: _index, Family.CONTRACT: _contract,
}  # fmt: skip
