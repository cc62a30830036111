from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest

from cpu.guarded import guarded
from tilewright.base import dtypes
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import isa, llvm
from tilewright.targets.cpu.transpose import Strided, emit_transpose_copy

SIZES = ("rows", "columns", "valid_rows", "valid_columns")
STRIDES = ("source_row", "source_column", "target_row", "target_column")
BY_BYTES = {1: dtypes.i8, 2: dtypes.bf16, 4: dtypes.f32, 8: dtypes.f64}
LEVELS = [isa.named("x86-64-v4"), isa.named("x86-64-v3")]


def runs_here(level: isa.Isa) -> bool:
    host = isa.host_isa()
    return level.is_x86 and host.is_x86 and level.lanes <= host.lanes


@functools.cache
def function(level: isa.Isa, size: int, unit: str):
    """A transposing copy with run-time sizes; `unit` names which strides are the constant 1."""
    module = llvm.Module()
    f = llvm.Function(module, "run", ["ptr %s", "ptr %t", *(f"i64 %{n}" for n in (*STRIDES, *SIZES))])
    strides = [1 if n in unit.split() else f"%{n}" for n in STRIDES]
    sizes = [f"%{n}" for n in SIZES]
    source, target = Strided("%s", *strides[:2]), Strided("%t", *strides[2:])
    emit_transpose_copy(f, level, source, target, sizes[0], sizes[1], BY_BYTES[size], *sizes[2:])
    f.close()
    text = module.text(level.attributes)
    cpu.check(text, level)
    code = cpu.compile_module(text, level)
    if not runs_here(level):
        return None
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 8)
    return kind(cpu.load([code], ["run"])["run"])


CASES = [(16, 16, 16, 16), (64, 32, 64, 32), (37, 19, 37, 19), (37, 32, 35, 19), (5, 3, 5, 3), (48, 32, 48, 0), (20, 40, 3, 40)]


@pytest.mark.parametrize("unit", ["source_row target_column", "source_column target_row", "source_column target_column", ""])
@pytest.mark.parametrize("size", BY_BYTES)
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_copy(level, size, unit):
    run = function(level, size, unit)
    if run is None:
        pytest.skip("this machine lacks the instructions")
    rng = np.random.default_rng(0)
    for rows, columns, valid_rows, valid_columns in CASES:
        source = guarded(rng.integers(1, 100, (valid_columns, valid_rows)).astype(f"i{size}"))
        target = np.full((rows + 1, columns + 3), 77, f"i{size}")
        expected = target.copy()
        expected[:rows, :columns] = 0
        expected[:valid_rows, :valid_columns] = source.T
        out = target
        strides = [1, valid_rows, columns + 3, 1]
        if unit.startswith("source_column"):
            source = guarded(source.T)
            strides[:2] = valid_columns, 1
        if unit.endswith("target_row"):
            out = np.asfortranarray(target)
            strides[2:] = 1, rows + 1
        run(source.ctypes.data, out.ctypes.data, *strides, rows, columns, valid_rows, valid_columns)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", BY_BYTES)
def test_neon_compiles(size):
    function(isa.named("aarch64"), size, "source_row target_column")
