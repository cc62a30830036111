"""The size algebra against Python's integers."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright.base import dims, scalar
from tilewright.base.dims import Dim, Size, symbol

X, Y, Z, W = symbol("x"), symbol("y", 0, 9), symbol("z", 8, None, 8), symbol("w", None, None)
SYMBOLS = {"x": X, "y": Y, "z": Z, "w": W}
VALUES = st.fixed_dictionaries(
    {
        "x": st.integers(2, 60),
        "y": st.integers(0, 9),
        "z": st.integers(1, 9).map(lambda n: 8 * n),
        "w": st.integers(-40, 40),
    }
)


def combined(a: str, b: str) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "//", "%", "min", "max"])
    return operators.map(lambda op: f"{op}({a}, {b})" if op.isalpha() else f"({a}) {op} ({b})")


EXPRESSIONS = st.recursive(
    st.sampled_from([*SYMBOLS, *SYMBOLS]) | st.integers(-20, 20).map(str),
    lambda inner: st.tuples(inner, inner).flatmap(lambda p: combined(*p)),
    max_leaves=9,
)


def built(text: str) -> Size:
    names = {"min": dims.minimum, "max": dims.maximum, **SYMBOLS}
    return eval(text, names)


def wanted(text: str, values: dict[str, int]) -> int:
    return eval(text, {"min": min, "max": max, **values})


def build_or_skip(text: str) -> Size:
    try:
        return built(text)
    except ZeroDivisionError:
        assume(False)
        raise


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, VALUES)
def test_agrees_with_integers(text: str, values: dict[str, int]) -> None:
    size = build_or_skip(text)
    try:
        value = wanted(text, values)
    except ZeroDivisionError:
        return
    assert dims.evaluate(size, values) == value, f"{text} became {size}"
    lo, hi = dims.bounds(size)
    assert (lo is None or lo <= value) and (hi is None or value <= hi), f"{size} in [{lo}, {hi}] is {value}"
    assert value % (dims.divisor(size) or 1) == 0
    assert dims.divisor(size) or value == 0


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_text_round_trip(text: str) -> None:
    size = build_or_skip(text)
    assert dims.parse(str(size), SYMBOLS) is size or dims.parse(str(size), SYMBOLS) == size


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_proofs_hold(a: str, b: str, values: dict[str, int]) -> None:
    x, y = build_or_skip(a), build_or_skip(b)
    try:
        m, n = wanted(a, values), wanted(b, values)
    except ZeroDivisionError:
        return
    assert not dims.provably_le(x, y) or m <= n
    assert not dims.provably_lt(x, y) or m < n
    assert not dims.provably_ge(x, y) or m >= n
    assert not dims.provably_gt(x, y) or m > n
    assert not dims.provably_eq(x, y) or m == n
    assert not dims.provably_ne(x, y) or m != n
    assert n == 0 or not dims.divides(y, x) or m % n == 0


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, VALUES)
def test_partial_substitution(text: str, values: dict[str, int]) -> None:
    size = build_or_skip(text)
    try:
        value = wanted(text, values)
        partial = dims.substitute(size, {"x": values["x"], "w": values["w"]})
    except ZeroDivisionError:
        return
    assert dims.evaluate(partial, values) == value


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, VALUES)
def test_expression(text: str, values: dict[str, int]) -> None:
    size = build_or_skip(text)
    try:
        value = wanted(text, values)
        expr = scalar.substitute(dims.to_expr(size), {scalar.var(n): scalar.const(v) for n, v in values.items()})
    except ZeroDivisionError:
        return
    assert isinstance(expr, scalar.Const) and expr.value == value


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (X + 0, "x"),
        (X - X, "0"),
        (0 * X, "0"),
        (2 * X + 3 * X, "5*x"),
        ((X + 1) * (X - 1), "x*x - 1"),
        (X * 6 // 6, "x"),
        (X * 6 % 6, "0"),
        (X // X, "1"),
        (X % X, "0"),
        (X * Y // Y, "x"),
        ((X * Y + X) // X, "y + 1"),
        ((X * Y + Y) // (X + 1), "y"),
        ((X * Y + Z) // Y, "x + z//y"),
        (X * Y // (X * Z), "y//z"),
        (X // -8, "(-x)//8"),
        ((8 * X + Y) // 8, "x + (y//8)"),
        ((X - 1) // 8 + 1, "(x + 7)//8"),
        ((4 * X + 6) // 8, "(2*x + 3)//4"),
        (X // 4 // 2, "x//8"),
        ((X // 4 + 3) // 2, "(x + 4)//8 + 1"),
        (Z // 8 * 8, "z"),
        (Z % 8, "0"),
        ((Z + 5) % 8, "5"),
        ((X + Z) % 8, "x % 8"),
        (9 * X % 8, "x % 8"),
        (X % 16 % 8, "x % 8"),
        (4 * X % 8, "4*(x % 2)"),
        (Y // 10, "0"),
        (Y % 10, "y"),
        ((Y + 10) // 10, "1"),
        (dims.minimum(X, X + 1), "x"),
        (dims.maximum(X, X // 2), "x"),
        (dims.minimum(X, 1), "1"),
        (dims.maximum(dims.maximum(X, Z), X), "max(x, z)"),
        (dims.minimum(Z, X), "min(x, z)"),
        (-X, "-x"),
        (3 - 2 * X, "-2*x + 3"),
        (2 * (X // 3) * Y, "2*(x//3)*y"),
        (dims.ceildiv(Z, 8), "z//8"),
    ],
)
def test_canonical(size: Size, text: str) -> None:
    assert str(size) == str(dims.parse(text, SYMBOLS))
    assert dims.parse(text, SYMBOLS) is size or (isinstance(size, int) and str(size) == text)


def test_text_is_readable() -> None:
    assert str(2 * X * Y + X // 8 - 3) == "2*x*y + x//8 - 3"
    assert str(dims.minimum(X % 5, Y + 1) * X) == "min(x % 5, y + 1)*x"
    assert repr(X - Y) == "x - y"


def test_constants_are_ints() -> None:
    assert type(X - X + 5) is int and type(X // X) is int and type(dims.minimum(2, 3)) is int
    assert dims.is_static(7) and not dims.is_static(X)
    assert dims.as_ints((3, X - X)) == (3, 0)
    with pytest.raises(TypeError, match="constant size is needed here, got x"):
        dims.as_int(X)


def test_equal_sizes_are_one_object() -> None:
    assert (X + Y) * 2 is 2 * Y + X * 2
    assert symbol("x") is X and symbol("x", 3) is not X
    assert X != 2 and X != Y
    assert copy.deepcopy(X + 1) is X + 1
    assert pickle.loads(pickle.dumps((X // 3) + Y)) is X // 3 + Y


def test_shapes_work_as_of_ints() -> None:
    assert str(math.prod((X, 4, Y))) == "4*x*y" and str(sum((X, 4, Y))) == "x + y + 4"


def test_proofs() -> None:
    assert dims.provably_le(X // 2, X) and dims.provably_le(X // 2 * 2, X)
    assert dims.provably_le(dims.minimum(X, Z), Z) and dims.provably_lt(X % 8, 8)
    assert dims.provably_le(X, dims.ceildiv(X, 8) * 8)
    assert not dims.provably_le(X, Z) and not dims.provably_le(Z, X)
    assert dims.provably_ne(X, 1) and dims.provably_ne(2 * W, 5) and not dims.provably_ne(W, 5)
    assert dims.provably_eq(X, X) and dims.divides(4, Z * X) and not dims.divides(4, X) and dims.divides(X, X * Y)


def test_bounds() -> None:
    assert dims.bounds(X) == (2, None) and dims.bounds(-X) == (None, -2) and dims.bounds(7) == (7, 7)
    assert dims.bounds(Y * Y - 1) == (-1, 80) and dims.bounds(W * W) == (0, None)
    assert dims.bounds(symbol("q", 3, 21, 4)) == (4, 20)


def test_symbols_of_a_size() -> None:
    assert [s.name for s in dims.symbols(Y + dims.minimum(X, Z // 3), 4)] == ["x", "y", "z"]
    assert dims.symbols(Y)[0].dim is Y


@pytest.mark.parametrize("bad", ["x +", "q", "x / 2", "x ** 2", "f(x)", "True", "1.5", "x if y else z"])
def test_parse_refuses(bad: str) -> None:
    with pytest.raises(ValueError):
        dims.parse(bad, SYMBOLS)


def test_bad_arguments() -> None:
    for arguments in (("1x",), ("min",), ("x", 2, 1), ("x", 1, 7, 8), ("x", 2, None, 0)):
        with pytest.raises(ValueError):
            symbol(*arguments)
    with pytest.raises(ZeroDivisionError):
        X // 0
    with pytest.raises(ZeroDivisionError):
        X % 0
    with pytest.raises(KeyError, match="y"):
        dims.evaluate(X + Y, {"x": 3})
    with pytest.raises(TypeError):
        X < Y  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError):
        X + 1.5  # type: ignore[operator]
    assert isinstance(X, Dim)
