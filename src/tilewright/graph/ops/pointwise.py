"""Pointwise operators: each result element depends on the operands' elements at the same (broadcast) place.

In: operands of one dtype. Out: rows with an eager meaning and a scalar body. A body gets its operands in their compute type
(float32 for 16-bit floats) and gives the result's compute type. Must not know how bodies are fused or emitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...base import dtypes, scalar
from ...base.dims import Dim, to_expr
from ...base.dtypes import DType
from ...base.scalar import Expr, cast, const, maximum, minimum, select, unary
from ..ir import Attrs, Family, Op, Shape, TensorType, Type
from .rules import ANY, BOOL, FLOATS, INTS, NUMBERS, STORED, NumberAttrs, admit, broadcast, in_range, one_dtype, require, tensor
from .torch_dtypes import to_torch

Eager = Callable[..., torch.Tensor]


def _row(
    name: str,
    arity: int,
    admitted: tuple[DType, ...],
    eager: Eager,
    body: Callable[..., Expr],
    attrs: type[Attrs] = Attrs,
    test: bool = False,
    check: Callable[[Any, DType], None] | None = None,
) -> Op:
    """A row whose operands have one admitted dtype and broadcast; `test` rows give bool. `check(attrs, dtype)` may refuse."""

    def infer(attrs: Any, *types: Type) -> TensorType:
        operands = tuple([admit(t, admitted) for t in types])
        dtype = one_dtype(operands)
        if check is not None:
            check(attrs, dtype)
        return TensorType(dtypes.b1 if test else dtype, broadcast(*[t.shape for t in operands]))

    return Op(name, Family.POINTWISE, infer, eager, attrs, body, arity=arity, dtypes=admitted)


def _plain(function: Callable[..., torch.Tensor]) -> Eager:
    return lambda attrs, *tensors: function(*tensors)


def _unary(name: str, function: Eager, admitted: tuple[DType, ...] = FLOATS, body: Callable[[Expr], Expr] | None = None) -> Op:
    of = body or (lambda x: unary(name, x))
    return _row(name, 1, admitted, _plain(function), lambda attrs, x: of(x))


def _binary(
    name: str,
    function: Callable[..., torch.Tensor],
    admitted: tuple[DType, ...],
    body: Callable[[Expr, Expr], Expr],
    on_bool: Callable[[Expr, Expr], Expr] | None = None,
    test: bool = False,
) -> Op:
    """`on_bool` is the body for bool operands, where arithmetic is logic."""
    if on_bool is None:
        return _row(name, 2, admitted, _plain(function), lambda attrs, x, y: body(x, y), test=test)
    logic = on_bool

    def either(attrs: Attrs, x: Expr, y: Expr) -> Expr:
        return logic(x, y) if x.dtype is dtypes.b1 else body(x, y)

    return _row(name, 2, admitted, _plain(function), either, test=test)


def _scalar(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: scalar.binary(name, x, y)


# --- binary -----------------------------------------------------------------------------------------------------------


def _floordiv(x: Expr, y: Expr) -> Expr:
    """Eager's, exactly: from the exact remainder, so that a quotient just below an integer is not rounded up to it."""
    if not x.dtype.is_float:
        return x // y
    remainder = scalar.binary("rem", x, y)
    quotient = (x - remainder) / y
    quotient = select(remainder.ne(0) & ((y < 0) ^ (remainder < 0)), quotient - 1, quotient)
    floor = unary("floor", quotient)
    floor = select((quotient - floor) > 0.5, floor + 1, floor)
    zero = scalar.binary("copysign", const(0, x.dtype), x / y)
    return select(y.eq(0), x / y, select(quotient.eq(0), zero, floor))


def _mod(x: Expr, y: Expr) -> Expr:
    """The sign of the divisor; on floats as eager: a C remainder, corrected."""
    if not x.dtype.is_float:
        return x % y
    remainder = scalar.binary("rem", x, y)
    return select(remainder.ne(0) & ((y < 0) ^ (remainder < 0)), remainder + y, remainder)


def _quot(x: Expr, y: Expr) -> Expr:
    return unary("trunc", x / y) if x.dtype.is_float else scalar.binary("quot", x, y)


def _shl(x: Expr, y: Expr) -> Expr:
    """Shifting by less than 0 or by the width and more gives 0."""
    bad = (y < 0) | (y >= x.dtype.bits)
    return select(bad, 0, x << select(bad, 0, y))


