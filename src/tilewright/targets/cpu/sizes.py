"""Symbolic sizes in native code: i64 instructions that compute sizes, and places in the arena, from a call's sizes.

In: `Size`s over a plan's symbols, and its slots. Out: Python ints, or names of registers, each computed once, where it is
first asked for: in a function whose blocks follow one another. Must not know tensors, kernels or what a size is of.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base import dims
from ...base.dims import Dim, Size
from ...base.polynomial import Atom, Call, Symbol
from ..arena import ALIGNMENT
from ..plan import Slot
from . import llvm


class Sizes:
    """The sizes that a function knows: `table` is the pointer to the values of the symbols `names`."""

    def __init__(self, f: llvm.Function, names: Sequence[str], slots: Sequence[Slot], table: str) -> None:
        self.f = f
        self.slots = slots
        self._table = table
        self._number = {name: k for k, name in enumerate(names)}
        self._known: dict[Atom | Dim, str | int] = {}
        self._starts: dict[int, str | int] = {}

    def value(self, size: Size) -> str | int:
        """The size: a Python int where it is constant."""
        if isinstance(size, int):
            return size
        if size not in self._known:
            total: str | int = 0
            for monomial, coefficient in size.terms:
                product: str | int = 1
                for atom in monomial:
                    product = self.f.index("mul", product, self._atom(atom))
                total = self.f.index("add", total, self.f.index("mul", product, coefficient))
            self._known[size] = total
        return self._known[size]

    def start(self, slot: int) -> str | int:
        """Where a slot of the arena begins, in bytes: behind the last of those that it stands on."""
        if slot not in self._starts:
            for k in self._beneath(slot):  # the lowest first, so that nothing recurs deeply
                ends = [self.end(j) for j in self.slots[k].behind]
                start = ends[0] if ends else 0
                for end in ends[1:]:
                    start = self._extreme("max", start, end)
                self._starts[k] = start
        return self._starts[slot]

    def end(self, slot: int) -> str | int:
        size = self.slots[slot].bytes
        return self.f.index("add", self.start(slot), self._aligned(size))

    def greatest(self, values: Sequence[str | int]) -> str | int:
        """The greatest of non-negative values; 0 of none."""
        result: str | int = 0
        for v in dict.fromkeys(values):
            result = v if result == 0 else self._extreme("max", result, v)
        return result

    def _beneath(self, slot: int) -> list[int]:
        """The slots that must be placed for this one to be, itself the last; those already placed are left out."""
        found: set[int] = set()
        todo = [slot]
        while todo:
            k = todo.pop()
            if k not in found and k not in self._starts:
                found.add(k)
                todo += self.slots[k].behind
        return sorted(found)  # slots stand behind earlier ones only

    def _aligned(self, size: Size) -> str | int:
        if isinstance(size, int):
            return -(-size // ALIGNMENT) * ALIGNMENT
        key = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        assert isinstance(key, Dim)
        if key not in self._known:
            x = self.value(size)
            if not dims.provably_ge(size, 0):
                x = self._extreme("max", x, 0)
            self._known[key] = self.f.let(f"and i64 {self.f.index('add', x, ALIGNMENT - 1)}, {-ALIGNMENT}", "i")
        return self._known[key]

    def _atom(self, atom: Atom) -> str | int:
        if atom not in self._known:
            if isinstance(atom, Symbol):
                self._known[atom] = self.f.let(f"load i64, ptr {self.f.at(self._table, self._number[atom.name], 'i64')}", "n")
            else:
                assert isinstance(atom, Call)
                args = [self.value(a) for a in atom.args]
                if atom.op in ("min", "max"):
                    result = args[0]
                    for a in args[1:]:
                        result = self._extreme(atom.op, result, a)
                    self._known[atom] = result
                else:
                    self._known[atom] = self._divided(atom, *args)
        return self._known[atom]

    def _extreme(self, op: str, a: str | int, b: str | int) -> str | int:
        return b if a == b else self.f.call("i64", f"llvm.s{op}.i64", ("i64", "i64"), (str(a), str(b)))

    def _divided(self, atom: Call, a: str | int, b: str | int) -> str:
        """Python's `//` or `%`. A divisor of 0, which no guarded size is, gives 0 or the dividend rather than a trap."""
        x, y = atom.args
        if not dims.provably_ne(y, 0):
            b = self.f.let(f"select i1 {self.f.let(f'icmp eq i64 {b}, 0')}, i64 1, i64 {b}", "i")
        divide = "div" if atom.op == "floordiv" else "rem"
        if dims.provably_ge(x, 0) and dims.provably_gt(y, 0):
            return self.f.let(f"u{divide} i64 {a}, {b}", "i")
        quotient, rest = (self.f.let(f"s{op} i64 {a}, {b}", "i") for op in ("div", "rem"))
        signs = self.f.let(f"xor i64 {rest}, {b}", "i")
        uneven, opposite = self.f.let(f"icmp ne i64 {rest}, 0"), self.f.let(f"icmp slt i64 {signs}, 0")
        down = self.f.let(f"and i1 {uneven}, {opposite}")
        if divide == "div":
            return self.f.let(f"add i64 {quotient}, {self.f.let(f'sext i1 {down} to i64')}", "i")
        return self.f.let(f"add i64 {rest}, {self.f.let(f'select i1 {down}, i64 {b}, i64 0')}", "i")
