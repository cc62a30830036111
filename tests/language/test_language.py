"""The kernel language: what a kernel's source means, checked by running it; errors name the line and what to write instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as T  # noqa: N812
from tilewright.tile.simulate import run_kernel

SCALE = 3


def helper(x, k):
    return x * k + 1


@T.macro
def add_into(dst, src, n):
    for i in T.Parallel(n):
        dst[i] = dst[i] + src[i]


def elementwise(body):
    """A kernel Y = body(X) over 40 elements, in blocks of 16."""

    @tw.jit(out_idx=[-1])
    def make():
        return body

    return make()


def check(kernel, want, *args):
    """The machine code and the simulator give what is wanted."""
    got = kernel(*args)
    torch.testing.assert_close(got, want)
    k = kernel.signature.kernel
    arrays = [a.numpy().copy() for a in args]
    out = np.zeros([int(e.value) for e in k.params[-1].shape], got.numpy().dtype)
    run_kernel(k, [*arrays, out])
    np.testing.assert_allclose(out, want.numpy(), rtol=1e-5, atol=1e-6)


def test_python_at_trace_time():
    weights = [1.0, 2.0, 4.0]

    @T.prim_func
    def f(X: T.Tensor((40,), "float32"), Y: T.Tensor((40,), "float32")):
        with T.Kernel(T.ceildiv(40, 16), threads=32) as bx:
            for i in T.Parallel(16):
                at = bx * 16 + i
                total = X[at] * SCALE
                for w in weights:
                    total = total + w
                if len(weights) == 3:
                    total = helper(total, 2)
                else:
                    total = total * 0
                Y[at] = total

    x = torch.randn(40)
    check(elementwise(f), (x * 3 + 7) * 2 + 1, x)


def test_branches_on_run_time_values():
    @T.prim_func
    def f(X: T.Tensor((40,), "float32"), Y: T.Tensor((40,), "float32")):
        with T.Kernel(3) as bx:
            for i in T.Parallel(16):
                if X[bx * 16 + i] > 0:
                    Y[bx * 16 + i] = X[bx * 16 + i]
                elif X[bx * 16 + i] < -1:
                    Y[bx * 16 + i] = -1.0
                else:
                    Y[bx * 16 + i] = 0.0

    x = torch.randn(40)
    check(elementwise(f), torch.where(x > 0, x, torch.where(x < -1, -1.0, 0.0)), x)


def test_loops_with_break_continue_and_variables():
    @T.prim_func
    def f(X: T.Tensor((40,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1):
            total = T.alloc_var("float32", 0)
            steps = T.alloc_var("int32", 0)
            for i in T.serial(40):
                if X[i] > 10:
                    break
                if X[i] < 0:
                    continue
                total += X[i]
                steps = steps + 1
            while steps > 0:
                total = total + 1
                steps -= 1
            Y[0] = total

    x = torch.arange(40.0) - 5
    used = x[(x >= 0) & (x <= 10)]
    check(elementwise(f), (used.sum() + len(used)).reshape(1), x)


def test_loops_of_every_kind():
    @T.prim_func
    def f(X: T.Tensor((4, 6), "float32"), Y: T.Tensor((4, 6), "float32")):
        with T.Kernel(1):
            for i, j in T.grid(2, 6):
                Y[i, j] = X[i, j] + 1
            for i in T.unroll(2, 3):
                for j in range(0, 6, 2):
                    Y[i, j] = X[i, j] + 2
                for j in range(1, 6, 2):
                    Y[i, j] = X[i, j] + 3
            for j in T.vectorized(6):
                Y[3, j] = X[3, j] + 4

    x = torch.randn(4, 6)
    want = x + 1
    want[2, ::2], want[2, 1::2], want[3] = x[2, ::2] + 2, x[2, 1::2] + 3, x[3] + 4
    check(elementwise(f), want, x)


def test_macros_and_helpers_take_tiles():
    @T.prim_func
    def f(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((16,), "float32")
            b = T.alloc_fragment((16,), "float32")
            T.copy(X, a)
            T.fill(b, 2)
            add_into(b, a, 16)
            add_into(b, a, 16)
            T.copy(b, Y)

    x = torch.randn(16)
    check(elementwise(f), 2 * x + 2, x)


def test_a_value_is_read_where_it_is_assigned():
    @T.prim_func
    def f(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            t = T.alloc_local((2,), "float32")
            t[0] = X[0]
            t[1] = X[1]
            for _ in T.serial(1):
                old = t[0]
                t[0] = t[1]
                t[1] = old
            Y[0] = t[0]
            Y[1] = t[1]
            Y[2:4] = 5

    check(elementwise(f), torch.tensor([2.0, 1.0, 5.0, 5.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_copies_of_every_form():
    @T.prim_func
    def f(X: T.Tensor((3, 5, 8), "float32"), Y: T.Tensor((3, 5, 8), "float32")):
        with T.Kernel(3) as b:
            whole = T.alloc_shared((5, 8), "float32")
            row = T.alloc_shared((8,), "float32")
            flat = T.alloc_shared((40,), "float32")
            T.copy(X[b, :, :], whole)
            T.copy(X[b, 0, 0], whole)
            T.copy(whole[1, :], row)
            T.copy(row, whole[0, 0:8])
            T.copy(T.reshape(whole, (40,)), flat)
            for i in T.Parallel(40):
                flat[i] = flat[i] * 2
            T.copy(T.reshape(flat, (5, 8)), whole)
            T.copy(whole, Y[b, 0:5, 0:8])

    x = torch.randn(3, 5, 8)
    want = x.clone()
    want[:, 0] = x[:, 1]
    check(elementwise(f), want * 2, x)


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod", "abssum", "absmax"])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(op, dim):
    n = (6, 9)[1 - dim]

    @T.prim_func
    def f(X: T.Tensor((6, 9), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            x = T.alloc_fragment((6, 9), "float32")
            y = T.alloc_fragment((n,), "float32")
            T.copy(X, x)
            T.reduce(x, y, op, dim=dim)
            T.copy(y, Y)

    x = torch.randn(6, 9)
    of = x.abs() if op.startswith("abs") else x
    want = {"sum": of.sum, "max": of.amax, "min": of.amin, "prod": of.prod}[op.removeprefix("abs")](dim)
    check(elementwise(f), want, x)


def test_scans_and_reductions_that_accumulate():
    @T.prim_func
    def f(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((4, 8), "float32")):
        with T.Kernel(1):
            x = T.alloc_fragment((4, 8), "float32")
            top = T.alloc_fragment((4, 1), "float32")
            T.copy(X, x)
            T.fill(top, 0.5)
            T.reduce_max(x, top, dim=1, clear=False)
            T.cumsum(x, dim=1, reverse=True)
            for i, j in T.Parallel(4, 8):
                Y[i, j] = x[i, j] + top[i, 0]

    x = torch.randn(4, 8)
    want = x.flip(1).cumsum(1).flip(1) + x.amax(1, keepdim=True).clamp(min=0.5)
    check(elementwise(f), want, x)


def test_element_types():
    @T.prim_func
    def f(X: T.Tensor((16,), "float16"), N: T.Tensor((16,), T.int8), Y: T.Tensor((16,), torch.float32)):
        with T.Kernel(1):
            for i in T.Parallel(16):
                Y[i] = X[i] * 0.5 + N[i] + T.cast(N[i] // 2, "float32") + T.float32(i % 3) + T.if_then_else(N[i] > 2, 1, 0)

    @tw.jit(out_idx=-1)
    def make():
        return f

    x, n = torch.randn(16).half(), torch.arange(-8, 8, dtype=torch.int8)
    want = x.float() * 0.5 + n + n // 2 + torch.arange(16) % 3 + (n > 2)
    torch.testing.assert_close(make()(x, n), want)


def test_reads_of_the_branch_not_taken_are_not_made():
    @T.prim_func
    def f(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(16):
                Y[i] = T.if_then_else(i >= 1, X[i - 1], 0.0) + (X[i + 1] if i < 15 else 0.0)

    x = torch.randn(16)
    want = torch.zeros(16)
    want[1:] += x[:-1]
    want[:-1] += x[1:]
    check(elementwise(f), want, x)


def test_atomics_and_kernels_without_results():
    @tw.jit
    def histogram(N, bins):
        @T.prim_func
        def f(X: T.Tensor((N,), "int32"), H: T.Tensor((bins,), "int32")):
            with T.Kernel(T.ceildiv(N, 32)) as b:
                for i in T.Parallel(32):
                    if b * 32 + i < N:
                        T.atomic_add(H[X[b * 32 + i]], 1)

        return f

    x, h = torch.randint(0, 5, (100,), dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    kernel = histogram(100, 5)
    assert kernel(x, h) is None
    kernel(x, h)
    assert torch.equal(h, 2 * torch.bincount(x, minlength=5).int())


# --- sizes and arguments ----------------------------------------------------------------------------------------------


@tw.jit(out_idx=[-1])
def scale(M, N, block=8):
    @T.prim_func
    def scaled(X: T.Tensor((M, N), "float32"), s: T.float32, Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, block)) as b:
            for i, j in T.Parallel(block, N):
                Y[b * block + i, j] = X[b * block + i, j] * s

    return scaled


def test_sizes_that_are_open_and_numbers_as_arguments():
    M, N = T.dynamic("M, N")
    kernel = scale(M, N)
    for m, n in ((1, 1), (8, 3), (9, 17), (30, 2)):
        x = torch.randn(m, n)
        torch.testing.assert_close(kernel(x, 2.5), x * 2.5)
    assert kernel(torch.empty(0, 4), 2.0).shape == (0, 4)


def test_a_configuration_is_compiled_once():
    assert scale(4, 4) is scale(4, 4) and scale(4, 4) is not scale(4, 4, block=4)
    assert scale(4, 4).config["block"] == 8


def test_arrays_of_other_libraries():
    x = np.random.randn(4, 4).astype("float32")
    got = scale(4, 4)(x, 2.0)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, x * 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(4, 5), 1.0), r"X: expected the shape \[4, 4\], got \[4, 5\]"),
        ((torch.ones(4), 1.0), r"X: expected 2 dimensions"),
        ((torch.ones(4, 4).double(), 1.0), r"X: expected torch.float32"),
        ((torch.ones(8, 4)[::2], 1.0), r"X: expected the strides"),
        ((torch.ones(4, 4),), r"s: expected an argument"),
        ((torch.ones(4, 4), 1.0, 2.0), r"expected 2 arguments \(X, s\), got 3"),
        (("x", 1.0), r"X: expected a tensor, got str"),
    ],
)
def test_wrong_arguments(args, message):
    with pytest.raises(TypeError, match=message):
        scale(4, 4)(*args)


def test_keywords():
    x = torch.ones(4, 4)
    torch.testing.assert_close(scale(4, 4)(x, s=2.0), x * 2)
    with pytest.raises(TypeError, match="keyword z"):
        scale(4, 4)(x, z=2.0)


# --- errors of the source ---------------------------------------------------------------------------------------------


def wrong(body, match, hint=""):
    @tw.jit
    def make():
        return body

    with pytest.raises(T.LanguageError, match=match) as caught:
        make()
    text = str(caught.value)
    assert "test_language.py" in text and "^" in text and hint in text


def test_errors_show_the_line_and_what_to_write():
    @T.prim_func
    def rebinds(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            total = 0.0
            for i in T.serial(4):
                total = total + X[i]

    wrong(rebinds, "total", "T.alloc_var")

    @T.prim_func
    def tries(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            try:
                X[0] = 1
            except ValueError:
                X[0] = 2

    wrong(tries, "`try` is not part", "T.device_assert")

    @T.prim_func
    def whole(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            t = T.alloc_shared((4,), "float32")
            T.copy(t + 1, X)

    wrong(whole, "whole tile", "T.Parallel")

    @T.prim_func
    def shapes(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            t = T.alloc_shared((5,), "float32")
            T.copy(X[0:3], t)

    wrong(shapes, "different shapes")

    @T.prim_func
    def unknown(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            X[0] = nothing  # noqa: F821

    wrong(unknown, "'nothing' is not defined")

    @T.prim_func
    def misspelt(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.alloc_sharde((4,), "float32")

    wrong(misspelt, "alloc_sharde", "alloc_shared")

    @T.prim_func
    def product(X: T.Tensor((4, 4), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((4, 5), "float32")
            T.gemm(a, X, X)

    wrong(product, r"T.gemm: a\[4, 5\] times X\[4, 4\]")


def test_outside_of_a_kernel():
    with pytest.raises(T.LanguageError, match="outside of a kernel"):
        T.alloc_shared((4,), "float32")


# --- in graphs --------------------------------------------------------------------------------------------------------


@tw.jit(out_idx=[-1])
def product(M, N, K, block=32):
    @T.prim_func
    def kernel(A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block)) as (bx, by):
            a = T.alloc_shared((block, 16), "float32")
            b = T.alloc_shared((16, block), "float32")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
                T.copy(A[by * block, k * 16], a)
                T.copy(B[k * 16, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return kernel


GRAPHS = {
    "alone": (lambda k, a, b, v: k(a, b), 1),
    "consumers": (lambda k, a, b, v: torch.relu(k(a, b) + v) * 2, 1),
    "several results": (lambda k, a, b, v: (k(a, b) + v, k(a, b).exp()), 1),
    "the result too": (lambda k, a, b, v: (lambda c: (c, c * 2))(k(a, b)), 1),
    "an operand computed": (lambda k, a, b, v: k(torch.cos(a) + 1, b), 1),
    "both": (lambda k, a, b, v: k(a * 2, b - 1).sigmoid(), 1),
    "another type": (lambda k, a, b, v: k(a.half().float(), b).half(), 1),
    "transposed": (lambda k, a, b, v: k(a, b).t() + 1, 1),
    "an operand of other strides": (lambda k, a, b, v: k(a.flip(0), b), None),
    "a reduction behind": (lambda k, a, b, v: k(a, b).sum(1), None),
    "two kernels": (lambda k, a, b, v: k(k(a, b)[:, :33].contiguous(), b), None),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", [(32, 32, 33), (50, 40, 33)], ids=["one block", "ragged"])
def test_in_graphs(name, shape):
    f, kernels = GRAPHS[name]
    m, n, k = shape
    kernel = product(m, n, k)
    a, b, v = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    if name == "two kernels" and n != 33:
        kernel, b = product(m, k, k), torch.randn(k, k)
    g = lambda a, b, v: f(kernel, a, b, v)  # noqa: E731
    fast = tw.compile(g, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(a, b, v), g(a, b, v), rtol=1e-4, atol=1e-4)
    if kernels is not None and shape == (32, 32, 33):
        assert fast.stats.kernels == kernels, fast.text("tile")


def test_a_kernel_that_updates_in_a_graph():
    @tw.jit
    def make(N):
        @T.prim_func
        def add(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, 8)) as b:
                for i in T.Parallel(8):
                    Y[b * 8 + i] += X[b * 8 + i]

        return add

    kernel = make(20)

    def f(x, y):
        kernel(x * 2, y)
        z = y + 1
        kernel(x, y)
        return z

    fast = tw.compile(f)
    x = torch.randn(20)
    mine, theirs = torch.zeros(20), torch.zeros(20)
    for _ in range(3):
        torch.testing.assert_close(fast(x, mine), f(x, theirs))
        torch.testing.assert_close(mine, theirs)
    assert fast.stats.eager_calls == 0


def test_kernels_are_operators_of_torch():
    kernel = product(32, 32, 33)
    a, b = torch.randn(32, 33), torch.randn(33, 32)
    f = lambda a, b: kernel(a, b) + 1  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(a, b), f(a, b))
    exported = torch.export.export(_Module(kernel), (a, b))
    torch.testing.assert_close(exported.module()(a, b), f(a, b))


class _Module(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, a, b):
        return self.kernel(a, b) + 1


# --- checking and tuning ----------------------------------------------------------------------------------------------


def test_findings_name_the_line():
    @tw.jit(out_idx=[-1])
    def racy(N):
        @T.prim_func
        def kernel(X: T.Tensor((N,), "float32"), Y: T.Tensor((1,), "float32")):
            with T.Kernel(2):
                for i in T.Parallel(N):
                    Y[0] = X[i]  # the race

        return kernel

    found = tw.sanitize(racy(8), torch.ones(8))
    assert {f.kind for f in found} == {"race"}
    lines = Path(__file__).read_text().splitlines()
    assert "# the race" in lines[found[0].line - 1]
    assert tw.sanitize(product(20, 20, 20), torch.ones(20, 20), torch.ones(20, 20)) == []


def test_the_fastest_configuration_that_is_right():
    @tw.autotune(configs=[{"block": 8}, {"block": 16}, {"block": -1}], warmup=1, rep=2, ref_prog=lambda x: x * 2, cache=False)
    @tw.jit(out_idx=[-1])
    def doubled(N, block=4):
        @T.prim_func
        def kernel(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, block)) as b:
                for i in T.Parallel(block):
                    Y[b * block + i] = X[b * block + i] * 2

        return kernel

    with pytest.warns(UserWarning, match="skipped"):
        kernel = doubled(64)
    assert kernel.config["block"] in (8, 16)
    assert [t.error == "" for t in doubled.table()] == [True, True, False]
    assert doubled(64, block=4).config["block"] == 4
