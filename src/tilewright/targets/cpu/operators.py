"""The operators of `base.scalar` on registers: arithmetic, comparisons, conversions. Transcendentals are in `math`.

In: an operator's name, operands as text, their element type. Out: instructions. Must not know expressions or memory.
Nothing here traps or is undefined: a division of integers by zero gives 0 (remainders too), a shift by too much shifts
everything out.
"""

from __future__ import annotations

from ...base import dtypes
from ...base.dtypes import DType
from . import math, storage
from .lanes import Lanes

_FLOAT_TESTS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_TESTS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_BITS = {"and": "and", "or": "or", "xor": "xor"}
_BOOLS = {"and": "and", "or": "or", "xor": "xor", "min": "and", "max": "or", "add": "or", "mul": "and"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}


def unary(o: Lanes, op: str, x: str) -> str:
    """One operand of `o`'s type; "isnan" gives a test."""
    if o.dtype.kind == "bool":
        return o.op("xor", x, o.const(1)) if op == "not" else x
    if op == "neg":
        return o.neg(x)
    if not o.dtype.is_float:
        return _unary_integer(o, op, x)
    if op == "abs":
        return o.abs(x)
    if op == "isnan":
        return o.compare("uno", x, x)
    if op in _ROUNDINGS:
        return o.intrinsic(_ROUNDINGS[op], x)
    if op == "sqrt":
        return o.intrinsic("sqrt", x)
    if op == "rsqrt":
        return o.div(o.const(1), o.intrinsic("sqrt", x))
    if op == "recip":
        return o.div(o.const(1), x)
    return math.unary(o, op, x)


def _unary_integer(o: Lanes, op: str, x: str) -> str:
    if op == "not":
        return o.op("xor", x, o.const(-1))
    if op == "abs":
        return o.abs(x) if o.dtype.kind == "int" else x
    if op in _ROUNDINGS:
        return x
    if op == "isnan":
        return o.like(dtypes.b1).const(0)
    raise TypeError(f"{op} on {o.dtype}")


def binary(o: Lanes, op: str, x: str, y: str, constant: float | None = None) -> str:
    """Two operands of `o`'s type; comparisons give a test. `constant` is y's value where that is known."""
    if op in _FLOAT_TESTS:
        return _compare(o, op, x, y)
    if o.dtype.kind == "bool":
        if op not in _BOOLS:
            raise TypeError(f"{op} on bool")
        return o.op(_BOOLS[op], x, y)
    if op in ("add", "sub", "mul"):
        return {"add": o.add, "sub": o.sub, "mul": o.mul}[op](x, y)
    if op in ("min", "max"):
        return extreme(o, op, x, y, constant is not None and constant == constant)
    return _binary_float(o, op, x, y, constant) if o.dtype.is_float else _binary_integer(o, op, x, y, constant)


def _compare(o: Lanes, op: str, x: str, y: str) -> str:
    if o.dtype.is_float:
        return o.compare(_FLOAT_TESTS[op], x, y)
    sign = "" if op in ("eq", "ne") else "s" if o.dtype.kind == "int" else "u"
    return o.compare(sign + _INT_TESTS[op], x, y)


def extreme(o: Lanes, op: str, x: str, y: str, y_is_number: bool = False) -> str:
    """The smaller or larger; a NaN wins. `y_is_number`: y is known not to be NaN."""
    if not o.dtype.is_float:
        return o.intrinsic(("s" if o.dtype.kind == "int" else "u") + op, x, y)
    predicate = "ogt" if op == "max" else "olt"
    if y_is_number:  # the instruction gives its second operand where one is NaN
        return o.select(o.compare(predicate, y, x), y, x)
    best = o.select(o.compare(predicate, x, y), x, y)
    return o.select(o.compare("uno", x, x), x, best)


def _binary_float(o: Lanes, op: str, x: str, y: str, constant: float | None) -> str:
    match op:
        case "div":
            return o.div(x, y)
        case "quot":
            return o.intrinsic("trunc", o.div(x, y))
        case "rem":
            return math.binary(o, "fmod", x, y)
        case "mod":
            return _float_mod(o, x, y)
        case "floordiv":
            return _float_floordiv(o, x, y)
        case "copysign":
            return o.intrinsic("copysign", x, y)
    return math.binary(o, op, x, y, constant)


def _float_mod(o: Lanes, x: str, y: str) -> str:
    """The remainder of y's sign."""
    rest = math.binary(o, "fmod", x, y)
    zero = o.const(0)
    signs = o.f.let(f"xor {o.tests} {o.compare('olt', y, zero)}, {o.compare('olt', rest, zero)}", "m")
    moved = o.both(signs, o.compare("one", rest, zero))
    return o.select(moved, o.add(rest, y), rest)


def _float_floordiv(o: Lanes, x: str, y: str) -> str:
    """Python's: exact even where x / y rounds to a whole number, x / y where y is 0."""
    rest = math.binary(o, "fmod", x, y)
    zero = o.const(0)
    signs = o.f.let(f"xor {o.tests} {o.compare('olt', y, zero)}, {o.compare('olt', rest, zero)}", "m")
    moved = o.both(signs, o.compare("one", rest, zero))
    near = o.div(o.op("fsub", x, rest), y)
    near = o.select(moved, o.op("fsub", near, o.const(1)), near)
    down = o.intrinsic("floor", near)
    up = o.compare("ogt", o.op("fsub", near, down), o.const(0.5))
    down = o.select(up, o.op("fadd", down, o.const(1)), down)
    quotient = o.div(x, y)
    whole = o.select(o.compare("oeq", near, zero), o.intrinsic("copysign", zero, quotient), down)
    return o.select(o.compare("oeq", y, zero), quotient, whole)


