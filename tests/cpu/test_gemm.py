from __future__ import annotations

import ctypes
import functools
import itertools
import math

import numpy as np
import pytest

from cpu.guarded import guarded
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import isa, llvm
from tilewright.targets.cpu.gemm import GemmOperand, emit_gemm, gemm_scratch, tiles

V4, V3, A64 = (isa.named(name) for name in ("x86-64-v4", "x86-64-v3", "aarch64"))
DOTS = isa.named("x86-64-v4+avx512bf16")
AMX = isa.named("x86-64-v4+avx512bf16+amx-tile+amx-bf16")
NUMPY = {d: np.dtype(d.name) for d in dtypes.ALL if d not in (dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.c32)}


def to_memory(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Values in the type's memory form; bf16 as rounded uint16."""
    if dtype is not dtypes.bf16:
        return x.astype(NUMPY[dtype])
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_memory(x: np.ndarray, dtype: DType) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype is dtypes.bf16 else x


def runs_here(level: isa.Isa) -> bool:
    host = isa.host_isa()
    enough = level.is_x86 and host.is_x86 and level.lanes <= host.lanes
    return enough and host.has_bf16_dot >= level.has_bf16_dot and host.has_amx >= level.has_amx


@functools.cache
def build(level: isa.Isa, kinds, strides, m, n, k, clear, pairs=False, padded=False, multiple=1):
    """void run(a, b, acc, scratch, *names): `strides` are those of a, b and acc; names of i64 among them become arguments."""
    module = llvm.Module()
    amounts = [*strides, m, n, k]
    names = [x for x in amounts if isinstance(x, str)]
    f = llvm.Function(module, "run", ["ptr %a", "ptr %b", "ptr %acc", "ptr %scratch", *(f"i64 {x}" for x in names)])
    a = GemmOperand("%a", strides[0], strides[1], kinds[0])
    b = GemmOperand("%b", strides[2], strides[3], kinds[1], pairs=pairs, padded=padded)
    acc = GemmOperand("%acc", strides[4], 1, kinds[2])
    emit_gemm(f, level, a, b, acc, m, n, k, clear, "%scratch", multiple)
    f.close()
    text = module.text(level.attributes)
    cpu.check(text, level)
    code = cpu.compile_module(text, level)
    if not runs_here(level):
        return None
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * len(names))
    return kind(cpu.load([code], ["run"])["run"])


