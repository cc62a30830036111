"""Layouts against NumPy's reshape and transpose, and that no two elements share an address."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import f32
from tilewright.tile import layout
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.evaluate import evaluate
from tilewright.tile.ir import Const, Expr, Layout, Scope
from tilewright.tile.simulate import run_kernel


def addresses(made: Layout, shape: tuple[int, ...]) -> np.ndarray:
    index = dict(zip(made.vars, np.indices(shape), strict=True))
    return np.broadcast_to(evaluate(made.address, lambda e: index[e]), shape)  # type: ignore[index]


def number(e: Expr) -> int:
    assert isinstance(e, Const)
    return int(e.value)


CASES = [
    (layout.row_major((3, 4, 5)), (3, 4, 5)),
    (layout.column_major((3, 4, 5)), (3, 4, 5)),
    (layout.padded((3, 8), 16), (3, 8)),
    (layout.row_major(()), ()),
    (layout.panels(6, 64, 32), (6, 64)),
    (layout.panels(7, 50, 16), (7, 64)),
    (layout.panels(7, 50, 16, pair=2), (8, 64)),
    (layout.pairs(7, 10), (8, 10)),
    (layout.pairs(9, 3, 4), (12, 3)),
]


@pytest.mark.parametrize(("made", "shape"), CASES, ids=lambda c: c.name if isinstance(c, Layout) else "")
def test_addresses_are_distinct_and_within_the_size(made: Layout, shape: tuple[int, ...]) -> None:
    where = addresses(made, shape).ravel()
    assert len(set(where)) == where.size
    assert where.min() == 0 and where.max() == number(made.size) - 1


def test_panels_order() -> None:
    k, n, width = 6, 64, 32
    packed = np.zeros(k * n, np.int64)
    x = np.arange(k * n).reshape(k, n)
    packed[addresses(layout.panels(k, n, width), (k, n))] = x
    np.testing.assert_array_equal(packed.reshape(n // width, k, width), x.reshape(k, n // width, width).transpose(1, 0, 2))


def test_paired_panels_order() -> None:
    k, n, width = 6, 32, 16
    packed = np.zeros(k * n, np.int64)
    x = np.arange(k * n).reshape(k, n)
    packed[addresses(layout.panels(k, n, width, 2), (k, n))] = x
    expected = x.reshape(k // 2, 2, n // width, width).transpose(2, 0, 3, 1)
    np.testing.assert_array_equal(packed.reshape(expected.shape), expected)


def test_equal_layouts_are_one_object() -> None:
    assert layout.panels(8, 64, 32) is layout.panels(8, 64, 32)
    assert layout.panels(8, 64, 32) is not layout.panels(8, 64, 16)


def test_padded_strides() -> None:
    assert [number(s) for s in layout.padded_strides((2, 3, 256), 16)] == [816, 272, 1]
    assert layout.padded_strides((), 16) == ()
    assert number(layout.padded_extent(50, 32)) == 64


def test_bad_width() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        layout.panels(4, 4, 0)


def test_a_gemm_through_packed_memory() -> None:
    m, n, k = 5, 20, 7
    b = KernelBuilder("packed")
    x, w, y = b.param("x", f32, (m, k)), b.param("w", f32, (k, n)), b.param("y", f32, (m, n), out=True)
    packed = b.alloc(f32, (k, 32), Scope.SHARED, "packed", layout=layout.panels(k, n, 16))
    acc = b.alloc(f32, (m, 32), Scope.FRAGMENT, "acc")
    with b.parallel(k, 32) as (i, j):
        b.store(packed, (i, j), w[i, j])  # zero beyond n
    b.gemm(x, packed, acc, clear=True)
    with b.parallel(m, n) as (i, j):
        b.store(y, (i, j), acc[i, j])
    a, c = np.random.rand(m, k).astype(np.float32), np.random.rand(k, n).astype(np.float32)
    made = np.zeros((m, n), np.float32)
    run_kernel(b.build(), [a, c, made])
    np.testing.assert_allclose(made, a @ c, rtol=1e-5)
