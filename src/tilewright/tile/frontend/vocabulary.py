"""The vocabulary of the kernel language, `T`: what a kernel's source may call.

In: buffers, regions, scalars. Out: statements in the kernel being traced, expressions, loops. Names and argument order are
TileLang's. Must not know how source is read.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...base import scalar
from ...base.scalar import Const, Expr
from ..ir import Buffer, Load, Region, Scope, const
from . import expressions
from .evaluation import counted
from .expressions import Value
from .interpreter import Macro
from .mathematics import infinity, max_value, min_value, scalar_of
from .trace import active
from .values import (
    Cell,
    Grid,
    LanguageError,
    Loop,
    View,
    cast,
    dtype_of,
    sizes,
)

__all__ = [
    "Buffer", "GemmWarpPolicy", "Kernel", "Parallel", "Persistent", "Pipelined", "alloc_fragment", "alloc_local",
    "alloc_reducer", "alloc_shared", "alloc_var", "annotate_layout", "annotate_safe_value", "assume", "atomic_add",
    "atomic_addx2", "atomic_addx4", "atomic_and", "atomic_load", "atomic_max", "atomic_min", "atomic_or", "atomic_store",
    "atomic_xor", "clear", "copy", "cummax", "cummin", "cumprod", "cumsum", "device_assert", "dynamic", "fill",
    "finalize_reducer", "gemm", "grid", "macro", "print", "reduce", "reduce_absmax", "reduce_abssum", "reduce_bitand",
    "reduce_bitor", "reduce_bitxor", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum", "reshape", "serial", "symbolic",
    "unroll", "use_swizzle", "vectorized", "view",
]  # fmt: skip

# --- sizes and types --------------------------------------------------------------------------------------------------


def dynamic(names: str, dtype: Any = "int64") -> Any:
    """Sizes that are known when the kernel is called: `M = T.dynamic("M")`, `M, N = T.dynamic("M, N")`."""
    dtype_of(dtype)
    made = [scalar.var(n) for n in names.replace(",", " ").split()]
    for v in made:
        if not v.name.isidentifier():
            raise LanguageError(reason=f"{v.name!r} is no name")
    return made[0] if len(made) == 1 else tuple(made)


symbolic = dynamic


# --- the grid and loops -----------------------------------------------------------------------------------------------


def Kernel(*blocks: Any, threads: int | Sequence[int] | None = None, **_: Any) -> Grid:  # noqa: N802
    """The grid of blocks, run in no order. `threads` a block is a hint; a CPU gives each block one thread."""
    many = (threads,) if isinstance(threads, int) else tuple(threads or (128,))
    if not blocks:
        raise LanguageError(reason="T.Kernel takes the number of blocks in each dimension")
    return Grid(sizes(blocks), many)


def Parallel(*extents: Any, **_: Any) -> Loop:  # noqa: N802
    """Independent iterations, in no order."""
    return Loop("parallel", sizes(extents))


def grid(*extents: Any) -> Loop:
    """Nested serial loops."""
    return Loop("grid", sizes(extents))


def serial(start: Any, stop: Any = None, step: int = 1, **_: Any) -> Loop:
    """A loop whose turns run one after another."""
    return _kind("serial", *_range(start, stop), step)


def unroll(start: Any, stop: Any = None, step: int = 1, **_: Any) -> Loop:
    """A loop whose body is repeated; of a constant number of turns, its variable is a Python int."""
    return _kind("unrolled", *_range(start, stop), step)


def vectorized(start: Any, stop: Any = None) -> Loop:
    return _kind("vectorized", *_range(start, stop), 1)


def Pipelined(start: Any, stop: Any = None, num_stages: int = 0, **_: Any) -> Loop:  # noqa: N802
    """A serial loop whose copies may run ahead of its computations."""
    made = counted(*_range(start, stop))
    return Loop("pipelined", made.extents, made.start, 1, num_stages)


def Persistent(domain: Sequence[Any], wave_size: Any, index: Any, group_size: int = 8) -> Loop:  # noqa: N802
    """The tiles of `domain` that one of `wave_size` blocks works on: a loop with one variable a dimension."""
    raise LanguageError(
        reason="T.Persistent is not needed: blocks are shared out among threads already",
        hint="use T.Kernel over the whole domain",
    )


def _range(start: Any, stop: Any) -> tuple[Any, Any]:
    start, stop = scalar_of(start), None if stop is None else scalar_of(stop)
    return (0, start) if stop is None else (start, stop)


def _kind(kind: str, start: Any, stop: Any, step: int) -> Loop:
    made = counted(start, stop, step)
    return Loop(kind, made.extents, made.start, made.step)


# --- memory -----------------------------------------------------------------------------------------------------------


def alloc_shared(shape: Any, dtype: Any = "float32", scope: str = "shared.dyn") -> Buffer:
    """A tile that all threads of a block see: a packed cache block on a CPU. Its contents are undefined at first."""
    return _alloc(shape, dtype, Scope.SHARED, "shared")


def alloc_fragment(shape: Any, dtype: Any = "float32", scope: str = "local.fragment") -> Buffer:
    """A tile spread over the registers of a block's threads: registers or a first-level cache block on a CPU."""
    return _alloc(shape, dtype, Scope.FRAGMENT, "fragment")


