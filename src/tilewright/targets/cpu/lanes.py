"""Arithmetic on registers of some lanes: one method an instruction, results and operands as text.

In: SSA names or literals of one element type. Out: SSA names, the instructions going to the function being written. Must
not know expressions, memory or loops. One lane is the scalar type, so every algorithm written here is scalar code too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base import dtypes
from ...base.dtypes import DType
from . import llvm
from .isa import Isa

_INTEGERS = {8: dtypes.i64, 4: dtypes.i32, 2: dtypes.i16, 1: dtypes.i8}
_SUFFIX = {"double": "f64", "float": "f32"}


def register(dtype: DType) -> str:
    """The LLVM type of an element in a register: 16-bit floats are computed as float, a bool is an i1."""
    return "i1" if dtype.kind == "bool" else llvm.TYPES[dtype.compute]


class Lanes:
    """Instructions on `lanes` elements of a register type.

    Attributes: `element` and `type` (LLVM types of one element and of all), `ints` (the same for integers of that size),
    `tests` (the type of comparisons).
    """

    def __init__(self, f: llvm.Function, isa: Isa, lanes: int, dtype: DType) -> None:
        self.f = f
        self.isa = isa
        self.lanes = lanes
        self.dtype = dtype.compute
        self.element = register(dtype)
        self.type = llvm.vector(lanes, self.element)
        self.tests = llvm.vector(lanes, "i1")

    def like(self, dtype: DType) -> Lanes:
        """As many lanes of another type."""
        return Lanes(self.f, self.isa, self.lanes, dtype)

    @property
    def ints(self) -> Lanes:
        """As many lanes of signed integers of the same size."""
        return Lanes(self.f, self.isa, self.lanes, _INTEGERS[self.dtype.bytes])

    @property
    def suffix(self) -> str:
        name = _SUFFIX.get(self.element, self.element)
        return name if self.lanes == 1 else f"v{self.lanes}{name}"

    def const(self, value: float) -> str:
        return self.splat_literal(llvm.number(value, self.dtype))

    def splat_literal(self, literal: str) -> str:
        return literal if self.lanes == 1 else f"splat ({self.element} {literal})"

    def listed(self, values: list[int]) -> str:
        """A literal with a value of its own in each lane (integers, which wrap, and bools)."""
        half = 1 << (self.dtype.bits - 1)
        texts = [llvm.number(v if self.element == "i1" else (v + half) % (2 * half) - half, self.dtype) for v in values]
        return texts[0] if self.lanes == 1 else "<" + ", ".join(f"{self.element} {t}" for t in texts) + ">"

    def broadcast(self, x: str) -> str:
        """A scalar in all lanes."""
        if self.lanes == 1:
            return x
        one = self.f.let(f"insertelement {self.type} poison, {self.element} {x}, i64 0")
        return self.f.let(f"shufflevector {self.type} {one}, {self.type} poison, <{self.lanes} x i32> zeroinitializer", "b")

    def lane(self, x: str, k: int) -> str:
        return x if self.lanes == 1 else self.f.let(f"extractelement {self.type} {x}, i64 {k}")

    def with_lane(self, x: str, k: int, value: str) -> str:
        return value if self.lanes == 1 else self.f.let(f"insertelement {self.type} {x}, {self.element} {value}, i64 {k}")

    def shuffle(self, x: str, y: str, order: list[int]) -> str:
        """The lanes `order` of x and y put side by side; as many as asked for."""
        mask = ", ".join(f"i32 {k}" for k in order)
        return self.f.let(f"shufflevector {self.type} {x}, {self.type} {y}, <{len(order)} x i32> <{mask}>", "s")

    def op(self, name: str, x: str, y: str) -> str:
        return self.f.let(f"{name} {self.type} {x}, {y}")

    def intrinsic(self, name: str, *args: str) -> str:
        return self.f.call(self.type, f"llvm.{name}.{self.suffix}", [self.type] * len(args), args)

    def add(self, x: str, y: str) -> str:
        return self.op("fadd contract" if self.dtype.is_float else "add", x, y)

    def sub(self, x: str, y: str) -> str:
        return self.op("fsub contract" if self.dtype.is_float else "sub", x, y)

    def mul(self, x: str, y: str) -> str:
        return self.op("fmul contract" if self.dtype.is_float else "mul", x, y)

    def div(self, x: str, y: str) -> str:
        return self.op("fdiv", x, y)

    def fma(self, x: str, y: str, z: str) -> str:
        return self.intrinsic("fma", x, y, z)

    def neg(self, x: str) -> str:
        return self.f.let(f"fneg {self.type} {x}") if self.dtype.is_float else self.sub(self.const(0), x)

    def abs(self, x: str) -> str:
        if self.dtype.is_float:
            return self.intrinsic("fabs", x)
        return self.f.call(self.type, f"llvm.abs.{self.suffix}", [self.type, "i1"], [x, "false"])

    def compare(self, predicate: str, x: str, y: str) -> str:
        """`predicate` is fcmp's for floats (olt, une, uno...), icmp's for integers."""
        return self.f.let(f"{'fcmp' if self.dtype.is_float else 'icmp'} {predicate} {self.type} {x}, {y}", "m")

    def select(self, test: str, x: str, y: str) -> str:
        return self.f.let(f"select {self.tests} {test}, {self.type} {x}, {self.type} {y}")

    def at_least(self, x: str, bound: float) -> str:
        """The larger of x and a number; a NaN stays."""
        c = self.const(bound)
        return self.select(self.compare("ogt", c, x), c, x)

    def at_most(self, x: str, bound: float) -> str:
        """The smaller of x and a number; a NaN stays."""
        c = self.const(bound)
        return self.select(self.compare("olt", c, x), c, x)

    def both(self, test: str, other: str) -> str:
        return self.f.let(f"and {self.tests} {test}, {other}", "m")

    def either(self, test: str, other: str) -> str:
        return self.f.let(f"or {self.tests} {test}, {other}", "m")

    def convert(self, instruction: str, x: str, to: Lanes) -> str:
        """A conversion instruction (bitcast, sext, fptosi...) from this type to another."""
        return x if self.type == to.type else self.f.let(f"{instruction} {self.type} {x} to {to.type}")

    def bits(self, x: str) -> str:
        return self.convert("bitcast", x, self.ints)

    def from_bits(self, x: str) -> str:
        return self.ints.convert("bitcast", x, self)

    def resized(self, x: str, to: Lanes) -> str:
        """An integer or bool widened (by its own signedness) or truncated, a float extended or rounded."""
        if self.dtype.is_float:
            return self.convert("fpext" if self.dtype.bytes < to.dtype.bytes else "fptrunc", x, to)
        if self.element == to.element:
            return x
        if self.element != "i1" and self.dtype.bytes > to.dtype.bytes:
            return self.convert("trunc", x, to)
        return self.convert("sext" if self.dtype.kind == "int" else "zext", x, to)

    def any(self, test: str) -> str:
        """Whether a test holds in any lane."""
        if self.lanes == 1:
            return test
        bits = self.f.let(f"bitcast {self.tests} {test} to i{self.lanes}")
        return self.f.let(f"icmp ne i{self.lanes} {bits}, 0")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """sum of coefficients[k] * x**k, by Horner's rule."""
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.const(c))
        return result
