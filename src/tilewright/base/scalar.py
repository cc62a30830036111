"""The scalar expression language, shared by the bodies of graph operators and by tile programs.

In: Python operators and the functions below. Out: interned, typed `Expr` trees (DAGs). Tile programs add one more
leaf, `Load`. Must not know tensors, buffers or torch.

    Expr = Const(value, dtype) | Var(name, dtype) | Unary(op, x) | Binary(op, x, y) | Select(cond, x, y) | Cast(x, dtype)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import dtypes
from .dtypes import DType
from .interned import Interned

Number: TypeAlias = int | float | bool

# op -> what it means. "same" ops give the operand's dtype, "test" ops give bool. Floating point throughout is IEEE.
UNARY = {
    "neg": "same", "abs": "same", "not": "same",  # not: logical on bool, bitwise on integers
    "sqrt": "same", "rsqrt": "same", "recip": "same", "exp": "same", "exp2": "same", "expm1": "same", "log": "same",
    "log2": "same", "log10": "same", "log1p": "same", "sin": "same", "cos": "same", "tan": "same", "tanh": "same", "asin": "same",
    "acos": "same", "atan": "same", "sinh": "same", "cosh": "same", "erf": "same", "erfc": "same",
    "floor": "same", "ceil": "same", "trunc": "same", "round": "same",  # round: half to even
    "isnan": "test",
}  # fmt: skip
BINARY = {
    "add": "same", "sub": "same", "mul": "same",
    "div": "same",  # true division, floats only
    "floordiv": "same", "mod": "same",  # Python's: rounded down, the sign of the divisor
    "quot": "same", "rem": "same",  # C's: rounded towards zero, the sign of the dividend (rem is fmod on floats)
    "min": "same", "max": "same",  # a NaN operand gives NaN
    "pow": "same", "atan2": "same", "copysign": "same", "and": "same", "or": "same", "xor": "same", "shl": "same", "shr": "same",
    "eq": "test", "ne": "test", "lt": "test", "le": "test", "gt": "test", "ge": "test",  # ordered; `ne` is true for NaN
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Expr(metaclass=Interned):
    """A typed scalar expression. Equal expressions are one object: compare and hash by identity."""

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    def __add__(self, y: Expr | Number) -> Expr:
        return binary("add", self, y)

    def __radd__(self, y: Number) -> Expr:
        return binary("add", y, self)

    def __sub__(self, y: Expr | Number) -> Expr:
        return binary("sub", self, y)

    def __rsub__(self, y: Number) -> Expr:
        return binary("sub", y, self)

    def __mul__(self, y: Expr | Number) -> Expr:
        return binary("mul", self, y)

    def __rmul__(self, y: Number) -> Expr:
        return binary("mul", y, self)

    def __truediv__(self, y: Expr | Number) -> Expr:
        return binary("div", self, y)

    def __rtruediv__(self, y: Number) -> Expr:
        return binary("div", y, self)

    def __floordiv__(self, y: Expr | Number) -> Expr:
        return binary("floordiv", self, y)

    def __mod__(self, y: Expr | Number) -> Expr:
        return binary("mod", self, y)

    def __and__(self, y: Expr | Number) -> Expr:
        return binary("and", self, y)

    def __or__(self, y: Expr | Number) -> Expr:
        return binary("or", self, y)

    def __xor__(self, y: Expr | Number) -> Expr:
        return binary("xor", self, y)

    def __lshift__(self, y: Expr | Number) -> Expr:
        return binary("shl", self, y)

    def __rshift__(self, y: Expr | Number) -> Expr:
        return binary("shr", self, y)

    def __lt__(self, y: Expr | Number) -> Expr:
        return binary("lt", self, y)

    def __le__(self, y: Expr | Number) -> Expr:
        return binary("le", self, y)

    def __gt__(self, y: Expr | Number) -> Expr:
        return binary("gt", self, y)

    def __ge__(self, y: Expr | Number) -> Expr:
        return binary("ge", self, y)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __invert__(self) -> Expr:
        return unary("not", self)

    def eq(self, y: Expr | Number) -> Expr:
        """The scalar comparison; Python's `==` stays identity of nodes."""
        return binary("eq", self, y)

    def ne(self, y: Expr | Number) -> Expr:
        return binary("ne", self, y)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Const(Expr):
    value: Number
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Var(Expr):
    """A named scalar: a loop variable, a size symbol, an operand of an operator's body, or a `Let`."""

    name: str
    type: DType = dtypes.i64

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Unary(Expr):
    op: str
    x: Expr

    @property
    def dtype(self) -> DType:
        return dtypes.b1 if UNARY[self.op] == "test" else self.x.dtype


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Binary(Expr):
    op: str
    x: Expr
    y: Expr

    @property
    def dtype(self) -> DType:
        return dtypes.b1 if BINARY[self.op] == "test" else self.x.dtype


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Select(Expr):
    cond: Expr
    x: Expr
    y: Expr

    @property
    def dtype(self) -> DType:
        return self.x.dtype


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Cast(Expr):
    """Conversion as C (and torch) does it: towards zero from float to integer, `x != 0` to bool, rounding to nearest even."""

    x: Expr
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type


def const(value: Number, dtype: DType = dtypes.i64) -> Const:
    """A constant of the given type: `value` is converted to the type's Python kind (float, int or bool)."""
    if dtype.is_float:
        return Const(float(value), dtype)
    return Const(bool(value), dtype) if dtype.kind == "bool" else Const(int(value), dtype)