def alloc_local(shape: Any, dtype: Any = "float32", scope: str = "local") -> Buffer:
    """A small array of a thread's own."""
    return _alloc(shape, dtype, Scope.LOCAL, "local")


def _alloc(shape: Any, dtype: Any, scope: Scope, name: str) -> Buffer:
    return active().buffer(dtype_of(dtype), sizes(shape), scope, name)


def alloc_var(dtype: Any, init: Value | None = None, scope: str = "local.var") -> Cell:
    """A scalar that may be assigned again and again."""
    b = _alloc((1,), dtype, Scope.LOCAL, "var")
    if init is not None:
        active().store(b, 0, cast(scalar_of(init), b.dtype))
    return Cell(b)


_NEUTRAL: dict[str, Callable[[Any], Expr]] = {
    "sum": lambda d: const(0, d), "max": lambda d: const(-math.inf, d) if d.is_float else min_value(d),
    "min": lambda d: infinity(d) if d.is_float else max_value(d),
}  # fmt: skip


def alloc_reducer(shape: Any, dtype: Any = "float32", op: str = "sum", replication: str | None = None) -> Buffer:
    """A tile that gathers `op` ("sum", "max", "min") of what is added to it, neutral at first."""
    if op not in _NEUTRAL:
        raise LanguageError(reason=f"op: one of {', '.join(_NEUTRAL)} expected, got {op!r}")
    b = _alloc(shape, dtype, Scope.FRAGMENT, "reducer")
    active().fill(b, _NEUTRAL[op](b.dtype))
    return b


def finalize_reducer(buffer: Buffer) -> None:
    """Brings the parts of a reducer together; a block has one part on a CPU."""


def reshape(buffer: Buffer, shape: Any) -> View:
    """The buffer in another shape of as many elements, in row-major order."""
    made = View(_buffer(buffer, "buffer"), sizes(shape))
    old, new = (_product(s) for s in (made.buffer.shape, made.shape))
    if isinstance(old, Const) and isinstance(new, Const) and old.value != new.value:
        raise LanguageError(reason=f"{made.buffer.name} has {old.value} elements, the shape {new.value}")
    return made


def view(buffer: Buffer, shape: Any = None, dtype: Any = None) -> View | Buffer:
    """As `reshape`; the element type stays."""
    if dtype is not None and dtype_of(dtype) is not buffer.dtype:
        raise LanguageError(reason="T.view keeps the element type", hint="convert the elements into another tile: T.copy(x, y)")
    return buffer if shape is None else reshape(buffer, shape)


def _product(shape: Iterable[Expr]) -> Expr:
    total: Expr = const(1)
    for n in shape:
        total = total * n
    return total


# --- tiles ------------------------------------------------------------------------------------------------------------


