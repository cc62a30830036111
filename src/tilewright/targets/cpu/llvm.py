"""LLVM IR as text: a module of functions, and a builder that hands out SSA names and closes loops.

In: instructions as text. Out: the module's text for `llvmlite.binding.parse_assembly`. Must not know tile programs.
No LLVM pass runs afterwards, only code generation, so what is written here is what executes: hoist by hand.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from ...base import dtypes
from ...base.dtypes import DType

TYPES = {
    dtypes.f64: "double", dtypes.f32: "float", dtypes.f16: "half", dtypes.bf16: "bfloat", dtypes.i64: "i64", dtypes.u64: "i64",
    dtypes.i32: "i32", dtypes.u32: "i32", dtypes.i16: "i16", dtypes.u16: "i16", dtypes.i8: "i8", dtypes.u8: "i8", dtypes.b1: "i8",
}  # fmt: skip
"""The type in memory of each element type; a bool is a byte there and an i1 in a register."""


def vector(lanes: int, element: str) -> str:
    """The LLVM type of `lanes` elements; one lane is the scalar type."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def number(value: float, dtype: DType) -> str:
    """A literal of the register type: floats as exact hexadecimal."""
    if not dtype.is_float:
        return ("true" if value else "false") if dtype.kind == "bool" else str(int(value))
    if dtype is dtypes.f32:
        value = _rounded_f32(value)
    if dtype in (dtypes.f32, dtypes.f64):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype is dtypes.f16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    bits = struct.unpack("<I", struct.pack("<f", _rounded_f32(value)))[0]
    return f"0xR{(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16:04X}"


def _rounded_f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Module:
    """Functions, tables and declarations, each once by name, in the order of first definition."""

    def __init__(self) -> None:
        self.functions: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.declarations: dict[str, None] = {}

    def declare(self, text: str) -> None:
        """Note an external function, as `declare ...` text; repeating one is harmless."""
        self.declarations[text] = None

    def text_constant(self, text: str) -> tuple[str, int]:
        """A zero-terminated string of at most 255 bytes: its global's name and its size."""
        data = text.encode()[:255].decode(errors="ignore").encode() + b"\0"
        name = f"@text_{hashlib.sha256(data).hexdigest()[:12]}"
        body = "".join(f"\\{b:02X}" for b in data)
        self.globals[name] = f'{name} = internal constant [{len(data)} x i8] c"{body}"'
        return name, len(data)

    def text(self, attributes: str) -> str:
        """The module; `attributes` are what every function carries (attribute group #0)."""
        parts = [*self.globals.values(), *self.functions.values(), *self.declarations, f"attributes #0 = {{ {attributes} }}"]
        return "\n".join(parts) + "\n"


class Function:
    """One function's body, written front to back. `close` adds it to the module."""

    def __init__(self, module: Module, name: str, params: Sequence[str], internal: bool = False, returns: str = "void") -> None:
        """`params` are texts such as `"ptr noalias %a"`."""
        self.module = module
        self.name = name
        self.head = f"define {'internal ' if internal else ''}{returns} @{name}({', '.join(params)}) #0 {{\nentry:"
        self.lines: list[str] = []
        self.block = "entry"
        self._next = 0

    def name_for(self, prefix: str) -> str:
        self._next += 1
        return f"%{prefix}{self._next}"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def let(self, text: str, prefix: str = "t") -> str:
        """An instruction with a result: its name is returned."""
        name = self.name_for(prefix)
        self.lines.append(f"  {name} = {text}")
        return name

    def call(self, returns: str, name: str, types: Sequence[str], args: Sequence[str]) -> str:
        """Call an external or intrinsic function, declaring it; the result's name, or "" for void."""
        self.module.declare(f"declare {returns} @{name}({', '.join(types)})")
        text = f"call {returns} @{name}({', '.join(f'{t} {a}' for t, a in zip(types, args, strict=True))})"
        if returns == "void":
            self.do(text)
            return ""
        return self.let(text)

    def index(self, op: str, a: str | int, b: str | int) -> str | int:
        """`a op b` on i64 (add, sub, mul), folded where both are Python ints or one is neutral."""
        if isinstance(a, int) and isinstance(b, int):
            return {"add": a + b, "sub": a - b, "mul": a * b}[op]
        if (op in ("add", "sub") and b == 0) or (op == "mul" and b == 1):
            return a
        if (op == "add" and a == 0) or (op == "mul" and a == 1):
            return b
        if op == "mul" and 0 in (a, b):
            return 0
        return self.let(f"{op} i64 {a}, {b}", "i")

    def at(self, pointer: str, offset: str | int, element: str) -> str:
        """The address `offset` elements of type `element` behind `pointer`."""
        return pointer if offset == 0 else self.let(f"getelementptr {element}, ptr {pointer}, i64 {offset}", "p")

    def label(self, name: str) -> None:
        """Start a block; the previous one must have ended."""
        self.lines.append(f"{name}:")
        self.block = name

    def loop(
        self,
        lo: str | int,
        hi: str | int,
        step: str | int,
        body: Callable[..., Sequence[str] | None],
        carried: Sequence[tuple[str, str]] = (),
        prefix: str = "i",
    ) -> list[str]:
        """`for i in range(lo, hi, step)`: `body(i, *values)` returns the next values. `carried` are (type, initial).

        Returns the values after the loop. A test stands before each turn, so an empty range is fine.
        """
        self._next += 1
        n = self._next
        head, inside, after, i = f"head{n}", f"body{n}", f"after{n}", f"%{prefix}{n}"
        before = self.block
        self.do(f"br label %{head}")
        self.label(head)
        names = [f"%c{n}_{k}" for k in range(len(carried))]
        phis = len(self.lines)
        self.lines += [""] * (1 + len(carried))
        test = self.let(f"icmp slt i64 {i}, {hi}")
        self.do(f"br i1 {test}, label %{inside}, label %{after}")
        self.label(inside)
        new = list(body(i, *names) or ())
        assert len(new) == len(carried), f"loop body gave {len(new)} values for {len(carried)}"
        following = self.let(f"add i64 {i}, {step}")
        self.do(f"br label %{head}")
        self.lines[phis] = f"  {i} = phi i64 [ {lo}, %{before} ], [ {following}, %{self.block} ]"
        for k, ((type_, initial), value) in enumerate(zip(carried, new, strict=True)):
            self.lines[phis + 1 + k] = f"  {names[k]} = phi {type_} [ {initial}, %{before} ], [ {value}, %{self.block} ]"
        self.label(after)
        return names

    def when(self, condition: str, then: Callable[[], None], orelse: Callable[[], None] | None = None) -> None:
        """`if condition: then() else: orelse()`."""
        self._next += 1
        n = self._next
        after = f"fi{n}"
        self.do(f"br i1 {condition}, label %then{n}, label %{f'else{n}' if orelse else after}")
        self.label(f"then{n}")
        then()
        self.do(f"br label %{after}")
        if orelse:
            self.label(f"else{n}")
            orelse()
            self.do(f"br label %{after}")
        self.label(after)

    def close(self, result: str = "void") -> None:
        """End with `ret result` and put the function into the module."""
        self.do(f"ret {result}")
        self.module.functions[self.name] = "\n".join([self.head, *self.lines, "}"])
