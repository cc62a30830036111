"""ATen's pointwise overloads as rows. In: nodes and Python numbers, in ATen's argument order. Out: nodes.

Promotion is torch's, casts are explicit. Must not know strides, memory or how a call was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..base import dtypes
from ..base.dims import Dim
from ..base.dtypes import DType
from .ir import Node, Op
from .ops import pointwise as pw
from .promotion import Operand, alike, as_type, float_type, full, inexact, promote, result_type
from .symbolic import settled

Build = Callable[..., Node]


def _in_type(row: Op, dtype: DType, *operands: Operand) -> Node:
    """The row in `dtype`; a number that a 16-bit type would round takes part unrounded, as in eager."""
    if any(inexact(o, dtype) for o in operands):
        return as_type(row(*[as_type(o, dtypes.f32) for o in operands]), dtype)
    return row(*[as_type(o, dtype) for o in operands])


def arithmetic(row: Op) -> Build:
    return lambda x, y: _in_type(row, result_type(x, y), x, y)


def floating(row: Op) -> Build:
    return lambda x, y: _in_type(row, float_type(x, y), x, y)


def comparison(row: Op) -> Build:
    return lambda x, y: row(*_comparable(x, y))


def _comparable(x: Operand, y: Operand) -> tuple[Node, Node]:
    dtype = result_type(x, y)
    if inexact(x, dtype) or inexact(y, dtype):
        dtype = dtypes.f32
    elif dtype.is_integer and not all(_fits(o, dtype) for o in (x, y)):
        raise ValueError("a number outside the integer type")
    a, b = as_type(x, dtype), as_type(y, dtype)
    return a, b


def _fits(x: Operand, dtype: DType) -> bool:
    if isinstance(x, Node | Dim):
        return True
    low, high = (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    return low <= x <= high


def float_unary(row: Op) -> Build:
    """Integers are taken for the default float type."""
    return lambda x: row(as_type(x, float_type(x)))


def same_unary(row: Op) -> Build:
    return lambda x: row(x)


def whole_unary(row: Op) -> Build:
    """Rounding: integers are what they are."""
    return lambda x: x if not x.dtype.is_float else row(x)


def as_bool(x: Operand) -> Node:
    if not isinstance(x, Node):
        return full(bool(x), dtypes.b1)
    return x if x.dtype is dtypes.b1 else pw.NE(x, full(0, x.dtype))


def logical(row: Op) -> Build:
    return lambda x, y: row(as_bool(x), as_bool(y))


def _scaled(y: Operand, alpha: Any) -> Operand:
    if alpha == 1 and not isinstance(alpha, bool):
        return y
    if not isinstance(y, Node):
        return y * alpha
    if y.dtype is dtypes.b1 or (not y.dtype.is_float and isinstance(alpha, float)):
        raise ValueError("alpha does not fit")
    return _in_type(pw.MUL, y.dtype, y, alpha)


def add(x: Operand, y: Operand, alpha: Any = 1) -> Node:
    dtype = result_type(x, y)
    if alpha == 1:
        return _in_type(pw.ADD, dtype, x, y)
    return _wide(dtype, lambda a, b: pw.ADD(a, pw.MUL(b, full(alpha, b.dtype))), x, y)


def sub(x: Operand, y: Operand, alpha: Any = 1) -> Node:
    dtype = result_type(x, y)
    if alpha == 1:
        return _in_type(pw.SUB, dtype, x, y)
    return _wide(dtype, lambda a, b: pw.SUB(a, pw.MUL(b, full(alpha, b.dtype))), x, y)


def rsub(x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return sub(y, x, alpha)


def _wide(dtype: DType, body: Callable[..., Node], *operands: Operand) -> Node:
    """`body` on the operands in the compute type of `dtype`, rounded once at the end: eager's fused kernels do so."""
    wide = dtype.compute
    return as_type(body(*[as_type(as_type(o, dtype) if isinstance(o, Node) else o, wide) for o in operands]), dtype)