class GemmWarpPolicy(enum.Enum):
    """How a product's rows and columns are shared out among warps: a hint."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"


def copy(src: Any, dst: Any, *_: Any, **__: Any) -> None:
    """`dst = src`, converted to dst's type. Each is a tile, a region `A[i:j, :]`, or where a region starts, `A[i, j]`.

    What lies beyond the end of a tensor in global memory is read as zero and not written.
    """
    src, dst = _tile(src, "src"), _tile(dst, "dst")
    if isinstance(src, Load) and isinstance(dst, Load):
        active().store(dst.buffer, dst.index, cast(src, dst.buffer.dtype))
        return
    if isinstance(src, View) or isinstance(dst, View):
        _copy_elements(src, dst)
        return
    a, b = _regions(src, dst)
    active().copy(a, b)


def _regions(src: Any, dst: Any) -> tuple[Region, Region]:
    """Both as regions of one shape."""
    a, b = (x if isinstance(x, (Region, Load)) else _whole(x) for x in (src, dst))
    if isinstance(a, Load):
        a = _from(a, b.shape)  # type: ignore[union-attr]
    if isinstance(b, Load):
        b = _from(b, a.shape)
    assert isinstance(a, Region) and isinstance(b, Region)
    if len(a.shape) != len(b.shape):
        a, b = _without_ones(a, len(b.shape)), _without_ones(b, len(a.shape))
    if len(a.shape) != len(b.shape):
        raise LanguageError(reason=f"{_shown(a)} and {_shown(b)} have different numbers of dimensions")
    for x, y in zip(a.shape, b.shape, strict=True):
        if isinstance(x, Const) and isinstance(y, Const) and x.value != y.value:
            raise LanguageError(reason=f"{_shown(a)} and {_shown(b)} have different shapes")
    return a, b


def _from(start: Load, shape: Sequence[Expr]) -> Region:
    """The region of that shape that starts at an element; leading dimensions beyond the shape's are points."""
    points = len(start.index) - len(shape)
    if points < 0:
        raise LanguageError(reason=f"{start.buffer.name} has {len(start.index)} dimensions, the tile {len(shape)}")
    return Region(start.buffer, start.index, (*[None] * points, *shape))


def _without_ones(r: Region, rank: int) -> Region:
    """The region with dimensions of one element dropped, from the left, down to that rank."""
    extents = list(r.extents)
    for k, e in enumerate(extents):
        if sum(x is not None for x in extents) <= rank:
            break
        if isinstance(e, Const) and e.value == 1:
            extents[k] = None
    return Region(r.buffer, r.offsets, tuple(extents))


def _copy_elements(src: Any, dst: Any) -> None:
    """A copy where one side is seen in another shape."""
    shape = src.shape if isinstance(src, View) else dst.shape
    with active().parallel(*shape) as index:
        at, to = (_element(x, index) for x in (src, dst))
        active().store(to.buffer, to.index, cast(at, to.buffer.dtype))


def _element(x: Any, index: Sequence[Expr]) -> Load:
    if isinstance(x, View):
        return Load(x.buffer, x.index(index))
    r = _from(x, [const(1)] * len(index)) if isinstance(x, Load) else _whole(x) if isinstance(x, Buffer) else x
    it = iter(index)
    return Load(r.buffer, tuple([o if e is None else o + next(it) for o, e in zip(r.offsets, r.extents, strict=True)]))


def fill(dst: Any, value: Value) -> None:
    """Every element of a tile or region gets the value."""
    dst = _tile(dst, "buffer")
    r = Region(dst.buffer, dst.index, (None,) * len(dst.index)) if isinstance(dst, Load) else _whole(dst)
    if isinstance(dst, Load):
        active().store(dst.buffer, dst.index, cast(scalar_of(value), dst.buffer.dtype))
        return
    active().fill(r, cast(scalar_of(value), r.buffer.dtype))


def clear(dst: Any) -> None:
    """Every element of a tile or region becomes zero."""
    fill(dst, 0)


