"""Builds kernels: statements in the order of the calls, bodies by `with`.

In: calls from lowering templates or from the kernel language. Out: a frozen `Kernel`. Names are made up from hints, the
same for the same calls, so equal kernels are equal. Must not know graphs or targets.

    b = KernelBuilder("scale")
    x, y = b.param("x", f32, (64, 32)), b.param("y", f32, (64, 32), out=True)
    (row,) = b.grid(64)
    with b.parallel(32) as (j,):
        b.store(y, (row, j), x[row, j] * 2.0)
    kernel = b.build()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ..base import dtypes
from ..base.dtypes import DType
from . import ir
from .ir import Buffer, Expr, Kernel, Layout, Region, Scope, Stmt, Var, as_expr, const, var

Index: TypeAlias = Expr | int
Span: TypeAlias = Index | tuple[Index, Index]
"""One dimension of a region: a point, or (offset, extent)."""

RESERVED = frozenset(f"{word}{suffix}" for word in ("inf", "nan") for suffix in ("", *dtypes.BY_NAME)) | {"True", "False"}
"""Names that the text takes for constants."""


class KernelBuilder:
    """One kernel in the making. `taken`: names that are none of its own, as those of symbolic sizes."""

    def __init__(self, name: str, taken: Iterable[str] = ()) -> None:
        self.name = name
        self._params: list[Buffer] = []
        self._outputs: list[str] = []
        self._scalars: list[Var] = []
        self._grid: list[tuple[Var, Expr]] = []
        self._open: list[list[Stmt | Callable[[Stmt], Stmt]]] = [[]]  # a function wraps all that follows it in its block
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    # names and parameters

    def fresh(self, hint: str) -> str:
        """A name that nothing in the kernel has yet: the hint, or the hint with a number."""
        name = hint
        while name in self._taken or name in RESERVED:
            self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}_{self._counts[hint]}"
        self._taken.add(name)
        return name

    def param(
        self,
        name: str,
        dtype: DType,
        shape: Sequence[Index],
        strides: Sequence[Index] | None = None,
        layout: Layout | None = None,
        out: bool = False,
    ) -> Buffer:
        """The next parameter; `strides` in elements, row-major where None. `out`: the kernel writes it."""
        buffer = Buffer(
            self.fresh(name), dtype, _exprs(shape), Scope.GLOBAL, None if strides is None else _exprs(strides), layout
        )
        self._params.append(buffer)
        if out:
            self._outputs.append(buffer.name)
        return buffer

    def scalar(self, name: str, dtype: DType = dtypes.i64) -> Var:
        """The next run-time integer."""
        v = var(self.fresh(name), dtype)
        self._scalars.append(v)
        return v

    def grid(self, *extents: Index, names: Sequence[str] = ()) -> tuple[Var, ...]:
        """Further dimensions of the grid, outermost first; their variables."""
        made = self._vars(len(extents), names, "b")
        self._grid += zip(made, _exprs(extents), strict=True)
        return made

    # blocks

    @contextlib.contextmanager
    def _body(self, wrap: Callable[[Stmt], Stmt]) -> Iterator[None]:
        self._open.append([])
        yield
        self.emit(wrap(_closed(self._open.pop())))

    @contextlib.contextmanager
    def parallel(self, *extents: Index, names: Sequence[str] = ()) -> Iterator[tuple[Var, ...]]:
        """Independent iterations; the last variable is the contiguous one."""
        made = self._vars(len(extents), names, "i")
        with self._body(lambda body: ir.Parallel(made, _exprs(extents), body)):
            yield made

    @contextlib.contextmanager
    def for_(
        self, extent: Index, kind: str = "serial", stages: int = 0, name: str = "k", dtype: DType = dtypes.i64
    ) -> Iterator[Var]:
        """A loop over `range(extent)`."""
        v = var(self.fresh(name), dtype)
        with self._body(lambda body: ir.For(v, as_expr(extent), body, kind, stages)):
            yield v

    @contextlib.contextmanager
    def if_(self, cond: Expr) -> Iterator[None]:
        with self._body(lambda body: ir.If(cond, body)):
            yield

    @contextlib.contextmanager
    def else_(self) -> Iterator[None]:
        """The other branch of the `if_` that stands right before. Raises ValueError where there is none."""
        before = self._open[-1][-1] if self._open[-1] else None
        if not isinstance(before, ir.If) or before.orelse is not None:
            raise ValueError("else_ must follow an if_ directly")
        self._open[-1].pop()
        cond, then = before.cond, before.then
        with self._body(lambda body: ir.If(cond, then, body)):
            yield

    @contextlib.contextmanager
    def while_(self, cond: Expr) -> Iterator[None]:
        with self._body(lambda body: ir.While(cond, body)):
            yield

    def alloc(
        self,
        dtype: DType,
        shape: Sequence[Index],
        scope: Scope | str = Scope.SHARED,
        name: str = "t",
        strides: Sequence[Index] | None = None,
        layout: Layout | None = None,
    ) -> Buffer:
        """Memory of the block, in scope to the end of the body it is made in."""
        steps = None if strides is None else _exprs(strides)
        buffer = Buffer(self.fresh(name), dtype, _exprs(shape), Scope(scope), steps, layout)
        self._open[-1].append(lambda rest: ir.Alloc(buffer, rest))
        return buffer

    def let(self, value: Expr, name: str = "v") -> Var:
        """A name for a value, in scope to the end of the body it is made in."""
        v = var(self.fresh(name), value.dtype)
        self._open[-1].append(lambda rest: ir.Let(v, value, rest))
        return v

    # statements

    def emit(self, s: Stmt) -> None:
        """Any statement, as it is."""
        self._open[-1].append(s)

    def store(self, buffer: Buffer, index: Index | Sequence[Index], value: Expr | float) -> None:
        """`buffer[index] = value`; a Python number takes the buffer's type."""
        self.emit(ir.Store(buffer, self._index(buffer, index), self._value(buffer, value)))

    def atomic(self, op: str, buffer: Buffer, index: Index | Sequence[Index], value: Expr | float) -> None:
        self.emit(ir.Atomic(op, buffer, self._index(buffer, index), self._value(buffer, value)))

    def copy(self, src: Buffer | Region, dst: Buffer | Region, transpose: bool = False) -> None:
        """`dst = src`, converted; a buffer stands for the whole of it."""
        self.emit(ir.Copy(whole(src), whole(dst), transpose))

    def fill(self, dst: Buffer | Region, value: Expr | float) -> None:
        self.emit(ir.Fill(whole(dst), self._value(whole(dst).buffer, value)))

    def gemm(
        self,
        a: Buffer | Region,
        b: Buffer | Region,
        acc: Buffer | Region,
        transpose_a: bool = False,
        transpose_b: bool = False,
        clear: bool = False,
        policy: str = "square",
    ) -> None:
        """`acc (+)= a @ b`."""
        self.emit(ir.Gemm(whole(a), whole(b), whole(acc), transpose_a, transpose_b, clear, policy))

    def reduce(
        self,
        op: str,
        dst: Buffer,
        index: Index | Sequence[Index],
        extents: Sequence[Index],
        value: Callable[..., Expr],
        clear: bool = True,
        names: Sequence[str] = (),
    ) -> None:
        """`dst[index] = op over vars of value(*vars)`, with one variable an extent."""
        made = self._vars(len(extents), names, "r")
        self.emit(ir.Reduce(op, dst, self._index(dst, index), made, _exprs(extents), value(*made), clear))

    def scan(self, op: str, src: Buffer | Region, dst: Buffer | Region, axis: int, reverse: bool = False) -> None:
        self.emit(ir.Scan(op, whole(src), whole(dst), axis, reverse))

    def break_(self) -> None:
        self.emit(ir.Break())

    def continue_(self) -> None:
        self.emit(ir.Continue())

    def check(self, cond: Expr, message: str) -> None:
        self.emit(ir.Assert(cond, message))

    def print_(self, message: str, *args: Expr) -> None:
        self.emit(ir.Print(message, args))

    def sync(self, scope: str = "block") -> None:
        self.emit(ir.Sync(scope))

    def build(self, cost: float = 0.0, bounded: bool = False) -> Kernel:
        """The kernel. `cost`: an estimate of one-thread time in nanoseconds. Raises ValueError inside an open body."""
        if len(self._open) != 1:
            raise ValueError(f"{self.name}: build() inside an open body")
        body = _closed(list(self._open[0]))
        params, outputs, scalars = tuple(self._params), tuple(self._outputs), tuple(self._scalars)
        return Kernel(self.name, params, tuple(self._grid), body, outputs, scalars, float(cost), bounded)

    def _vars(self, count: int, names: Sequence[str], hint: str) -> tuple[Var, ...]:
        hints = names or ([chr(ord(hint) + k) for k in range(count)] if hint == "i" and count <= 4 else [hint] * count)
        if len(hints) != count:
            raise ValueError(f"{count} names expected, got {len(hints)}")
        return tuple(var(self.fresh(h)) for h in hints)

    def _index(self, buffer: Buffer, index: Index | Sequence[Index]) -> tuple[Expr, ...]:
        exprs = (as_expr(index),) if isinstance(index, Expr | int) else _exprs(index)
        if len(exprs) != buffer.rank:
            raise ValueError(f"{buffer.name}: {buffer.rank} indices expected, got {len(exprs)}")
        return exprs

    def _value(self, buffer: Buffer, value: Expr | float) -> Expr:
        return value if isinstance(value, Expr) else const(value, buffer.dtype)


def region(buffer: Buffer, *spans: Span) -> Region:
    """A box of `buffer`: one span a dimension. Raises ValueError where their number differs from the rank."""
    if len(spans) != buffer.rank:
        raise ValueError(f"{buffer.name}: {buffer.rank} spans expected, got {len(spans)}")
    offsets = tuple(as_expr(s[0] if isinstance(s, tuple) else s) for s in spans)
    return Region(buffer, offsets, tuple(as_expr(s[1]) if isinstance(s, tuple) else None for s in spans))


def whole(what: Buffer | Region) -> Region:
    """All of a buffer; a region stays as it is."""
    return what if isinstance(what, Region) else Region(what, (const(0),) * what.rank, what.shape)


def _exprs(values: Sequence[Index]) -> tuple[Expr, ...]:
    return tuple(as_expr(v) for v in values)


def _closed(items: list[Stmt | Callable[[Stmt], Stmt]]) -> Stmt:
    """The items of a body as one statement; each function wraps what follows it."""
    rest: list[Stmt] = []
    for item in reversed(items):
        rest = [item, *rest] if isinstance(item, Stmt) else [item(ir.block(*rest))]
    return ir.block(*rest)