def div(x: Operand, y: Operand, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return floating(pw.DIV)(x, y)
    row = {"floor": pw.FLOORDIV, "trunc": pw.QUOT}[rounding_mode]
    return arithmetic(row)(x, y)


def power(x: Operand, y: Operand) -> Node:
    """Small whole exponents are products, as in eager; negative ones of integers are an error there."""
    if isinstance(y, Dim):
        y = settled(y)
    dtype = result_type(x, y)
    if not isinstance(y, Node) and isinstance(x, Node):
        special = _special_power(as_type(x, dtype), y)
        if special is not None:
            return special
    if dtype is dtypes.b1 or (dtype.is_integer and not isinstance(y, Node) and y < 0):
        raise ValueError("no such power of integers")
    return _in_type(pw.POW, dtype, x, y)


def _special_power(x: Node, y: Any) -> Node | None:
    """aten/src/ATen/native/cpu/PowKernel.cpp: the exponents that eager treats apart."""
    if y == 0 and x.dtype is not dtypes.b1:
        return full(1, x.dtype, x.shape)  # type: ignore[arg-type]
    if y == 1:
        return x
    if y == 2 and x.dtype is not dtypes.b1:
        return pw.MUL(x, x)
    if y == 3 and x.dtype is not dtypes.b1:
        return _wide(x.dtype, lambda v: pw.MUL(pw.MUL(v, v), v), x)
    if not x.dtype.is_float:
        return None
    if y == 0.5:
        return pw.SQRT(x)
    if y == -0.5:
        return pw.RSQRT(x)
    if y == -1:
        return pw.RECIP(x)
    if y == -2:
        return _wide(x.dtype, lambda v: pw.RECIP(pw.MUL(v, v)), x)
    return None


def where(condition: Node, x: Operand, y: Operand) -> Node:
    if condition.dtype is dtypes.u8:
        condition = as_bool(condition)
    return pw.WHERE(condition, *alike(x, y))


def masked_fill(x: Node, mask: Node, value: Operand) -> Node:
    return pw.WHERE(mask, as_type(value, x.dtype), x)


def clamp(x: Node, lo: Any = None, hi: Any = None) -> Node:
    dtype = result_type(*[o for o in (x, lo, hi) if o is not None])
    x = as_type(x, dtype)
    kind = float if dtype.is_float else int
    return pw.CLAMP(x, lo=None if lo is None else kind(lo), hi=None if hi is None else kind(hi))


def clamp_tensor(x: Node, lo: Node | None = None, hi: Node | None = None) -> Node:
    dtype = result_type(*[o for o in (x, lo, hi) if o is not None])
    x = as_type(x, dtype)
    x = x if lo is None else pw.MAXIMUM(x, as_type(lo, dtype))
    return x if hi is None else pw.MINIMUM(x, as_type(hi, dtype))


def gelu(x: Node, approximate: str = "none") -> Node:
    return pw.GELU(x) if approximate == "none" else pw.GELU_TANH(x)


def addcmul(x: Node, a: Node, b: Node, value: Any = 1) -> Node:
    dtype = result_type(x, a, b)
    return _wide(dtype, lambda x, a, b: pw.ADD(x, _times(pw.MUL, value, a, b)), x, a, b)


def addcdiv(x: Node, a: Node, b: Node, value: Any = 1) -> Node:
    dtype = result_type(x, a, b)
    if not dtype.is_float:
        raise ValueError("integers have no quotient")
    return _wide(dtype, lambda x, a, b: pw.ADD(x, _times(pw.DIV, value, a, b)), x, a, b)


def _times(row: Op, value: Any, a: Node, b: Node) -> Node:
    return row(a if value == 1 else pw.MUL(full(value, a.dtype), a), b)


def lerp(x: Node, end: Node, weight: Operand) -> Node:
    """aten/src/ATen/native/Lerp.h: from the nearer end."""

    def body(x: Node, end: Node, w: Node) -> Node:
        span, one = pw.SUB(end, x), full(1, x.dtype)
        near = pw.LT(pw.ABS(w), full(0.5, x.dtype))
        return pw.WHERE(near, pw.ADD(x, pw.MUL(w, span)), pw.SUB(end, pw.MUL(span, pw.SUB(one, w))))

    if not x.dtype.is_float or end.dtype is not x.dtype or (isinstance(weight, Node) and weight.dtype is not x.dtype):
        raise ValueError("operands of one float type expected")
    return _wide(x.dtype, body, x, end, weight)


def to_copy(x: Node, dtype: Any = None) -> Node:
    return x if dtype is None else as_type(x, dtype)


def isfinite(x: Node) -> Node:
    if not x.dtype.is_float:
        return full(True, dtypes.b1, x.shape)  # type: ignore[arg-type]
    return pw.LT(pw.ABS(x), full(math.inf, x.dtype))


def isnan(x: Node) -> Node:
    return pw.ISNAN(x) if x.dtype.is_float else full(False, dtypes.b1, x.shape)  # type: ignore[arg-type]


def isinf(x: Node) -> Node:
    return pw.ISINF(x) if x.dtype.is_float else full(False, dtypes.b1, x.shape)  # type: ignore[arg-type]


def nan_to_num(x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    if not x.dtype.is_float:
        return x
    most = {
        dtypes.f64: 1.7976931348623157e308,
        dtypes.f32: 3.4028234663852886e38,
        dtypes.f16: 65504.0,
        dtypes.bf16: 3.3895313892515355e38,
    }[x.dtype]
    inf = full(math.inf, x.dtype)
    low = pw.WHERE(pw.EQ(x, pw.NEG(inf)), full(-most if neginf is None else neginf, x.dtype), x)
    high = pw.WHERE(pw.EQ(x, inf), full(most if posinf is None else posinf, x.dtype), low)
    return pw.WHERE(pw.ISNAN(x), full(nan or 0.0, x.dtype), high)


def threshold(x: Node, limit: Any, value: Any) -> Node:
    return pw.WHERE(pw.LE(*_comparable(x, limit)), full(value, x.dtype), x)


def logit(x: Node, eps: float | None = None) -> Node:
    x = as_type(x, float_type(x))
    return _wide(x.dtype, lambda v: pw.LOG(pw.DIV(*_odds(v if eps is None else pw.CLAMP(v, lo=eps, hi=1 - eps)))), x)


def _odds(x: Node) -> tuple[Node, Node]:
    return x, pw.SUB(full(1, x.dtype), x)


def log_sigmoid(x: Node) -> tuple[Node, Node]:
    """(min(x, 0) - log1p(exp(-|x|)), exp(-|x|), which eager keeps for the backward pass)."""
    out = _wide(x.dtype, lambda v: pw.SUB(pw.MINIMUM(v, full(0, v.dtype)), pw.LOG1P(pw.EXP(pw.NEG(pw.ABS(v))))), x)
    return out, pw.EXP(pw.NEG(pw.ABS(x)))


def xlogy(x: Operand, y: Operand) -> Node:
    a, b = (as_type(o, float_type(x, y)) for o in (x, y))
    zero = full(0, a.dtype)
    product = pw.WHERE(pw.EQ(a, zero), zero, pw.MUL(a, pw.LOG(b)))
    return pw.WHERE(pw.ISNAN(b), full(math.nan, a.dtype), product)


def hardtanh(x: Node, lo: Any = -1, hi: Any = 1) -> Node:
    if not x.dtype.is_float:
        return pw.CLAMP(x, lo=int(lo), hi=int(hi))
    return pw.HARDTANH(x, lo=float(lo), hi=float(hi))


def elu(x: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    return pw.ELU(x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))


def prelu(x: Node, weight: Node) -> Node:
    return pw.WHERE(pw.GT(x, full(0, x.dtype)), x, pw.MUL(weight, x))


def sgn(x: Node) -> Node:
    return x if x.dtype is dtypes.b1 else pw.SIGN(x)


def convert(x: Node, dtype: Any) -> Node:
    return as_type(x, dtype)


def _table() -> dict[str, Build]:
    table: dict[str, Build] = {}
    for name, row in (
        ("mul", pw.MUL), ("floor_divide", pw.FLOORDIV), ("fmod", pw.REM), ("remainder", pw.MOD), ("bitwise_and", pw.BITAND),
        ("bitwise_or", pw.BITOR), ("bitwise_xor", pw.BITXOR), ("__and__", pw.BITAND), ("__or__", pw.BITOR),
        ("__xor__", pw.BITXOR),
        ("bitwise_left_shift", pw.SHL), ("bitwise_right_shift", pw.SHR), ("__lshift__", pw.SHL), ("__rshift__", pw.SHR),
    ):  # fmt: skip
        for overload in ("Tensor", "Scalar", "default", "Tensor_Scalar"):
            table[f"aten.{name}.{overload}"] = arithmetic(row)
    for name, row in (("eq", pw.EQ), ("ne", pw.NE), ("lt", pw.LT), ("le", pw.LE), ("gt", pw.GT), ("ge", pw.GE)):
        table[f"aten.{name}.Tensor"] = table[f"aten.{name}.Scalar"] = comparison(row)
    for name, row in (("minimum", pw.MINIMUM), ("maximum", pw.MAXIMUM)):
        table[f"aten.{name}.default"] = arithmetic(row)
    for name, row in (("atan2", pw.ATAN2), ("copysign", pw.COPYSIGN)):
        table[f"aten.{name}.default"] = table[f"aten.{name}.Tensor"] = table[f"aten.{name}.Scalar"] = floating(row)
    for name, row in (
        ("sqrt", pw.SQRT), ("rsqrt", pw.RSQRT), ("reciprocal", pw.RECIP), ("exp", pw.EXP), ("exp2", pw.EXP2), ("expm1", pw.EXPM1),
        ("log", pw.LOG), ("log2", pw.LOG2), ("log10", pw.LOG10), ("log1p", pw.LOG1P), ("sin", pw.SIN), ("cos", pw.COS),
        ("tan", pw.TAN), ("tanh", pw.TANH), ("asin", pw.ASIN), ("acos", pw.ACOS), ("atan", pw.ATAN), ("sinh", pw.SINH),
        ("cosh", pw.COSH), ("erf", pw.ERF), ("erfc", pw.ERFC), ("sigmoid", pw.SIGMOID), ("special_expit", pw.SIGMOID),
    ):  # fmt: skip
        table[f"aten.{name}.default"] = float_unary(row)
    for name, row in (
        ("neg", pw.NEG), ("bitwise_not", pw.NOT), ("relu", pw.RELU), ("silu", pw.SILU), ("mish", pw.MISH),
        ("hardswish", pw.HARDSWISH), ("hardsigmoid", pw.HARDSIGMOID),
    ):  # fmt: skip
        table[f"aten.{name}.default"] = same_unary(row)
    for name, row in (("floor", pw.FLOOR), ("ceil", pw.CEIL), ("trunc", pw.TRUNC), ("round", pw.ROUND)):
        table[f"aten.{name}.default"] = whole_unary(row)
    for name, row in (("logical_and", pw.BITAND), ("logical_or", pw.BITOR), ("logical_xor", pw.BITXOR)):
        table[f"aten.{name}.default"] = logical(row)
    return table


BUILDS: dict[str, Callable[..., Any]] = {
    **_table(),
    "aten.add.Tensor": add, "aten.add.Scalar": add, "aten.sub.Tensor": sub, "aten.sub.Scalar": sub,
    "aten.rsub.Tensor": rsub, "aten.rsub.Scalar": rsub,
    "aten.div.Tensor": div, "aten.div.Scalar": div, "aten.div.Tensor_mode": div, "aten.div.Scalar_mode": div,
    "aten.pow.Tensor_Scalar": power, "aten.pow.Tensor_Tensor": power, "aten.pow.Scalar": power,
    "aten.abs.default": lambda x: x if x.dtype is dtypes.b1 else pw.ABS(x), "aten.sgn.default": sgn, "aten.sign.default": sgn,
    "aten.square.default": lambda x: power(x, 2),
    "aten.logical_not.default": lambda x: pw.NOT(as_bool(x)),
    "aten.isnan.default": isnan, "aten.isinf.default": isinf, "aten.isfinite.default": isfinite,
    "aten.where.self": where, "aten.where.ScalarOther": where, "aten.where.ScalarSelf": where, "aten.where.Scalar": where,
    "aten.clamp.default": clamp, "aten.clamp.Tensor": clamp_tensor,
    "aten.clamp_min.default": clamp, "aten.clamp_min.Tensor": clamp_tensor,
    "aten.clamp_max.default": lambda x, hi: clamp(x, None, hi), "aten.clamp_max.Tensor": lambda x, hi: clamp_tensor(x, None, hi),
    "aten.gelu.default": gelu, "aten.elu.default": elu, "aten.hardtanh.default": hardtanh,
    "aten.leaky_relu.default": lambda x, slope=0.01: pw.LEAKY_RELU(x, slope=float(slope)),
    "aten.softplus.default": lambda x, beta=1, threshold=20: pw.SOFTPLUS(x, beta=float(beta), threshold=float(threshold)),
    "aten.threshold.default": threshold, "aten._prelu_kernel.default": prelu, "aten.logit.default": logit,
    "aten.log_sigmoid_forward.default": log_sigmoid,
    "aten.addcmul.default": addcmul, "aten.addcdiv.default": addcdiv,
    "aten.lerp.Scalar": lerp, "aten.lerp.Tensor": lerp, "aten.nan_to_num.default": nan_to_num,
    "aten.xlogy.Tensor": xlogy, "aten.xlogy.Scalar_Self": xlogy, "aten.xlogy.Scalar_Other": xlogy,
    "prims.convert_element_type.default": convert,
}  # fmt: skip

__all__ = ["BUILDS", "as_bool", "clamp", "masked_fill", "promote", "to_copy"]
