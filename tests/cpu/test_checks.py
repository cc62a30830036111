"""A failed assertion ends the run with its message, before the launches behind it."""

import ctypes

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.targets.cpu import compile as code
from tilewright.targets.cpu import llvm
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.cpu.kernel import emit_kernel
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel


def kernel(n: int, limit: int) -> Kernel:
    b = KernelBuilder("check")
    x = b.param("x", dtypes.i64, (n,))
    y = b.param("y", dtypes.i64, (n,), out=True)
    with b.parallel(n) as (i,):
        b.check((x[i] >= 0) & (x[i] < limit), "index out of range")
        b.store(y, (i,), x[i] + 1)
    return b.build()


@pytest.mark.parametrize("bad", [None, 0, 5, 36])
def test_a_kernel_leaves_its_message(bad):
    module = llvm.Module()
    info = emit_kernel(kernel(37, 100), "k", module, host_isa())
    assert info.checks
    address = code.load([code.compile_module(module.text(host_isa().attributes), host_isa())], ["k"])["k"]
    x, y, error = np.arange(37), np.zeros(37, np.int64), np.zeros(256, np.uint8)
    if bad is not None:
        x[bad] = 100 if bad else -1
    args = (ctypes.c_void_p * 3)(x.ctypes.data, y.ctypes.data, error.ctypes.data)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)(args, 0, 1, None)
    message = bytes(error).split(b"\0")[0].decode()
    assert message == ("" if bad is None else "index out of range")
    if bad is None:
        assert (y == x + 1).all()
