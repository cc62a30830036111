"""The error of every transcendental function in units in the last place, and its special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpu import kernels
from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import DType
from tilewright.targets.cpu.isa import Isa
from tilewright.tile import ir
from tilewright.tile.evaluate import binary as exact_binary
from tilewright.tile.evaluate import unary as exact_unary

UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "asin", "acos", "atan", "sinh", "cosh",
    "erf", "erfc", "sqrt", "rsqrt", "recip",
)  # fmt: skip
SPECIALS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-39, -1e-39, 3e38, -3e38, 0.5, -0.5, 2.0, -2.0]
RANGES = {
    "exp": (-105, 90), "exp2": (-152, 130), "expm1": (-30, 90), "sinh": (-90, 90), "cosh": (-90, 90), "erfc": (-5, 11),
    "erf": (-5, 5), "tanh": (-11, 11), "asin": (-1, 1), "acos": (-1, 1), "log1p": (-1, 50),
}  # fmt: skip


def samples(op: str) -> np.ndarray:
    """Numbers of every exponent, densely where the function turns, and specials."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 60_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    low, high = RANGES.get(op, (-30, 30))
    dense = rng.uniform(low, high, 60_000).astype(np.float32)
    near = (rng.uniform(-1, 1, 20_000) * 10.0 ** rng.uniform(-8, 0, 20_000)).astype(np.float32)
    around = (1 + rng.uniform(-1, 1, 20_000) * 10.0 ** rng.uniform(-7, -0.3, 20_000)).astype(np.float32)
    large = (rng.uniform(-1, 1, 5_000) * 10.0 ** rng.uniform(0, 12, 5_000)).astype(np.float32)
    return np.concatenate([np.array(SPECIALS, np.float32), bits, dense, near, around, large])


def kernel_of(op: str, dtype: DType, n: int, operands: int) -> ir.Kernel:
    inputs = [kernels.buffer(name, dtype, n) for name in ("x", "y")[:operands]]
    out = kernels.buffer("out", dtype, n)
    i = ir.var("i")
    value = scalar.unary(op, inputs[0][i]) if operands == 1 else scalar.binary(op, inputs[0][i], inputs[1][i])
    return ir.Kernel(op, (*inputs, out), (), ir.Parallel((i,), (ir.const(n),), ir.Store(out, (i,), value)), ("out",))


def computed(op: str, dtype: DType, isa: Isa, *args: np.ndarray) -> np.ndarray:
    out = np.zeros_like(args[0])
    kernels.execute(kernel_of(op, dtype, out.size, len(args)), [*args, out], isa)
    return out


def ulps(got: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """The distance in units of the result's last place; what must be equal and is not counts as infinite."""
    with np.errstate(all="ignore"):
        exact = wide.astype(np.float32)
        special = ~np.isfinite(exact) | ~np.isfinite(got)
        unit = np.maximum(np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64), 2.0**-149)
        error = np.abs(got.astype(np.float64) - wide) / unit
    same = (got == exact) | (np.isnan(got) & np.isnan(exact))
    edge = np.isinf(exact) & (np.abs(got) == np.finfo(np.float32).max)
    return np.where(special, np.where(same, 0.0, np.where(edge, 1.0, np.inf)), error)


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("isa", kernels.BOTH, ids=lambda isa: isa.name)
def test_fp32_is_within_two_ulp(op: str, isa: Isa) -> None:
    x = samples(op)
    if op in ("sin", "cos", "tan"):
        x = x[~(np.abs(x) > 1e15)]  # beyond, the reference in fp64 is no better
    with np.errstate(all="ignore"):
        wide = exact_unary(op, x.astype(np.float64), dtypes.f64)
    error = ulps(computed(op, dtypes.f32, isa, x), wide)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{op}({x[worst]!r}): {error[worst]} ulp"


@pytest.mark.parametrize("op", ["pow", "atan2"])
@pytest.mark.parametrize("isa", kernels.BOTH, ids=lambda isa: isa.name)
def test_fp32_of_two_operands_is_within_two_ulp(op: str, isa: Isa) -> None:
    special = np.array([*SPECIALS, 3.0, -3.0, 0.25, 16777217.0, 1.0000001, 0.9999999], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, (2, 40_000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    some = np.stack([np.exp(rng.uniform(-8, 8, 40_000)), rng.uniform(-20, 20, 40_000)]).astype(np.float32)
    whole = np.stack([rng.uniform(-4, 4, 5_000), rng.integers(-9, 10, 5_000)]).astype(np.float32)
    x, y = np.concatenate([x, bits[0], some[0], whole[0]]), np.concatenate([y, bits[1], some[1], whole[1]])
    with np.errstate(all="ignore"):
        wide = exact_binary(op, x.astype(np.float64), y.astype(np.float64), dtypes.f64)
    error = ulps(computed(op, dtypes.f32, isa, x, y), wide)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{op}({x[worst]!r}, {y[worst]!r}): {error[worst]} ulp"


@pytest.mark.parametrize("op", ["sin", "tan", "tanh", "asin", "atan", "sinh", "erf", "expm1", "log1p", "sqrt"])
def test_zeros_keep_their_sign(op: str) -> None:
    x = np.array([0.0, -0.0] * 9, np.float32)
    assert np.array_equal(np.signbit(computed(op, dtypes.f32, kernels.HOST, x)), np.signbit(x))


@pytest.mark.parametrize("op", ["exp", "log", "sin", "tanh", "erf", "erfc", "pow", "atan2"])
def test_fp64_is_the_c_librarys(op: str) -> None:
    rng = np.random.default_rng(3)
    args = [np.exp(rng.uniform(-5, 3, 33)) for _ in range(2 if op in ("pow", "atan2") else 1)]
    wide = exact_unary(op, args[0], dtypes.f64) if len(args) == 1 else exact_binary(op, *args, dtypes.f64)
    np.testing.assert_allclose(computed(op, dtypes.f64, kernels.HOST, *args), wide, rtol=1e-15)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=lambda d: d.short)
@pytest.mark.parametrize("op", ["exp", "erf", "sin", "log"])
def test_sixteen_bits_are_computed_in_fp32(op: str, dtype: DType) -> None:
    x = kernels.random(dtype, (100,), 4)
    kernels.check(kernel_of(op, dtype, 100, 1), [x, np.zeros_like(x)])
