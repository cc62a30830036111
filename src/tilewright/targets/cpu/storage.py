"""Element types in memory and in registers: what a loaded element becomes, and what is stored of a value.

In: an element or a register value as text. Out: instructions. Must not know addresses. Floats below 32 bits are computed as
fp32; they round to nearest even when stored. Beyond the largest 8-bit float stands infinity (e5m2), or that float itself
(e4m3, which has no infinity).
"""

from __future__ import annotations

from ...base import dtypes
from ...base.dtypes import DType
from . import llvm
from .lanes import Lanes

_F8 = {dtypes.f8e4m3: (4, 3), dtypes.f8e5m2: (5, 2)}  # bits of the exponent and of the mantissa


def element(dtype: DType) -> str:
    """The LLVM type that loads and stores use: integers for the floats whose conversion is ours."""
    if dtype in _F8:
        return "i8"
    return "i16" if dtype is dtypes.bf16 else llvm.TYPES[dtype]


def memory_type(o: Lanes, dtype: DType) -> str:
    """What `to_memory` gives and `from_memory` takes."""
    return llvm.vector(o.lanes, element(dtype))


def from_memory(o: Lanes, x: str, dtype: DType) -> str:
    """A loaded element as a register value; `o` has `dtype`'s register type."""
    if dtype.kind == "bool":
        return o.like(dtypes.i8).compare("ne", x, o.like(dtypes.i8).const(0))
    if dtype is dtypes.f16:
        return o.f.let(f"fpext {memory_type(o, dtype)} {x} to {o.type}")
    if dtype is dtypes.bf16:
        wide = o.like(dtypes.i32)
        bits = o.f.let(f"zext {memory_type(o, dtype)} {x} to {wide.type}")
        return o.from_bits(wide.op("shl", bits, wide.const(16)))
    return _from_f8(o, x, dtype) if dtype in _F8 else x


def to_memory(o: Lanes, x: str, dtype: DType) -> str:
    """A register value as the element to store."""
    if dtype.kind == "bool":
        return o.f.let(f"zext {o.type} {x} to {memory_type(o, dtype)}")
    if dtype is dtypes.f16:
        return o.f.let(f"fptrunc {o.type} {x} to {memory_type(o, dtype)}")
    if dtype is dtypes.bf16:
        return _to_bf16(o, x)
    return _to_f8(o, x, dtype) if dtype in _F8 else x


def rounded(o: Lanes, x: str, dtype: DType) -> str:
    """float rounded to the precision of a smaller type, as float."""
    return from_memory(o, to_memory(o, x, dtype), dtype)


def _to_bf16(o: Lanes, x: str) -> str:
    short = llvm.vector(o.lanes, "i16")
    if o.isa.has_bf16_dot:
        narrow = o.f.let(f"fptrunc {o.type} {x} to {llvm.vector(o.lanes, 'bfloat')}")
        return o.f.let(f"bitcast {llvm.vector(o.lanes, 'bfloat')} {narrow} to {short}")
    i = o.ints
    near = i.op("lshr", _rounded_bits(o, o.bits(x), 16), i.const(16))
    near = i.select(o.compare("uno", x, x), i.const(0x7FC0), near)
    return o.f.let(f"trunc {i.type} {near} to {short}")


def _rounded_bits(o: Lanes, bits: str, dropped: int) -> str:
    """Bits of a float with half a unit added, so that cutting off the `dropped` lowest ones rounds to nearest even."""
    i = o.ints
    odd = i.op("and", i.op("lshr", bits, i.const(dropped)), i.const(1))
    return i.add(bits, i.add(odd, i.const((1 << (dropped - 1)) - 1)))


def _from_f8(o: Lanes, x: str, dtype: DType) -> str:
    """The bits, moved to their places in a float, are 2**-(127 - bias) of the number: also for denormal ones."""
    exponent, mantissa = _F8[dtype]
    i = o.ints
    wide = o.f.let(f"zext {memory_type(o, dtype)} {x} to {i.type}")
    size = i.op("and", wide, i.const(0x7F))
    number = o.from_bits(i.op("shl", size, i.const(23 - mantissa)))
    number = o.op("fmul", number, o.const(2.0 ** (128 - (1 << (exponent - 1)))))
    if dtype is dtypes.f8e4m3:
        special = i.op("or", i.const(0x7F800000), i.op("shl", size, i.const(15)))
        number = o.select(i.compare("eq", size, i.const(0x7F)), o.from_bits(special), number)
    else:
        special = i.op("or", i.const(0x7F800000), i.op("shl", size, i.const(21)))
        number = o.select(i.compare("uge", size, i.const(0x7C)), o.from_bits(special), number)
    sign = i.op("shl", i.op("and", wide, i.const(0x80)), i.const(24))
    return o.from_bits(i.op("or", o.bits(number), sign))


def _to_f8(o: Lanes, x: str, dtype: DType) -> str:
    """Normal numbers by rounding their bits, smaller ones by adding a power of two whose last place is theirs."""
    exponent, mantissa = _F8[dtype]
    bias = (1 << (exponent - 1)) - 1
    i = o.ints
    a = o.abs(x)
    bits = o.bits(a)
    dropped = 23 - mantissa
    normal = i.sub(i.op("lshr", _rounded_bits(o, bits, dropped), i.const(dropped)), i.const((127 - bias) << mantissa))
    unit = 2.0 ** (1 - bias - mantissa + 23)
    small = i.sub(o.bits(o.op("fadd", a, o.const(unit))), o.bits(o.const(unit)))
    code = i.select(o.compare("olt", a, o.const(2.0 ** (1 - bias))), small, normal)
    code = i.intrinsic("smin", code, i.const(0x7E if dtype is dtypes.f8e4m3 else 0x7C))
    code = i.select(o.compare("uno", x, x), i.const(0x7F), code)
    sign = i.op("and", i.op("lshr", o.bits(x), i.const(24)), i.const(0x80))
    return o.f.let(f"trunc {i.type} {i.op('or', code, sign)} to {memory_type(o, dtype)}")