def _binary_integer(o: Lanes, op: str, x: str, y: str, constant: float | None) -> str:
    if op in _BITS:
        return o.op(_BITS[op], x, y)
    if op in ("shl", "shr"):
        return _shift(o, op, x, y, constant)
    if op == "pow":
        return _integer_power(o, x, y, constant)
    if op in ("floordiv", "mod", "quot", "rem"):
        return _divide(o, op, x, y, constant)
    raise TypeError(f"{op} on {o.dtype}")


def _shift(o: Lanes, op: str, x: str, y: str, constant: float | None) -> str:
    bits = o.dtype.bits
    signed = o.dtype.kind == "int"
    name = "shl" if op == "shl" else "ashr" if signed else "lshr"
    if constant is not None and 0 <= constant < bits:
        return o.op(name, x, y)
    fits = o.compare("ult", y, o.const(bits))
    if name == "ashr":  # everything shifted out leaves copies of the sign
        return o.op(name, x, o.select(fits, y, o.const(bits - 1)))
    return o.select(fits, o.op(name, x, o.op("and", y, o.const(bits - 1))), o.const(0))


def _divide(o: Lanes, op: str, x: str, y: str, constant: float | None) -> str:
    signed = o.dtype.kind == "int"
    quotient, remainder = ("sdiv", "srem") if signed else ("udiv", "urem")
    zero: str | None = None
    if constant is None or constant in (0, -1):
        zero = o.compare("eq", y, o.const(0))
        unsafe = zero
        if signed:
            least = o.compare("eq", x, o.const(-(1 << (o.dtype.bits - 1))))
            unsafe = o.either(zero, o.both(least, o.compare("eq", y, o.const(-1))))
        y = o.select(unsafe, o.const(1), y)
    rest = o.op(remainder, x, y) if op != "quot" else ""
    if op in ("quot", "floordiv"):
        result = o.op(quotient, x, y)
    else:
        result = rest
    if signed and op in ("floordiv", "mod"):
        opposite = o.compare("slt", o.op("xor", rest, y), o.const(0))
        moved = o.both(opposite, o.compare("ne", rest, o.const(0)))
        result = o.select(moved, o.sub(result, o.const(1)) if op == "floordiv" else o.add(result, y), result)
    return result if zero is None else o.select(zero, o.const(0), result)


def unsigned_divide(o: Lanes, op: str, x: str, y: str) -> str:
    """floordiv or mod where x is known to be >= 0 and y > 0."""
    return o.op("udiv" if op == "floordiv" else "urem", x, y)


def _integer_power(o: Lanes, x: str, y: str, constant: float | None) -> str:
    """By squaring. A negative exponent gives the integer part of the true power: 0, or ±1 for a base of ±1."""
    one, zero = o.const(1), o.const(0)
    result, base = one, x
    steps = o.dtype.bits if constant is None else max(int(constant), 0).bit_length()
    for k in range(steps):
        odd = o.compare("ne", o.op("and", y, o.const(_wrapped(1 << k, o.dtype))), zero)
        result = o.select(odd, o.mul(result, base), result)
        base = o.mul(base, base)
    if o.dtype.kind == "uint" or (constant is not None and constant >= 0):
        return result
    unit = o.compare("eq", o.mul(x, x), one)
    even = o.compare("eq", o.op("and", y, one), zero)
    inverse = o.select(unit, o.select(even, o.mul(x, x), x), zero)
    return o.select(o.compare("slt", y, zero), inverse, result)


def _wrapped(value: int, dtype: DType) -> int:
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def cast(o: Lanes, x: str, to: DType) -> str:
    """Conversion as C and torch do it. A smaller float is rounded to its precision, and stays in a wider register."""
    t = o.like(to)
    source = o.dtype
    if to.kind == "bool":
        if source.kind == "bool":
            return x
        return o.compare("une" if source.is_float else "ne", x, o.const(0))
    if to.is_float:
        if not source.is_float:
            x = o.convert("sitofp" if source.kind == "int" else "uitofp", x, t)
        else:
            x = o.resized(x, t)
        return x if to.bytes >= 4 else storage.rounded(t, x, to)
    if source.is_float:
        return _float_to_integer(o, x, t)
    return o.resized(x, t)


def _float_to_integer(o: Lanes, x: str, t: Lanes) -> str:
    if t.element in ("i8", "i16"):  # through i32, so that out-of-range values wrap as they do in C on most machines
        wide = o.like(dtypes.i32)
        return wide.resized(o.convert("fptosi", x, wide), t)
    if t.dtype is dtypes.u32:
        wide = o.like(dtypes.i64)
        return wide.resized(o.convert("fptosi", x, wide), t)
    return o.convert("fptosi" if t.dtype.kind == "int" else "fptoui", x, t)