def _shr(x: Expr, y: Expr) -> Expr:
    """Arithmetic; shifting by less than 0 or by the width and more leaves the sign."""
    if x.dtype.kind == "uint":
        bad = y >= x.dtype.bits
        return select(bad, 0, x >> select(bad, 0, y))
    most = x.dtype.bits - 1
    return x >> select((y < 0) | (y >= most), most, y)


ADD = _binary("add", torch.add, ANY, lambda x, y: x + y, lambda x, y: x | y)
SUB = _binary("sub", torch.sub, NUMBERS, lambda x, y: x - y)
MUL = _binary("mul", torch.mul, ANY, lambda x, y: x * y, lambda x, y: x & y)
DIV = _binary("div", torch.div, FLOATS, lambda x, y: x / y)
FLOORDIV = _binary("floordiv", torch.floor_divide, NUMBERS, _floordiv)
MOD = _binary("mod", torch.remainder, NUMBERS, _mod)
QUOT = _binary("quot", lambda x, y: torch.div(x, y, rounding_mode="trunc"), NUMBERS, _quot)
REM = _binary("rem", torch.fmod, NUMBERS, _scalar("rem"))
MINIMUM = _binary("minimum", torch.minimum, ANY, minimum, lambda x, y: x & y)
MAXIMUM = _binary("maximum", torch.maximum, ANY, maximum, lambda x, y: x | y)
POW = _binary("pow", torch.pow, NUMBERS, _scalar("pow"))
ATAN2 = _binary("atan2", torch.atan2, FLOATS, _scalar("atan2"))
COPYSIGN = _binary("copysign", torch.copysign, FLOATS, _scalar("copysign"))
BITAND = _binary("bitand", torch.bitwise_and, INTS + BOOL, _scalar("and"))
BITOR = _binary("bitor", torch.bitwise_or, INTS + BOOL, _scalar("or"))
BITXOR = _binary("bitxor", torch.bitwise_xor, INTS + BOOL, _scalar("xor"))
SHL = _binary("shl", torch.bitwise_left_shift, INTS, _shl)
SHR = _binary("shr", torch.bitwise_right_shift, INTS, _shr)
EQ = _binary("eq", torch.eq, ANY, _scalar("eq"), lambda x, y: ~(x ^ y), test=True)
NE = _binary("ne", torch.ne, ANY, _scalar("ne"), lambda x, y: x ^ y, test=True)
LT = _binary("lt", torch.lt, ANY, _scalar("lt"), lambda x, y: ~x & y, test=True)
LE = _binary("le", torch.le, ANY, _scalar("le"), lambda x, y: ~x | y, test=True)
GT = _binary("gt", torch.gt, ANY, _scalar("gt"), lambda x, y: x & ~y, test=True)
GE = _binary("ge", torch.ge, ANY, _scalar("ge"), lambda x, y: x | ~y, test=True)

# --- unary ------------------------------------------------------------------------------------------------------------

NEG = _unary("neg", torch.neg, NUMBERS)
ABS = _unary("abs", torch.abs, NUMBERS, lambda x: x if x.dtype.kind == "uint" else unary("abs", x))
NOT = _unary("not", torch.bitwise_not, INTS + BOOL)
SQRT = _unary("sqrt", torch.sqrt)
RSQRT = _unary("rsqrt", torch.rsqrt)
RECIP = _unary("recip", torch.reciprocal)
EXP = _unary("exp", torch.exp)
EXP2 = _unary("exp2", torch.exp2)
EXPM1 = _unary("expm1", torch.expm1)
LOG = _unary("log", torch.log)
LOG2 = _unary("log2", torch.log2)
LOG10 = _unary("log10", torch.log10)
LOG1P = _unary("log1p", torch.log1p)
SIN = _unary("sin", torch.sin)
COS = _unary("cos", torch.cos)
TAN = _unary("tan", torch.tan)
TANH = _unary("tanh", torch.tanh)
ASIN = _unary("asin", torch.asin)
ACOS = _unary("acos", torch.acos)
ATAN = _unary("atan", torch.atan)
SINH = _unary("sinh", torch.sinh)
COSH = _unary("cosh", torch.cosh)
ERF = _unary("erf", torch.erf)
ERFC = _unary("erfc", torch.erfc)
FLOOR = _unary("floor", torch.floor)
CEIL = _unary("ceil", torch.ceil)
TRUNC = _unary("trunc", torch.trunc)
ROUND = _unary("round", torch.round)


