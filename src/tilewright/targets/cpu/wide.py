"""The less common fp32 functions, computed in fp64, and those of the C library.

In: operands as text, in a function of their own (these may branch). Out: instructions. Must not know who calls.
Polynomials are minimax fits of 1e-10 or better, so results are nearly always correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...base import dtypes
from .lanes import Lanes

MAGIC = 1.5 * 2.0**52
HUGE = 1e9
"""Above this sine and cosine leave the reduction of their argument to the C library."""

_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
_EXP = (
    1.0, 1.0, 0.49999999999661854, 0.16666666667269325, 0.041666666963861405, 0.00833333309390726, 0.0013888810861193994,
    0.00019841539898432384, 2.4880954147452097e-05, 2.7493023911572965e-06,
)  # fmt: skip
_EXP2 = (
    0.99999999999976, 0.6931471805464078, 0.24022650698905165, 0.055504109397753, 0.009618128539272729, 0.001333345164104843,
    0.00015403853159177275, 1.5309850667259976e-05, 1.3175753947324143e-06,
)  # fmt: skip
_LOG2 = (2.885390081777849, 0.9617966941152126, 0.5770779417550503, 0.41220931978861103, 0.3199027217444486, 0.28294538805308705)
_SIN = (1.0, -0.16666666640776207, 0.008333329302414948, -0.00019839311484986358, 2.718114115909257e-06)
_COS = (1.0, -0.5, 0.04166666661945361, -0.0013888883496853176, 2.4799459308923575e-05, -2.7205684562667786e-07)
_ATAN = (
    1.0, -0.33333333111104646, 0.19999984221714515, -0.1428532088374393, 0.11106143412820023, -0.09053629491923604,
    0.07510510927415602, -0.06056955381797135, 0.044179087741205346, -0.026547761794980418, 0.01177863069052474,
    -0.00332648252419446, 0.000440692358914983,
)  # fmt: skip
_ASIN = (
    1.0, 0.1666666662733459, 0.07500004981702102, 0.044640707926239136, 0.030426521675529488, 0.02186572668137686,
    0.020646363062151618, 0.0019790686536123084, 0.03291182793465893,
)  # fmt: skip
_SINH = (1.0, 0.16666666667047295, 0.00833333327847249, 0.00019841295398954402, 2.7552141276507174e-06, 2.5526643235889384e-08)
_ERFC = (  # of exp(a * a) * erfc(a), in (a - 3) / (a + 3)
    0.1790011511820503, -0.32623356015444205, 0.24560380178676003, -0.15011593068327178, 0.07166583291405194,
    -0.024392586163202157, 0.004269179244455083, 0.0007083161383641686, -0.0005971664202563811, 4.337584024602539e-05,
    6.382320279335339e-05, -9.771146191910245e-06, -6.778113141218852e-06,
)  # fmt: skip
_LIBM = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "asin", "acos", "atan", "sinh", "cosh",
    "erf", "erfc", "pow", "atan2", "fmod",
)  # fmt: skip


def libm(o: Lanes, name: str, *args: str) -> str:
    """The C library's function, lane by lane."""
    if name not in _LIBM:
        raise TypeError(f"{name} on {o.dtype}")
    symbol = name if o.element == "double" else name + "f"
    result = "poison"
    for k in range(o.lanes):
        one = o.f.call(o.element, symbol, [o.element] * len(args), [o.lane(x, k) for x in args])
        result = o.with_lane(result, k, one)
    return result


def _widened(o: Lanes, *args: str) -> tuple[Lanes, list[str]]:
    w = o.like(dtypes.f64)
    return w, [o.resized(x, w) for x in args]


# -- trigonometry


def _turned(o: Lanes, x: str, name: str, quarter: int) -> str:
    """sin(x + quarter * pi / 2)."""
    w, (wide,) = _widened(o, x)
    i = w.ints
    sine, cosine, quadrant = _quarter(w, wide)
    if quarter:
        quadrant = i.add(quadrant, i.const(quarter))
    odd = i.compare("ne", i.op("and", quadrant, i.const(1)), i.const(0))
    sign = i.op("shl", i.op("and", quadrant, i.const(2)), i.const(62))
    result = w.from_bits(i.op("xor", w.bits(w.select(odd, cosine, sine)), sign))
    return _unless_huge(o, x, w.resized(result, o), name)


def _quarter(w: Lanes, x: str) -> tuple[str, str, str]:
    """Sine and cosine of x less the nearest multiple of pi / 2, and that multiple in the low bits of an integer."""
    shifted = w.fma(x, w.const(2 / math.pi), w.const(MAGIC))
    n = w.op("fsub", shifted, w.const(MAGIC))
    r = w.fma(n, w.const(-_HALF_PI[1]), w.fma(n, w.const(-_HALF_PI[0]), x))
    z = w.op("fmul", r, r)
    return w.op("fmul", r, w.polynomial(z, _SIN)), w.polynomial(z, _COS), w.bits(shifted)


