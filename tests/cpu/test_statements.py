"""Every statement of the tile IR against the simulator."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from cpu import kernels
from cpu.kernels import buffer, check, random
from tilewright.base import dims, dtypes, errors, scalar
from tilewright.base.dtypes import DType
from tilewright.targets.cpu import kernel as emitting
from tilewright.targets.cpu import llvm
from tilewright.tile import ir, layout
from tilewright.tile.evaluate import decode
from tilewright.tile.ir import (
    Alloc,
    Break,
    Continue,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Kernel,
    Let,
    Parallel,
    Reduce,
    Region,
    Scan,
    Scope,
    Store,
    While,
    block,
    const,
    var,
)  # fmt: skip

f32 = dtypes.f32
i, j, k, g, t = (var(name) for name in "ijkgt")
ZERO = const(0)
EVERY = [*kernels.BOTH, kernels.SCALAR]
SUMS = ["sum", "prod", "max", "min"]


def whole(b: ir.Buffer) -> Region:
    return Region(b, (ZERO,) * b.rank, b.shape)


def one(name: str, params: tuple[ir.Buffer, ...], body: ir.Stmt, outputs: int = 1, grid: tuple = ()) -> Kernel:
    return Kernel(name, params, grid, body, tuple(p.name for p in params[-outputs:]))


# -- reductions


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("n", [1, 3, 16, 17, 64, 100, 1000, 5000])
def test_reduce_a_row(op: str, n: int) -> None:
    x, out = buffer("x", f32, n), buffer("out", f32, 1)
    kernel = one(op, (x, out), Reduce(op, out, (ZERO,), (j,), (const(n),), x[j] * 0.5 + 1.0))
    check(kernel, [random(f32, (n,), 1), random(f32, (1,), 2)], EVERY, rtol=1e-4 if op == "prod" else 3e-6)


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("n", [1, 5, 40, 300])
@pytest.mark.parametrize(
    "dtype", [f32, dtypes.f64, dtypes.bf16, dtypes.i32, dtypes.i64, dtypes.u8, dtypes.i8], ids=lambda d: d.short
)
def test_extremes_and_their_positions(op: str, n: int, dtype: DType) -> None:
    """Ties go to the first; a NaN is the extreme."""
    x = buffer("x", dtype, n)
    out = buffer("out", dtypes.i64 if op.startswith("arg") else dtype, 1)
    kernel = one(op, (x, out), Reduce(op, out, (ZERO,), (j,), (const(n),), x[j]))
    for seed in range(4):
        check(kernel, [random(dtype, (n,), seed, seed > 1), random(out.dtype, (1,), 2)], EVERY)


def test_the_first_extreme_of_strided_memory() -> None:
    """The lanes run along a dimension that is not the last one counted in positions."""
    x, out = buffer("x", dtypes.i32, 20, 70, strides=(1, 20)), buffer("out", dtypes.i64, 1)
    kernel = one("first", (x, out), Reduce("argmax", out, (ZERO,), (i, j), (const(20), const(70)), x[i, j] // 4))
    for seed in range(3):
        check(kernel, [random(dtypes.i32, (1400,), seed), random(dtypes.i64, (1,), 1)], EVERY)


def test_reductions_of_nothing() -> None:
    x, out, column = buffer("x", f32, 0), buffer("out", f32, 2), buffer("column", f32, 20)
    body = block(
        Reduce("sum", out, (ZERO,), (j,), (ZERO,), x[j]),
        Reduce("prod", out, (const(1),), (j,), (ZERO,), x[j]),
        Parallel((i,), (const(20),), Reduce("sum", column, (i,), (j, k), (const(3), ZERO), x[j])),
    )
    check(one("nothing", (x, out, column), body, 2), [random(f32, (0,)), random(f32, (2,), 1), random(f32, (20,), 2)], EVERY)


def test_extremes_of_nothing_but_infinities() -> None:
    n = 40
    x, out = buffer("x", f32, n), buffer("out", dtypes.i64, 1)
    for op, value in (("argmax", -np.inf), ("argmin", np.inf)):
        kernel = one(op, (x, out), Reduce(op, out, (ZERO,), (j,), (const(n),), x[j]))
        check(kernel, [np.full(n, value, np.float32), random(dtypes.i64, (1,), 2)], EVERY)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("any", dtypes.b1), ("all", dtypes.b1), ("max", dtypes.b1), ("bitand", dtypes.i32), ("bitor", dtypes.u8),
     ("bitxor", dtypes.i64), ("sum", dtypes.i64), ("prod", dtypes.i8), ("sum", dtypes.f64)],
)  # fmt: skip
@pytest.mark.parametrize("n", [1, 50, 200])
def test_other_reductions(op: str, dtype: DType, n: int) -> None:
    x, out = buffer("x", dtype, n), buffer("out", dtype, 1)
    check(
        one(op, (x, out), Reduce(op, out, (ZERO,), (j,), (const(n),), x[j])),
        [random(dtype, (n,), 1), random(dtype, (1,), 2)],
        EVERY,
    )


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_reductions_inside_nests(data: st.DataObject) -> None:
    """Any dimensions reduced of any order in memory, onto the old value or not."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 16, 21, 40]), min_size=2, max_size=3).map(tuple))
    op = data.draw(st.sampled_from(["sum", "max", "argmin", "sum", "prod"]))
    order = data.draw(st.permutations(range(len(shape))))
    reduced = data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1, max_size=len(shape)))
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    x = buffer("x", f32, *shape, strides=tuple(strides))
    kept = [d for d in range(len(shape)) if d not in reduced]
    out = buffer("out", dtypes.i64 if op == "argmin" else f32, *(shape[d] for d in kept), 1)
    index = (i, j, k)[: len(shape)]
    inner = [d for d in range(len(shape)) if d in reduced]
    reduce = Reduce(
        op,
        out,
        (*(index[d] for d in kept), ZERO),
        tuple(index[d] for d in inner),
        tuple(const(shape[d]) for d in inner),
        ir.Load(x, index),
        op == "argmin" or data.draw(st.booleans()),
    )
    nest = Parallel(tuple(index[d] for d in kept), tuple(const(shape[d]) for d in kept), reduce) if kept else reduce
    size = int(np.prod([shape[d] for d in kept], dtype=int))
    check(one(op, (x, out), nest), [random(f32, (step,), 1), random(out.dtype, (size,), 2)], rtol=1e-4, atol=1e-4)


