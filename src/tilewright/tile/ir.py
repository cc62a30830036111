"""The tile IR: one kernel, as loops over tiles of buffers.

In: what the lowering templates and the kernel language build. Out: frozen statements. Must not know graphs, torch,
targets or instructions; a target decides what a shared buffer, a fragment or a `Gemm` becomes.

    Kernel = name, params (Buffer, global), scalars (Var), grid (Var, extent)..., body
    Buffer = name, dtype, shape, scope (global | shared | fragment | local), strides or layout
    Region = buffer, offsets, extents             -- what Copy, Gemm and Scan name; an extent of None drops the dimension
    Stmt   = For(var, extent, kind: serial | unrolled | vectorized | pipelined | persistent, body)
           | Parallel(vars, extents, body)        -- iterations are independent and in no order
           | Copy(src, dst) | Fill(dst, value) | Gemm(a, b, acc, transposes, clear, policy)
           | Reduce(op, dst, index, vars, extents, value, clear) | Scan(op, src, dst, axis, reverse)
           | Store(buffer, index, value) | Atomic(op, buffer, index, value)
           | If(cond, then, orelse) | While(cond, body) | Break | Continue
           | Let(var, value, body) | Alloc(buffer, body) | Assert(cond, message) | Print(message, args) | Sync(scope)
    Expr   = base.scalar's, and Load(buffer, index)

The grid is a loop nest whose blocks are independent and may run on any thread. A value read from a `global` buffer
outside its shape, in Copy, Gemm or Parallel, is masked (zero) above the upper bound; below zero it is a fault. In a
bounded kernel it is a fault in Parallel, too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ..base import scalar
from ..base.dtypes import DType
from ..base.interned import Interned
from ..base.scalar import Const, Expr, Var, const, var

__all__ = ["Const", "Expr", "Var", "const", "var"]


class Scope(enum.Enum):
    GLOBAL = "global"  # memory of the caller
    SHARED = "shared"  # a block's own: a packed cache block on a CPU, shared memory on a GPU
    FRAGMENT = "fragment"  # a block's accumulators: an L1 block or registers on a CPU, registers spread over threads on a GPU
    LOCAL = "local"  # small, private to one iteration


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Layout(metaclass=Interned):
    """Where element `vars` of a buffer lives: an address, in elements, as an expression of the index; `size` elements in all."""

    name: str
    vars: tuple[Var, ...]
    address: Expr
    size: Expr


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Buffer(metaclass=Interned):
    """Memory seen as an array. `strides` are in elements; None is row-major. A `layout` replaces strides.

    A global buffer may be any strided view of a tensor (a stride of 0 is a broadcast); its base pointer is the view's
    first element.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    scope: Scope = Scope.GLOBAL
    strides: tuple[Expr, ...] | None = None
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def steps(self) -> tuple[Expr, ...]:
        """The strides in elements, row-major ones computed. Only for a buffer without a layout."""
        if self.strides is not None:
            return self.strides
        steps: list[Expr] = []
        step: Expr = const(1)
        for extent in reversed(self.shape):
            steps.append(step)
            step = step * extent
        return tuple(reversed(steps))

    def __getitem__(self, index: Expr | int | tuple[Expr | int, ...]) -> Load:
        """`buffer[i, j]`: one element's value."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != self.rank:
            raise ValueError(f"{self.name}: {self.rank} indices expected, got {len(index)}")
        return Load(self, tuple(as_expr(i) for i in index))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Load(Expr):
    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def with_children(self, children: tuple[Expr, ...]) -> Load:
        return Load(self.buffer, children)


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else const(value)


@dataclass(frozen=True)
class Region:
    """A box of a buffer: one offset a dimension, and one extent; None keeps the offset as a point and drops the dimension."""

    buffer: Buffer
    offsets: tuple[Expr, ...]
    extents: tuple[Expr | None, ...]

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(e for e in self.extents if e is not None)


@dataclass(frozen=True)
class Stmt:
    """Base of the closed set below."""


@dataclass(frozen=True)
class Block(Stmt):
    """Statements in order."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class For(Stmt):
    """`for var in range(extent)`. "vectorized" and "unrolled" want a constant extent; `stages` is for "pipelined"."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"
    stages: int = 0


@dataclass(frozen=True)
class Parallel(Stmt):
    """A nest of independent iterations: one element each. Its body holds Store, Atomic, Let, If, Reduce, Assert and nested
    Parallel.

    The last variable is the one the producer expects to be contiguous in memory. A target may reorder, vectorise and
    split it.
    """

    vars: tuple[Var, ...]
    extents: tuple[Expr, ...]
    body: Stmt


@dataclass(frozen=True)
class Copy(Stmt):
    """Element-wise `dst = src` with conversion to dst's type; both regions have one shape.

    `transpose` reads src with its last two dimensions swapped: dst[..., i, j] = src[..., j, i].
    """

    src: Region
    dst: Region
    transpose: bool = False


@dataclass(frozen=True)
class Fill(Stmt):
    dst: Region
    value: Expr


@dataclass(frozen=True)
class Gemm(Stmt):
    """acc[m, n] (+)= sum_k a[m, k] * b[k, n], in acc's type; `clear` overwrites acc. Regions of rank 2.

    `transpose_a`: a is [k, m]. `transpose_b`: b is [n, k]. `policy` is a hint for how a target splits the tile.
    """

    a: Region
    b: Region
    acc: Region
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool = False
    policy: str = "square"


@dataclass(frozen=True)
class Reduce(Stmt):
    """dst[index] = op over all `vars` of `value`, accumulated onto the old dst[index] unless `clear`.

    op: sum, prod, max, min (a NaN wins), any, all, bitand, bitor, bitxor; argmax and argmin give the flat position in
    `vars` order of the first extreme (a NaN is one) and want an integer dst and `clear`. `value` is computed in its own
    type; sums of 16-bit floats and of bools are the producer's to widen. The order of accumulation is the target's, the
    same in every run.
    """

    op: str
    dst: Buffer
    index: tuple[Expr, ...]
    vars: tuple[Var, ...]
    extents: tuple[Expr, ...]
    value: Expr
    clear: bool = True


@dataclass(frozen=True)
class Scan(Stmt):
    """dst = inclusive scan of src along `axis`; op: sum, prod, max, min."""

    op: str
    src: Region
    dst: Region
    axis: int
    reverse: bool = False


@dataclass(frozen=True)
class Store(Stmt):
    """buffer[index] = value; value has the buffer's type, or converts to it."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Atomic(Stmt):
    op: str  # add, max, min, and, or, xor, exchange
    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class If(Stmt):
    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(frozen=True)
