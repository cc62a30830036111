"""Element types. In: a name. Out: a `DType` with its size and kind. Must not know torch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class DType:
    """An element type: its full name (torch's), the short name of the IR's text, size in bytes, and kind.

    There is one object a type, so types compare by identity, copies and pickles included.
    """

    name: str
    short: str
    bytes: int
    kind: str  # "float", "int", "uint" or "bool"; "complex" values only pass through opaque calls

    def __repr__(self) -> str:
        return self.short

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return named, (self.name,)

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def bits(self) -> int:
        return 8 * self.bytes

    @property
    def compute(self) -> DType:
        """The type arithmetic is done in: float32 for the 16- and 8-bit floats, else the type itself."""
        return f32 if self.is_float and self.bytes < 4 else self


f64 = DType("float64", "f64", 8, "float")
f32 = DType("float32", "f32", 4, "float")
f16 = DType("float16", "f16", 2, "float")
bf16 = DType("bfloat16", "bf16", 2, "float")
f8e4m3 = DType("float8_e4m3fn", "f8e4m3", 1, "float")
f8e5m2 = DType("float8_e5m2", "f8e5m2", 1, "float")
i64 = DType("int64", "i64", 8, "int")
i32 = DType("int32", "i32", 4, "int")
i16 = DType("int16", "i16", 2, "int")
i8 = DType("int8", "i8", 1, "int")
u64 = DType("uint64", "u64", 8, "uint")
u32 = DType("uint32", "u32", 4, "uint")
u16 = DType("uint16", "u16", 2, "uint")
u8 = DType("uint8", "u8", 1, "uint")
b1 = DType("bool", "b1", 1, "bool")
c32 = DType("complex32", "c32", 4, "complex")
c64 = DType("complex64", "c64", 8, "complex")
c128 = DType("complex128", "c128", 16, "complex")

ALL = (f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u64, u32, u16, u8, b1, c32, c64, c128)
BY_NAME = {d.name: d for d in ALL} | {d.short: d for d in ALL}


def named(name: str) -> DType:
    """The type of a full or short name. Raises KeyError for an unknown one."""
    return BY_NAME[name]
