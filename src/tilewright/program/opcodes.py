"""Bytecode as the interpreter walks it: one decoded instruction at a time, the same for every CPython version it knows.

In: a code object. Out: `Code`: instructions with resolved operands and jump targets, and the table of exception handlers.
Version
differences in encoding end here; a version's own instructions keep their names. Must not know what an instruction does.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ..base.weak import remembered

VERSION = sys.version_info[:2]


KNOWN_VERSIONS = ((3, 11), (3, 12), (3, 13))


class Null:
    """No value: what PUSH_NULL pushes, and what a local variable without a value holds."""

    def __repr__(self) -> str:
        return "NULL"


NULL = UNSET = Null()  # one object, as in CPython: an inlined comprehension moves it between variable and stack

# What `co_code` never shows (specialised, instrumented and internal forms), and what the instruction before skips or absorbs.
NEVER_MET = frozenset(
    ("CACHE", "RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR", "EXTENDED_ARG", "END_FOR")
)  # fmt: skip
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
}


@dataclass(slots=True)
class Instruction:
    """`arg` is the full operand, `value` the constant or name it stands for, `target` the index that a jump goes to."""

    op: str
    arg: int
    value: Any
    target: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handler:
    """Instructions `start <= i < stop` (indices) are covered; the stack is cut to `depth`, then `lasti` asks for the offset."""

    start: int
    stop: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True)
class Code:
    """`reference`: the code object, which this must not keep alive: who runs it does."""

    reference: weakref.ref[CodeType]
    instructions: list[Instruction]
    index: dict[int, int]
    handlers: tuple[Handler, ...]
    names: tuple[str, ...]  # localsplus: locals, cells, free variables
    cells: int  # the first free variable's number

    @property
    def code(self) -> CodeType:
        code = self.reference()
        assert code is not None, "the code object is gone"
        return code

    def handler(self, at: int) -> Handler | None:
        """The innermost handler of an instruction."""
        for h in reversed(self.handlers):
            if h.start <= at < h.stop:
                return h
        return None


@remembered
def decode(code: CodeType) -> Code:
    names = slot_names(code)
    raw = code.co_code
    found: list[Instruction] = []
    index: dict[int, int] = {}
    at, extended = 0, 0
    jumps: list[tuple[Instruction, int]] = []
    while at < len(raw):
        number, arg, start = raw[at], raw[at + 1] | extended, at
        name = dis.opname[number]
        at += 2 + 2 * _caches(number, name)
        if name == "EXTENDED_ARG":
            extended = arg << 8
            index[start] = len(found)
            continue
        extended = 0
        index[start] = len(found)
        if name in _PAIRS:
            first, second = _PAIRS[name]
            found.append(_instruction(code, names, first, arg >> 4, start))
            name, arg = second, arg & 15
        instruction = _instruction(code, names, name, arg, start)
        found.append(instruction)
        if number in _RELATIVE:
            jumps.append((instruction, at - 2 * arg if "BACKWARD" in name else at + 2 * arg))
    for instruction, target in jumps:
        instruction.target = index[target]
    handlers = tuple(
        Handler(index[s], index.get(e, len(found)), index[t], depth, lasti) for s, e, t, depth, lasti in exception_table(code)
    )
    return Code(weakref.ref(code), found, index, handlers, names, len(names) - len(code.co_freevars))


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of the local variables in the order in which instructions number them."""
    local = code.co_varnames
    return (*local, *(c for c in code.co_cellvars if c not in local), *code.co_freevars)


_RELATIVE = frozenset(dis.hasjrel)
_INLINE_CACHES: Any = getattr(dis, "_inline_cache_entries", {})


def _caches(number: int, name: str) -> int:
    return _INLINE_CACHES.get(name, 0) if isinstance(_INLINE_CACHES, dict) else _INLINE_CACHES[number]


