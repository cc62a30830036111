"""Scalar evaluation against torch: every operation on every type it has, at the values where types differ."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import DType, b1, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8
from tilewright.tile.evaluate import combined, constant, convert, decode, encode, evaluate, held, reduced, rounded, stored

T: dict[DType, torch.dtype] = {
    d: getattr(torch, d.name) for d in (f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, b1)
}
FLOATS = [0.0, -0.0, 1.0, -1.5, 0.3, 2.5, 3.5, -7.25, 1e-3, 100.0, 3e4, 1e-40, 1e-6, math.inf, -math.inf, math.nan]


def values(dtype: DType) -> torch.Tensor:
    if dtype.is_float:
        return torch.tensor(FLOATS, dtype=torch.float64).to(T[dtype])
    if dtype is b1:
        return torch.tensor([True, False])
    info = torch.iinfo(T[dtype])
    return torch.tensor([0, 1, 2, 3, 7, 100, info.max, info.max - 1, info.min, info.min + 1, info.max // 2], dtype=T[dtype])


def to_held(t: torch.Tensor, dtype: DType) -> np.ndarray:
    if stored(dtype) != held(dtype):
        return decode(t.view(torch.uint16 if dtype.bytes == 2 else torch.uint8).numpy(), dtype)
    return t.numpy()


def run(build: Callable[..., scalar.Expr], *operands: tuple[torch.Tensor, DType]) -> np.ndarray:
    names = [scalar.var(f"v{k}", d) for k, (_, d) in enumerate(operands)]
    env = {n: to_held(t, d) for n, (t, d) in zip(names, operands, strict=True)}
    with np.errstate(all="ignore"):
        return evaluate(build(*names), env.__getitem__)  # type: ignore[arg-type]


def same(got: np.ndarray, expected: torch.Tensor, dtype: DType, ulps: int = 0) -> None:
    want = to_held(expected, dtype)
    assert got.dtype == want.dtype
    if not ulps or dtype.kind != "float":
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        step = np.abs(np.spacing(want.astype(held(dtype))))
        near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= ulps * step
    assert np.all(near | (got == want) | (np.isnan(got) & np.isnan(want)))


def pairs(dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    v = values(dtype)
    return v.repeat_interleave(len(v)), v.repeat(len(v))


TORCH_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "erf": torch.erf, "erfc": torch.erfc, "floor": torch.floor,
    "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "isnan": torch.isnan,
}  # fmt: skip


def test_every_unary_operation_is_compared() -> None:
    assert set(TORCH_UNARY) | {"not"} == set(scalar.UNARY)


@pytest.mark.parametrize("dtype", [f64, f32], ids=str)
@pytest.mark.parametrize("op", TORCH_UNARY)
def test_unary_on_floats(op: str, dtype: DType) -> None:
    x = values(dtype)
    result = TORCH_UNARY[op](x)
    same(run(lambda v: scalar.unary(op, v), (x, dtype)), result, b1 if op == "isnan" else dtype, ulps=4)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("op", ["neg", "abs", "sqrt", "exp", "tanh", "floor", "round"])
def test_unary_on_halves_is_rounded_once(op: str, dtype: DType) -> None:
    x = values(dtype)
    exact = TORCH_UNARY[op](x.double()).float().to(T[dtype])
    same(run(lambda v: scalar.unary(op, v), (x, dtype)), exact, dtype)


@pytest.mark.parametrize("dtype", [i64, i32, i16, i8], ids=str)
def test_unary_on_integers(dtype: DType) -> None:
    x = values(dtype)
    for op, expected in (("neg", -x), ("abs", x.abs()), ("not", ~x), ("floor", x), ("round", x)):
        same(run(lambda v, op=op: scalar.unary(op, v), (x, dtype)), expected, dtype)
    same(run(lambda v: scalar.unary("isnan", v), (x, dtype)), torch.zeros(len(x), dtype=torch.bool), b1)


TORCH_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "floordiv": torch.floor_divide,
    "mod": torch.remainder, "quot": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "rem": torch.fmod, "min": torch.minimum,
    "max": torch.maximum, "pow": torch.pow, "atan2": torch.atan2, "copysign": torch.copysign, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
ON_BOTH = ["add", "sub", "mul", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"]


def test_every_binary_operation_is_compared() -> None:
    assert set(TORCH_BINARY) == set(scalar.BINARY)


@pytest.mark.parametrize("dtype", [f64, f32], ids=str)
@pytest.mark.parametrize("op", [*ON_BOTH, "div", "floordiv", "mod", "quot", "rem", "pow", "atan2", "copysign"])
def test_binary_on_floats(op: str, dtype: DType) -> None:
    x, y = pairs(dtype)
    if op in ("mod", "floordiv"):  # eager differs from Python on infinities here; the IR says Python's
        keep = torch.isfinite(x) & torch.isfinite(y)
        x, y = x[keep], y[keep]
    wide = op in ("mod", "rem")  # eager's vectorised float32 remainder is not exact
    result = TORCH_BINARY[op](x.double(), y.double()).to(x.dtype) if wide else TORCH_BINARY[op](x, y)
    exact = op in (*ON_BOTH, "div", "rem", "copysign", "floordiv", "quot")
    same(
        run(lambda a, b: scalar.binary(op, a, b), (x, dtype), (y, dtype)),
        result,
        b1 if op in ON_BOTH[5:] else dtype,
        0 if exact else 2,
    )


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("op", ["add", "mul", "div", "max", "lt"])
def test_binary_on_halves(op: str, dtype: DType) -> None:
    x, y = pairs(dtype)
    same(run(lambda a, b: scalar.binary(op, a, b), (x, dtype), (y, dtype)), TORCH_BINARY[op](x, y), b1 if op == "lt" else dtype)


@pytest.mark.parametrize("dtype", [i64, i32, i16, i8, u8], ids=str)
@pytest.mark.parametrize("op", [*ON_BOTH, "floordiv", "mod", "quot", "rem", "and", "or", "xor", "shl", "shr", "pow"])
def test_binary_on_integers(op: str, dtype: DType) -> None:
    x, y = pairs(dtype)
    if op in ("floordiv", "mod", "quot", "rem"):
        keep = (y != 0) & ~((y == -1) & (x == torch.iinfo(T[dtype]).min))
        x, y = x[keep], y[keep]
    if op in ("shl", "shr", "pow"):
        keep = (y >= 0) & (y < 8 * T[dtype].itemsize)
        x, y = x[keep], y[keep]
    result = TORCH_BINARY[op](x, y)
    same(run(lambda a, b: scalar.binary(op, a, b), (x, dtype), (y, dtype)), result, b1 if op in ON_BOTH[5:] else dtype)


def test_integers_beyond_their_range() -> None:
    x = torch.tensor([5, -5, 1, -1, 2, 0, -1], dtype=torch.int64)
    y = torch.tensor([70, 64, -1, -3, -1, 3, -2], dtype=torch.int64)
    same(run(lambda a, b: scalar.binary("pow", a, b), (x[2:], i64), (y[2:], i64)), torch.tensor([1, -1, 0, 0, 1]), i64)
    same(run(lambda a, b: scalar.binary("shl", a, b), (x[:2], i64), (y[:2], i64)), torch.tensor([0, 0]), i64)
    same(run(lambda a, b: scalar.binary("shr", a, b), (x[:2], i64), (y[:2], i64)), torch.tensor([0, -1]), i64)
    with pytest.raises(ZeroDivisionError, match="mod by zero on i64"):
        run(lambda a: scalar.binary("mod", a, 0), (x, i64))


def test_bools() -> None:
    x, y = pairs(b1)
    for op, expected in (
        ("and", x & y),
        ("or", x | y),
        ("xor", x ^ y),
        ("min", x & y),
        ("max", x | y),
        ("eq", x == y),
        ("lt", ~x & y),
    ):
        same(run(lambda a, b, op=op: scalar.binary(op, a, b), (x, b1), (y, b1)), expected, b1)
    same(run(lambda a: ~a, (x, b1)), ~x, b1)
    with pytest.raises(TypeError, match="sub on b1"):
        run(lambda a, b: scalar.binary("sub", a, b), (x, b1), (y, b1))


@pytest.mark.parametrize("source", [f64, f32, f16, bf16, i64, i32, i8, u8, b1], ids=str)
@pytest.mark.parametrize("target", [f64, f32, f16, bf16, i64, i32, i16, i8, u8, b1, f8e4m3, f8e5m2], ids=str)
def test_casts(source: DType, target: DType) -> None:
    x = values(source)
    if source.is_float and target.is_integer:  # beyond the range C leaves it open
        x = x[torch.isfinite(x) & (x.abs() < 100) & ((x >= 0) | (target.kind == "int"))]
    if source is i64 and target.is_float and target.bytes < 4:
        x = x[x.abs() < 1 << 24]
    same(run(lambda v: scalar.cast(v, target), (x, source)), x.to(T[target]), target)


@pytest.mark.parametrize("dtype", [bf16, f16, f8e4m3, f8e5m2], ids=str)
def test_rounding_and_storage_of_small_floats(dtype: DType) -> None:
    codes = torch.arange(1 << dtype.bits, dtype=torch.int32)
    raw = codes.to(torch.uint16) if dtype.bytes == 2 else codes.to(torch.uint8)
    every = to_held(raw.view(T[dtype]), dtype)
    np.testing.assert_array_equal(every.astype(np.float32), raw.view(T[dtype]).float().numpy())
    kept = encode(every, dtype, stored(dtype))
    finite = ~np.isnan(every)
    np.testing.assert_array_equal(kept[finite].view(np.uint16 if dtype.bytes == 2 else np.uint8), raw.numpy()[finite])
    x = torch.cat([torch.randn(20000) * 10.0**k for k in range(-8, 7)])
    with np.errstate(all="ignore"):
        middle = (every[:-1].astype(np.float64) + every[1:].astype(np.float64)) / 2  # ties
        x = torch.cat([x, torch.from_numpy(middle.astype(np.float32))])
        np.testing.assert_array_equal(rounded(x.numpy(), dtype), to_held(x.to(T[dtype]), dtype))


def test_constants_wrap() -> None:
    assert constant(-1, dtypes.u64) == (1 << 64) - 1
    assert constant(200, i8) == -56
    assert constant(0.1, bf16) == torch.tensor(0.1, dtype=torch.bfloat16).float().item()


def test_selects_and_sharing() -> None:
    x: scalar.Expr = scalar.var("v0", f32)
    for _ in range(60):
        x = scalar.select(x > 1.0, x * 0.5, x + x)  # exponential as a tree
    assert float(evaluate(x, lambda _: np.float32(0.7))) < 3


REDUCTIONS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("sum", lambda x: x.sum(-1, dtype=x.dtype)),
    ("prod", lambda x: x.prod(-1, dtype=x.dtype)),
    ("max", lambda x: x.amax(-1)),
    ("min", lambda x: x.amin(-1)),
    ("any", lambda x: x.any(-1)),
    ("all", lambda x: x.all(-1)),
    ("argmax", lambda x: x.argmax(-1)),
    ("argmin", lambda x: x.argmin(-1)),
]


@pytest.mark.parametrize(("op", "expected"), REDUCTIONS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("dtype", [f64, f32, i64, i32, u8], ids=str)
def test_reductions(op: str, expected: Callable[[torch.Tensor], torch.Tensor], dtype: DType) -> None:
    x = (torch.randn(6, 9) * 3).to(T[i8]).to(T[dtype])
    if dtype.is_float:
        x[2, 4] = math.nan
    result, of = reduced(op, x.numpy(), dtype)
    want = expected(x)
    assert of is (dtypes.named(str(want.dtype).removeprefix("torch.")) if op not in ("any", "all") else b1)
    np.testing.assert_allclose(result, want.numpy().astype(result.dtype), rtol=1e-6)


def test_reductions_of_bools_and_bits() -> None:
    x = np.array([[True, False, True], [True, True, True]])
    for op, want in (("sum", [1, 1]), ("prod", [0, 1]), ("bitxor", [0, 1]), ("bitand", [0, 1]), ("max", [1, 1]), ("all", [0, 1])):
        result, of = reduced(op, x, b1)
        assert of is b1 and result.dtype == np.bool_
        np.testing.assert_array_equal(result, np.array(want, bool))
    assert reduced("bitor", np.array([[1, 2, 4]]), i64)[0] == 7
    assert combined("any", np.float32(0), np.float32(3), f32) == 1.0
    with pytest.raises(ValueError, match="cannot accumulate"):
        combined("argmax", np.int64(0), np.int64(0), i64)
    with pytest.raises(ValueError, match="argmax of nothing"):
        reduced("argmax", np.zeros((2, 0)), f64)


def test_convert_to_bool_takes_nan_for_true() -> None:
    np.testing.assert_array_equal(convert(np.float32([0, -0.0, np.nan, 0.1]), f32, b1), [False, False, True, True])