def gemm(
    A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square, clear_accum: bool = False, *_: Any, **__: Any,
) -> None:  # fmt: skip
    """`C += A @ B`, of tiles or regions; `clear_accum` overwrites C."""
    a, b, c = (_whole(_tile(x, n)) for x, n in ((A, "A"), (B, "B"), (C, "C")))
    for r, name in ((a, "A"), (b, "B"), (c, "C")):
        if len(r.shape) != 2:
            raise LanguageError(reason=f"T.gemm: {name} is a matrix, got {_shown(r)}")
    (m, k), (k2, n) = a.shape, b.shape
    m, k = (k, m) if transpose_A else (m, k)
    k2, n = (n, k2) if transpose_B else (k2, n)
    for x, y in ((m, c.shape[0]), (n, c.shape[1]), (k, k2)):
        if isinstance(x, Const) and isinstance(y, Const) and x.value != y.value:
            raise LanguageError(
                reason=f"T.gemm: {_shown(a)}{' transposed' * transpose_A} times {_shown(b)}{' transposed' * transpose_B} "
                f"does not give {_shown(c)}"
            )
    if a.buffer.dtype.is_float != b.buffer.dtype.is_float:
        raise LanguageError(reason=f"T.gemm: {a.buffer.dtype} times {b.buffer.dtype}")
    active().gemm(a, b, c, transpose_A, transpose_B, clear_accum, getattr(policy, "value", str(policy)))


def reduce(buffer: Any, out: Any, reduce_type: str, dim: int = -1, clear: bool = True) -> None:
    """`out = reduce_type over dim of buffer`; without `clear`, of out's old value too. `out` may keep the dimension, as 1."""
    src, dst = _whole(_tile(buffer, "buffer")), _whole(_tile(out, "out"))
    rank = len(src.shape)
    if not -rank <= dim < rank:
        raise LanguageError(reason=f"dim: {_shown(src)} has {rank} dimensions, got {dim}")
    dim %= rank
    magnitude, op = reduce_type.startswith("abs"), reduce_type.removeprefix("abs")
    outer = [n for d, n in enumerate(src.shape) if d != dim]
    kept = len(dst.shape) == rank and isinstance(dst.shape[dim], Const) and dst.shape[dim].value == 1  # type: ignore[attr-defined]
    if not kept and len(dst.shape) != rank - 1 and not (rank == 1 and len(dst.shape) == 1):
        raise LanguageError(reason=f"{_shown(dst)} does not hold {_shown(src)} reduced over dimension {dim}")
    trace = active()

    def value(index: Sequence[Expr], r: Expr) -> Expr:
        e: Expr = _element(src, [*index[:dim], r, *index[dim:]])
        e = scalar.cast(e, dst.buffer.dtype.compute) if op in ("sum", "prod", "max", "min") else e
        return scalar.unary("abs", e) if magnitude else e

    def one(index: Sequence[Expr]) -> None:
        at = [*index[:dim], const(0), *index[dim:]] if kept or not index else index
        to = _element(dst, at)
        trace.reduce(op, to.buffer, to.index, [src.shape[dim]], lambda r: value(index, r), clear)

    if not outer:
        one(())
        return
    with trace.parallel(*outer) as index:
        one(index)


def _reduction(name: str) -> Callable[..., None]:
    def reduction(buffer: Any, out: Any, dim: int = -1, clear: bool = True, **_: Any) -> None:
        reduce(buffer, out, name, dim, clear)

    reduction.__name__ = f"reduce_{name}"
    reduction.__doc__ = f"`out = {name} over dim of buffer`; see `reduce`."
    return reduction


reduce_sum, reduce_max, reduce_min, reduce_prod, reduce_abssum, reduce_absmax, reduce_bitand, reduce_bitor, reduce_bitxor = map(
    _reduction, ("sum", "max", "min", "prod", "abssum", "absmax", "bitand", "bitor", "bitxor")
)


def _scan(op: str) -> Callable[..., None]:
    def scan(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False) -> None:
        a = _whole(_tile(src, "src"))
        b = a if dst is None else _whole(_tile(dst, "dst"))
        if not -len(a.shape) <= dim < len(a.shape):
            raise LanguageError(reason=f"dim: {_shown(a)} has {len(a.shape)} dimensions, got {dim}")
        active().scan(op, a, b, dim % len(a.shape), reverse)

    scan.__doc__ = f"The inclusive cumulative {op} of a tile along a dimension, into `dst` or in place."
    return scan


cumsum, cummax, cummin, cumprod = map(_scan, ("sum", "max", "min", "prod"))