_NAMED = frozenset(
    ("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD", "IMPORT_NAME",
     "IMPORT_FROM", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
)  # fmt: skip
_COMPARISONS = dis.cmp_op
_INTRINSICS: dict[str, list[str]] = {
    f"CALL_INTRINSIC_{n}": getattr(dis, f"_intrinsic_{n}_descs") for n in (1, 2) if hasattr(dis, f"_intrinsic_{n}_descs")
}


def _instruction(code: CodeType, names: tuple[str, ...], name: str, arg: int, offset: int) -> Instruction:
    value: Any = None
    if name in ("LOAD_CONST", "KW_NAMES", "RETURN_CONST"):
        value = code.co_consts[arg]
    elif name == "LOAD_GLOBAL":
        value, arg = code.co_names[arg >> 1], arg & 1
    elif name == "LOAD_ATTR" and VERSION >= (3, 12):
        value = code.co_names[arg >> 1]
        name, arg = ("LOAD_METHOD" if arg & 1 else "LOAD_ATTR"), arg >> 1
    elif name == "LOAD_SUPER_ATTR":
        value, arg = code.co_names[arg >> 2], arg & 3
    elif name in _INTRINSICS:
        value = _INTRINSICS[name][arg]
    elif name in _NAMED:
        value = code.co_names[arg]
    elif name == "COMPARE_OP":
        shift = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
        value, arg = _COMPARISONS[arg >> shift], arg & 16 if shift == 5 else 0
    elif name in ("LOAD_FAST", "STORE_FAST", "LOAD_DEREF"):
        value = names[arg]
    return Instruction(name, arg, value, -1, offset)


def exception_table(code: CodeType) -> list[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, lasti) with byte offsets."""
    table, at, rows = code.co_exceptiontable, 0, []

    def varint() -> int:
        nonlocal at
        byte = table[at]
        value = byte & 63
        while byte & 64:
            at += 1
            byte = table[at]
            value = value << 6 | byte & 63
        at += 1
        return value

    while at < len(table):
        start, length, target, depth = varint() * 2, varint() * 2, varint() * 2, varint()
        rows.append((start, start + length, target, depth >> 1, bool(depth & 1)))
    return rows


def encode_exceptions(rows: list[tuple[int, int, int, int, bool]]) -> bytes:
    """The inverse of `exception_table`."""
    out: list[int] = []
    for start, end, target, depth, lasti in rows:
        for n, value in enumerate((start // 2, (end - start) // 2, target // 2, depth << 1 | lasti)):
            groups = [value & 63]
            while value := value >> 6:
                groups.append(value & 63)
            groups = [g | 64 for g in reversed(groups[1:])] + [groups[0]]
            groups[0] |= 128 if n == 0 else 0
            out += groups
    return bytes(out)


def assemble(name: str, arg: int = 0) -> bytes:
    """One instruction with its prefixes and caches."""
    number = dis.opmap[name]
    out: list[int] = []
    for shift in (24, 16, 8):
        if arg >> shift:
            out += [dis.opmap["EXTENDED_ARG"], arg >> shift & 255]
    return bytes([*out, number, arg & 255, *[0] * (2 * _caches(number, name))])


def no_lines(size: int) -> bytes:
    """The line table of so many bytes of code that belong to no line."""
    units, table = size // 2, b""
    while units > 0:
        k = min(8, units)
        table += bytes([0x80 | 15 << 3 | k - 1])
        units -= k
    return table


def run_native(name: str, arg: int, operands: tuple[Any, ...], globals_: dict[str, Any]) -> Any:
    """What CPython's own instruction leaves on the stack for these operands; for instructions that only compute a value."""
    return FunctionType(_native_code(name, arg, len(operands)), globals_)(*operands)


@functools.cache
def _native_code(name: str, arg: int, count: int) -> CodeType:
    template = (lambda: None, lambda a: a, lambda a, b: a)[count].__code__
    body = b"".join([assemble("LOAD_FAST", n) for n in range(count)]) + assemble(name, arg)
    code = assemble("RESUME", 0) + body + assemble("RETURN_VALUE")
    return template.replace(co_code=code, co_linetable=no_lines(len(code)), co_stacksize=count + 2)
