"""Runs a kernel compiled and simulated on the same memory, for the tests here."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tilewright.base import dims, dtypes
from tilewright.base.dims import Size
from tilewright.base.dtypes import DType
from tilewright.targets.cpu import compile as compiling
from tilewright.targets.cpu import isa as isas
from tilewright.targets.cpu import kernel as emitting
from tilewright.targets.cpu import llvm
from tilewright.tile import ir, simulate
from tilewright.tile.evaluate import decode, encode, rounded, stored

HOST = isas.host_isa()
NARROW = isas.named("x86-64-v3")
BOTH = [isa for isa in (HOST, NARROW) if isa.is_x86] or [HOST]
SCALAR = dataclasses.replace(NARROW, name="one lane", lanes=1)
FLOATS = (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16)
SMALL = (dtypes.f8e4m3, dtypes.f8e5m2)
INTEGERS = (dtypes.i64, dtypes.i32, dtypes.i16, dtypes.i8, dtypes.u64, dtypes.u32, dtypes.u16, dtypes.u8)


@functools.cache
def built(kernel: ir.Kernel, isa: isas.Isa) -> tuple[int, Size]:
    """The address of a kernel's code, and the scratch it wants."""
    module = llvm.Module()
    info = emitting.emit_kernel(kernel, "kernel", module, isa)
    text = module.text(isa.attributes)
    compiling.check(text, isa)
    return compiling.load([compiling.compile_module(text, isa)], ["kernel"])["kernel"], info.scratch_bytes


def text_of(kernel: ir.Kernel, isa: isas.Isa = HOST) -> str:
    module = llvm.Module()
    emitting.emit_kernel(kernel, "kernel", module, isa)
    return module.text(isa.attributes)


def blocks_of(kernel: ir.Kernel, scalars: Sequence[int] = ()) -> int:
    env = dict(zip(kernel.scalars, scalars, strict=True))
    total = 1
    for _, extent in kernel.grid:
        total *= extent.value if isinstance(extent, ir.Const) else env[extent]
    return total


def execute(kernel: ir.Kernel, arrays: Sequence[np.ndarray], isa: isas.Isa = HOST, scalars: Sequence[int] = ()) -> None:
    """Run the whole grid, in two ranges if it has two blocks."""
    address, wanted = built(kernel, isa)
    bytes_ = dims.evaluate(wanted, {v.name: s for v, s in zip(kernel.scalars, scalars, strict=True)})
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)
    room = np.full(bytes_ + 128, 0xFF, np.uint8)
    scratch = (room.ctypes.data + 63) // 64 * 64
    error = np.zeros(256, np.uint8)
    args = np.array([*(a.ctypes.data for a in arrays), *scalars, error.ctypes.data], np.int64)
    blocks = blocks_of(kernel, scalars)
    for lo, hi in ((0, blocks // 2), (blocks // 2, blocks)):
        run(args.ctypes.data, lo, hi, scratch)
    assert np.all(room[scratch - room.ctypes.data + bytes_ :] == 0xFF), "wrote behind its scratch"


def random(dtype: DType, shape: tuple[int, ...], seed: int = 0, specials: bool = False) -> np.ndarray:
    """Memory of `dtype`: small numbers, and with `specials` also NaN, infinities and zeros."""
    rng = np.random.default_rng(seed)
    kind = stored(dtype)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(kind)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "uint" else -9, 10, shape).astype(kind)
    x = rng.standard_normal(shape).astype(np.float32)
    if specials and x.size:
        flat = x.reshape(-1)
        flat[rng.integers(0, flat.size, flat.size // 5 + 1)] = rng.choice(
            [np.nan, np.inf, -np.inf, 0.0, -0.0], flat.size // 5 + 1
        )
    if dtype is dtypes.bf16:
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    if dtype in SMALL:
        return encode(rounded(x, dtype), dtype, stored(dtype))
    return x.astype(kind)


def check(
    kernel: ir.Kernel,
    arrays: Sequence[np.ndarray],
    isas_: Sequence[isas.Isa] = BOTH,
    scalars: Sequence[int] = (),
    **tolerance: float,
) -> None:
    """Compiled code gives what the simulator gives. Tolerances as in numpy; without them floats may differ by rounding."""
    expected = [a.copy() for a in arrays]
    simulate.run_kernel(kernel, expected, scalars)
    for isa in isas_:
        got = [a.copy() for a in arrays]
        execute(kernel, got, isa, scalars)
        for p, x, y in zip(kernel.params, got, expected, strict=True):
            compare(p.dtype, x, y, f"{isa.name}: {p.name}", **tolerance)


def compare(dtype: DType, got: np.ndarray, expected: np.ndarray, name: str, **tolerance: float) -> None:
    x, y = decode(got, dtype), decode(expected, dtype)
    if not dtype.is_float:
        np.testing.assert_array_equal(x, y, err_msg=name)
        return
    small = {dtypes.f64: 1e-12, dtypes.f32: 3e-6, dtypes.f16: 2e-3, dtypes.bf16: 1.6e-2}.get(dtype, 0.25)
    np.testing.assert_allclose(x, y, **{"rtol": small, "atol": small, **tolerance}, err_msg=name)


def buffer(
    name: str, dtype: DType, *shape: int, strides: tuple[int, ...] | None = None, scope: ir.Scope = ir.Scope.GLOBAL
) -> ir.Buffer:
    steps = None if strides is None else tuple(ir.const(s) for s in strides)
    return ir.Buffer(name, dtype, tuple(ir.const(n) for n in shape), scope, steps)


def abs_of(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The absolute values of stored floats."""
    if dtype in SMALL:
        return x & np.uint8(0x7F)
    return x & np.uint16(0x7FFF) if dtype is dtypes.bf16 else np.abs(x)
