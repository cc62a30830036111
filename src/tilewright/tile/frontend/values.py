"""What names of a kernel's source stand for while it is traced, beside Python's own objects and the tile IR's.

In: what the vocabulary makes. Out: annotations of parameters, loops, cells, views. Must not know how source is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...base import dims, dtypes, scalar
from ...base.dtypes import DType
from ...base.errors import TilewrightError
from ...base.scalar import Const, Expr
from ..ir import Buffer, Load, Region, as_expr, const
from . import expressions
from .expressions import Value


class LanguageError(TilewrightError, TypeError):
    """What a kernel's source says is not in the language, or does not fit together."""

    template = "{reason}"


_ALIASES = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "uint": "uint32", "long": "int64",
    "float8_e4m3": "float8_e4m3fn", "e4m3_float8": "float8_e4m3fn", "e5m2_float8": "float8_e5m2", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "boolean": "bool",
}  # fmt: skip


def dtype_of(value: Any) -> DType:
    """The element type that a name ("float32"), `T.float32` or a torch dtype stands for. Raises LanguageError."""
    if isinstance(value, Conversion):
        return value.dtype
    if isinstance(value, DType):
        return value
    if value in (int, float, bool):
        return {int: dtypes.i32, float: dtypes.f32, bool: dtypes.b1}[value]
    name = str(value).removeprefix("torch.")
    found = dtypes.BY_NAME.get(_ALIASES.get(name, name))
    if found is None or found.kind == "complex":
        raise LanguageError(reason=f"unknown element type {name!r}", hint=f"one of {', '.join(d.name for d in TYPES)}")
    return found


TYPES = tuple(d for d in dtypes.ALL if d.kind != "complex")


@dataclass(frozen=True)
class Conversion:
    """`T.float32`: names the element type, and converts: `T.float32(x)`."""

    dtype: DType

    def __call__(self, value: Value) -> Expr:
        return cast(value, self.dtype)

    def __str__(self) -> str:
        return self.dtype.name

    __repr__ = __str__


def cast(value: Value, dtype: Any) -> Expr:
    """The value converted."""
    return expressions.expr(value, dtype_of(dtype))


@dataclass(frozen=True)
class TensorAnnotation:
    """`T.Tensor(shape, dtype)`: a parameter in global memory. `strides`, in elements; None is row-major."""

    shape: tuple[Expr, ...]
    dtype: DType
    strides: tuple[Expr, ...] | None = None


class _TensorForm:
    """`T.Tensor`: `T.Tensor((M, N), "float32")` or `T.Tensor[[M, N], T.float32]`."""

    def __call__(self, shape: Any, dtype: Any = "float32") -> TensorAnnotation:
        return TensorAnnotation(sizes(shape), dtype_of(dtype))

    def __getitem__(self, item: Any) -> TensorAnnotation:
        shape, dtype = item if isinstance(item, tuple) else (item, "float32")
        return self(shape, dtype)


Tensor = _TensorForm()


def StridedTensor(shape: Any, strides: Any, dtype: Any = "float32") -> TensorAnnotation:  # noqa: N802  # the language's name
    """A parameter with these strides, in elements."""
    made = TensorAnnotation(sizes(shape), dtype_of(dtype), sizes(strides))
    if len(made.shape) != len(made.strides or ()):
        raise LanguageError(reason=f"{len(made.strides or ())} strides for {len(made.shape)} dimensions")
    return made


def sizes(shape: Any) -> tuple[Expr, ...]:
    """A shape as expressions: of ints, symbols and arithmetic on them; a single size stands for one dimension."""
    if isinstance(shape, (int, Expr, str)):
        shape = (shape,)
    return tuple([_size(s) for s in shape])


def _size(s: Any) -> Expr:
    if isinstance(s, str):
        return scalar.var(s)
    if isinstance(s, Expr):
        if not s.dtype.is_integer:
            raise LanguageError(reason=f"a size is an integer, got {s.dtype}")
        return scalar.cast(s, dtypes.i64)
    try:
        return const(int(s.__index__()))
    except AttributeError:
        raise LanguageError(reason=f"a size is an int or a symbol (T.dynamic), got {type(s).__name__}") from None