def _isinf(attrs: Attrs, x: Expr) -> Expr:
    return unary("abs", x).eq(math.inf)


ISNAN = _row("isnan", 1, FLOATS, _plain(torch.isnan), lambda attrs, x: unary("isnan", x), test=True)
ISINF = _row("isinf", 1, FLOATS, _plain(torch.isinf), _isinf, test=True)


def _sigmoid(x: Expr) -> Expr:
    """Right at both infinities: exp(-x) is 0 or infinite there."""
    return 1 / (1 + unary("exp", -x))


def _gelu(x: Expr) -> Expr:
    return 0.5 * x * (1 + unary("erf", x * math.sqrt(0.5)))


def _gelu_tanh(x: Expr) -> Expr:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + unary("tanh", inner))


def _silu(x: Expr) -> Expr:
    return x / (1 + unary("exp", -x))


def _mish(x: Expr) -> Expr:
    return x * unary("tanh", unary("log1p", unary("exp", x)))


def _sign(x: Expr) -> Expr:
    """0 for NaN, as eager."""
    positive = select(x > 0, const(1, x.dtype), const(0, x.dtype))
    return positive if x.dtype.kind == "uint" else select(x < 0, const(-1, x.dtype), positive)


def _relu6(x: Expr) -> Expr:
    return minimum(maximum(x, 0), 6)


functional = torch.nn.functional

SIGMOID = _unary("sigmoid", torch.sigmoid, FLOATS, _sigmoid)
RELU = _unary("relu", torch.relu, NUMBERS, lambda x: maximum(x, 0))
GELU = _unary("gelu", functional.gelu, FLOATS, _gelu)
GELU_TANH = _unary("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh"), FLOATS, _gelu_tanh)
SILU = _unary("silu", functional.silu, FLOATS, _silu)
HARDSWISH = _unary("hardswish", functional.hardswish, FLOATS, lambda x: x * _relu6(x + 3) / 6)
HARDSIGMOID = _unary("hardsigmoid", functional.hardsigmoid, FLOATS, lambda x: _relu6(x + 3) / 6)
MISH = _unary("mish", functional.mish, FLOATS, _mish)
SIGN = _unary("sign", torch.sign, NUMBERS, _sign)


# --- unary with attributes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SoftplusAttrs(NumberAttrs):
    beta: float = 1.0
    threshold: float = 20.0


def _softplus(attrs: SoftplusAttrs, x: Expr) -> Expr:
    scaled = x * attrs.beta
    return select(scaled > attrs.threshold, x, unary("log1p", unary("exp", scaled)) / attrs.beta)


@dataclass(frozen=True, eq=False)
class LeakyReluAttrs(NumberAttrs):
    slope: float = 0.01


def _leaky_relu(attrs: LeakyReluAttrs, x: Expr) -> Expr:
    return select(x > 0, x, x * attrs.slope)


@dataclass(frozen=True, eq=False)
class EluAttrs(NumberAttrs):
    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0


def _elu(attrs: EluAttrs, x: Expr) -> Expr:
    return select(x < 0, unary("expm1", x * attrs.input_scale) * (attrs.alpha * attrs.scale), x * attrs.scale)


@dataclass(frozen=True, eq=False)
class HardtanhAttrs(NumberAttrs):
    lo: float = -1.0
    hi: float = 1.0


@dataclass(frozen=True, eq=False)
class ClampAttrs(NumberAttrs):
    """Bounds are numbers of the operand's dtype; `lo` above `hi` gives `hi`, and NaN stays NaN, as in eager."""

    lo: float | None = None
    hi: float | None = None


def _check_clamp(attrs: ClampAttrs, dtype: DType) -> None:
    require(attrs.lo is not None or attrs.hi is not None, "at least one bound expected")
    for bound in (attrs.lo, attrs.hi):
        require(bound is None or in_range(bound, dtype), f"bound {bound} is no value of {dtype}")


def _check_hardtanh(attrs: HardtanhAttrs, dtype: DType) -> None:
    require(attrs.lo <= attrs.hi, f"lo {attrs.lo} above hi {attrs.hi}")


def _clamp(attrs: ClampAttrs | HardtanhAttrs, x: Expr) -> Expr:
    x = x if attrs.lo is None else maximum(x, attrs.lo)
    return x if attrs.hi is None else minimum(x, attrs.hi)


@dataclass(frozen=True)
class CastAttrs(Attrs):
    dtype: DType