def var(name: str, dtype: DType = dtypes.i64) -> Var:
    return Var(name, dtype)


def unary(op: str, x: Expr) -> Expr:
    if op not in UNARY:
        raise ValueError(f"unknown scalar operation {op!r}")
    return Unary(op, x)


def binary(op: str, x: Expr | Number, y: Expr | Number) -> Expr:
    """`x op y`; a Python number takes the other operand's type. Integer arithmetic on constants is folded.

    Raises TypeError where the operands' types differ: casts are explicit.
    """
    if op not in BINARY:
        raise ValueError(f"unknown scalar operation {op!r}")
    x, y = _same_type(op, x, y)
    return _folded(op, x, y) or Binary(op, x, y)


def select(cond: Expr, x: Expr | Number, y: Expr | Number) -> Expr:
    """`x` where `cond`, else `y`. Both are evaluated."""
    x, y = _same_type("select", x, y)
    if isinstance(cond, Const):
        return x if cond.value else y
    return x if x is y else Select(cond, x, y)


def cast(x: Expr, dtype: DType) -> Expr:
    if x.dtype == dtype:
        return x
    if isinstance(x, Const) and dtype.is_integer and x.dtype.is_integer:
        return const(x.value, dtype)
    return Cast(x, dtype)


def minimum(x: Expr | Number, y: Expr | Number) -> Expr:
    return binary("min", x, y)


def maximum(x: Expr | Number, y: Expr | Number) -> Expr:
    return binary("max", x, y)


def children(e: Expr) -> tuple[Expr, ...]:
    """The sub-expressions of any node, a tile `Load` included: every `Expr` or tuple of `Expr` among its fields."""
    found: list[Expr] = []
    fields: tuple[str, ...] = e.__match_args__
    for name in fields:
        value = getattr(e, name)
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            found += (v for v in value if isinstance(v, Expr))
    return tuple(found)


def rebuild(e: Expr, new: Iterable[Expr]) -> Expr:
    """The same node over other sub-expressions, given in the order of `children`, folding constants anew."""
    it = iter(new)
    match e:
        case Const() | Var():
            return e
        case Unary(op, _):
            return unary(op, next(it))
        case Binary(op, _, _):
            return binary(op, next(it), next(it))
        case Select():
            return select(next(it), next(it), next(it))
        case Cast(_, dtype):
            return cast(next(it), dtype)
    return e.with_children(tuple(it))  # type: ignore[attr-defined]  # a leaf of another layer, such as Load


def transform(e: Expr, leaf: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rebuild bottom-up; where `leaf(node)` is not None that replaces the node (and its children are not visited).

    Linear in the number of distinct nodes.
    """
    memo = {} if memo is None else memo
    if e in memo:
        return memo[e]
    new = leaf(e)
    if new is None:
        old = children(e)
        kids = tuple(transform(c, leaf, memo) for c in old)
        new = e if all(a is b for a, b in zip(kids, old, strict=True)) else rebuild(e, kids)
    memo[e] = new
    return new


def substitute(e: Expr, env: dict[Var, Expr]) -> Expr:
    return transform(e, lambda n: env.get(n) if isinstance(n, Var) else None)


def walk(*roots: Expr) -> list[Expr]:
    """Every distinct node below the roots, children before parents."""
    seen: dict[Expr, None] = {}

    def visit(e: Expr) -> None:
        if e in seen:
            return
        for c in children(e):
            visit(c)
        seen[e] = None

    for r in roots:
        visit(r)
    return list(seen)


def _same_type(op: str, x: Expr | Number, y: Expr | Number) -> tuple[Expr, Expr]:
    if not isinstance(x, Expr):
        if not isinstance(y, Expr):
            raise TypeError(f"{op}: at least one operand must be an expression, got {x!r} and {y!r}")
        return const(x, y.dtype), y
    if not isinstance(y, Expr):
        return x, const(y, x.dtype)
    if x.dtype != y.dtype:
        raise TypeError(f"{op}: operands of one type expected, got {x.dtype} and {y.dtype}")
    return x, y


_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _folded(op: str, x: Expr, y: Expr) -> Expr | None:
    """Exact algebra on 64-bit integers only, where it cannot change a value (index arithmetic)."""
    if x.dtype != dtypes.i64:
        return None
    a, b = (e.value if isinstance(e, Const) else None for e in (x, y))
    if a is not None and b is not None and not (op in ("floordiv", "mod") and b == 0):
        if op in _COMPARE:
            return const(_COMPARE[op](a, b), dtypes.b1)
        return const(_FOLD[op](int(a), int(b))) if op in _FOLD else None
    match op, a, b:
        case ("add", 0, _) | ("mul", 1, _):
            return y
        case ("add", _, 0) | ("sub", _, 0) | ("mul", _, 1) | ("floordiv", _, 1):
            return x
        case ("mul", 0, _) | ("mul", _, 0) | ("mod", _, 1):
            return const(0)
    if op in ("min", "max", "and", "or") and x is y:
        return x
    if op == "sub" and x is y:
        return const(0)
    return _reassociated(op, x, b)


def _reassociated(op: str, x: Expr, b: Number | None) -> Expr | None:
    """(x + a) + b and (x * a) * b with constants a, b: one constant."""
    if b is None or op not in ("add", "mul") or not isinstance(x, Binary) or x.op != op or not isinstance(x.y, Const):
        return None
    return binary(op, x.x, const(_FOLD[op](int(x.y.value), int(b))))
