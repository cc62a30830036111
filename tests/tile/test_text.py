"""The text of tile programs: golden, read back exactly, and refused with the line where it is wrong."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import b1, bf16, f32, f64, i32, i64
from tilewright.base.errors import ParseError
from tilewright.tile import ir, layout
from tilewright.tile.builder import KernelBuilder, region
from tilewright.tile.ir import Buffer, Const, Expr, Kernel, Scope, const, var
from tilewright.tile.parse import parse_kernel, parse_kernels
from tilewright.tile.text import expr_text, kernel_text, statement_text

GOLDEN = """\
kernel matmul:
    in x: f32[64, 48] strides[64, 1]
    in y: f32[48, 32]
    out out: f32[64, 32]
    scalar n: i32
    cost 1500.0
    grid b in 4
    alloc shared packed: f32[48, 32] layout panels16(d0, d1) = d1 // 16 * 768 + d0 * 16 + d1 % 16 size 1536
    copy(y[0 +: 48, 0 +: 32], packed[0 +: 48, 0 +: 32])
    alloc fragment acc: f32[16, 32]
    gemm(x[b * 16 +: 16, 0 +: 48], packed[0 +: 48, 0 +: 32], acc[0 +: 16, 0 +: 32], clear=True)
    for i, j in parallel(16, 32):
        let v = max(acc[i, j], 0.0)
        if i64(n) > i:
            out[b * 16 + i, j] = select(isnan(v), -inf, v * 0.1)
        else:
            out[b * 16 + i, j] = -v
    for k in pipelined(4, stages=2):
        pass
    scope:
        alloc local m: f32[1]
        reduce m[0] = max over r in 32: out[b * 16, r]
        accumulate m[0] = max over r_1 in 32: out[b * 16 + 1, r_1]
    while out[0, 0] < 3.0:
        break
    print("done", b)
    assert b < 4, "blocks"
    sync("block")