class While(Stmt):
    cond: Expr
    body: Stmt


@dataclass(frozen=True)
class Break(Stmt):
    pass


@dataclass(frozen=True)
class Continue(Stmt):
    pass


@dataclass(frozen=True)
class Let(Stmt):
    """`var = value`, in scope in `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True)
class Alloc(Stmt):
    """`buffer`, of shared, fragment or local scope, lives in `body`. Its contents are undefined at first."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True)
class Assert(Stmt):
    """Where `cond` is false the launch fails, with the message, before anything after it runs."""

    cond: Expr
    message: str


@dataclass(frozen=True)
class Print(Stmt):
    message: str
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Sync(Stmt):
    """A barrier among the threads of a block; placed by a pass, nothing on a CPU."""

    scope: str = "block"


@dataclass(frozen=True)
class Kernel:
    """One launch. `params` are global buffers, in the order of the launch's arguments; those in `outputs` (by name) are
    written. `scalars` are run-time integers (symbolic sizes). `bounded`: the producer vouches that outside of Copy and Gemm
    no element beyond its buffer is named, so that nothing need be masked. `cost` is the schedule's estimate of one-thread time in
    nanoseconds, by which a launcher decides how many threads are worth waking."""

    name: str
    params: tuple[Buffer, ...]
    grid: tuple[tuple[Var, Expr], ...]
    body: Stmt
    outputs: tuple[str, ...]
    scalars: tuple[Var, ...] = ()
    cost: float = 0.0
    bounded: bool = False


def statements(s: Stmt) -> Iterator[Stmt]:
    """`s` and every statement below it, in program order."""
    yield s
    for inner in bodies(s):
        yield from statements(inner)


def bodies(s: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `s`."""
    match s:
        case Block(body):
            return body
        case For() | Parallel() | While() | Let() | Alloc():
            return (s.body,)
        case If(_, then, orelse):
            return (then,) if orelse is None else (then, orelse)
    return ()


def written(s: Stmt) -> frozenset[Buffer]:
    """The buffers that `s` may write."""
    found: set[Buffer] = set()
    for inner in statements(s):
        match inner:
            case Store(buffer) | Atomic(_, buffer):
                found.add(buffer)
            case Copy() | Fill() | Scan():
                found.add(inner.dst.buffer)
            case Gemm():
                found.add(inner.acc.buffer)
            case Reduce():
                found.add(inner.dst)
    return frozenset(found)


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that `s` itself evaluates (not those of inner statements)."""
    match s:
        case For():
            return (s.extent,)
        case Parallel():
            return s.extents
        case Copy(src, dst):
            return _corners(src) + _corners(dst)
        case Fill(dst, value):
            return (*_corners(dst), value)
        case Gemm():
            return _corners(s.a) + _corners(s.b) + _corners(s.acc)
        case Reduce():
            return (*s.index, *s.extents, s.value)
        case Scan():
            return _corners(s.src) + _corners(s.dst)
        case Store() | Atomic():
            return (*s.index, s.value)
        case If() | While() | Assert():
            return (s.cond,)
        case Let():
            return (s.value,)
        case Print():
            return s.args
    return ()


def variables(kernel: Kernel) -> set[Var]:
    """Every variable that occurs in the kernel, bound or free."""
    buffers = list(kernel.params)
    found: set[Expr] = {e for _, e in kernel.grid}
    for s in statements(kernel.body):
        found.update(expressions(s))
        if isinstance(s, Alloc):
            buffers.append(s.buffer)
    for b in buffers:
        found.update(b.shape)
        found.update(b.strides or ())
        found.update((b.layout.address, b.layout.size) if b.layout is not None else ())
    return {e for e in scalar.walk(*found) if isinstance(e, Var)}


def _corners(r: Region) -> tuple[Expr, ...]:
    return r.offsets + r.shape


def loads(e: Expr) -> list[Load]:
    """Every distinct Load below `e`."""
    return [n for n in scalar.walk(e) if isinstance(n, Load)]


def block(*body: Stmt) -> Stmt:
    """Statements in order, nested blocks flattened; a single one stands for itself."""
    flat: list[Stmt] = []
    for s in body:
        flat += s.body if isinstance(s, Block) else (s,)
    return flat[0] if len(flat) == 1 else Block(tuple(flat))