def test_long_sums_stay_accurate() -> None:
    """Parts are summed apart: the error of a million equal numbers stays within a few units."""
    n = 1 << 20
    x, out = buffer("x", f32, n), buffer("out", f32, 1)
    kernel = one("long", (x, out), Reduce("sum", out, (ZERO,), (j,), (const(n),), x[j]))
    values, got = np.full(n, 0.1, np.float32), np.zeros(1, np.float32)
    for isa in EVERY:
        kernels.execute(kernel, [values, got], isa)
        assert abs(got[0] / (np.float64(np.float32(0.1)) * n) - 1) < 1e-6
    rows, sums = buffer("x", f32, n // 4, 4), buffer("out", f32, 4)
    column = Reduce("sum", sums, (i,), (j,), (const(n // 4),), rows[j, i])
    columns = one("columns", (rows, sums), Parallel((i,), (const(4),), column))
    got = np.zeros(4, np.float32)
    for isa in EVERY:
        kernels.execute(columns, [values, got], isa)
        assert np.all(np.abs(got / (np.float64(np.float32(0.1)) * (n // 4)) - 1) < 1e-6)


def test_sums_are_the_same_in_every_run() -> None:
    n = 1001
    x, out = buffer("x", f32, n), buffer("out", f32, 1)
    kernel = one("repeat", (x, out), Reduce("sum", out, (ZERO,), (j,), (const(n),), x[j]))
    values = random(f32, (n,), 1)
    results = []
    for _ in range(3):
        got = np.zeros(1, np.float32)
        kernels.execute(kernel, [values, got])
        results.append(got.tobytes())
    assert len(set(results)) == 1


# -- whole kernels


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 17), (5, 128), (2, 700)])
def test_softmax(m: int, n: int) -> None:
    x, out = buffer("x", f32, m, n), buffer("out", f32, m, n)
    row = buffer("row", f32, n, scope=Scope.SHARED)
    top, total = (buffer(name, f32, 1, scope=Scope.LOCAL) for name in ("top", "total"))
    body = block(
        Reduce("max", top, (ZERO,), (j,), (const(n),), x[g, j]),
        Parallel((j,), (const(n),), Store(row, (j,), scalar.unary("exp", x[g, j] - top[0]))),
        Reduce("sum", total, (ZERO,), (j,), (const(n),), row[j]),
        Parallel((j,), (const(n),), Store(out, (g, j), row[j] / total[0])),
    )
    kernel = one("softmax", (x, out), Alloc(row, Alloc(top, Alloc(total, body))), grid=((g, const(m)),))
    check(kernel, [random(f32, (m, n), 1), random(f32, (m, n), 2)], EVERY)


def test_grids_are_flattened_last_axis_first() -> None:
    out = buffer("out", dtypes.i64, 3, 1, 4)
    a, b, c = var("a"), var("b"), var("c")
    kernel = one("grid", (out,), Store(out, (a, b, c), a * 100 + b * 10 + c), grid=((a, const(3)), (b, const(1)), (c, const(4))))
    check(kernel, [random(dtypes.i64, (3, 1, 4), 1)], EVERY)


def test_scratch_of_siblings_is_shared() -> None:
    n = 1000
    x, out = buffer("x", f32, n), buffer("out", f32, n)

    def through(name: str, source: ir.Buffer) -> ir.Stmt:
        room = buffer(name, f32, n, scope=Scope.FRAGMENT)
        return Alloc(room, block(Copy(whole(source), whole(room)), Parallel((i,), (const(n),), Store(out, (i,), room[i] * 2.0))))

    kernel = one("siblings", (x, out), block(through("a", x), through("b", out)))
    check(kernel, [random(f32, (n,), 1), random(f32, (n,), 2)])
    assert kernels.built(kernel, kernels.HOST)[1] == 4032


@pytest.mark.parametrize(("m", "n", "depth"), [(1, 1, 1), (5, 40, 7), (33, 64, 20)])
@pytest.mark.parametrize("transpose", ["", "a", "b"])
@pytest.mark.parametrize("dtype", [f32, dtypes.bf16], ids=lambda d: d.short)
def test_matrix_products(m: int, n: int, depth: int, transpose: str, dtype: DType) -> None:
    a = buffer("a", dtype, *((depth, m) if transpose == "a" else (m, depth)))
    b = buffer("b", dtype, *((n, depth) if transpose == "b" else (depth, n)))
    out, acc = buffer("out", f32, m, n), buffer("acc", f32, m, n, scope=Scope.FRAGMENT)
    product = Gemm(whole(a), whole(b), whole(acc), transpose == "a", transpose == "b", clear=True)
    again = Gemm(whole(a), whole(b), whole(acc), transpose == "a", transpose == "b")
    epilogue = Parallel((i, j), (const(m), const(n)), Store(out, (i, j), acc[i, j] + 1.0))
    kernel = one("gemm", (a, b, out), Alloc(acc, block(product, again, epilogue)))
    check(kernel, [random(dtype, (m, depth), 1), random(dtype, (depth, n), 2), random(f32, (m, n), 3)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("depth", "n"), [(5, 20), (16, 64), (30, 70)])
@pytest.mark.parametrize("source", ["rows", "columns"])
def test_packing_into_panels(depth: int, n: int, source: str) -> None:
    """Copies into [panels][k][width], ragged panels padded with zeros from beyond the source."""
    width, panels = 32, -(-n // 32)
    x = buffer("x", f32, depth, n) if source == "rows" else buffer("x", f32, depth, n, strides=(1, depth))
    packed = buffer("packed", f32, panels, depth, width)
    p = var("p")
    copy = Copy(
        Region(x, (ZERO, p * width), (const(depth), const(width))),
        Region(packed, (p, ZERO, ZERO), (None, const(depth), const(width))),
    )
    kernel = one("pack", (x, packed), For(p, const(panels), copy))
    check(kernel, [random(f32, (depth * n,), 1), random(f32, (panels, depth, width), 2)], EVERY)


@pytest.mark.parametrize("pair", [1, 2])
def test_copies_into_a_panel_layout(pair: int) -> None:
    depth, n = 6, 64
    x = buffer("x", dtypes.bf16, depth, n)
    packed = ir.Buffer("packed", dtypes.bf16, (const(depth), const(n)), Scope.GLOBAL, None, layout.panels(depth, n, 32, pair))
    kernel = one("layout", (x, packed), Copy(whole(x), whole(packed)))
    check(kernel, [random(dtypes.bf16, (depth, n), 1), random(dtypes.bf16, (depth * n,), 2)], EVERY)


@pytest.mark.parametrize("dtype", [f32, dtypes.bf16, dtypes.i32, dtypes.b1], ids=lambda d: d.short)
def test_fill_a_region(dtype: DType) -> None:
    out = buffer("out", dtype, 7, 50)
    value = const(True, dtype) if dtype.kind == "bool" else const(3, dtype)
    kernel = one("fill", (out,), Fill(Region(out, (const(2), const(5)), (const(4), const(33))), value))
    check(kernel, [random(dtype, (7, 50), 1)], EVERY)


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [f32, dtypes.i64, dtypes.bf16], ids=lambda d: d.short)
def test_scans(op: str, axis: int, reverse: bool, dtype: DType) -> None:
    x, out = buffer("x", dtype, 9, 37), buffer("out", dtype, 9, 37)
    kernel = one("scan", (x, out), Scan(op, whole(x), whole(out), axis, reverse))
    special = dtype is f32 and op in ("max", "min")
    tolerance = 5e-2 if dtype is dtypes.bf16 else 1e-4
    check(kernel, [random(dtype, (9, 37), 1, special), random(dtype, (9, 37), 2)], EVERY, rtol=tolerance, atol=tolerance)


# -- control flow


def test_loops_break_continue_and_while() -> None:
    n = 30
    x, out, count = buffer("x", f32, n), buffer("out", f32, n), buffer("count", dtypes.i64, 2)
    step = block(
        If((i % 3).eq(0), Continue()),
        If(x[i] > 1.5, Break()),
        Store(out, (i,), x[i]),
        Store(count, (ZERO,), count[0] + 1),
    )
    loop = While(count[1] < 17, block(Store(count, (const(1),), count[1] + 5), If((count[1] % 2).eq(0), Continue())))
    body = block(Fill(whole(out), const(-1, f32)), Fill(whole(count), ZERO), For(i, const(n), step), loop)
    kernel = one("jumps", (x, out, count), body, 2)
    for seed in range(3):
        check(kernel, [random(f32, (n,), seed), random(f32, (n,), 2), random(dtypes.i64, (2,), 3)], EVERY)


def test_a_let_keeps_the_value_from_before_a_store() -> None:
    n = 40
    x, y = buffer("x", f32, n), buffer("y", f32, n)
    v = scalar.var("v", f32)
    swap = Parallel((i,), (const(n),), Let(v, x[i], block(Store(x, (i,), y[i]), Store(y, (i,), v))))
    check(one("swap", (x, y), swap, 2), [random(f32, (n,), 1), random(f32, (n,), 2)], EVERY)
    turn = For(i, const(n // 2), Let(v, x[i], block(Store(x, (i,), x[(n - 1) - i]), Store(x, ((n - 1) - i,), v))))
    check(one("turn", (x,), turn), [random(f32, (n,), 1)], EVERY)


def test_what_a_loop_writes_is_read_anew() -> None:
    """A running value in memory, read before and inside the loops that change it."""
    n = 12
    state, out = buffer("state", f32, 1), buffer("out", f32, n)
    turn = block(
        Store(out, (i,), state[0] * 2.0),
        Store(state, (ZERO,), state[0] + 1.0),
        If((i % 2).eq(0), Store(state, (ZERO,), state[0] * 3.0)),
    )
    body = block(Store(state, (ZERO,), state[0] + 0.5), For(i, const(n), turn), Store(out, (ZERO,), state[0]))
    check(one("running", (state, out), body, 2), [random(f32, (1,), 1), random(f32, (n,), 2)], EVERY)


@pytest.mark.parametrize("kind", ["serial", "unrolled", "vectorized", "pipelined"])
def test_kinds_of_loops(kind: str) -> None:
    n = 20
    x, out = buffer("x", f32, n), buffer("out", f32, n)
    check(
        one(kind, (x, out), For(i, const(n), Store(out, (i,), x[i] + 1.0), kind)),
        [random(f32, (n,), 1), random(f32, (n,), 2)],
        EVERY,
    )


def test_an_empty_loop_loads_nothing() -> None:
    """A load may be moved out of a loop only where the loop turns for certain."""
    n = var("n")
    x, out = buffer("x", f32, 4), buffer("out", f32, 4)
    pointer = buffer("index", dtypes.i64, 1)
    body = For(i, n, Store(out, (i,), x[pointer[0]]))
    kernel = Kernel("empty", (pointer, x, out), (), body, ("out",), (n,))
    wild = np.array([1 << 40], np.int64)
    kernels.execute(kernel, [wild, random(f32, (4,), 1), random(f32, (4,), 2)], scalars=(0,))
    check(kernel, [np.array([2], np.int64), random(f32, (4,), 1), random(f32, (4,), 2)], EVERY, (3,))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("add", f32), ("add", dtypes.i64), ("max", f32), ("min", dtypes.u32), ("or", dtypes.i32), ("max", dtypes.i8)],
)
def test_atomics(op: str, dtype: DType) -> None:
    n, m = 67, 5
    x, out = buffer("x", dtype, n), buffer("out", dtype, m)
    kernel = one("atomic", (x, out), Parallel((i,), (const(n),), ir.Atomic(op, out, (i % m,), x[i])))
    check(kernel, [random(dtype, (n,), 1), random(dtype, (m,), 2)], EVERY, rtol=1e-5, atol=1e-5)


def test_a_failed_assertion_stops_the_kernel() -> None:
    x, out = buffer("x", f32, 4), buffer("out", f32, 4)
    body = block(ir.Assert(x[g] > 0.0, "positive"), Store(out, (g,), x[g]))
    kernel = one("assert", (x, out), body, grid=((g, const(4)),))
    got = np.zeros(4, np.float32)
    kernels.execute(kernel, [np.array([1, -1, 2, 3], np.float32), got])
    assert np.array_equal(got, [1, 0, 2, 3])  # blocks 0 and 1 run in one range, 2 and 3 in another


def test_what_a_cpu_cannot_do_is_said() -> None:
    room = ir.Buffer("room", f32, (g + 1,), Scope.SHARED)
    out = buffer("out", f32, 4)
    kernel = Kernel("dynamic", (out,), ((g, const(4)),), Alloc(room, Store(out, (ZERO,), room[0])), ("out",))
    with pytest.raises(errors.CompileError, match="room must not change within a launch"):
        kernels.text_of(kernel)


def test_room_in_scratch_depends_on_scalars() -> None:
    n = var("n")
    room, out = ir.Buffer("room", f32, (n, const(3)), Scope.SHARED), buffer("out", f32, 4)
    kernel = Kernel("dynamic", (out,), (), Alloc(room, Store(out, (ZERO,), room[0, 0])), ("out",), (n,))
    wanted = emitting.emit_kernel(kernel, "kernel", llvm.Module(), kernels.HOST).scratch_bytes
    assert [dims.evaluate(wanted, {"n": k}) for k in (1, 6, 100)] == [64, 128, 1216]


def test_sixteen_bit_values_are_rounded_where_they_are_stored() -> None:
    n = 64
    x, out = buffer("x", dtypes.bf16, n), buffer("out", dtypes.bf16, n)
    kernel = one("round", (x, out), Parallel((i,), (const(n),), Store(out, (i,), x[i] * x[i] * 1.001)))
    x_, got = random(dtypes.bf16, (n,), 1), random(dtypes.bf16, (n,), 2)
    for isa in EVERY:
        kernels.execute(kernel, [x_, got], isa)
        wide = decode(x_, dtypes.bf16).astype(np.float64)
        np.testing.assert_allclose(decode(got, dtypes.bf16), wide * wide * 1.001, rtol=2**-8)
