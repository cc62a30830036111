"""Algebra: local identities on pointwise operators, as a table of rewrite rules.

In: a graph. Out: the same graph in cheaper operators. Every rule keeps IEEE results, the sign of zero, infinities and NaN
included: `x + 0.0` stays (it turns -0.0 into 0.0), and so does `x * 0`. Must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

from ...base import dtypes
from ...base.dtypes import DType
from ...base.rewrite import P, Rewriter, Rule, Table, V
from ...base.scalar import Number
from ..ir import Graph, Node, Op, over
from ..ops import pointwise as pw
from .constants import full, scalar_of
from .cse import COMMUTATIVE
from .views import expand


def simplify(graph: Graph) -> Graph:
    return graph.with_roots(Rewriter(TABLE, GraphLanguage()))


class GraphLanguage:
    """Graph nodes as the rewrite engine sees them."""

    def op(self, node: Node) -> Hashable:
        return node.op

    def args(self, node: Node) -> tuple[Node, ...]:
        return node.args

    def rebuild(self, node: Node, args: tuple[Node, ...]) -> Node:
        return over(node, args)

    def commutes(self, op: Hashable) -> bool:
        return isinstance(op, Op) and op.name in COMMUTATIVE


# --- conditions -------------------------------------------------------------------------------------------------------


def is_number(value: Number) -> Callable[[Node], bool]:
    """Every element is `value`, up to its type; 0.0 and -0.0 differ."""
    sign = math.copysign(1.0, value)

    def test(n: Node) -> bool:
        c = scalar_of(n)
        return c is not None and c == value and (not n.dtype.is_float or math.copysign(1.0, c) == sign)

    return test


def _adds_nothing(n: Node) -> bool:
    return is_number(-0.0 if n.dtype.is_float else 0)(n)


def _is_constant(n: Node) -> bool:
    return scalar_of(n) is not None


def _is_power_of_two(n: Node) -> bool:
    """A constant ±2^k whose reciprocal is a normal number of the type."""
    c = scalar_of(n)
    if not isinstance(c, float) or not math.isfinite(c):
        return False
    fraction, exponent = math.frexp(c)
    return abs(fraction) == 0.5 and abs(exponent - 1) <= {dtypes.f64: 1000, dtypes.f16: 14}.get(n.dtype, 120)


def _is_signed(n: Node) -> bool:
    return n.dtype.kind != "uint"


def _is_test(n: Node) -> bool:
    return n.dtype is dtypes.b1


# --- casts ------------------------------------------------------------------------------------------------------------

_DIGITS = {dtypes.f64: 53, dtypes.f32: 24, dtypes.f16: 11, dtypes.bf16: 8}


def keeps_values(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`."""
    if source is target or source is dtypes.b1:
        return True
    if source.is_float:
        return target is dtypes.f64 or (target is dtypes.f32 and source.bytes < 4)
    if not source.is_integer:
        return False
    digits = source.bits - (source.kind == "int")
    if target.is_float:
        return digits <= _DIGITS.get(target, 0)
    room = target.bits - (target.kind == "int")
    return target.is_integer and digits <= room and (source.kind == "uint" or target.kind == "int")


def _cast_cast(n: Node, x: Node, inner: Node) -> Node | None:
    a, b, c = x.dtype, inner.dtype, n.dtype
    exact = keeps_values(a, b) and (a.is_float or not b.is_float or not c.is_integer or keeps_values(a, c))
    wraps = a.is_integer and b.is_integer and c.is_integer and a.bytes >= b.bytes >= c.bytes
    return _cast(x, c) if exact or wraps else None


def _cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else pw.CAST(x, dtype=dtype)


# --- powers -----------------------------------------------------------------------------------------------------------


def _power(x: Node, c: Node) -> Node | None:
    """Those exponents that eager treats in the same way. A square root is one for all types but f16, whose eager calls pow."""
    exponent = scalar_of(c)
    if exponent in (1, 2, 3):
        return x if exponent == 1 else pw.MUL(x, x) if exponent == 2 else pw.MUL(pw.MUL(x, x), x)
    if not x.dtype.is_float:
        return None
    if exponent == -1:
        return pw.RECIP(x)
    if x.dtype is not dtypes.f16:
        return pw.SQRT(x) if exponent == 0.5 else pw.RSQRT(x) if exponent == -0.5 else None
    return None


