"""Random graphs for the fusion tests.

In: a seed. Out: `Sample`: a graph of 5 to 30 operators over inputs of odd strides, with tensors for them. Discontinuous
operators (comparisons, casts to integers, searches) read only values that are exact in every precision, so that float64 is a
reference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch

from compiled.reference import Sample, evaluate, wide
from graph.op_cases import contiguous
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.graph.ir import INPUT, Effect, Family, Graph, InputKind, Node, Output, TensorType
from tilewright.graph.ops import OPS, composite, contract, index, pointwise, reduce, scan, view
from tilewright.graph.ops.torch_dtypes import to_torch

FLOATS = (dtypes.f32, dtypes.f32, dtypes.f32, dtypes.f64, dtypes.bf16, dtypes.f16)
INTS = (dtypes.i64, dtypes.i32, dtypes.i16, dtypes.i8, dtypes.u8)
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64)
LARGEST = 3000  # elements of a value; every tenth graph has some with ten times as many
BOUND = 200.0  # nodes with larger magnitudes are not used, so that no precision overflows


# --- generation -------------------------------------------------------------------------------------------------------


def sample(seed: int, size: int | None = None, largest: int | None = None) -> Sample:
    """A graph of about `size` operators on values of at most `largest` elements."""
    return _Builder(seed, largest).build(size)


class _Builder:
    def __init__(self, seed: int, largest: int | None) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.largest = largest or LARGEST * (10 if self.chance(0.1) else 1)
        self.sizes = SIZES if self.largest <= 10 * LARGEST else (*SIZES, 48, 100, 128, 257, 300)
        self.inputs: list[Node] = []
        self.tensors: list[torch.Tensor] = []
        self.values: dict[Node, torch.Tensor] = {}
        self.exact: set[Node] = set()
        self.base = self.rng.choice(FLOATS)
        self.shape = self._shape()

    def build(self, size: int | None) -> Sample:
        self.input(self.base, self.shape)
        count = size or self.rng.randint(5, 30)
        steps = [s for s, weight in _STEPS for _ in range(weight)]
        made: list[Node] = []
        for _ in range(3 * count):
            if len(made) >= count:
                break
            new = self.rng.choice(steps)(self)
            if new is not None and self._keep(new):
                made.append(new)
        outputs, effects = tuple(self._outputs(made)), tuple(self._effects(made))
        strides = tuple(tuple(t.stride()) for t in self.tensors)
        return Sample(Graph(tuple(self.inputs), outputs, strides, effects), self.tensors, frozenset(self.exact))

    # inputs

    def _shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice((1, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            shape = tuple(0 if self.chance(0.01) else self.rng.choice(self.sizes) for _ in range(rank))
            if math.prod(shape) <= self.largest:
                return shape

    def input(self, dtype: DType, shape: Sequence[int], tensor: torch.Tensor | None = None) -> Node:
        kind = self.rng.choice((InputKind.USER, InputKind.USER, InputKind.PARAMETER))
        i = len(self.inputs)
        n = INPUT(index=i, name=f"x{i}", kind=kind, type=TensorType(dtype, tuple(shape)))
        t = self._strided(self._random(dtype, shape) if tensor is None else tensor)
        self.inputs.append(n)
        self.tensors.append(t)
        self.values[n] = wide(t)
        self.exact.add(n)
        return n

    def _random(self, dtype: DType, shape: Sequence[int]) -> torch.Tensor:
        if dtype.is_float:
            return torch.randn(tuple(shape), generator=self.torch, dtype=torch.float64).to(to_torch(dtype))
        if dtype.kind == "bool":
            return torch.randint(0, 2, tuple(shape), generator=self.torch).bool()
        return torch.randint(0 if dtype.kind == "uint" else -9, 10, tuple(shape), generator=self.torch).to(to_torch(dtype))

    def _strided(self, t: torch.Tensor) -> torch.Tensor:
        """The values in memory of another order, with gaps, an offset, or repeated elements."""
        choice = self.rng.random()
        if choice < 0.5 or t.dim() == 0:
            return t.contiguous()
        if choice < 0.7:
            order = self.rng.sample(range(t.dim()), t.dim())
            back = [order.index(d) for d in range(t.dim())]
            return t.permute(order).contiguous().permute(back)
        if choice < 0.9:
            room = torch.zeros([n + self.rng.randint(0, 2) for n in t.shape[:-1]] + [2 * t.shape[-1] + 3], dtype=t.dtype)
            part = room[tuple(slice(0, n) for n in t.shape[:-1])][..., 1 : 1 + 2 * t.shape[-1] : 2]
            part.copy_(t)
            return part
        d = self.rng.randrange(t.dim())
        if t.shape[d] == 0:
            return t.contiguous()
        return t.narrow(d, 0, 1).contiguous().expand(t.shape)

    # outputs

    def _outputs(self, made: list[Node]) -> Iterator[Output]:
        unread = [n for n in made if not any(n in m.args for m in made)] or made
        chosen = unread[-2:] + self.rng.sample(made, min(len(made), self.rng.randint(0, 2)))
        for n in dict.fromkeys(chosen):
            yield Output(n, self._strides(n))

    def _strides(self, n: Node) -> tuple[int, ...]:
        rank = len(n.shape)
        if self.chance(0.6) or rank == 0:
            return contiguous(n.shape)
        order = self.rng.sample(range(rank), rank)
        gap = self.rng.choice((1, 1, 2))
        strides, step = [0] * rank, gap
        for d in reversed(order):
            strides[d] = step
            step *= max(n.shape[d], 1) + self.rng.choice((0, 0, 0, 3))
        return tuple(strides)

    def _effects(self, made: list[Node]) -> Iterator[Effect]:
        """Now and then a result is written back into an input of its type that holds each element once."""
        for i, (n, t) in enumerate(zip(self.inputs, self.tensors, strict=True)):
            once = all(s != 0 or size <= 1 for s, size in zip(t.stride(), t.shape, strict=True))
            fitting = [m for m in made if m.type == n.type]
            if fitting and once and n.attrs.kind is InputKind.USER and self.chance(0.1):
                yield Effect(i, self.rng.choice(fitting))

    # choices

    def any_of(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, test: Callable[[Node], bool] = lambda n: True) -> Node | None:
        """A value, a late one more likely."""
        fitting = [n for n in self.values if test(n)]
        if not fitting:
            return None
        return fitting[-1 - min(int(self.rng.expovariate(0.3)), len(fitting) - 1)]

    def floating(self) -> Node:
        n = self.pick(lambda n: n.dtype.is_float)
        return n if n is not None else self.input(self.base, self.shape)

    def exact_one(self, test: Callable[[Node], bool] = lambda n: True) -> Node | None:
        return self.pick(lambda n: n in self.exact and test(n))

    def partner(self, x: Node) -> Node:
        """A value of x's dtype that broadcasts with it: one there is, or a new input."""
        y = self.pick(lambda n: n.dtype is x.dtype and _broadcasts(n.shape, x.shape, self.largest))
        if y is not None and self.chance(0.7):
            return y
        shape = tuple(n if self.chance(0.7) else 1 for n in x.shape)
        return self.input(x.dtype, shape[self.rng.randint(0, len(shape)) :] if self.chance(0.4) else shape)

    def constant(self, like: Node, value: float) -> Node:
        return self.note(pointwise.FULL(value=value if like.dtype.is_float else int(value), dtype=like.dtype))

    def note(self, n: Node) -> Node:
        """Compute an auxiliary node's value; it is not offered to others."""
        if n not in self.values:
            self.values[n] = evaluate(n, [self.values[a] for a in n.args])
            if _stays_exact(n) and all(a in self.exact for a in n.args):
                self.exact.add(n)
        return n

    def _keep(self, n: Node) -> bool:
        """Whether a node can be used: not too large in size or magnitude."""
        if math.prod(n.shape) > self.largest:
            return False
        for m in _new_nodes(n, self.values):
            value = evaluate(m, [self.values[a] for a in m.args])
            if value.is_floating_point() and value.numel() and not bool((value.abs() <= BOUND).all()):
                return False
            self.note(m)
        return True