@dataclass(frozen=True)
class Loop:
    """What stands behind `for ... in`: a loop of the tile program. `kind` "parallel" and "grid" have several variables."""

    kind: str
    extents: tuple[Expr, ...]
    start: Value = 0
    step: int = 1
    stages: int = 0

    @property
    def is_constant(self) -> bool:
        return all(isinstance(e, Const) for e in self.extents)


@dataclass(frozen=True)
class Grid:
    """`with T.Kernel(...)`: the blocks."""

    extents: tuple[Expr, ...]
    threads: tuple[int, ...] = (128,)


@dataclass(frozen=True)
class Cell:
    """`T.alloc_var`: a scalar that may be assigned again and again."""

    buffer: Buffer

    @property
    def value(self) -> Load:
        return Load(self.buffer, (const(0),))


@dataclass(frozen=True)
class View:
    """A buffer seen in another shape, element by element in row-major order."""

    buffer: Buffer
    shape: tuple[Expr, ...]

    def index(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where an element of the view is in the buffer."""
        flat: Expr = const(0)
        for i, n in zip(at, self.shape, strict=True):
            flat = flat * n + scalar.cast(i, dtypes.i64)
        found: list[Expr] = []
        for n in reversed(self.buffer.shape[1:]):
            found.append(flat % n)
            flat = flat // n
        return tuple(reversed([*found, flat]))


Tile: TypeAlias = "Buffer | Region | Load | View"


def difference(stop: Expr, start: Expr) -> Expr:
    """`stop - start`, simplified where both are sizes."""
    try:
        return dims.to_expr(dims.of_expr(stop) - dims.of_expr(start))
    except (ValueError, TypeError):
        return expressions.expr(expressions.arithmetic("sub", stop, start))


def element(target: Buffer | View, index: tuple[Any, ...]) -> Load | Region:
    """`target[index]`: one element, or a region where there are slices. Raises LanguageError."""
    shape = target.shape
    index = _without_ellipsis(index, len(shape))
    if len(index) > len(shape):
        raise LanguageError(reason=f"{target_name(target)} has {len(shape)} dimensions, got {len(index)} indices")
    if len(index) < len(shape) and not isinstance(target, View):
        index = (*index, *[slice(None)] * (len(shape) - len(index)))
    if isinstance(target, View):
        if any(isinstance(i, slice) for i in index) or len(index) != len(shape):
            raise LanguageError(
                reason="a reshaped buffer is indexed by single elements", hint="copy it into a tile of that shape"
            )
        return Load(target.buffer, target.index([_position(i) for i in index]))
    if not any(isinstance(i, slice) for i in index):
        return Load(target, tuple([_position(i) for i in index]))
    offsets: list[Expr] = []
    extents: list[Expr | None] = []
    for i, n in zip(index, shape, strict=True):
        if not isinstance(i, slice):
            offsets.append(_position(i))
            extents.append(None)
            continue
        if i.step not in (None, 1):
            raise LanguageError(reason="a slice has a step", hint="index single elements in a T.Parallel loop")
        start = const(0) if i.start is None else _position(i.start)
        stop = n if i.stop is None else _position(i.stop)
        offsets.append(start)
        extents.append(difference(stop, start))
    return Region(target, tuple(offsets), tuple(extents))


def target_name(target: Any) -> str:
    return target.name if isinstance(target, Buffer) else "the reshaped buffer"


def _without_ellipsis(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    if not any(i is Ellipsis for i in index):
        return index
    at = next(k for k, i in enumerate(index) if i is Ellipsis)
    return (*index[:at], *[slice(None)] * (rank - len(index) + 1), *index[at + 1 :])


def _position(i: Any) -> Expr:
    if isinstance(i, Cell):
        i = i.value
    if isinstance(i, Expr):
        if not i.dtype.is_integer:
            raise LanguageError(reason=f"an index is an integer, got {i.dtype}", hint='convert it: T.cast(x, "int32")')
        return scalar.cast(i, dtypes.i64)
    if isinstance(i, bool) or not hasattr(i, "__index__"):
        raise LanguageError(reason=f"an index is an integer or a slice, got {type(i).__name__}")
    return as_expr(int(i))


CONVERSIONS = {d.name: Conversion(d) for d in TYPES} | {"float8_e4m3": Conversion(dtypes.f8e4m3)}