def _by_reciprocal(x: Node, c: Node) -> Node | None:
    divisor = scalar_of(c)
    return None if divisor is None else pw.MUL(x, full(1 / float(divisor), c, c.shape))


# --- the table --------------------------------------------------------------------------------------------------------

x, y, c = V("x"), V("y"), V("c", _is_constant)


def _number(value: Number) -> V:
    return V("c", is_number(value))


def _same(n: Node, x: Node) -> Node:
    """`x` in the place of `n`, whose other operands may have broadcast it."""
    return expand(x, n.shape)


def _identity(name: str, pattern: P) -> Rule[Node]:
    return Rule(name, pattern, _same)


TABLE: Table[Node] = Table([
    _identity("add_zero", P(pw.ADD, x, V("c", _adds_nothing), name="n")),
    _identity("sub_zero", P(pw.SUB, x, _number(0.0), name="n")),
    _identity("mul_one", P(pw.MUL, x, _number(1), name="n")),
    _identity("div_one", P(pw.DIV, x, _number(1), name="n")),
    _identity("max_lowest", P(pw.MAXIMUM, x, _number(-math.inf), name="n")),
    _identity("min_highest", P(pw.MINIMUM, x, _number(math.inf), name="n")),
    _identity("same_operands", P((pw.MAXIMUM, pw.MINIMUM, pw.BITAND, pw.BITOR), x, x, name="n")),
    _identity("where_same", P(pw.WHERE, V("test"), x, x, name="n")),
    Rule("mul_minus_one", P(pw.MUL, x, _number(-1), name="n"), lambda n, x: pw.NEG(_same(n, x))),
    Rule("neg_neg", P(pw.NEG, P(pw.NEG, x)), lambda x: x),
    Rule("not_not", P(pw.NOT, P(pw.NOT, x)), lambda x: x),
    Rule("abs_abs", P(pw.ABS, P(pw.ABS, x)), lambda x: pw.ABS(x)),
    Rule("abs_neg", P(pw.ABS, P(pw.NEG, V("x", _is_signed))), lambda x: pw.ABS(x)),
    Rule("relu_relu", P(pw.RELU, P(pw.RELU, x, name="once")), lambda once: once),
    Rule("add_neg", P(pw.ADD, x, P(pw.NEG, y)), lambda x, y: pw.SUB(x, y)),
    Rule("sub_neg", P(pw.SUB, x, P(pw.NEG, y)), lambda x, y: pw.ADD(x, y)),
    Rule("pow_constant", P(pw.POW, x, c, name="n"), lambda n, x, c: None if (p := _power(x, c)) is None else _same(n, p)),
    Rule("div_power_of_two", P(pw.DIV, x, V("c", _is_power_of_two)), _by_reciprocal),
    Rule("one_over", P(pw.DIV, _number(1), x, name="n"), lambda n, x: _same(n, pw.RECIP(x))),
    Rule("cast_same", P(pw.CAST, x, name="n", where=lambda n: n.dtype is n.args[0].dtype), lambda x: x),
    Rule("cast_cast", P(pw.CAST, P(pw.CAST, x, name="inner"), name="n"), _cast_cast),
    Rule("where_not", P(pw.WHERE, P(pw.NOT, V("test")), x, y), lambda test, x, y: pw.WHERE(test, y, x)),
    Rule("and_true", P(pw.BITAND, V("x", _is_test), _number(True), name="n"), _same),
    Rule("or_false", P((pw.BITOR, pw.BITXOR), V("x", _is_test), _number(False), name="n"), _same),
    Rule("and_false", P(pw.BITAND, V("x", _is_test), _number(False), name="n"), lambda n: full(False, n, n.shape)),
    Rule("or_true", P(pw.BITOR, V("x", _is_test), _number(True), name="n"), lambda n: full(True, n, n.shape)),
    Rule("is_true", P(pw.EQ, V("x", _is_test), _number(True), name="n"), _same),
    Rule("is_not_false", P(pw.NE, V("x", _is_test), _number(False), name="n"), _same),
    Rule("is_false", P(pw.EQ, V("x", _is_test), _number(False), name="n"), lambda n, x: pw.NOT(_same(n, x))),
    Rule("not_equal", P(pw.NOT, P(pw.EQ, x, y)), lambda x, y: pw.NE(x, y)),
])  # fmt: skip