"""


def golden() -> Kernel:
    b = KernelBuilder("matmul")
    x = b.param("x", f32, (64, 48), strides=(64, 1))
    y, out = b.param("y", f32, (48, 32)), b.param("out", f32, (64, 32), out=True)
    n = b.scalar("n", i32)
    (block,) = b.grid(4)
    packed = b.alloc(f32, (48, 32), Scope.SHARED, "packed", layout=layout.panels(48, 32, 16))
    b.copy(y, packed)
    acc = b.alloc(f32, (16, 32), Scope.FRAGMENT, "acc")
    b.gemm(region(x, (block * 16, 16), (0, 48)), packed, acc, clear=True)
    with b.parallel(16, 32) as (i, j):
        v = b.let(scalar.maximum(acc[i, j], 0.0))
        with b.if_(scalar.cast(n, i64) > i):
            b.store(out, (block * 16 + i, j), scalar.select(scalar.unary("isnan", v), -math.inf, v * 0.1))
        with b.else_():
            b.store(out, (block * 16 + i, j), -v)
    with b.for_(4, kind="pipelined", stages=2):
        pass
    m = Buffer("m", f32, (const(1),), Scope.LOCAL)
    r, s = var("r"), var("r_1")
    zero, row = const(0), (const(32),)
    b.emit(
        ir.Alloc(
            m,
            ir.block(
                ir.Reduce("max", m, (zero,), (r,), row, out[block * 16, r]),
                ir.Reduce("max", m, (zero,), (s,), row, out[block * 16 + 1, s], clear=False),
            ),
        )
    )
    with b.while_(out[0, 0] < 3.0):
        b.break_()
    b.print_("done", block)
    b.check(block < 4, "blocks")
    b.sync()
    return b.build(cost=1500)


def test_golden() -> None:
    assert kernel_text(golden()) == GOLDEN


def test_round_trip() -> None:
    assert parse_kernel(GOLDEN) == golden()
    bounded = dataclasses.replace(golden(), bounded=True)
    assert parse_kernel(kernel_text(bounded)) == bounded
    assert parse_kernels(GOLDEN + "\n# a comment\n" + GOLDEN.replace("matmul", "again"))[1].name == "again"


def round_trip(body: ir.Stmt, *params: Buffer, outputs: tuple[str, ...] = ()) -> str:
    kernel = Kernel("k", params, (), body, outputs)
    text = kernel_text(kernel)
    assert parse_kernel(text) == kernel, text
    assert kernel_text(parse_kernel(text)) == text
    return text


A = Buffer("a", f32, (const(8), const(8)))
I64S = [var("i"), var("j"), const(0), const(-3), const(7)]


@st.composite
def exprs(draw: st.DrawFn, dtype: dtypes.DType, depth: int = 4) -> Expr:
    """Any well-typed expression, built without folding."""
    if depth == 0 or draw(st.booleans()):
        if dtype is i64:
            return draw(st.sampled_from(I64S))
        if dtype is b1:
            return Const(draw(st.booleans()), b1)
        if dtype.is_float and draw(st.booleans()):
            return Const(draw(st.floats()), dtype)
        if dtype is f32:
            return ir.Load(A, (draw(exprs(i64, 0)), draw(exprs(i64, max(depth - 1, 0)))))
        return Const(float(draw(st.integers(-5, 5))) if dtype.is_float else draw(st.integers(-5, 5)), dtype)
    kind = draw(st.sampled_from(("unary", "binary", "select", "cast", "compare")))
    if kind == "compare" and dtype is b1:
        of = draw(st.sampled_from((f32, i64)))
        op = draw(st.sampled_from(("eq", "lt", "ge")))
        return scalar.Binary(op, draw(exprs(of, depth - 1)), draw(exprs(of, depth - 1)))
    if kind == "select":
        return scalar.Select(draw(exprs(b1, depth - 1)), draw(exprs(dtype, depth - 1)), draw(exprs(dtype, depth - 1)))
    if kind == "cast":
        return scalar.Cast(draw(exprs(draw(st.sampled_from((i64, f32, b1, bf16))), depth - 1)), dtype)
    if kind == "unary":
        return scalar.Unary("not" if dtype is b1 else draw(st.sampled_from(("neg", "abs"))), draw(exprs(dtype, depth - 1)))
    tests = ("and", "xor") if dtype is b1 else ("add", "sub", "mul", "floordiv", "mod", "min", "rem", "div")
    return scalar.Binary(draw(st.sampled_from(tests)), draw(exprs(dtype, depth - 1)), draw(exprs(dtype, depth - 1)))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([f32, f64, bf16, i64, i32, b1]))
def test_every_expression_round_trips(data: st.DataObject, dtype: dtypes.DType) -> None:
    value = data.draw(exprs(dtype, 4))
    out = Buffer("o", dtype, (const(8), const(8)))
    store = ir.Store(out, (var("i"), var("j")), value)
    round_trip(ir.Parallel((var("i"), var("j")), (const(8), const(8)), store), A, out, outputs=("o",))


def test_shared_expressions_are_written_once() -> None:
    x: Expr = A[var("i"), var("j")]
    for _ in range(60):
        x = x * scalar.unary("exp", x + 1.0)  # 2 ** 60 nodes as a tree
    text = round_trip(
        ir.Parallel((var("i"), var("j")), (const(8), const(8)), ir.Store(A, (var("i"), var("j")), x)), A, outputs=("a",)
    )
    assert len(text) < 6000
    assert "%0 = " in text
    r = var("r")
    body = ir.Reduce("sum", A, (const(0), const(0)), (r,), (const(8),), scalar.substitute(x, {var("i"): r, var("j"): r}))
    round_trip(body, A, outputs=("a",))


def test_blocks_scopes_and_empty_bodies() -> None:
    s = Buffer("s", f32, (const(4),), Scope.SHARED)
    fill = ir.Fill(region(s, (0, 4)), const(1.0, f32))
    store = ir.Store(A, (const(0), const(0)), const(1.0, f32))
    round_trip(ir.block(ir.Alloc(s, fill), ir.Alloc(s, fill), store), A, outputs=("a",))
    round_trip(ir.Block((ir.Block((store, store)), store)), A, outputs=("a",))
    round_trip(ir.Block(()))
    round_trip(ir.If(const(True, b1), ir.Block(()), ir.Alloc(s, ir.Block(()))))
    round_trip(
        ir.block(ir.Let(var("v", f32), const(2.0, f32), store), ir.Let(var("v", i32), const(2, i32), store)), A, outputs=("a",)
    )


def test_odd_statements() -> None:
    b = Buffer("b", i32, ())
    whole = region(A, (0, 8), (0, 8))
    round_trip(ir.Store(b, (), const(1, i32)), b, outputs=("b",))
    round_trip(ir.Atomic("add", b, (), b[()]), b, outputs=("b",))
    round_trip(ir.Scan("prod", whole, whole, 1, True), A, outputs=("a",))
    round_trip(ir.Gemm(whole, whole, whole, True, True, False, "rows"), A, outputs=("a",))
    round_trip(ir.Copy(region(A, 3, (0, 8)), region(A, (0, 8), 2)), A, outputs=("a",))
    round_trip(ir.Reduce("any", b, (), (), (), const(1, i32)), b, outputs=("b",))
    round_trip(ir.Print('say "x"\n'), outputs=())
    round_trip(ir.For(var("k", i32), const(3), ir.Continue(), "unrolled"))
    round_trip(ir.Parallel((), (), ir.Store(A, (const(0), const(0)), const(0.0, f32))), A)
    two = (Buffer("p", f32, (), strides=()), Buffer("q", f32, ()))
    round_trip(ir.Block(()), *two, outputs=("q", "p"))


def test_statement_and_expression_text() -> None:
    i = var("i")
    assert statement_text(ir.For(i, const(4), ir.Break())) == "for i in range(4):"
    assert expr_text((i + 1) * 2 - (i - 1 - (i - 2))) == "(i + 1) * 2 - (i - 1 - (i - 2))"
    assert expr_text(scalar.Binary("lt", i < 2, i < 3)) == "(i < 2) < (i < 3)"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("acc[i, j]", "ack[i, j]", r"(?s)no buffer 'ack' here\n  --> <kernel>:13:21\n.*let v = max"),
        ("b * 16 + i, j] = sel", "z * 16 + i, j] = sel", "no variable 'z' here"),
        ("isnan(v)", "isgood(v)", "unknown function 'isgood'"),
        ("i64(n) > i", "n > i", "gt of i32 and i64"),
        ("parallel(16, 32)", "parallel(16)", "2 extents expected"),
        ("in pipelined", "in sequence", "unknown loop 'sequence'"),
        ("fragment acc", "somewhere acc", "unknown scope"),
        ("sync(", "synchronise(", "unknown statement"),
        ('"blocks"', '"blocks" "more"', "unexpected"),
        ("x: f32", "x: f33", "unknown type 'f33'"),
        ("        pass\n", "", "a body expected"),
        ("    sync", "      sync", "unexpected indentation"),
        ("0.1)", "0.1) $", r"unexpected '\$'"),
        ("grid b in 4", "grid b in", "expected, got 'the end of the line'"),
    ],
)
def test_errors_name_the_line(old: str, new: str, problem: str) -> None:
    assert old in GOLDEN
    with pytest.raises(ParseError, match=problem):
        parse_kernel(GOLDEN.replace(old, new))


def test_one_kernel_is_expected() -> None:
    with pytest.raises(ParseError, match="one kernel expected, got 0"):
        parse_kernel("\n")
