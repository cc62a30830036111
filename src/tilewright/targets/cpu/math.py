"""Transcendental functions on registers.

In: a function's name, operands as text. Out: instructions, and for the longer functions an internal function of the module
that they call. Must not know expressions or memory.

fp32: own minimax polynomials (fitted for these ranges; coefficients of arguments reduced as in Cody and Waite, "Software
Manual for the Elementary Functions", 1980), within 2 ulp, with NaN, infinities, zeros of either sign and denormal numbers
right. What is used often is inline and in fp32; the rest is computed in fp64, in `wide`. fp64: the C library, lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from . import llvm, wide
from .lanes import Lanes

LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
LOG2_E = 1.4426950408889634
_LOG2_E_PARTS = (1.4426950216293335, LOG2_E - 1.4426950216293335)
_LOG10_E_PARTS = (0.4342944920063019, 0.4342944819032518 - 0.4342944920063019)
MAGIC = 12582912.0
"""1.5 * 2**23: added to a small float it rounds it to a whole number, and leaves that number in the low bits."""

_EXP = (1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166828840970993, 0.008368703536689281, 0.0013818938750773668)
_EXP2 = (
    1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618505835533142, 0.0013391025131568313,
    0.0001532678143121302,
)  # fmt: skip
_EXPM1 = (0.5, 0.1666666567325592, 0.04166649281978607, 0.008333543315529823, 0.0013932364527136087, 0.00019764331227634102)
_LOG = (
    0.3333321213722229, -0.24999798834323883, 0.2001064121723175, -0.16680511832237244, 0.14001742005348206,
    -0.12183064967393875, 0.14006133377552032, -0.12900087237358093,
)  # fmt: skip
_LOG2 = (
    -0.7213475108146667, 0.4808966815471649, -0.36067143082618713, 0.28868886828422546, -0.24063695967197418, 0.20205199718475342,
    -0.1758698970079422, 0.20185483992099762, -0.18577413260936737,
)  # fmt: skip
_LOG10 = (
    -0.21714724600315094, 0.1447642743587494, -0.10857238620519638, 0.0869063287973404, -0.07245109975337982,
    0.060791902244091034, -0.05282731354236603, 0.060900911688804626, -0.0563087984919548,
)  # fmt: skip
_TANH = (-0.33333277702331543, 0.13331322371959686, -0.05372936651110649, 0.020604295656085014, -0.0056650638580322266)
_ERF = (
    0.12837915122509003, -0.37612488865852356, 0.11281730979681015, -0.026762966066598892, 0.0049873520620167255,
    -0.000595957855693996,
)  # fmt: skip
_LOG2_ERFC = (
    -0.00028229368035681546, -1.62689208984375, -0.9192594885826111, -0.14994187653064728, 0.03206688538193703,
    -0.004390517715364695, 0.0002826897834893316,
)  # fmt: skip
_ROUGH_EXP2 = (
    1.0000001192092896, 0.6931472420692444, 0.24021998047828674, 0.055502958595752716, 0.009680033661425114, 0.001341368886642158,
)  # fmt: skip


def unary(o: Lanes, op: str, x: str) -> str:
    """A function of `o`'s type, fp32 or fp64."""
    inline = _INLINE.get(op)
    if o.element == "float" and inline is not None:
        return inline(o, x)
    return _outlined(o, op, x)


def binary(o: Lanes, op: str, x: str, y: str, constant: float | None = None) -> str:
    """pow or atan2; `constant` is y's value where that is known."""
    if op == "pow" and constant is not None:
        short = _short_power(o, x, constant)
        if short is not None:
            return short
    return _outlined(o, op, x, y)


def _short_power(o: Lanes, x: str, exponent: float) -> str | None:
    """The exponents that eager torch singles out."""
    match exponent:
        case 0.0:
            return o.const(1)
        case 1.0:
            return x
        case 2.0:
            return o.mul(x, x)
        case 3.0:
            return o.mul(o.mul(x, x), x)
        case -1.0:
            return o.div(o.const(1), x)
        case -2.0:
            return o.div(o.const(1), o.mul(x, x))
    return None


def _outlined(o: Lanes, op: str, *args: str) -> str:
    """Call the module's own function for `op`, written on first use."""
    name = f"tw_{op}_{o.suffix}"
    module = o.f.module
    if name not in module.functions:
        params = [f"{o.type} %{letter}" for letter in ("x", "y")[: len(args)]]
        f = llvm.Function(module, name, params, internal=True, returns=o.type)
        inner = Lanes(f, o.isa, o.lanes, o.dtype)
        names = ["%x", "%y"][: len(args)]
        make = wide.FUNCTIONS.get(op) if o.element == "float" else None
        result = make(inner, *names) if make is not None else wide.libm(inner, op, *names)
        f.close(f"{o.type} {result}")
    return o.f.let(f"call {o.type} @{name}({', '.join(f'{o.type} {x}' for x in args)})")