def values(rng, shape, dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(shape)
    low = -100 if dtype.kind == "int" else 0
    return rng.integers(low, 100, shape)


def check(level, m, n, k, kinds=(dtypes.f32,) * 3, clear=True, turned_a=False, turned_b=False, dynamic=(), room=0):
    """One product against float64. Operands end at a guard page; `dynamic` names what is given at run time."""
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a, b = to_memory(values(rng, (m, k), kinds[0]), kinds[0]), to_memory(values(rng, (k, n), kinds[1]), kinds[1])
    old = values(rng, (m, n), kinds[2]).astype(NUMPY[kinds[2]])
    acc = np.full((m, n + room), 7, NUMPY[kinds[2]])
    acc[:, :n] = np.nan if clear and kinds[2].is_float else old
    strides = {
        "a_row": 1 if turned_a else k, "a_column": m if turned_a else 1,
        "b_row": 1 if turned_b else n, "b_column": k if turned_b else 1, "acc_row": n + room,
    }  # fmt: skip
    amounts = strides | {"m": m, "n": n, "k": k}
    given = [f"%{x}" if x in dynamic else v for x, v in amounts.items()]
    run = build(level, kinds, tuple(given[:5]), *given[5:], clear)
    if run is None:
        return
    left, right = guarded(a.T if turned_a else a), guarded(b.T if turned_b else b)
    scratch = np.full(k * level.nr * 8 + level.mr * (k + 32) * 4 + 64, 255, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    names = [v for x, v in amounts.items() if x in dynamic]
    run(left.ctypes.data, right.ctypes.data, acc.ctypes.data, aligned, *names)
    exact = np.float64 if kinds[2].is_float else np.int64
    product = from_memory(a, kinds[0]).astype(exact) @ from_memory(b, kinds[1]).astype(exact)
    expected = product if clear else old.astype(exact) + product
    if kinds[2].is_float:
        unit = np.finfo(NUMPY[kinds[2]]).eps
        scale = np.abs(from_memory(a, kinds[0]).astype(exact)) @ np.abs(from_memory(b, kinds[1]).astype(exact)) + 1
        assert np.all(np.abs(acc[:, :n] - expected) <= 4 * np.sqrt(k + 1) * unit * scale)
    else:
        np.testing.assert_array_equal(acc[:, :n], expected.astype(acc.dtype))
    assert np.all(acc[:, n:] == 7)


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
def test_shapes(level):
    for m, n, k in itertools.product((1, 2, 3, 5, 13, 15, 29), (1, 16, 17, 40), (1, 6)):
        check(level, m, n, k, room=3)
    check(level, 128, 96, 70)


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
def test_long_sums(level):
    for m, n in ((1, 32), (3, 7), (20, 33)):
        check(level, m, n, 771)


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
def test_adding(level):
    check(level, 9, 37, 33, clear=False, room=2)


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
@pytest.mark.parametrize(("turned_a", "turned_b"), [(True, False), (False, True), (True, True)])
def test_transposes(level, turned_a, turned_b):
    for m, n, k in ((1, 5, 9), (17, 50, 37), (5, 32, 64), (20, 40, 37), (9, 20, 256)):
        check(level, m, n, k, turned_a=turned_a, turned_b=turned_b)


KINDS = [
    (dtypes.f64, dtypes.f64, dtypes.f64), (dtypes.f32, dtypes.f32, dtypes.f64), (dtypes.bf16, dtypes.bf16, dtypes.f32),
    (dtypes.f16, dtypes.f16, dtypes.f32), (dtypes.f32, dtypes.bf16, dtypes.f32), (dtypes.i8, dtypes.i8, dtypes.i32),
    (dtypes.u8, dtypes.i8, dtypes.i32), (dtypes.i16, dtypes.i16, dtypes.i32), (dtypes.i32, dtypes.i32, dtypes.i32),
    (dtypes.i64, dtypes.i64, dtypes.i64),
]  # fmt: skip


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "_".join(k.short for k in kinds))
def test_types(level, kinds):
    for m, n, k in ((1, 9, 5), (17, 35, 18)):
        check(level, m, n, k, kinds)
    check(level, 5, 20, 7, kinds, dynamic=("k", "a_row"))
    check(level, 3, 33, 41, kinds, turned_b=True)
    check(level, 13, 33, 11, kinds, turned_b=True)


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
def test_run_time_sizes(level):
    sizes = ("m", "n", "k", "a_row", "b_row", "acc_row")
    for m, n, k in ((1, 1, 1), (13, 32, 8), (14, 40, 9), (31, 17, 3), (28, 64, 2), (5, 0, 4), (0, 5, 4)):
        check(level, m, n, k, dynamic=sizes)
    check(level, 4, 20, 8, dynamic=("m", "n", "a_row", "a_column"), turned_a=True)
    check(level, 4, 20, 8, dynamic=("m", "n", "b_column"), turned_b=True)  # packed
    check(level, 4, 20, 70, dynamic=("n", "k", "b_column"), turned_b=True)  # as dot products


@pytest.mark.parametrize("level", [V4, V3], ids=lambda level: level.name)
@pytest.mark.parametrize("dynamic", [("m", "a_row"), ("m", "k", "a_row", "acc_row"), ("a_row", "a_column", "b_row")], ids=str)
def test_rows_and_their_distances_at_run_time(level, dynamic):
    for m, k in itertools.product((1, 3, 4, 5, 7, 8, 11, 13, 14, 27, 31), (1, 5, 8)):
        check(level, m, 32, k, dynamic=dynamic, clear=m % 2 == 0, room=1)
    check(level, 27, 41, 6, (dtypes.bf16, dtypes.bf16, dtypes.f32), dynamic=dynamic)
    check(level, 13, 9, 6, (dtypes.i64,) * 3, dynamic=dynamic)


def test_products_of_run_time_rows_share_their_code():
    module = llvm.Module()
    f = llvm.Function(module, "run", ["ptr %a", "ptr %b", "ptr %acc", "i64 %m"])
    for row in (64, 128):
        emit_gemm(
            f, V4, GemmOperand("%a", row, 1, dtypes.f32), GemmOperand("%b", 32, 1, dtypes.f32),
            GemmOperand("%acc", row, 1, dtypes.f32), "%m", 32, 64, True,
        )  # fmt: skip
    f.close()
    assert sum(name.startswith("rows_") for name in module.functions) == 1


def test_nothing_to_add():
    check(V3, 3, 9, 0)
    check(V4, 3, 9, 0, clear=False)


def test_not_a_number_and_infinity_survive():
    run = build(V3, (dtypes.f32,) * 3, (2, 1, 8, 1, 8), 1, 8, 2, True)
    a, b, acc = np.array([[1, np.inf]], np.float32), np.zeros((2, 8), np.float32), np.zeros((1, 8), np.float32)
    b[0, 1], b[1, 2], b[1, 3] = np.nan, 1, -1
    run(a.ctypes.data, b.ctypes.data, acc.ctypes.data, None)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(acc, a @ b)


def test_dot_products_of_pairs():
    for m, n, k in ((1, 13, 64), (7, 20, 37), (4, 6, 1)):
        check(DOTS, m, n, k, (dtypes.bf16, dtypes.bf16, dtypes.f32), turned_b=True, clear=m > 1)


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("dynamic", ["", "m", "k", "mk"])
@pytest.mark.parametrize(("level", "m", "n", "k"), [
    *itertools.product([DOTS], (1, 5, 20), [40], (1, 2, 7, 64)),
    *itertools.product([AMX], (1, 16, 27, 40, 50), (32, 17, 50, 9), (64, 103)), (AMX, 64, 32, 96),
])  # fmt: skip
def test_pairs(level, m, n, k, clear, dynamic):
    """b as [k / 2][n][2], an odd last k padded with zero. `dynamic`: what is known at run time only, of an even k."""
    if k % 2:
        dynamic = dynamic.replace("k", "")
    sizes = {x: f"%{x}" if x in dynamic else v for x, v in {"m": m, "n": n, "k": k}.items()}
    kinds = (dtypes.bf16, dtypes.bf16, dtypes.f32)
    run = build(level, kinds, (k, 1, 2 * n, 1, n + 1), *sizes.values(), clear, pairs=True, multiple=math.gcd(k, 64))
    if run is None:
        pytest.skip("this machine lacks the instruction")
    rng = np.random.default_rng(k)
    a, b = (to_memory(rng.standard_normal(shape), dtypes.bf16) for shape in ((m, k), (k, n)))
    packed = np.zeros((-(-k // 2), n, 2), np.uint16)
    packed[: (k + 1) // 2, :, 0] = b[::2]
    packed[: k // 2, :, 1] = b[1::2]
    old = rng.standard_normal((m, n + 1)).astype(np.float32)
    acc = guarded(np.where(np.arange(n + 1) < n, np.nan, old).astype(np.float32) if clear else old)
    left, right = guarded(a), guarded(packed)
    run(left.ctypes.data, right.ctypes.data, acc.ctypes.data, None, *(v for x, v in (("m", m), ("k", k)) if x in dynamic))
    x, y = from_memory(a, dtypes.bf16).astype(np.float64), from_memory(b, dtypes.bf16).astype(np.float64)
    expected = x @ y + (0 if clear else old[:, :n])
    assert np.all(np.abs(acc[:, :n] - expected) <= 1e-5 * (np.abs(x) @ np.abs(y) + 1))
    assert np.all(acc[:, n] == old[:, n])


def test_padded_panels_are_read_whole():
    """A padded panel needs no mask on b: the code reads, and ignores, what lies behind n."""
    plain = build(V4, (dtypes.f32,) * 3, (8, 1, 32, 1, 32), 2, 17, 8, True)
    padded = build(V4, (dtypes.f32,) * 3, (8, 1, 32, 1, 32), 2, 17, 8, True, padded=True)
    if padded is None:
        pytest.skip("this machine lacks the instructions")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 8), (8, 32)))
    one, two = (np.full((2, 32), 7, np.float32) for _ in range(2))
    plain(a.ctypes.data, b.ctypes.data, one.ctypes.data, None)
    padded(a.ctypes.data, b.ctypes.data, two.ctypes.data, None)
    np.testing.assert_array_equal(one, two)
    assert np.all(two[:, 17:] == 7)


@pytest.mark.parametrize("kinds", KINDS[:4], ids=lambda kinds: "_".join(k.short for k in kinds))
def test_neon_compiles(kinds):
    build(A64, kinds, (33, 1, 19, 1, 19), 9, 19, 33, True)
    build(A64, kinds, ("%ar", 1, "%br", 1, "%cr"), "%m", "%n", "%k", False)


def test_tiles_are_balanced():
    assert tiles(128, 14) == [(13, 8), (12, 2)]
    assert tiles(28, 14) == [(14, 2)]
    assert tiles(3, 14) == [(3, 1)]
    assert tiles(0, 14) == []
    for size in range(1, 100):
        assert sum(rows * times for rows, times in tiles(size, 6)) == size


def test_equal_tiles_share_a_micro_kernel():
    module = llvm.Module()
    f = llvm.Function(module, "run", ["ptr %a", "ptr %b", "ptr %acc"])
    for k in (64, 128):
        emit_gemm(
            f, V4, GemmOperand("%a", 512, 1, dtypes.f32), GemmOperand("%b", 512, 1, dtypes.f32),
            GemmOperand("%acc", 32, 1, dtypes.f32), 28, 32, k, True,
        )  # fmt: skip
    f.close()
    assert len(module.functions) == 2


def test_what_it_refuses():
    f = llvm.Function(llvm.Module(), "run", [])
    a, b, acc = (GemmOperand(p, 8, 1, dtypes.f32) for p in ("%a", "%b", "%c"))
    strided = GemmOperand("%b", 1, 8, dtypes.f32)
    with pytest.raises(ValueError, match="contiguous"):
        emit_gemm(f, V4, a, b, strided, 8, 8, 8, True)
    with pytest.raises(ValueError, match="scratch"):
        emit_gemm(f, V4, a, strided, acc, 64, 8, 8, True)
    with pytest.raises(ValueError, match="constant k"):
        gemm_scratch(V4, strided, "%k")
    with pytest.raises(ValueError, match="dot instruction"):
        emit_gemm(f, V4, a, GemmOperand("%b", 8, 1, dtypes.bf16, pairs=True), acc, 8, 8, 8, True)
    assert gemm_scratch(V4, b, "%k") == 0
    assert gemm_scratch(V4, strided, 100) == 100 * 32 * 4
