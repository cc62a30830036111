"""The builder: nesting, scopes, names, and that the same calls give the same kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base import scalar
from tilewright.base.dtypes import f32, i64
from tilewright.tile import ir
from tilewright.tile.builder import KernelBuilder, region
from tilewright.tile.ir import Kernel, Scope
from tilewright.tile.simulate import run_kernel


def matmul(m: int = 64, n: int = 32, k: int = 48, bm: int = 16) -> Kernel:
    b = KernelBuilder("matmul")
    x, y = b.param("x", f32, (m, k)), b.param("y", f32, (k, n))
    out = b.param("out", f32, (m, n), out=True)
    (block,) = b.grid(-(-m // bm))
    acc = b.alloc(f32, (bm, n), Scope.FRAGMENT, "acc")
    b.gemm(region(x, (block * bm, bm), (0, k)), y, acc, clear=True)
    with b.parallel(bm, n) as (i, j):
        b.store(out, (block * bm + i, j), scalar.maximum(acc[i, j], 0.0))
    return b.build(cost=100)


def test_matmul() -> None:
    kernel = matmul()
    x, y = np.random.rand(64, 48).astype(np.float32) - 0.5, np.random.rand(48, 32).astype(np.float32)
    out = np.zeros((64, 32), np.float32)
    run_kernel(kernel, [x, y, out])
    np.testing.assert_allclose(out, np.maximum(x @ y, 0), rtol=1e-4, atol=1e-5)
    assert kernel.outputs == ("out",)


def test_same_calls_give_equal_kernels() -> None:
    assert matmul() == matmul()
    assert hash(matmul()) == hash(matmul())
    assert matmul(m=32) != matmul()


def test_alloc_and_let_reach_to_the_end_of_their_body() -> None:
    b = KernelBuilder("k")
    out = b.param("y", f32, (4,), out=True)
    with b.for_(4) as k:
        t = b.alloc(f32, (1,), "local")
        b.store(t, 0, 1.0)
        v = b.let(t[0] + 1.0)
        b.store(out, k, v)
    b.store(out, 0, 5.0)
    body = b.build().body
    assert isinstance(body, ir.Block)
    loop, last = body.body
    assert isinstance(loop, ir.For) and isinstance(loop.body, ir.Alloc) and isinstance(last, ir.Store)
    inner = loop.body.body
    assert isinstance(inner, ir.Block) and isinstance(inner.body[1], ir.Let)
    y = np.zeros(4, np.float32)
    run_kernel(b.build(), [y])
    np.testing.assert_array_equal(y, [5, 2, 2, 2])


def test_names_are_unique_and_deterministic() -> None:
    b = KernelBuilder("k")
    names = [b.fresh(h) for h in ("i", "i", "i_1", "i", "in", "inf", "nanf64", "i_1")]
    assert len(set(names)) == len(names)
    assert names[0] == "i"
    assert "in" in names and "inf" not in names and "nanf64" not in names
    again = KernelBuilder("k")
    assert names == [again.fresh(h) for h in ("i", "i", "i_1", "i", "in", "inf", "nanf64", "i_1")]


def test_control_flow() -> None:
    b = KernelBuilder("k")
    y = b.param("y", i64, (8,), out=True)
    n = b.scalar("n")
    with b.for_(8) as k:
        with b.if_(k < n):
            b.store(y, k, k * 2)
        with b.else_():
            with b.if_(k.eq(6)):
                b.break_()
            b.store(y, k, -1)
    made = np.zeros(8, np.int64)
    run_kernel(b.build(), [made], [3])
    np.testing.assert_array_equal(made, [0, 2, 4, -1, -1, -1, 0, 0])


def test_reduce_takes_a_function_of_its_variables() -> None:
    b = KernelBuilder("k")
    x, y = b.param("x", f32, (4, 5, 6)), b.param("y", f32, (4,), out=True)
    with b.parallel(4) as (i,):
        b.reduce("sum", y, i, (5, 6), lambda r, s: x[i, r, s])
    a, made = np.random.rand(4, 5, 6).astype(np.float32), np.zeros(4, np.float32)
    run_kernel(b.build(), [a, made])
    np.testing.assert_allclose(made, a.sum((1, 2)), rtol=1e-5)


def test_misuse() -> None:
    b = KernelBuilder("k")
    y = b.param("y", f32, (8,), out=True)
    with pytest.raises(ValueError, match="1 indices expected"):
        b.store(y, (0, 0), 1.0)
    with pytest.raises(ValueError, match="else_ must follow"), b.else_():
        pass
    with pytest.raises(ValueError, match="inside an open body"), b.for_(3):
        b.build()
    with pytest.raises(ValueError, match="1 spans expected"):
        region(y, 0, (0, 4))
    with pytest.raises(ValueError, match="2 names expected"), b.parallel(1, 2, names=("a",)):
        pass
