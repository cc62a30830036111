"""The verifier: every rule has a kernel that breaks it."""

from __future__ import annotations

import pytest

from tilewright.base import scalar
from tilewright.base.dtypes import b1, f32, i32, i64
from tilewright.base.errors import VerifyError
from tilewright.tile import ir, layout
from tilewright.tile.builder import region
from tilewright.tile.ir import Buffer, Const, Expr, Kernel, Scope, const, var
from tilewright.tile.verify import verify

X = Buffer("x", f32, (const(8), const(4)))
Y = Buffer("y", f32, (const(8), const(4)))
S = Buffer("s", f32, (const(8), const(4)), Scope.SHARED)
I, J, N = var("i"), var("j"), var("n")
ALL = ((0, 8), (0, 4))
ZERO, ONE = const(0), const(1.0, f32)
STORE = ir.Store(Y, (ZERO, ZERO), ONE)


def made(body: ir.Stmt, params: tuple[Buffer, ...] = (X, Y), outputs: tuple[str, ...] = ("y",), **more: object) -> Kernel:
    return Kernel("k", params, ((N, const(2)),), body, outputs, **more)  # type: ignore[arg-type]


def nest(*body: ir.Stmt) -> ir.Stmt:
    return ir.Parallel((I, J), (const(8), const(4)), ir.block(*body))


def store(value: Expr) -> ir.Stmt:
    return nest(ir.Store(Y, (I, J), value))


GOOD = [
    store(X[I, J] + 1.0),
    ir.Alloc(S, ir.block(ir.Copy(region(X, *ALL), region(S, *ALL)), store(S[I, J]))),
    ir.Gemm(region(X, *ALL), region(X, (0, 4), (0, 4)), region(Y, *ALL)),
    ir.Block(()),
    ir.For(I, N, ir.If(I.eq(0), ir.Continue(), ir.Break())),
    ir.block(*[ir.For(I, const(2), STORE)] * 2),  # a name may be bound again behind its scope
    ir.Copy(region(X, 0, (N, 4)), region(Y, 0, (0, 4))),
    ir.Reduce("argmax", Buffer("y", i64, (const(8), const(4))), (ZERO, ZERO), (I,), (const(8),), X[I, 0]),
]


@pytest.mark.parametrize("body", GOOD)
def test_valid(body: ir.Stmt) -> None:
    target = next((s.dst for s in ir.statements(body) if isinstance(s, ir.Reduce)), Y)
    verify(made(body, (X, target)))