def _atomic(op: str) -> Callable[..., None]:
    def atomic(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, **_: Any) -> None:
        if return_prev:
            raise LanguageError(reason=f"T.atomic_{op} does not give the value before")
        to = _tile(dst, "dst")
        trace = active()
        if isinstance(to, Load) and not isinstance(value, (Buffer, Region)):
            trace.atomic(op, to.buffer, to.index, cast(scalar_of(value), to.buffer.dtype))
            return
        a, b = _regions(value if isinstance(value, (Buffer, Region)) else to, to)
        with trace.parallel(*b.shape) as index:
            at = _element(b, index)
            v = _element(a, index) if isinstance(value, (Buffer, Region)) else scalar_of(value)
            trace.atomic(op, at.buffer, at.index, cast(v, at.buffer.dtype))

    atomic.__doc__ = f"`dst = {op} of dst and value`, as one step, of an element or of each element of a tile."
    return atomic


atomic_add, atomic_max, atomic_min, atomic_and, atomic_or, atomic_xor = map(_atomic, ("add", "max", "min", "and", "or", "xor"))
atomic_store = _atomic("exchange")
atomic_addx2 = atomic_addx4 = atomic_add


def atomic_load(src: Any, memory_order: str | None = None) -> Expr:
    """The element's value."""
    return scalar_of(_tile(src, "src"))  # type: ignore[return-value]


# --- statements -------------------------------------------------------------------------------------------------------


def print(value: Any = "", msg: str = "") -> None:
    """Print a scalar when the kernel runs, or a message."""
    if isinstance(value, str):
        active().print_(msg or value)
        return
    value = _tile(value, "value") if isinstance(value, (Buffer, Region, View)) else value
    if isinstance(value, (Buffer, Region, View)):
        r = _whole(value)
        trace = active()
        index: list[Expr] = []

        def go(rest: Sequence[Expr]) -> None:
            if not rest:
                trace.print_(msg or r.buffer.name, *index, _element(r, index))
                return
            with trace.for_(rest[0], name="p") as v:
                index.append(v)
                go(rest[1:])
                index.pop()

        go(r.shape)
        return
    active().print_(msg, expressions.expr(scalar_of(value)))


def device_assert(condition: Value, msg: str = "") -> None:
    """The launch fails with the message where the condition is false."""
    test = scalar_of(condition)
    if isinstance(test, Expr):
        active().check(expressions.truth(test), msg or "an assertion of the kernel does not hold")
    elif not test:
        raise LanguageError(reason=msg or "an assertion of the kernel does not hold")


def assume(condition: Value) -> None:
    """A fact for the compiler; checked when the kernel runs."""
    device_assert(condition, "an assumption of the kernel does not hold")


def use_swizzle(panel_size: int = 10, order: str = "row", enable: bool = True) -> None:
    """An order of blocks that keeps neighbours in a shared cache: a hint, for GPUs."""


def annotate_layout(layouts: dict[Any, Any]) -> None:
    """Layouts of tiles: a hint, for GPUs."""


def annotate_safe_value(values: dict[Any, Any]) -> None:
    """What is read beyond the end of a tensor; zero is what is read anyway."""
    for buffer, value in values.items():
        if value != 0:
            raise LanguageError(
                reason=f"{buffer.name}: only 0 is read beyond the end of a tensor", hint="select the value: T.if_then_else"
            )


macro = Macro

# --- arguments --------------------------------------------------------------------------------------------------------


def _tile(value: Any, name: str) -> Any:
    if isinstance(value, Cell):
        return value.value
    if not isinstance(value, (Buffer, Region, Load, View)):
        raise LanguageError(reason=f"{name}: a tile or a region of one expected, got {type(value).__name__}")
    return value


def _buffer(value: Any, name: str) -> Buffer:
    if not isinstance(value, Buffer):
        raise LanguageError(reason=f"{name}: a whole tile expected, got {type(value).__name__}")
    return value


def _whole(value: Any) -> Region:
    if isinstance(value, Region):
        return value
    if isinstance(value, Buffer):
        return Region(value, (const(0),) * value.rank, value.shape)
    if isinstance(value, Load):
        return Region(value.buffer, value.index, (None,) * len(value.index))
    raise LanguageError(
        reason="a reshaped tile is no operand of a whole-tile operation", hint="copy it into a tile of that shape"
    )


def _shown(r: Region) -> str:
    from ..text import expr_text

    return f"{r.buffer.name}[{', '.join(map(expr_text, r.shape))}]"