def _new_nodes(n: Node, known: dict[Node, torch.Tensor]) -> list[Node]:
    if n in known:
        return []
    return [m for a in n.args for m in _new_nodes(a, known)] + [n]


def _broadcasts(a: Sequence[int], b: Sequence[int], largest: int) -> bool:
    """Whether shapes broadcast, to no more than `largest` elements."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    return all(x == y or 1 in (x, y) for x, y in pairs) and math.prod(max(pair) for pair in pairs) <= largest


_EXACT = {
    "neg", "abs", "minimum", "maximum", "relu", "where", "clamp", "hardtanh", "not", "eq", "ne", "lt", "le", "gt", "ge", "sign",
    "floor", "ceil", "round", "trunc", "amax", "amin", "any", "all", "argmax", "argmin", "full", "isnan", "copysign",
}  # fmt: skip


def _stays_exact(n: Node) -> bool:
    """Whether the operator of exact operands is exact in every precision."""
    if not n.dtype.is_float:
        return True
    if n.op is pointwise.CAST:
        source = n.args[0].dtype
        return source is n.dtype or (source.is_float and (n.dtype is dtypes.f64 or (n.dtype is dtypes.f32 and source.bytes == 2)))
    if n.op is index.IOTA:
        return False
    return n.op.family in (Family.VIEW, Family.INDEX) or n.op.name in _EXACT


# --- steps: each gives a new node, or None where nothing fits ---------------------------------------------------------

_SMOOTH = (
    "sin", "cos", "tanh", "sigmoid", "erf", "relu", "gelu", "gelu_tanh", "silu", "neg", "abs", "mish", "hardswish", "atan",
    "softplus", "elu", "leaky_relu", "hardtanh",
)  # fmt: skip


def _unary(b: _Builder) -> Node:
    x = b.floating()
    name = b.any_of(*_SMOOTH, *_SMOOTH, "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "recip")
    if name in _SMOOTH:
        return OPS[name](x)
    if name in ("exp", "expm1"):
        return OPS[name](pointwise.SIN(x))
    return OPS[name](pointwise.ADD(pointwise.ABS(x), b.constant(x, 1.0)))


def _binary(b: _Builder) -> Node:
    x = b.floating()
    y = b.partner(x)
    name = b.any_of("add", "add", "sub", "mul", "mul", "minimum", "maximum", "div", "atan2", "pow")
    if name == "div":
        y = pointwise.ADD(pointwise.ABS(y), b.constant(y, 1.0))
    if name == "pow":
        x, y = pointwise.ADD(pointwise.ABS(x), b.constant(x, 1.0)), pointwise.SIN(y)
    if name == "atan2":
        y = pointwise.ADD(pointwise.ABS(y), b.constant(y, 1.0))
    return OPS[name](*((x, y) if b.chance(0.5) or name in ("div", "pow", "atan2") else (y, x)))


def _scalar(b: _Builder) -> Node:
    x = b.floating()
    return OPS[b.any_of("add", "mul", "sub", "minimum")](x, b.constant(x, b.any_of(0.5, 2.0, -1.25, 0.0, 1.0)))


def _integer(b: _Builder) -> Node | None:
    x = b.pick(lambda n: n.dtype.is_integer) if b.chance(0.7) else None
    x = b.input(b.rng.choice(INTS), b.shape) if x is None else x
    binary = ("add", "sub", "mul", "minimum", "maximum", "bitand", "bitxor")
    name = b.any_of(*binary, "mod", "floordiv", "shl", "shr", "abs", "neg", "clamp")
    if name in ("abs", "neg"):
        return OPS[name](x)
    if name == "clamp":
        return pointwise.CLAMP(x, lo=1, hi=5)
    if name in ("mod", "floordiv"):
        return OPS[name](x, b.constant(x, b.any_of(2, 3, 7)))
    if name in ("shl", "shr"):
        return OPS[name](x, b.constant(x, b.any_of(0, 1, 3, 7)))
    return OPS[name](x, b.partner(x))


def _compare(b: _Builder) -> Node | None:
    x = b.exact_one(lambda n: n.dtype.kind != "bool")
    if x is None:
        return None
    y = b.exact_one(lambda n: n.dtype is x.dtype and _broadcasts(n.shape, x.shape, b.largest))
    return OPS[b.any_of("lt", "le", "gt", "ge", "eq", "ne")](x, y if y is not None else b.constant(x, 0))


def _logic(b: _Builder) -> Node | None:
    x = b.pick(lambda n: n.dtype.kind == "bool")
    if x is None:
        x = b.input(dtypes.b1, b.shape)
    return pointwise.NOT(x) if b.chance(0.3) else OPS[b.any_of("bitand", "bitor", "bitxor")](x, b.partner(x))


def _where(b: _Builder) -> Node | None:
    x = b.pick()
    if x is None:
        return None
    y = b.partner(x)
    fits = lambda n: all(_broadcasts(n.shape, z.shape, b.largest) for z in (x, y))  # noqa: E731
    cond = b.pick(lambda n: n.dtype.kind == "bool" and fits(n))
    cond = cond if cond is not None else b.input(dtypes.b1, x.shape)
    return pointwise.WHERE(cond, x, y)


def _cast(b: _Builder) -> Node | None:
    x = b.pick(lambda n: not n.dtype.is_float or n in b.exact) if b.chance(0.3) else b.floating()
    if x is None:
        return None
    if not x.dtype.is_float:
        fits = x.dtype.kind == "bool" or bool((b.values[x].abs() < 100).all())
        return pointwise.CAST(x, dtype=b.any_of(*FLOATS, *INTS, dtypes.b1)) if fits else None
    if x in b.exact and b.chance(0.4):
        target = b.any_of(*INTS, dtypes.b1)
        return pointwise.CAST(pointwise.ABS(x) if target is dtypes.u8 else x, dtype=target)
    return pointwise.CAST(x, dtype=b.any_of(*FLOATS))


def _reduction(b: _Builder) -> Node | None:
    x = b.floating() if b.chance(0.8) else b.pick()
    if x is None or not x.shape:
        return None
    rank = len(x.shape)
    dims = tuple(sorted(b.rng.sample(range(rank), b.rng.choice((1, 1, 1, rank, b.rng.randint(1, rank))))))
    if b.chance(0.3):
        dims = (rank - 1,)
    keepdim = b.chance(0.5)
    if x.dtype.kind == "bool":
        return b.any_of(reduce.ANY_, reduce.ALL_)(x, dims=dims, keepdim=keepdim)
    names = ["sum", "sum", "amax", "amin"]
    if x.dtype.is_float:
        names += ["mean", "mean", "var"]
    if x in b.exact:
        names += ["argmax", "argmin"]
    name = b.rng.choice(names)
    empty = any(x.shape[d] == 0 for d in dims)
    if name in ("argmax", "argmin"):
        whole = b.chance(0.2)
        if (math.prod(x.shape) == 0) or empty:
            return None
        return OPS[name](x, dims=() if whole else dims[:1], keepdim=keepdim)
    if empty and name in ("amax", "amin"):
        return None
    if name == "var":
        if empty or math.prod(x.shape[d] for d in dims) < 2:
            return None
        return composite.VAR(x, dims=dims, correction=b.any_of(0, 1), keepdim=keepdim)
    return OPS[name](x, dims=dims, keepdim=keepdim)


def _rows(b: _Builder) -> Node | None:
    x = b.floating()
    if not x.shape:
        return None
    rank = len(x.shape)
    name = b.any_of("softmax", "log_softmax", "layer_norm", "rms_norm")
    if name.endswith("softmax"):
        return OPS[name](x, dim=b.rng.choice((rank - 1, rank - 1, b.rng.randrange(rank))))
    ndims = b.rng.choice((1, 1, 1, min(2, rank)))
    weights = [b.input(x.dtype, x.shape[-ndims:]) for _ in range(b.rng.randint(0, 2 if name == "layer_norm" else 1))]
    if name == "rms_norm":
        return composite.RMS_NORM(x, *weights, ndims=ndims, eps=1e-2)
    return composite.LAYER_NORM(x, *weights, ndims=ndims, eps=1e-2, affine=("none", "weight", "both")[len(weights)])


def _scan(b: _Builder) -> Node | None:
    x = b.floating() if b.chance(0.7) else b.pick(lambda n: n.dtype.is_integer)
    return None if x is None or not x.shape else scan.CUMSUM(x, dim=b.rng.randrange(len(x.shape)))


def _view(b: _Builder) -> Node | None:
    x = b.pick() if b.chance(0.5) else b.floating()
    if x is None:
        return None
    rank = len(x.shape)
    name = b.any_of("reshape", "reshape", "permute", "permute", "slice", "slice", "expand", "flip", "as_strided")
    if name == "reshape":
        return view.RESHAPE(x, shape=_factored(b, math.prod(x.shape)))
    if name == "expand":
        lead = (b.any_of(1, 2, 3),) if rank < 4 and b.chance(0.5) else ()
        return view.EXPAND(x, shape=lead + tuple(b.any_of(1, 3, 8) if n == 1 else n for n in x.shape))
    if rank == 0:
        return None
    if name == "permute":
        return view.PERMUTE(x, dims=tuple(b.rng.sample(range(rank), rank)))
    if name == "flip":
        return view.FLIP(x, dims=tuple(sorted(b.rng.sample(range(rank), b.rng.randint(1, rank)))))
    if name == "slice":
        d = b.rng.randrange(rank)
        start = b.rng.randint(0, x.shape[d])
        stop = b.rng.randint(start, x.shape[d])
        if stop == start and b.chance(0.9):
            start, stop = 0, x.shape[d]
        return view.SLICE(x, dim=d, start=start, stop=stop, step=b.any_of(1, 1, 2, 3))
    count = math.prod(x.shape)
    if count < 4:
        return None
    shape, strides = (b.rng.randint(1, 3), b.rng.randint(1, 4)), (b.rng.randint(0, count // 4), b.rng.randint(0, count // 8))
    room = count - 1 - sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return view.AS_STRIDED(x, shape=shape, strides=strides, offset=b.rng.randint(0, room)) if room >= 0 else None


def _factored(b: _Builder, count: int) -> tuple[int, ...]:
    """A shape of `count` elements."""
    shape: list[int] = []
    while count > 1 and len(shape) < 3:
        factors = [f for f in range(1, count + 1) if count % f == 0] if count < 5000 else [1, count]
        shape.append(b.rng.choice(factors))
        count //= shape[-1]
    shape.append(count)
    b.rng.shuffle(shape)
    return tuple(shape)


def _index(b: _Builder) -> Node | None:
    x = b.pick() if b.chance(0.5) else b.floating()
    if x is None or not x.shape:
        return None
    rank, d = len(x.shape), b.rng.randrange(len(x.shape))
    name = b.any_of("cat", "cat", "take", "take", "gather", "pad", "slice_scatter", "iota", "as_strided_scatter")
    if name == "cat":
        rest = x.shape[:d] + x.shape[d + 1 :]
        like = [n for n in b.values if n.dtype is x.dtype and len(n.shape) == rank and n.shape[:d] + n.shape[d + 1 :] == rest]
        others = [b.rng.choice(like) for _ in range(b.rng.randint(1, 2))]
        parts = [x, *others]
        b.rng.shuffle(parts)
        return index.CAT(*parts, dim=d)
    if name == "iota":
        kind = b.any_of(x.dtype, dtypes.i64) if x.dtype.kind != "bool" else dtypes.i64
        if kind.bytes == 1:
            return None
        return index.IOTA(size=x.shape[-1], dtype=kind, start=b.any_of(0, 3), step=b.any_of(1, 2))
    if name == "pad":
        pads = tuple((b.any_of(0, 0, 1, 2), b.any_of(0, 0, 1, 2)) for _ in x.shape)
        return index.PAD(x, pads=pads, value=b.any_of(0, 1))
    if name == "slice_scatter":
        start = b.rng.randint(0, x.shape[d])
        stop, step = b.rng.randint(start, x.shape[d]), b.any_of(1, 1, 2)
        part = view.SLICE(x, dim=d, start=start, stop=stop, step=step)
        source = b.input(x.dtype, part.shape) if b.chance(0.5) or not x.dtype.is_float else pointwise.SIN(part)
        return index.SLICE_SCATTER(x, source, dim=d, start=start, stop=stop, step=step)
    if name == "as_strided_scatter":
        count = math.prod(x.shape)
        if count < 12:
            return None
        strides = (count // 3, count // 7) if count >= 21 else (6, 2)
        return index.AS_STRIDED_SCATTER(x, b.input(x.dtype, (2, 3)), strides=strides, offset=1 if count >= 30 else 0)
    if x.shape[d] == 0:
        return None
    if name == "take":
        return index.TAKE(x, _indices(b, x.shape[d], b._shape(b.any_of(0, 1, 1, 2))), dim=d)
    shape = tuple(b.rng.randint(1, n) if n else 0 for n in x.shape)
    return index.GATHER(x, _indices(b, x.shape[d], shape[:d] + (b.any_of(1, 5),) + shape[d + 1 :]), dim=d)


def _indices(b: _Builder, size: int, shape: tuple[int, ...]) -> Node:
    """Indices below `size`: an input, or computed."""
    if b.chance(0.5) or len(shape) != 1:
        kind = b.any_of(dtypes.i64, dtypes.i32)
        return b.input(kind, shape, torch.randint(0, size, shape, generator=b.torch).to(to_torch(kind)))
    i = index.IOTA(size=shape[0], dtype=dtypes.i64, start=b.rng.randint(0, 3), step=b.rng.randint(1, 3))
    return pointwise.MOD(i, b.note(pointwise.FULL(value=size, dtype=dtypes.i64)))


def _matmul(b: _Builder) -> Node | None:
    x = b.pick(lambda n: n.dtype.is_float and len(n.shape) >= 2)
    if x is None:
        return None
    k, n = x.shape[-1], b.rng.choice(b.sizes)
    lead = x.shape[:-2] if b.chance(0.3) else ()
    if b.chance(0.5):
        axes = tuple(range(len(lead))) + (len(lead) + 1, len(lead))
        y: Node | None = view.PERMUTE(b.input(x.dtype, (*lead, n, k)), dims=axes)
    else:
        fits = lambda m: m.shape[-2:-1] == (k,) and (len(m.shape) == 2 or m.shape[:-2] == x.shape[:-2])  # noqa: E731
        y = b.pick(lambda m: m.dtype is x.dtype and fits(m))
        y = y if y is not None else b.input(x.dtype, (*lead, k, n))
    product = contract.MATMUL(x, y)
    if b.chance(0.5):
        product = pointwise.ADD(product, b.input(x.dtype, product.shape[-1:]))
    return OPS[b.any_of("tanh", "gelu", "relu")](product) if b.chance(0.4) else product


def _attention(b: _Builder) -> Node | None:
    q = b.pick(lambda n: n.dtype.is_float and len(n.shape) >= 3 and 0 not in n.shape)
    if q is None:
        return None
    keys = b.any_of(q.shape[-2], 5, 17)
    if math.prod(q.shape[:-1]) * keys > 20 * b.largest:
        return None
    k, v = (b.input(q.dtype, (*q.shape[:-2], keys, n)) for n in (q.shape[-1], b.any_of(8, q.shape[-1])))
    if b.chance(0.5):
        return contract.ATTENTION(q, k, v, scale=0.25, causal=b.chance(0.5))
    mask = b.input(b.any_of(q.dtype, dtypes.b1), (q.shape[-2], keys))
    return contract.ATTENTION(q, k, v, mask, scale=0.25, safe=True)


def _linear(b: _Builder, x: Node, features: int, bias: bool) -> Node:
    weight = view.PERMUTE(b.input(x.dtype, (features, x.shape[-1])), dims=(1, 0))
    y = contract.MATMUL(x, weight)
    return pointwise.ADD(y, b.input(x.dtype, (features,))) if bias else y


def _heads(x: Node, heads: int) -> Node:
    """[..., S, heads * D] as [..., heads, S, D]."""
    rank = len(x.shape)
    split = view.RESHAPE(x, shape=(*x.shape[:-1], heads, x.shape[-1] // heads))
    return view.PERMUTE(split, dims=(*range(rank - 2), rank - 1, rank - 2, rank))


def _siblings(b: _Builder) -> Node | None:
    """Products of one value with several weights: gated, or as the queries, keys and values of written-out attention."""
    x = b.pick(lambda n: n.dtype.is_float and len(n.shape) in (2, 3) and 0 not in n.shape)
    if x is None:
        return None
    bias = b.chance(0.5)
    if b.chance(0.5):
        n = b.rng.choice(b.sizes)
        return pointwise.MUL(pointwise.SILU(_linear(b, x, n, bias)), _linear(b, x, n, bias))
    heads, size = b.any_of(1, 2, 4), b.any_of(4, 8, 16)
    q, k, v = (_heads(_linear(b, x, heads * size, bias), heads) for _ in range(3))
    rank = len(q.shape)
    scores = contract.MATMUL(q, view.PERMUTE(k, dims=(*range(rank - 2), rank - 1, rank - 2)))
    scores = pointwise.MUL(scores, b.constant(scores, 0.25))
    if b.chance(0.5):
        scores = pointwise.ADD(scores, b.input(x.dtype, b.any_of(scores.shape[-2:], (1, scores.shape[-1]))))
    out = contract.MATMUL(composite.SOFTMAX(scores, dim=rank - 1), v)
    merged = view.PERMUTE(out, dims=(*range(rank - 3), rank - 2, rank - 3, rank - 1))
    return view.RESHAPE(merged, shape=(*merged.shape[:-2], heads * size))


_STEPS: list[tuple[Callable[[_Builder], Node | None], int]] = [
    (_unary, 6), (_binary, 8), (_scalar, 3), (_integer, 3), (_compare, 2), (_logic, 1), (_where, 2), (_cast, 2), (_reduction, 5),
    (_rows, 3), (_scan, 1), (_view, 8), (_index, 4), (_matmul, 3), (_attention, 1), (_siblings, 1),
]  # fmt: skip
