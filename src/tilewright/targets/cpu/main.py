"""The entry points of a compiled graph: `int tw_run(const tw_call *)` and its kin, as straight-line launches.

In: launches whose arguments are placed in memory. Out: LLVM functions that fill each kernel's argument array and hand
it to the call's `parallel_for`. Must not know how kernels compute. The layout of `tw_call` is native/tw_call.h's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plan import Place
from . import llvm

FIELDS = {"inputs": 8, "outputs": 16, "folded": 24, "arena": 32, "sizes": 56, "parallel_for": 64, "error": 96}
"""Byte offsets in `tw_call`, checked against the header by a test."""


@dataclass(frozen=True)
class PlacedLaunch:
    """One launch: the kernel's symbol, its pointers, its run-time integers, its blocks and one-thread nanoseconds.

    `checks`: the kernel holds assertions; where one fails, the launches behind it do not happen.
    """

    symbol: str
    pointers: tuple[Place, ...]
    scalars: tuple[int, ...]
    blocks: int
    cost: int
    checks: bool = False


def emit_run(module: llvm.Module, name: str, launches: Sequence[PlacedLaunch]) -> None:
    """Add `i32 name(ptr call)`: the launches in order. It returns 0, or 1 where an assertion failed (the call's
    `error` says which)."""
    f = llvm.Function(module, name, ["ptr %call"], returns="i32")
    if launches:
        slots = max(len(x.pointers) + len(x.scalars) + x.checks for x in launches)
        args = f.let(f"alloca [{max(slots, 1)} x i64], align 64")
        error = f.at("%call", FIELDS["error"], "i8")
        parallel_for = _field(f, "parallel_for")
        bases = _Bases(f)
        for x in launches:
            for k, p in enumerate(x.pointers):
                f.do(f"store ptr {bases.address(p)}, ptr {f.at(args, k, 'i64')}")
            for k, value in enumerate(x.scalars, len(x.pointers)):
                f.do(f"store i64 {value}, ptr {f.at(args, k, 'i64')}")
            if x.checks:
                f.do(f"store ptr {error}, ptr {f.at(args, len(x.pointers) + len(x.scalars), 'i64')}")
            f.do(f"call void {parallel_for}(ptr %call, ptr @{x.symbol}, ptr {args}, i64 {x.blocks}, i64 {x.cost})")
            if x.checks:
                _leave_on_error(f, error)
    f.close("i32 0")


class _Bases:
    """Base pointers, each loaded once, in the entry block."""

    def __init__(self, f: llvm.Function) -> None:
        self.f = f
        self.loaded: dict[tuple[str, int], str] = {}

    def address(self, p: Place) -> str:
        base = self._load((p.base, -1))
        if p.base in ("inputs", "outputs"):
            base = self._load((p.base, p.index))
        return self.f.at(base, p.offset, "i8")

    def _load(self, key: tuple[str, int]) -> str:
        if key not in self.loaded:
            table, index = key
            if index < 0:
                self.loaded[key] = _field(self.f, table)
            else:
                self.loaded[key] = self.f.let(f"load ptr, ptr {self.f.at(self._load((table, -1)), index, 'ptr')}")
        return self.loaded[key]


def _leave_on_error(f: llvm.Function, error: str) -> None:
    first = f.let(f"load i8, ptr {error}")
    fine, failed = f.name_for("fine")[1:], f.name_for("failed")[1:]
    f.do(f"br i1 {f.let(f'icmp eq i8 {first}, 0')}, label %{fine}, label %{failed}")
    f.label(failed)
    f.do("ret i32 1")
    f.label(fine)


def _field(f: llvm.Function, name: str) -> str:
    return f.let(f"load ptr, ptr {f.at('%call', FIELDS[name], 'i8')}")