# -- powers of e and 2


def _scaled(o: Lanes, x: str, n: str, shifted: str, in_range: bool) -> str:
    """x * 2**n, rounded once. `shifted` is n + MAGIC. `in_range`: the result is a normal number."""
    if o.isa.has_masks and o.lanes == 16:
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        types = [o.type, o.type, o.type, "i16", "i32"]
        return o.f.call(o.type, name, types, [x, n, "zeroinitializer", "-1", "4"])
    i = o.ints
    if in_range:
        return o.from_bits(i.add(o.bits(x), i.op("shl", o.bits(shifted), i.const(23))))
    whole = i.sub(o.bits(shifted), i.const(0x4B400000))
    half = i.op("ashr", whole, i.const(1))
    for part in (half, i.sub(whole, half)):
        x = o.op("fmul", x, o.from_bits(i.op("shl", i.add(part, i.const(127)), i.const(23))))
    return x


def _rounded(o: Lanes, x: str, factor: float) -> tuple[str, str]:
    """The whole number n nearest to x * factor, and n + MAGIC."""
    shifted = o.fma(x, o.const(factor), o.const(MAGIC))
    return o.op("fsub", shifted, o.const(MAGIC)), shifted


def _reduced(o: Lanes, x: str, n: str) -> str:
    """x - n * ln 2."""
    return o.fma(n, o.const(-LN2_LOW), o.fma(n, o.const(-LN2_HIGH), x))


def _exp_of(o: Lanes, x: str, in_range: bool) -> str:
    n, shifted = _rounded(o, x, LOG2_E)
    return _scaled(o, o.polynomial(_reduced(o, x, n), _EXP), n, shifted, in_range)


def _vanished(o: Lanes, x: str, lowest: float, factor: str) -> str:
    """0 in the place of `factor` where x is `lowest`: scaling a number down to nothing takes a processor 100 cycles and more,
    and masked attention scores do it all the time."""
    return o.select(o.compare("ole", x, o.const(lowest)), o.const(0), factor)


def exp(o: Lanes, x: str) -> str:
    x = o.at_most(o.at_least(x, -104.0), 89.0)
    n, shifted = _rounded(o, x, LOG2_E)
    return _scaled(o, _vanished(o, x, -104.0, o.polynomial(_reduced(o, x, n), _EXP)), n, shifted, False)


def exp2(o: Lanes, x: str) -> str:
    x = o.at_most(o.at_least(x, -151.0), 129.0)
    n, shifted = _rounded(o, x, 1.0)
    return _scaled(o, _vanished(o, x, -151.0, o.polynomial(o.op("fsub", x, n), _EXP2)), n, shifted, False)


def expm1(o: Lanes, x: str) -> str:
    """2 * (2**(n - 1) * (e**r - 1) + (2**(n - 1) - 1/2)), or e**r - 1 itself for n = 0."""
    i = o.ints
    clamped = o.at_most(o.at_least(x, -20.0), 89.0)
    n, shifted = _rounded(o, clamped, LOG2_E)
    r = _reduced(o, clamped, n)
    p = o.fma(o.op("fmul", r, r), o.polynomial(r, _EXPM1), r)
    half_power = o.from_bits(i.op("shl", i.add(o.bits(shifted), i.const(126)), i.const(23)))
    half = o.fma(half_power, p, o.op("fsub", half_power, o.const(0.5)))
    result = o.select(o.compare("oeq", n, o.const(0)), p, o.op("fadd", half, half))
    return o.intrinsic("copysign", result, x)


# -- logarithms


def _split(o: Lanes, x: str) -> tuple[str, str]:
    """x = (1 + f) * 2**e with 1 + f in [2/3, 4/3): f and e, for positive numbers, denormal ones too."""
    i = o.ints
    tiny = o.compare("olt", x, o.const(2.0**-126))
    bits = o.bits(o.select(tiny, o.op("fmul", x, o.const(2.0**23)), x))
    e, high = _exponent(o, bits)
    f = o.op("fsub", o.from_bits(i.sub(bits, high)), o.const(1))
    e = i.convert("sitofp", e, o)
    return f, o.op("fadd", e, o.select(tiny, o.const(-23), o.const(0)))


def _exponent(o: Lanes, bits: str) -> tuple[str, str]:
    """The exponent that leaves a factor in [2/3, 4/3), and it in its place among the bits."""
    i = o.ints
    above = i.sub(bits, i.const(0x3F2AAAAB))
    return i.op("ashr", above, i.const(23)), i.op("and", above, i.const(-0x800000))


