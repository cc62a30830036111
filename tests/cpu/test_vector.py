"""Parallel nests against the simulator: strides, orders, ragged ends, element types, masks."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from cpu import kernels
from cpu.kernels import buffer, check, random
from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import DType
from tilewright.targets.cpu import compile as compiling
from tilewright.targets.cpu import isa as isas
from tilewright.tile import ir
from tilewright.tile.evaluate import stored
from tilewright.tile.ir import Expr, If, Kernel, Parallel, Region, Scope, Store, block, const, var

f32 = dtypes.f32
i, j, k = var("i"), var("j"), var("k")
EVERY = [*kernels.BOTH, kernels.SCALAR]


def nest(extents: tuple[int, ...], body: ir.Stmt) -> Parallel:
    variables = (i, j, k)[: len(extents)]
    return Parallel(variables, tuple(const(n) for n in extents), body)


def one(name: str, params: tuple[ir.Buffer, ...], body: ir.Stmt) -> Kernel:
    return Kernel(name, params, (), body, (params[-1].name,))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 16, 17, 31, 64, 100, 255, 1000])
def test_ragged_ends(n: int) -> None:
    x, y, out = (buffer(name, f32, n) for name in ("x", "y", "out"))
    kernel = one("ragged", (x, y, out), nest((n,), Store(out, (i,), x[i] * y[i] + x[i])))
    check(kernel, [random(f32, (n,), seed) for seed in range(3)], EVERY)


@pytest.mark.parametrize("dtype", [*kernels.FLOATS, *kernels.INTEGERS, dtypes.b1], ids=lambda d: d.short)
def test_every_type_moves_and_selects(dtype: DType) -> None:
    n = 77
    x, y, out = (buffer(name, dtype, n) for name in ("x", "y", "out"))
    mask = buffer("mask", dtypes.b1, n)
    value = scalar.select(mask[i], x[i], y[i])
    arrays = [random(dtype, (n,), 1, True), random(dtype, (n,), 2, True), random(dtypes.b1, (n,), 3), random(dtype, (n,), 4)]
    check(one("select", (x, y, mask, out), nest((n,), Store(out, (i,), value))), arrays, EVERY, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", kernels.SMALL, ids=lambda d: d.short)
def test_eight_bit_floats(dtype: DType) -> None:
    """Every code as a number, and numbers of every size rounded to codes."""
    codes, wide = buffer("codes", dtype, 256), buffer("wide", f32, 256)
    check(one("decode", (codes, wide), nest((256,), Store(wide, (i,), scalar.cast(codes[i], f32)))),
          [np.arange(256, dtype=np.uint8), np.zeros(256, np.float32)], EVERY, rtol=0, atol=0)  # fmt: skip
    n = 5000
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(n) * 10.0 ** rng.uniform(-9, 6, n)).astype(np.float32)
    halves = (np.arange(-1024, 1024) / 2.0**11).astype(np.float32)
    values = np.concatenate([values, halves, halves * 1024, [np.nan, np.inf, -np.inf, 0.0, -0.0, 464, 448, 61440, 57344]]).astype(
        np.float32
    )
    x, out = buffer("x", f32, values.size), buffer("out", dtype, values.size)
    kernel = one("encode", (x, out), nest((values.size,), Store(out, (i,), x[i])))
    check(kernel, [values, np.zeros(values.size, np.uint8)], EVERY, rtol=0, atol=0)


@pytest.mark.parametrize("source", [*kernels.FLOATS, *kernels.SMALL, *kernels.INTEGERS, dtypes.b1], ids=lambda d: d.short)
def test_casts(source: DType) -> None:
    n = 37
    targets = (*kernels.FLOATS, *kernels.SMALL, *kernels.INTEGERS, dtypes.b1)
    x = buffer("x", source, n)
    outs = [buffer(f"to_{t.short}", t, n) for t in targets]
    stores = block(*(Store(out, (i,), scalar.cast(x[i], t)) for out, t in zip(outs, targets, strict=True)))
    kernel = Kernel("casts", (x, *outs), (), nest((n,), stores), tuple(o.name for o in outs))
    values = random(source, (n,), 5)
    if source.is_float:
        values = kernels.abs_of(values, source)  # a negative float to an unsigned integer is undefined
    check(kernel, [values, *(random(t, (n,), 6) for t in targets)], EVERY, rtol=0, atol=0)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "min", "max", "floordiv", "mod", "rem", "copysign"])
@pytest.mark.parametrize("dtype", kernels.FLOATS, ids=lambda d: d.short)
def test_float_arithmetic(op: str, dtype: DType) -> None:
    n = 60
    x, y, out = (buffer(name, dtype, n) for name in ("x", "y", "out"))
    arrays = [random(dtype, (n,), seed, True) for seed in (1, 2, 3)]
    check(one(op, (x, y, out), nest((n,), Store(out, (i,), scalar.binary(op, x[i], y[i])))), arrays, EVERY)


@pytest.mark.parametrize("op", ["neg", "abs", "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "recip", "isnan"])
@pytest.mark.parametrize("dtype", kernels.FLOATS, ids=lambda d: d.short)
def test_float_functions(op: str, dtype: DType) -> None:
    n = 60
    value = scalar.unary(op, buffer("x", dtype, n)[i])
    out = buffer("out", value.dtype, n)
    arrays = [random(dtype, (n,), 1, True), random(value.dtype, (n,), 2)]
    check(one(op, (buffer("x", dtype, n), out), nest((n,), Store(out, (i,), value))), arrays, EVERY)


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "pow", "floordiv", "mod", "quot", "rem"]
)
@pytest.mark.parametrize("dtype", kernels.INTEGERS, ids=lambda d: d.short)
def test_integer_arithmetic(op: str, dtype: DType) -> None:
    n = 40
    x, y, out = (buffer(name, dtype, n) for name in ("x", "y", "out"))
    arrays = [random(dtype, (n,), seed) for seed in (1, 2, 3)]
    if op in ("floordiv", "mod", "quot", "rem"):
        arrays[1][arrays[1] == 0] = 3
    check(one(op, (x, y, out), nest((n,), Store(out, (i,), scalar.binary(op, x[i], y[i])))), arrays, EVERY)


@pytest.mark.parametrize("op", ["floordiv", "mod", "quot", "rem"])
@pytest.mark.parametrize("dtype", kernels.INTEGERS, ids=lambda d: d.short)
def test_integer_division_never_faults(op: str, dtype: DType) -> None:
    info = np.iinfo(stored(dtype))
    x = np.array([info.min, info.max, 5, 0] * 5, info.dtype)
    y = np.array([0, 0, 0, 0, *([info.max if info.min == 0 else -1] * 16)], info.dtype)
    got = np.ones(20, info.dtype)
    params = tuple(buffer(name, dtype, 20) for name in ("x", "y", "out"))
    kernel = one(op, params, nest((20,), Store(params[2], (i,), scalar.binary(op, params[0][i], params[1][i]))))
    for isa in EVERY:
        kernels.execute(kernel, [x, y, got], isa)
        assert np.all(got[:4] == 0)


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize(
    "dtype", [f32, dtypes.f64, dtypes.bf16, dtypes.i8, dtypes.u16, dtypes.i64, dtypes.u64], ids=lambda d: d.short
)
def test_comparisons(op: str, dtype: DType) -> None:
    n = 50
    x, y, out = buffer("x", dtype, n), buffer("y", dtype, n), buffer("out", dtypes.b1, n)
    arrays = [random(dtype, (n,), 1, True), random(dtype, (n,), 2, True), random(dtypes.b1, (n,), 3)]
    check(one(op, (x, y, out), nest((n,), Store(out, (i,), scalar.binary(op, x[i], y[i])))), arrays, EVERY)


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_any_strides(data: st.DataObject) -> None:
    """Operands in any order of dimensions, broadcast or padded, into a permuted output."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 16, 19, 33]), min_size=1, max_size=3).map(tuple))
    dtype = data.draw(st.sampled_from([f32, dtypes.f16, dtypes.i64, dtypes.u8]))

    def view(name: str, may_broadcast: bool) -> tuple[ir.Buffer, int]:
        order = data.draw(st.permutations(range(len(shape))))
        pad = data.draw(st.integers(0, 2))
        strides, step = [0] * len(shape), 1
        for d in order:
            if not (may_broadcast and data.draw(st.booleans())):
                strides[d] = step
                step *= shape[d] + pad
        return buffer(name, dtype, *shape, strides=tuple(strides)), 1 + sum(
            (n - 1) * s for n, s in zip(shape, strides, strict=True)
        )

    (x, nx), (y, ny), (out, nout) = view("x", True), view("y", True), view("out", False)
    index: tuple[Expr, ...] = (i, j, k)[: len(shape)]
    kernel = one("strides", (x, y, out), nest(shape, Store(out, index, ir.Load(x, index) + ir.Load(y, index))))
    check(kernel, [random(dtype, (n,), seed) for seed, n in enumerate((nx, ny, nout))])


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.sampled_from([3, 4, 16, 20, 48]), st.sampled_from([2, 5, 16]), st.sampled_from([1, 3, 16]), st.booleans())
def test_reshaped_indices(inner: int, outer: int, step: int, flip: bool) -> None:
    """floordiv and mod of the variable of the lanes, in steps and backwards."""
    n = inner * outer
    x, out = buffer("x", f32, outer, inner * step), buffer("out", f32, n)
    column = i % inner
    column = (inner - 1) - column if flip else column
    kernel = one("reshape", (x, out), nest((n,), Store(out, (i,), x[i // inner, column * step])))
    check(kernel, [random(f32, (outer, inner * step), 1), random(f32, (n,), 2)])


def test_gather_and_scatter_by_loaded_indices() -> None:
    n, m = 70, 23
    index, x, out = buffer("index", dtypes.i64, n), buffer("x", f32, m, 5), buffer("out", f32, n, 5)
    kernel = one("rows", (index, x, out), nest((n, 5), Store(out, (i, j), x[index[i], j])))
    where = np.random.default_rng(0).integers(0, m, n)
    check(kernel, [where, random(f32, (m, 5), 1), random(f32, (n, 5), 2)], EVERY)
    there = np.random.default_rng(1).permutation(n)
    back = one(
        "scatter",
        (index, out, buffer("target", f32, n, 5)),
        nest((n, 5), Store(buffer("target", f32, n, 5), (index[i], j), out[i, j])),
    )
    check(back, [there, random(f32, (n, 5), 1), random(f32, (n, 5), 2)], EVERY)


@pytest.mark.parametrize("extent", [5, 40, 64])
def test_reads_and_writes_beyond_a_global_buffer_are_masked(extent: int) -> None:
    n = 37
    x, out = buffer("x", f32, n), buffer("out", f32, n)
    kernel = one("beyond", (x, out), nest((extent,), Store(out, (i,), x[i + 3] + 1.0)))
    guarded = [np.full(n, 7.0, np.float32), np.full(n, 9.0, np.float32)]
    check(kernel, guarded, EVERY)


def test_conditions_that_differ_between_lanes() -> None:
    n = 53
    x, out = buffer("x", f32, n), buffer("out", f32, n)
    body = If(x[i] > 0.0, Store(out, (i,), scalar.unary("sqrt", x[i])), If(i % 3 < 1, Store(out, (i,), x[i] * 2.0)))
    check(one("branches", (x, out), nest((n,), body)), [random(f32, (n,), 1), random(f32, (n,), 2)], EVERY)


def test_index_values() -> None:
    """Indices as numbers: converted, compared, in integer arithmetic."""
    n, m = 9, 50
    out, flags, total = buffer("out", f32, n, m), buffer("flags", dtypes.b1, n, m), buffer("total", dtypes.i64, n, m)
    stores = block(
        Store(out, (i, j), scalar.cast(j * 3 - i, f32) * 0.5),
        Store(flags, (i, j), (j <= i * 5) & (j % 7 > 2)),
        Store(total, (i, j), (i * m + j) // 11 - j % 4),
    )
    kernel = Kernel("indices", (out, flags, total), (), nest((n, m), stores), ("out", "flags", "total"))
    check(kernel, [random(f32, (n, m), 1), random(dtypes.b1, (n, m), 2), random(dtypes.i64, (n, m), 3)], EVERY)


def test_run_time_sizes() -> None:
    n = var("n")
    x = ir.Buffer("x", f32, (n, const(3)))
    out = ir.Buffer("out", f32, (n, const(3)))
    kernel = Kernel("sizes", (x, out), (), Parallel((i, j), (n, const(3)), Store(out, (i, j), x[i, j] + 1.0)), ("out",), (n,))
    for size in (0, 1, 5, 64, 133):
        check(kernel, [random(f32, (size, 3), 1), random(f32, (size, 3), 2)], EVERY, (size,))


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (64, 48), (20, 100)])
@pytest.mark.parametrize("dtype", [f32, dtypes.bf16, dtypes.i8, dtypes.f64], ids=lambda d: d.short)
def test_copies_transpose(shape: tuple[int, int], dtype: DType) -> None:
    m, n = shape
    x, out = buffer("x", dtype, m, n), buffer("out", dtype, n, m)
    zero = (const(0), const(0))
    copy = ir.Copy(Region(x, zero, (const(m), const(n))), Region(out, zero, (const(n), const(m))), True)
    check(one("transpose", (x, out), copy), [random(dtype, (m, n), 1), random(dtype, (n, m), 2)], EVERY)


def test_aarch64_code_is_made() -> None:
    n = 100
    x, out, mask = buffer("x", f32, n), buffer("out", f32, n), buffer("mask", dtypes.b1, n)
    value = scalar.select(mask[i], scalar.unary("exp", x[i]), scalar.unary("sin", x[i]))
    total = buffer("total", f32, 1, scope=Scope.LOCAL)
    body = block(ir.Reduce("sum", total, (const(0),), (k,), (const(n),), x[k]), nest((n,), Store(out, (i,), value * total[0])))
    kernel = one("arm", (x, mask, out), ir.Alloc(total, body))
    text = compiling.assembly(kernels.text_of(kernel, isas.named("aarch64")), isas.named("aarch64"))
    assert "fmla" in text or "fmadd" in text
    assert ".4s" in text


def test_wild_indices_touch_nothing() -> None:
    n, m = 40, 8
    index, x, out = buffer("index", dtypes.i64, n), buffer("x", f32, m), buffer("out", f32, n)
    kernel = one("wild", (index, x, out), nest((n,), Store(out, (i,), x[index[i]])))
    where = np.random.default_rng(0).integers(0, m, n)
    where[::3] = [-1, 1 << 40, -(1 << 62), m, 100, -7, 1 << 20] * 2
    values = random(f32, (m,), 1)
    for isa in EVERY:
        got = np.full(n, 5, np.float32)
        kernels.execute(kernel, [where, values, got], isa)
        assert np.array_equal(got, np.where((where >= 0) & (where < m), values[np.clip(where, 0, m - 1)], 0))