BAD: list[tuple[str, ir.Stmt]] = [
    ("the variable j: i64 is not in scope\n  in: y[0, 0] = x[0, j]", ir.Store(Y, (ZERO, ZERO), X[0, J])),
    ("s: f32[8, 4] is neither a parameter nor allocated around this", store(S[I, J])),
    ("neither a parameter", ir.block(ir.Alloc(S, ir.Fill(region(S, *ALL), ONE)), store(S[I, J]))),
    ("x is written but is not an output", ir.Store(X, (ZERO, ZERO), ONE)),
    ("x is written but is not an output", ir.Copy(region(Y, *ALL), region(X, *ALL))),
    ("2 indices expected, got 1", ir.Store(Y, (ZERO,), ONE)),
    ("2 indices expected, got 1", store(ir.Load(X, (I,)))),
    ("1.0 is f32; an index or extent is an integer", ir.Store(Y, (ZERO, ONE), ONE)),
    ("an index is an integer", store(ir.Load(X, (I, ONE)))),
    ("is i64; a condition is a bool", ir.If(N, STORE)),
    ("is f32; a condition is a bool", ir.While(ONE, STORE)),
    ("add of f32 and i64", store(scalar.Binary("add", X[I, J], I))),
    ("select of i64, f32 and f32", store(scalar.Select(I, ONE, X[I, J]))),
    ("exp of i64", ir.Store(Y, (scalar.Unary("exp", N), ZERO), ONE)),
    ("and of f32", store(scalar.Binary("and", ONE, X[I, J]))),
    ("sub of b1", ir.If(scalar.Binary("sub", Const(True, b1), Const(True, b1)), STORE)),
    ("unknown operation 'frob'", store(scalar.Select(scalar.Unary("frob", ONE), ONE, ONE))),
    ("the constant 1 of type f32", store(Const(1, f32))),
    ("the name 'i' is already bound here", ir.For(I, const(2), ir.For(I, const(2), STORE))),
    ("the name 'n' is already bound here", ir.For(N, const(2), STORE)),
    ("the name 'i' is already bound here", ir.Parallel((I, I), (const(2), const(2)), STORE)),
    ("'%a' is no name", ir.For(var("%a"), const(2), STORE)),
    ("'inf' is no name", ir.For(var("inf"), const(2), STORE)),
    ("Copy may not stand inside a Parallel", nest(ir.Copy(region(X, *ALL), region(Y, *ALL)))),
    ("Alloc may not stand inside a Parallel", nest(ir.Alloc(S, STORE))),
    ("Break may not stand inside a Parallel", ir.For(var("m"), const(2), nest(ir.Break()))),
    ("Continue outside a loop", ir.Continue()),
    ("v is i32, its value f32", ir.Let(var("v", i32), ONE, STORE)),
    ("a buffer named 's' is already in scope", ir.Alloc(S, ir.Alloc(S, STORE))),
    ("a global buffer is a parameter", ir.Alloc(Buffer("g", f32, (ZERO,)), STORE)),
    ("unknown kind of loop 'sideways'", ir.For(I, const(2), STORE, "sideways")),
    ("the extent of an unrolled loop must be a constant", ir.For(I, N, STORE, "unrolled")),
    ("2 stages for a serial loop", ir.For(I, const(2), STORE, "serial", 2)),
    ("1 variables for 2 extents", ir.Parallel((I,), (const(2), const(2)), STORE)),
    ("the extents [4, 8] and [8, 4] differ", ir.Copy(region(X, *ALL), region(Y, *ALL), transpose=True)),
    ("the extents [4] and [8, 4] differ", ir.Copy(region(X, 0, (0, 4)), region(Y, *ALL))),
    ("the extents [8, 4, 4] and [8, 4, 8] differ", ir.Gemm(region(X, *ALL), region(X, *ALL), region(Y, *ALL))),
    ("two dimensions", ir.Gemm(region(X, 0, (0, 4)), region(X, *ALL), region(Y, *ALL))),
    ("a transposing copy needs two dimensions", ir.Copy(region(X, 0, (0, 4)), region(Y, 0, (0, 4)), transpose=True)),
    ("a region of 1 dimensions of a buffer of 2", ir.Fill(ir.Region(Y, (ZERO,), (const(8),)), ONE)),
    ("the region ends at 9, the dimension at 8", ir.Alloc(S, ir.Fill(region(S, (1, 8), (0, 4)), ONE))),
    ("the offset -1 is negative", ir.Fill(region(Y, (-1, 8), (0, 4)), ONE)),
    ("axis 2 of 2 dimensions", ir.Scan("sum", region(X, *ALL), region(Y, *ALL), 2)),
    ("unknown scan 'mean'", ir.Scan("mean", region(X, *ALL), region(Y, *ALL), 0)),
    ("unknown reduction 'mean'", ir.Reduce("mean", Y, (ZERO, ZERO), (I,), (const(8),), X[I, 0])),
    ("argmax needs an integer destination and clear", ir.Reduce("argmax", Y, (ZERO, ZERO), (I,), (const(8),), X[I, 0])),
    ("bitand of f32", ir.Reduce("bitand", Y, (ZERO, ZERO), (I,), (const(8),), X[I, 0])),
    ("unknown atomic operation 'swap'", ir.Atomic("swap", Y, (ZERO, ZERO), ONE)),
]


@pytest.mark.parametrize(("problem", "body"), BAD, ids=[p[:40] for p, _ in BAD])
def test_invalid(problem: str, body: ir.Stmt) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(made(body))
    assert problem in str(caught.value)
    assert "kernel k is not valid" in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        ("two parameters have one name", made(STORE, (X, X, Y))),
        ("the outputs ['z'] are no parameters", made(STORE, outputs=("y", "z"))),
        ("an output is named twice", made(STORE, outputs=("y", "y"))),
        ("the parameter s is shared", made(STORE, (Y, S))),
        ("two scalars or grid variables have one name", made(STORE, scalars=(N,))),
        ("1 strides for 2 dimensions", made(STORE, (Y, Buffer("z", f32, (ZERO, ZERO), strides=(ZERO,))))),
        (
            "strides or a layout, not both",
            made(STORE, (Y, Buffer("z", f32, (ZERO,), strides=(ZERO,), layout=layout.row_major((1,))))),
        ),
        ("is of 1 dimensions, the buffer of 2", made(STORE, (Y, Buffer("z", f32, (ZERO, ZERO), layout=layout.row_major((1,)))))),
        ("the extent -1 is negative", made(STORE, (Y, Buffer("z", f32, (const(-1),))))),
        ("the variable i: i64 is not in scope\n  in: z: f32[i]", made(STORE, (Y, Buffer("z", f32, (I,))))),
    ],
)
def test_invalid_kernels(problem: str, kernel: Kernel) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    assert problem in str(caught.value)