def _unless_huge(o: Lanes, x: str, result: str, name: str) -> str:
    """`result`, or the C library's where |x| is too large for it."""
    a = o.abs(x)
    huge = o.both(o.compare("ogt", a, o.const(HUGE)), o.compare("olt", a, o.const(math.inf)))
    before = o.f.block
    slow: list[str] = []
    o.f.when(o.any(huge), lambda: slow.extend((o.select(huge, libm(o, name, x), result), o.f.block)))
    return o.f.let(f"phi {o.type} [ {slow[0]}, %{slow[1]} ], [ {result}, %{before} ]")


def sin(o: Lanes, x: str) -> str:
    return _turned(o, x, "sin", 0)


def cos(o: Lanes, x: str) -> str:
    return _turned(o, x, "cos", 1)


def tan(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    i = w.ints
    sine, cosine, quadrant = _quarter(w, wide)
    odd = i.compare("ne", i.op("and", quadrant, i.const(1)), i.const(0))
    result = w.div(w.select(odd, w.neg(cosine), sine), w.select(odd, sine, cosine))
    return _unless_huge(o, x, w.resized(result, o), "tan")


def _atan_of(w: Lanes, q: str) -> str:
    """For q in [0, 1]."""
    return w.op("fmul", q, w.polynomial(w.op("fmul", q, q), _ATAN))


def atan(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    a = w.abs(wide)
    steep = w.compare("ogt", a, w.const(1))
    angle = _atan_of(w, w.select(steep, w.div(w.const(1), a), a))
    angle = w.select(steep, w.op("fsub", w.const(math.pi / 2), angle), angle)
    return w.resized(w.intrinsic("copysign", angle, wide), o)


def atan2(o: Lanes, y: str, x: str) -> str:
    w, (wy, wx) = _widened(o, y, x)
    ay, ax = w.abs(wy), w.abs(wx)
    steep = w.compare("ogt", ay, ax)
    low, high = w.select(steep, ax, ay), w.select(steep, ay, ax)
    q = w.div(low, high)
    q = w.select(w.compare("oeq", high, w.const(0)), w.const(0), q)
    q = w.select(w.compare("oeq", low, w.const(math.inf)), w.const(1), q)
    angle = _atan_of(w, q)
    angle = w.select(steep, w.op("fsub", w.const(math.pi / 2), angle), angle)
    i = w.ints
    back = i.compare("slt", w.bits(wx), i.const(0))
    angle = w.select(back, w.op("fsub", w.const(math.pi), angle), angle)
    angle = w.select(w.compare("uno", wy, wx), w.const(math.nan), angle)
    return w.resized(w.intrinsic("copysign", angle, wy), o)


def _asin_parts(w: Lanes, x: str) -> tuple[str, str]:
    """asin of |x|, or where |x| > 1/2 of sqrt((1 - |x|) / 2), and the test for that."""
    a = w.abs(x)
    big = w.compare("ogt", a, w.const(0.5))
    half = w.op("fmul", w.op("fsub", w.const(1), a), w.const(0.5))
    z = w.select(big, half, w.op("fmul", a, a))
    s = w.select(big, w.intrinsic("sqrt", half), a)
    return w.op("fmul", s, w.polynomial(z, _ASIN)), big


def asin(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    part, big = _asin_parts(w, wide)
    angle = w.select(big, w.fma(part, w.const(-2), w.const(math.pi / 2)), part)
    return w.resized(w.intrinsic("copysign", angle, wide), o)


def acos(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    part, big = _asin_parts(w, wide)
    twice = w.op("fadd", part, part)
    far = w.select(w.compare("olt", wide, w.const(0)), w.op("fsub", w.const(math.pi), twice), twice)
    near = w.op("fsub", w.const(math.pi / 2), w.intrinsic("copysign", part, wide))
    return w.resized(w.select(big, far, near), o)


def fmod(o: Lanes, x: str, y: str) -> str:
    """x - y * trunc(x / y), exact: in fp64 while the quotient is below 2**28, by the C library beyond."""
    w, (wx, wy) = _widened(o, x, y)
    quotient = w.intrinsic("trunc", w.div(wx, wy))
    rest = w.fma(w.neg(quotient), wy, wx)
    i = w.ints
    over = w.both(i.compare("slt", i.op("xor", w.bits(rest), w.bits(wx)), i.const(0)), w.compare("one", rest, w.const(0)))
    rest = w.select(over, w.op("fadd", rest, w.intrinsic("copysign", w.abs(wy), wx)), rest)  # the quotient was rounded up
    rest = w.select(w.compare("oeq", w.abs(wy), w.const(math.inf)), w.op("fadd", wx, w.op("fmul", wx, w.const(0))), rest)
    result = w.resized(w.intrinsic("copysign", rest, wx), o)
    far = w.compare("oge", w.abs(quotient), w.const(2.0**28))
    before = o.f.block
    slow: list[str] = []
    o.f.when(o.any(far), lambda: slow.extend((o.select(far, libm(o, "fmod", x, y), result), o.f.block)))
    return o.f.let(f"phi {o.type} [ {slow[0]}, %{slow[1]} ], [ {result}, %{before} ]")


# -- exponentials and powers


def _times_power(w: Lanes, x: str, shifted: str) -> str:
    """x * 2**n for a normal result, where `shifted` is n + MAGIC."""
    i = w.ints
    return w.from_bits(i.add(w.bits(x), i.op("shl", w.bits(shifted), i.const(52))))


def _exp(w: Lanes, x: str) -> str:
    """For |x| < 700."""
    shifted = w.fma(x, w.const(1 / math.log(2)), w.const(MAGIC))
    n = w.op("fsub", shifted, w.const(MAGIC))
    r = w.fma(n, w.const(-_LN2[1]), w.fma(n, w.const(-_LN2[0]), x))
    return _times_power(w, w.polynomial(r, _EXP), shifted)


def sinh(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    small = w.op("fmul", wide, w.polynomial(w.op("fmul", wide, wide), _SINH))
    a = w.abs(wide)
    e = _exp(w, w.at_most(a, 100.0))
    big = w.op("fmul", w.op("fsub", e, w.div(w.const(1), e)), w.const(0.5))
    result = w.select(w.compare("olt", a, w.const(1)), small, w.intrinsic("copysign", big, wide))
    return w.resized(result, o)


def cosh(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    e = _exp(w, w.at_most(w.abs(wide), 100.0))
    return w.resized(w.op("fmul", w.op("fadd", e, w.div(w.const(1), e)), w.const(0.5)), o)


def erfc(o: Lanes, x: str) -> str:
    w, (wide,) = _widened(o, x)
    a = w.at_most(w.abs(wide), 11.0)
    t = w.div(w.op("fsub", a, w.const(3)), w.op("fadd", a, w.const(3)))
    tail = w.op("fmul", _exp(w, w.op("fmul", w.neg(a), a)), w.polynomial(t, _ERFC))
    return w.resized(w.select(w.compare("olt", wide, w.const(0)), w.op("fsub", w.const(2), tail), tail), o)


def _log2(w: Lanes, x: str) -> str:
    """Of a positive normal number."""
    i = w.ints
    above = i.sub(w.bits(x), i.const(0x3FE6A09E667F3BCD))  # sqrt(1/2)
    m = w.from_bits(i.sub(w.bits(x), i.op("and", above, i.const(-(1 << 52)))))
    e = i.convert("sitofp", i.op("ashr", above, i.const(52)), w)
    s = w.div(w.op("fsub", m, w.const(1)), w.op("fadd", m, w.const(1)))
    return w.fma(s, w.polynomial(w.op("fmul", s, s), _LOG2), e)


def pow(o: Lanes, x: str, y: str) -> str:
    """C's rules: pow(x, 0) and pow(1, y) are 1 even for NaN; a negative base wants a whole exponent."""
    w, (wx, wy) = _widened(o, x, y)
    i = w.ints
    zero, one, inf = w.const(0), w.const(1), w.const(math.inf)
    a = w.abs(wx)
    log = _log2(w, a)
    log = w.select(w.compare("oeq", a, zero), w.const(-math.inf), log)
    log = w.select(w.compare("ult", a, inf), log, a)
    exponent = w.at_most(w.at_least(w.op("fmul", log, wy), -160.0), 140.0)
    shifted = w.op("fadd", exponent, w.const(MAGIC))
    r = w.op("fsub", exponent, w.op("fsub", shifted, w.const(MAGIC)))
    result = _times_power(w, w.polynomial(r, _EXP2), shifted)
    result = w.select(w.compare("uno", exponent, exponent), exponent, result)
    result = w.select(w.compare("uno", wx, wx), wx, result)

    whole = w.compare("oeq", w.intrinsic("trunc", wy), wy)
    half = w.op("fmul", wy, w.const(0.5))
    odd = w.both(whole, w.compare("one", w.intrinsic("trunc", half), half))
    negative = i.compare("slt", w.bits(wx), i.const(0))
    result = w.select(w.both(negative, odd), w.neg(result), result)
    fraction = o.f.let(f"xor {w.tests} {whole}, {w.like(dtypes.b1).const(1)}")
    root = w.both(w.both(w.compare("olt", wx, zero), w.compare("ogt", wx, w.const(-math.inf))), fraction)
    result = w.select(w.both(root, w.compare("ord", wy, wy)), w.const(math.nan), result)
    unit = w.both(w.compare("oeq", a, one), w.compare("oeq", w.abs(wy), inf))
    sure = w.either(w.either(w.compare("oeq", wx, one), w.compare("oeq", wy, zero)), unit)
    return w.resized(w.select(sure, one, result), o)


FUNCTIONS: dict[str, Callable[..., str]] = {
    "sin": sin, "cos": cos, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "atan2": atan2, "sinh": sinh, "cosh": cosh,
    "erfc": erfc, "pow": pow, "fmod": fmod,
}  # fmt: skip