def _log_ends(o: Lanes, x: str, result: str) -> str:
    """The values of a logarithm where x is 0, negative, infinite or NaN."""
    result = o.select(o.compare("olt", x, o.const(math.inf)), result, o.op("fadd", x, x))
    result = o.select(o.compare("olt", x, o.const(0)), o.const(math.nan), result)
    return o.select(o.compare("oeq", x, o.const(0)), o.const(-math.inf), result)


def _log1p_of(o: Lanes, f: str) -> str:
    """log(1 + f) for f in [-1/3, 1/3]."""
    q = o.fma(o.polynomial(f, _LOG), f, o.const(-0.5))
    return o.fma(q, o.op("fmul", f, f), f)


def log(o: Lanes, x: str) -> str:
    f, e = _split(o, x)
    return _log_ends(o, x, o.fma(e, o.const(0.6931471805599453), _log1p_of(o, f)))


def log2(o: Lanes, x: str) -> str:
    f, e = _split(o, x)
    return _log_ends(o, x, o.op("fadd", _log_part(o, f, _LOG2, _LOG2_E_PARTS, o.const(0)), e))


def log10(o: Lanes, x: str) -> str:
    f, e = _split(o, x)
    high = 0.301025390625  # of log10(2): exact with any exponent
    small = _log_part(o, f, _LOG10, _LOG10_E_PARTS, o.op("fmul", e, o.const(math.log10(2) - high)))
    return _log_ends(o, x, o.fma(e, o.const(high), small))


def _log_part(o: Lanes, f: str, series: tuple[float, ...], factor: tuple[float, float], more: str) -> str:
    """log(1 + f) * factor + more."""
    low = o.fma(f, o.const(factor[1]), more)
    low = o.fma(o.op("fmul", f, f), o.polynomial(f, series), low)
    return o.fma(f, o.const(factor[0]), low)


def log1p(o: Lanes, x: str) -> str:
    """1 + x gives the exponent; x itself, scaled, gives the rest without loss."""
    i = o.ints
    total = o.op("fadd", x, o.const(1))
    e, high = _exponent(o, o.bits(total))
    scale = o.from_bits(i.sub(i.const(0x3F800000), high))
    scale = o.select(o.compare("ogt", x, o.const(2.0**60)), o.const(0), scale)
    f = o.op("fadd", o.from_bits(i.sub(o.bits(x), high)), o.op("fsub", scale, o.const(1)))
    f = o.select(i.compare("eq", e, i.const(0)), x, f)
    result = o.fma(i.convert("sitofp", e, o), o.const(0.6931471805599453), _log1p_of(o, f))
    return o.intrinsic("copysign", _log_ends(o, total, result), x)


# -- sigmoids


def tanh(o: Lanes, x: str) -> str:
    """An odd polynomial, and 1 - 2 / (exp(2|x|) + 1) for the larger."""
    a = o.abs(x)
    z = o.op("fmul", x, x)
    small = o.fma(o.op("fmul", z, a), o.polynomial(z, _TANH), a)
    a = o.at_most(a, 9.25)
    e = _exp_of(o, o.op("fadd", a, a), True)
    big = o.fma(o.const(-2), _reciprocal(o, o.op("fadd", e, o.const(1))), o.const(1))
    return o.intrinsic("copysign", o.select(o.compare("ult", a, o.const(0.625)), small, big), x)


def _reciprocal(o: Lanes, x: str) -> str:
    """1 / x within an ulp, for numbers far from overflow."""
    if not (o.isa.has_masks and o.lanes == 16):
        return o.div(o.const(1), x)
    near = o.f.call(o.type, "llvm.x86.avx512.rcp14.ps.512", [o.type, o.type, "i16"], [x, "zeroinitializer", "-1"])
    return o.fma(near, o.fma(o.f.let(f"fneg {o.type} {x}"), near, o.const(1)), near)


def erf(o: Lanes, x: str) -> str:
    """An odd polynomial, and 1 - 2**polynomial for the larger; the power is at most 0.19, so that its error counts little."""
    a = o.abs(x)
    z = o.op("fmul", x, x)
    small = o.fma(o.polynomial(z, _ERF), x, x)
    exponent = o.polynomial(o.at_most(a, 3.9375), _LOG2_ERFC)
    shifted = o.op("fadd", exponent, o.const(MAGIC))
    n = o.op("fsub", shifted, o.const(MAGIC))
    power = _scaled(o, o.polynomial(o.op("fsub", exponent, n), _ROUGH_EXP2), n, shifted, True)
    big = o.op("fsub", o.const(1), power)
    return o.select(o.compare("ogt", a, o.const(0.921875)), o.intrinsic("copysign", big, x), small)


_INLINE: dict[str, Callable[[Lanes, str], str]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "log": log, "log2": log2, "log10": log10, "log1p": log1p, "tanh": tanh, "erf": erf,
}  # fmt: skip