def _infer_cast(attrs: CastAttrs, x: Type) -> TensorType:
    require(attrs.dtype in STORED, f"no cast to {attrs.dtype}")
    return TensorType(attrs.dtype, admit(x, STORED).shape)


def _cast(attrs: CastAttrs, x: Expr) -> Expr:
    """Rounds to the narrow type even inside a fused kernel: a program that casts asks for that."""
    return cast(cast(x, attrs.dtype), attrs.dtype.compute)


SOFTPLUS = _row("softplus", 1, FLOATS, lambda a, x: functional.softplus(x, a.beta, a.threshold), _softplus, SoftplusAttrs)
LEAKY_RELU = _row("leaky_relu", 1, FLOATS, lambda a, x: functional.leaky_relu(x, a.slope), _leaky_relu, LeakyReluAttrs)
ELU = _row("elu", 1, FLOATS, lambda a, x: torch.ops.aten.elu(x, a.alpha, a.scale, a.input_scale), _elu, EluAttrs)
HARDTANH = _row(
    "hardtanh", 1, FLOATS, lambda a, x: functional.hardtanh(x, a.lo, a.hi), _clamp, HardtanhAttrs, check=_check_hardtanh
)
CLAMP = _row("clamp", 1, NUMBERS, lambda a, x: torch.clamp(x, a.lo, a.hi), _clamp, ClampAttrs, check=_check_clamp)
CAST = Op("cast", Family.POINTWISE, _infer_cast, lambda a, x: x.to(to_torch(a.dtype)), CastAttrs, _cast, arity=1, dtypes=STORED)

# --- ternary and nullary ----------------------------------------------------------------------------------------------


def _infer_where(attrs: Attrs, cond: Type, x: Type, y: Type) -> TensorType:
    c, a, b = admit(cond, BOOL), tensor(x), tensor(y)
    require(a.dtype in STORED, f"{a.dtype} operands are not admitted")
    return TensorType(one_dtype((a, b)), broadcast(c.shape, a.shape, b.shape))


WHERE = Op(
    "where", Family.POINTWISE, _infer_where, lambda a, c, x, y: torch.where(c, x, y),
    body=lambda attrs, c, x, y: select(c, x, y), arity=3, dtypes=BOOL,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class FullAttrs(NumberAttrs):
    """`value`, a number or a size, is kept as the dtype's Python kind, so equal fills are equal attributes."""

    value: float | int | bool | Dim
    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        value = self.value
        if not isinstance(value, Dim) and self.dtype.kind != "complex" and in_range(value, self.dtype):
            object.__setattr__(self, "value", const(value, self.dtype).value)


def _infer_full(attrs: FullAttrs) -> TensorType:
    require(attrs.dtype in STORED, f"no fill of {attrs.dtype}")
    require(in_range(attrs.value, attrs.dtype), f"{attrs.value} is no value of {attrs.dtype}")
    return TensorType(attrs.dtype, attrs.shape)


def _full(attrs: FullAttrs) -> Expr:
    """The value as the dtype stores it: rounded to a narrow float type."""
    if isinstance(attrs.value, Dim):
        return cast(to_expr(attrs.value), attrs.dtype.compute)
    stored = torch.tensor(attrs.value, dtype=to_torch(attrs.dtype)).item()
    return const(stored, attrs.dtype.compute)


FULL = Op(
    "full", Family.POINTWISE, _infer_full, lambda a: torch.full(a.shape, a.value, dtype=to_torch(a.dtype)),
    FullAttrs, _full, arity=0,
)  # fmt: skip

ROWS = (
    ADD, SUB, MUL, DIV, FLOORDIV, MOD, QUOT, REM, MINIMUM, MAXIMUM, POW, ATAN2, COPYSIGN, BITAND, BITOR, BITXOR, SHL, SHR,
    EQ, NE, LT, LE, GT, GE, NEG, ABS, NOT, SQRT, RSQRT, RECIP, EXP, EXP2, EXPM1, LOG, LOG2, LOG10, LOG1P, SIN, COS, TAN, TANH,
    ASIN, ACOS, ATAN, SINH, COSH, ERF, ERFC, FLOOR, CEIL, TRUNC, ROUND, ISNAN, ISINF, SIGMOID, RELU, GELU, GELU_TANH, SILU,
    SOFTPLUS, LEAKY_RELU, ELU, HARDTANH, HARDSWISH, HARDSIGMOID, MISH, SIGN, CAST, CLAMP, WHERE, FULL,
)  # fmt: skip
