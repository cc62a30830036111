"""The simulator: meanings against NumPy, and every fault it must find."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import bf16, f16, f32, i32, i64
from tilewright.tile import ir
from tilewright.tile.ir import Buffer, Kernel, Scope, const, var
from tilewright.tile.program import Arg, Launch, Program, Storage, Value
from tilewright.tile.simulate import Memory, SimulationFault, run_kernel, run_program

RNG = np.random.default_rng(0)


def buffer(
    name: str, *shape: int, dtype: dtypes.DType = f32, scope: Scope = Scope.GLOBAL, strides: tuple[int, ...] | None = None
) -> Buffer:
    steps = None if strides is None else tuple(map(const, strides))
    return Buffer(name, dtype, tuple(map(const, shape)), scope, steps)


def region(b: Buffer, *spec: object) -> ir.Region:
    """A point for an expression, (offset, extent) for a range."""
    offsets = tuple(ir.as_expr(s[0] if isinstance(s, tuple) else s) for s in spec)
    return ir.Region(b, offsets, tuple(const(s[1]) if isinstance(s, tuple) else None for s in spec))


def kernel(params: list[Buffer], body: ir.Stmt, outputs: str, grid: tuple[tuple[ir.Var, int], ...] = ()) -> Kernel:
    return Kernel("k", tuple(params), tuple((v, const(n)) for v, n in grid), body, tuple(outputs.split()))


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


I, J, K, B, C = (var(n) for n in "ijkbc")


def pointwise(value: ir.Expr, out: Buffer, extents: tuple[int, ...], variables: tuple[ir.Var, ...] = (I, J)) -> ir.Stmt:
    used = variables[: len(extents)]
    return ir.Parallel(used, tuple(map(const, extents)), ir.Store(out, used, value))


def test_pointwise_reads_through_strides() -> None:
    a, out = buffer("a", 4, 6, strides=(1, 4)), buffer("out", 4, 6)
    x, y = random(6, 4), np.zeros((4, 6), np.float32)
    run_kernel(kernel([a, out], pointwise(a[I, J] * 2.0 + scalar.cast(I, f32), out, (4, 6)), "out"), [x, y])
    np.testing.assert_array_equal(y, x.T * 2 + np.arange(4, dtype=np.float32)[:, None])


def test_memory_offset_and_broadcast() -> None:
    a, out = buffer("a", 3, 2, strides=(0, 1)), buffer("out", 3, 2)
    x, y = random(10), np.zeros(8, np.float32)
    run_kernel(kernel([a, out], pointwise(a[I, J], out, (3, 2)), "out"), [Memory(x, 5), Memory(y, 2)])
    np.testing.assert_array_equal(y[2:].reshape(3, 2), np.tile(x[5:7], (3, 1)))
    assert not y[:2].any()


def matmul_kernel(m: int, n: int, k: int, bm: int, bn: int, bk: int) -> Kernel:
    a, b, c = buffer("a", m, k), buffer("b", k, n), buffer("c", m, n)
    packed, acc = buffer("packed", bk, bn, scope=Scope.SHARED), buffer("acc", bm, bn, scope=Scope.FRAGMENT)
    step = ir.block(
        ir.Copy(region(b, (K * bk, bk), (C * bn, bn)), region(packed, (0, bk), (0, bn))),
        ir.Gemm(region(a, (B * bm, bm), (K * bk, bk)), region(packed, (0, bk), (0, bn)), region(acc, (0, bm), (0, bn))),
    )
    body = ir.block(
        ir.Fill(region(acc, (0, bm), (0, bn)), const(0.0, f32)),
        ir.For(K, const(-(-k // bk)), step),
        ir.Parallel((I, J), (const(bm), const(bn)), ir.Store(c, (B * bm + I, C * bn + J), scalar.maximum(acc[I, J], 0.0))),
    )
    grid = ((B, -(-m // bm)), (C, -(-n // bn)))
    return kernel([a, b, c], ir.Alloc(packed, ir.Alloc(acc, body)), "c", grid)


@pytest.mark.parametrize("sizes", [(64, 64, 64, 32, 32, 16), (37, 29, 19, 16, 8, 8)])
def test_matmul_with_ragged_edges(sizes: tuple[int, ...]) -> None:
    m, n, k = sizes[:3]
    x, y, z = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    made = matmul_kernel(*sizes)
    start = time.perf_counter()
    run_kernel(made, [x, y, z])
    assert time.perf_counter() - start < 0.5
    np.testing.assert_allclose(z, np.maximum(x @ y, 0), rtol=1e-4, atol=1e-4)


def test_softmax_rows() -> None:
    a, out = buffer("a", 8, 33), buffer("out", 8, 33)
    row = buffer("row", 33, scope=Scope.SHARED)
    top, total = buffer("top", 1, scope=Scope.LOCAL), buffer("total", 1, scope=Scope.LOCAL)
    zero = const(0)
    body = ir.block(
        ir.Reduce("max", top, (zero,), (J,), (const(33),), a[B, J]),
        ir.Parallel((J,), (const(33),), ir.Store(row, (J,), scalar.unary("exp", a[B, J] - top[zero]))),
        ir.Reduce("sum", total, (zero,), (J,), (const(33),), row[J]),
        ir.Parallel((J,), (const(33),), ir.Store(out, (B, J), row[J] / total[zero])),
    )
    for b in (row, top, total):
        body = ir.Alloc(b, body)
    x, y = random(8, 33), np.zeros((8, 33), np.float32)
    run_kernel(kernel([a, out], body, "out", ((B, 8),)), [x, y])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_reduce_inside_parallel_accumulates() -> None:
    a, out = buffer("a", 5, 7), buffer("out", 5)
    x, y = random(5, 7), np.ones(5, np.float32)
    body = ir.Parallel((I,), (const(5),), ir.Reduce("sum", out, (I,), (K,), (const(7),), a[I, K], clear=False))
    run_kernel(kernel([a, out], body, "out"), [x, y])
    np.testing.assert_allclose(y, 1 + x.sum(1), rtol=1e-5)


@pytest.mark.parametrize(("op", "expected"), [("argmax", np.argmax), ("argmin", np.argmin)])
def test_arg_reductions_let_nan_win(op: str, expected: object) -> None:
    a, out = buffer("a", 3, 9), buffer("out", 3, dtype=i64)
    x, y = random(3, 9), np.zeros(3, np.int64)
    x[1, 4] = np.nan
    body = ir.Parallel((I,), (const(3),), ir.Reduce(op, out, (I,), (K,), (const(9),), a[I, K]))
    run_kernel(kernel([a, out], body, "out"), [x, y])
    np.testing.assert_array_equal(y, expected(x, axis=1))  # type: ignore[operator]


def test_reductions_of_nothing_give_the_identity() -> None:
    a, out = buffer("a", 2, 0), buffer("out", 2)
    for op, expected in (("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf)):
        y = np.zeros(2, np.float32)
        body = ir.Parallel((I,), (const(2),), ir.Reduce(op, out, (I,), (K,), (const(0),), a[I, K]))
        run_kernel(kernel([a, out], body, "out"), [np.zeros((2, 0), np.float32), y])
        assert (y == expected).all()


def test_divergent_if_and_let() -> None:
    a, out = buffer("a", 4, 5), buffer("out", 4, 5)
    t = var("t", f32)
    body = ir.If(
        scalar.binary("lt", a[I, J], 0.0),
        ir.Let(t, a[I, J] * a[I, J], ir.Store(out, (I, J), t + t)),
        ir.Store(out, (I, J), scalar.cast(I * 10 + J, f32)),
    )
    x, y = random(4, 5), np.zeros((4, 5), np.float32)
    run_kernel(kernel([a, out], ir.Parallel((I, J), (const(4), const(5)), body), "out"), [x, y])
    np.testing.assert_array_equal(y, np.where(x < 0, 2 * (x * x), np.arange(4)[:, None] * 10 + np.arange(5)))


def test_while_break_and_continue() -> None:
    out, n = buffer("out", 1, dtype=i64), buffer("n", 1, dtype=i64, scope=Scope.LOCAL)
    at, zero = n[0], const(0)
    body = ir.block(
        ir.Store(n, (zero,), const(0)),
        ir.Store(out, (zero,), const(0)),
        ir.While(
            at < 100,
            ir.block(
                ir.Store(n, (zero,), at + 1),
                ir.If((at % 2).eq(0), ir.Continue()),
                ir.If(at > 7, ir.Break()),
                ir.Store(out, (zero,), out[0] + at),
            ),
        ),
    )
    y = np.zeros(1, np.int64)
    run_kernel(kernel([out], ir.Alloc(n, body), "out"), [y])
    assert y[0] == 1 + 3 + 5 + 7


def test_copy_transposes_masks_and_converts() -> None:
    a, out = buffer("a", 3, 5), buffer("out", 8, 4, dtype=i32)
    body = ir.Copy(region(a, (0, 4), (0, 8)), region(out, (0, 8), (0, 4)), transpose=True)
    x, y = random(3, 5) * 10, np.full((8, 4), 9, np.int32)
    run_kernel(kernel([a, out], body, "out"), [x, y])
    expected = np.zeros((8, 4), np.int32)
    expected[:5, :3] = x.T.astype(np.int32)
    np.testing.assert_array_equal(y, expected)


def test_scan_in_reverse() -> None:
    a, out = buffer("a", 3, 5), buffer("out", 3, 5)
    x, y = random(3, 5), np.zeros((3, 5), np.float32)
    run_kernel(kernel([a, out], ir.Scan("sum", region(a, (0, 3), (0, 5)), region(out, (0, 3), (0, 5)), 1, True), "out"), [x, y])
    np.testing.assert_allclose(y, np.cumsum(x[:, ::-1], 1)[:, ::-1], rtol=1e-5)


def test_atomics_from_many_iterations() -> None:
    a, out = buffer("a", 100, dtype=i64), buffer("out", 4, dtype=i64)
    x, y = RNG.integers(0, 4, 100), np.zeros(4, np.int64)
    body = ir.Parallel((I,), (const(100),), ir.Atomic("add", out, (a[I],), const(1)))
    run_kernel(kernel([a, out], body, "out"), [x, y])
    np.testing.assert_array_equal(y, np.bincount(x, minlength=4))


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_half_storage(dtype: dtypes.DType) -> None:
    torch = pytest.importorskip("torch")
    kind = torch.bfloat16 if dtype is bf16 else torch.float16
    x = torch.randn(64).to(kind)
    out = torch.zeros(64, dtype=kind)
    a, o = buffer("a", 64, dtype=dtype), buffer("o", 64, dtype=dtype)
    value = scalar.cast(scalar.cast(a[I], f32) * 1.1 + 0.3, dtype)

    def raw(t: object) -> np.ndarray:
        return t.view(torch.uint16).numpy() if dtype is bf16 else t.numpy()  # type: ignore[attr-defined]

    run_kernel(kernel([a, o], pointwise(value, o, (64,)), "o"), [raw(x), raw(out)])
    product = x.double().float() * torch.tensor(1.1)
    assert torch.equal(out, (product + torch.tensor(0.3)).to(kind))


def test_a_large_parallel_runs_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.tile.simulate.LANES", 64)
    a, out = buffer("a", 30, 9), buffer("out", 30, 9)
    x, y = random(30, 9), np.zeros((30, 9), np.float32)
    run_kernel(kernel([a, out], pointwise(a[I, J] + scalar.cast(I, f32), out, (30, 9)), "out"), [x, y])
    np.testing.assert_array_equal(y, x + np.arange(30, dtype=np.float32)[:, None])


# faults


def faults(body: ir.Stmt, *params: Buffer, outputs: str = "out", grid: tuple[tuple[ir.Var, int], ...] = ()) -> str:
    arrays = [np.ones(64, np.float32) for _ in params]
    with pytest.raises(SimulationFault) as caught:
        run_kernel(kernel(list(params), body, outputs, grid), arrays)
    assert caught.value.fields["kernel"] == "k"
    return f"{caught.value.fields['problem']} @ {caught.value.fields['statement']}"


A8, OUT8 = buffer("a", 8), buffer("out", 8)


def test_fault_negative_index() -> None:
    assert "a: index -1 of dimension 0 is negative @ out[i] = a[i + -1]" in faults(pointwise(A8[I + -1], OUT8, (8,)), A8, OUT8)


def test_masked_above_in_parallel() -> None:
    x, y = np.arange(8, dtype=np.float32) + 1, np.zeros(8, np.float32)
    body = ir.Parallel((I,), (const(12),), ir.Store(OUT8, (I,), A8[I + 4]))
    run_kernel(kernel([A8, OUT8], body, "out"), [x, y])
    np.testing.assert_array_equal(y, [5, 6, 7, 8, 0, 0, 0, 0])


def test_fault_out_of_bounds_in_a_bounded_kernel() -> None:
    body = ir.Parallel((I,), (const(12),), ir.Store(OUT8, (I,), A8[I]))
    bounded = dataclasses.replace(kernel([A8, OUT8], body, "out"), bounded=True)
    with pytest.raises(SimulationFault, match="index 11 of dimension 0 is outside its extent 8"):
        run_kernel(bounded, [np.ones(8, np.float32), np.ones(8, np.float32)])


def test_fault_out_of_bounds_in_serial_code() -> None:
    assert "index 8 of dimension 0 is outside its extent 8" in faults(ir.Store(OUT8, (const(0),), A8[8]), A8, OUT8)
    loop = ir.For(I, const(9), ir.Store(OUT8, (I,), const(0.0, f32)))
    assert "outside its extent 8 @ out[i] = 0.0" in faults(loop, OUT8)


def test_fault_out_of_bounds_of_shared_memory() -> None:
    s = buffer("s", 4, scope=Scope.SHARED)
    assert "s: index 4" in faults(ir.Alloc(s, ir.Parallel((I,), (const(5),), ir.Store(s, (I,), A8[I]))), A8, OUT8)
    assert "s: index 5" in faults(ir.Alloc(s, ir.Copy(region(A8, (0, 6)), region(s, (0, 6)))), A8, OUT8)


def test_fault_memory_too_small() -> None:
    wide = buffer("a", 8, 9)
    assert "its memory of 64 elements ends" in faults(pointwise(wide[7, 8], OUT8, (8,)), wide, OUT8)


def test_fault_uninitialised_read() -> None:
    s = buffer("s", 8, scope=Scope.SHARED)
    assert "never written @ out[i] = s[i]" in faults(ir.Alloc(s, pointwise(s[I], OUT8, (8,))), OUT8)
    half = ir.block(ir.Copy(region(A8, (0, 4)), region(s, (0, 4))), pointwise(s[I], OUT8, (8,)))
    assert "never written" in faults(ir.Alloc(s, half), A8, OUT8)
    acc = buffer("acc", 4, 4, scope=Scope.FRAGMENT)
    m = buffer("m", 4, 4)
    box = ((0, 4), (0, 4))
    assert "never written @ gemm" in faults(ir.Alloc(acc, ir.Gemm(region(m, *box), region(m, *box), region(acc, *box))), m)
    again = ir.For(
        J, const(2), ir.Alloc(s, ir.If(J.eq(0), ir.Fill(region(s, (0, 8)), const(1.0, f32)), pointwise(s[I], OUT8, (8,))))
    )
    assert "never written" in faults(again, OUT8)


def test_fault_two_iterations_write_one_element() -> None:
    assert "two iterations write one element" in faults(
        ir.Parallel((I,), (const(8),), ir.Store(OUT8, (I // 2,), A8[I])), A8, OUT8
    )
    assert "two iterations write one element" in faults(
        ir.Parallel((I, J), (const(8), const(2)), ir.Store(OUT8, (I,), A8[I])), A8, OUT8
    )
    two = ir.block(ir.Store(OUT8, (I,), A8[I]), ir.Store(OUT8, ((I + 1) % 8,), A8[I]))
    assert "two iterations write one element" in faults(ir.Parallel((I,), (const(8),), two), A8, OUT8)


def test_fault_iteration_reads_what_another_writes() -> None:
    shift = ir.Parallel((I,), (const(7),), ir.Store(OUT8, (I,), OUT8[I + 1]))
    assert "reads what another writes" in faults(shift, OUT8)
    after = ir.block(ir.Store(OUT8, (I,), A8[I]), ir.Store(buffer("b", 8), (I,), OUT8[7 - I]))
    assert "reads an element that another one writes" in faults(
        ir.Parallel((I,), (const(8),), after), A8, OUT8, buffer("b", 8), outputs="out b"
    )
    reduced = ir.Parallel((I,), (const(8),), ir.Reduce("sum", OUT8, (I,), (K,), (const(8),), OUT8[K]))
    assert "reads what another writes" in faults(reduced, OUT8)


def test_own_element_may_be_read_and_written() -> None:
    y = np.ones(8, np.float32)
    body = ir.block(*[ir.Parallel((I,), (const(8),), ir.Store(OUT8, (I,), OUT8[I] * 2.0)) for _ in range(3)])
    run_kernel(kernel([OUT8], body, "out"), [y])
    assert (y == 8).all()


def test_fault_blocks_race() -> None:
    same = pointwise(A8[I], OUT8, (4,))
    assert "two blocks write one element" in faults(same, A8, OUT8, grid=((B, 2),))
    neighbour = ir.Store(OUT8, (B,), OUT8[(B + 1) % 8])
    assert "block" in faults(neighbour, OUT8, grid=((B, 8),))
    back = ir.block(ir.Store(OUT8, (B,), const(1.0, f32)), ir.Store(buffer("b", 8), (B,), OUT8[scalar.maximum(B - 1, 0)]))
    assert "a block reads an element that another block writes" in faults(
        back, OUT8, buffer("b", 8), outputs="out b", grid=((B, 8),)
    )


def test_fault_parameters_that_share_memory_race() -> None:
    x = np.ones(8, np.float32)
    body = ir.Parallel((I,), (const(7),), ir.Store(OUT8, (I,), A8[I + 1]))
    shared = Memory(x)
    with pytest.raises(SimulationFault, match="reads what another writes"):
        run_kernel(kernel([A8, OUT8], body, "out"), [shared, shared])


def test_fault_others() -> None:
    assert "not among the kernel's outputs" in faults(pointwise(A8[I], OUT8, (8,)), A8, OUT8, outputs="")
    assert "floordiv by zero" in faults(ir.Store(OUT8, (const(0),), A8[const(1) // (B - B + 0 * B)]), A8, OUT8, grid=((B, 1),))
    assert "assertion failed: too large" in faults(ir.Assert(B < 1, "too large"), OUT8, grid=((B, 2),))
    assert "Copy is not allowed inside Parallel" in faults(
        ir.Parallel((I,), (const(2),), ir.Copy(region(A8, (0, 1)), region(OUT8, (0, 1)))), A8, OUT8
    )
    box = ((0, 4), (0, 4))
    m, n = buffer("m", 4, 4), buffer("n", 4, 4)
    assert "do not multiply" in faults(
        ir.Gemm(region(m, (0, 4), (0, 3)), region(n, *box), region(n, *box), clear=True), m, n, outputs="n"
    )


def test_wrong_arguments() -> None:
    k = kernel([A8, OUT8], pointwise(A8[I], OUT8, (8,)), "out")
    with pytest.raises(ValueError, match="2 arrays"):
        run_kernel(k, [np.ones(8, np.float32)])
    with pytest.raises(ValueError, match="a is f32"):
        run_kernel(k, [np.ones(8), np.ones(8, np.float32)])
    with pytest.raises(ValueError, match="contiguous"):
        run_kernel(k, [np.ones((4, 4), np.float32).T, np.ones(8, np.float32)])


# programs


def test_program_of_two_launches() -> None:
    x = Value(0, f32, (8,), (1,), Storage.INPUT, 0)
    w = Value(1, f32, (8,), (1,), Storage.INPUT, 1)
    folded = Value(2, f32, (8,), (1,), Storage.FOLDED)
    temp = Value(3, f32, (4, 2), (1, 4), Storage.TEMP)
    out = Value(4, f32, (8,), (1,), Storage.OUTPUT, 0)
    double = kernel([A8, OUT8], pointwise(A8[I] * 2.0, OUT8, (8,)), "out")
    b8 = buffer("b", 8)
    add = kernel([A8, b8, OUT8], pointwise(A8[I] + b8[I], OUT8, (8,)), "out")
    program = Program(
        (x, w, folded, temp, out),
        (Launch(double, (Arg(x), Arg(temp))), Launch(add, (Arg(temp), Arg(folded), Arg(out)))),
        (Launch(double, (Arg(w), Arg(folded))),),
    )
    a, b = random(8), random(8)
    (result,) = run_program(program, [a, b])
    np.testing.assert_array_equal(result, a * 2 + b * 2)
    late = Program(program.values, program.steps[1:], program.folded)
    with pytest.raises(SimulationFault, match="never written"):
        run_program(late, [a, b])
