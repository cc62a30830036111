"""Symbolic sizes. A `Size` is an int, or a `Dim`: a polynomial over symbols and `//`, `%`, `min` and `max` of other sizes.

In: `symbol(...)`, Python ints and the operators `+ - * // %` (Python's meaning). Out: a `Size` in canonical form: equal ones
are one object, and one that is constant is a plain int. Must not know tensors, guards or torch.

Facts (bounds, a known divisor) belong to symbols; everything else is derived from them. Dims have no `<`: what must hold
for every value of the symbols is asked with `provably_le` and its kin. `==` is identity. (Both change within `deciding`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from . import arithmetic, scalar
from .deciding import deciding
from .polynomial import (
    Atom,
    Call,
    Dim,
    Size,
    Symbol,
    common,
    divided,
    divides,
    divisor,
    extreme,
    floordiv,
    least,
    mod,
    provably_le,
    provably_lt,
    quotient,
    range_of,
)

__all__ = [
    "Dim", "Size", "Symbol", "as_int", "as_ints", "bounds", "ceildiv", "common", "deciding", "divided", "divides", "divisor",
    "evaluate", "is_static", "maximum", "minimum", "of_expr", "parse", "provably_eq", "provably_ge", "provably_gt", "provably_le",
    "provably_lt", "provably_ne", "quotient", "substitute", "symbol", "symbols", "to_expr",
]  # fmt: skip


def symbol(name: str, lo: int | None = 2, hi: int | None = None, divisor: int = 1) -> Dim:
    """An unknown size, at least `lo` (2: 0 and 1 are specialised), at most `hi`, a multiple of `divisor`.

    Raises ValueError for a name that is no identifier, a divisor below 1, or bounds that admit no value.
    """
    if not name.isidentifier() or name in ("min", "max"):
        raise ValueError(f"a symbol's name must be an identifier other than min and max, got {name!r}")
    if divisor < 1:
        raise ValueError(f"{name}: the divisor must be positive, got {divisor}")
    lo = None if lo is None else -(-lo // divisor) * divisor
    hi = None if hi is None else hi // divisor * divisor
    if lo is not None and hi is not None and lo > hi:
        raise ValueError(f"{name}: no multiple of {divisor} lies within the bounds")
    return Symbol(name, lo, hi, divisor).dim


def is_static(size: Size) -> bool:
    return isinstance(size, int)


def as_int(size: Size) -> int:
    """The size, where code handles constants only. Raises TypeError for a symbolic one."""
    if isinstance(size, int):
        return size
    raise TypeError(f"a constant size is needed here, got {size}")


def as_ints(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(map(as_int, sizes))


def symbols(*sizes: Size) -> tuple[Symbol, ...]:
    """The symbols that the sizes depend on, by name."""
    found: dict[Symbol, None] = {}
    todo: list[Size] = list(sizes)
    while todo:
        size = todo.pop()
        for monomial, _ in () if isinstance(size, int) else size.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found[atom] = None
                else:
                    todo += atom.args if isinstance(atom, Call) else ()
    return tuple(sorted(found, key=lambda s: s.name))


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The size where each symbol has its value. Raises KeyError, naming it, for a symbol without one."""
    result = substitute(size, values)
    if isinstance(result, int):
        return result
    raise KeyError(f"no value for {', '.join(s.name for s in symbols(result))} in {size}")


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with symbols replaced by other sizes; a name without a value stays."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, coefficient in size.terms:
        product: Size = coefficient
        for atom in monomial:
            product = product * _substitute_atom(atom, values)
        total = total + product
    return total


def _substitute_atom(atom: Atom, values: Mapping[str, Size]) -> Size:
    if isinstance(atom, Symbol):
        return values.get(atom.name, atom.dim)
    assert isinstance(atom, Call)
    args = [substitute(a, values) for a in atom.args]
    if atom.op in ("min", "max"):
        return extreme(atom.op, tuple(args))
    return floordiv(*args) if atom.op == "floordiv" else mod(*args)


def bounds(size: Size) -> tuple[int | None, int | None]:
    """The least and the greatest value that the size is known to stay within; None is unbounded."""
    lo, hi = range_of(size)
    return (None if lo == -math.inf else cast(int, lo)), (None if hi == math.inf else cast(int, hi))


def provably_ge(a: Size, b: Size) -> bool:
    return provably_le(b, a)


def provably_gt(a: Size, b: Size) -> bool:
    return provably_le(b + 1, a)


def provably_eq(a: Size, b: Size) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b) or (provably_le(a, b) and provably_le(b, a))


def provably_ne(a: Size, b: Size) -> bool:
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    if least(difference) > 0 or least(-difference) > 0:
        return True
    constant = difference.terms[-1][1] if not difference.terms[-1][0] else 0
    return constant != 0 and not divides(divisor(difference - constant), constant)


def minimum(*sizes: Size) -> Size:
    """The least of the sizes; one that another is known not to exceed is left out."""
    return extreme("min", sizes)


def maximum(*sizes: Size) -> Size:
    """The greatest of the sizes; one that is known not to exceed another is left out."""
    return extreme("max", sizes)


def ceildiv(a: Size, b: Size) -> Size:
    """a / b rounded up, for a positive b."""
    return (a + b - 1) // b


def to_expr(size: Size) -> scalar.Expr:
    """The size as an i64 expression; a symbol becomes the variable of its name."""
    if isinstance(size, int):
        return scalar.const(size)
    total: scalar.Expr | None = None
    for monomial, coefficient in size.terms:
        factors = [_atom_expr(a) for a in monomial]
        product = factors[0] if factors else scalar.const(coefficient)
        for f in factors[1:]:
            product = product * f
        if factors and coefficient != 1:
            product = product * coefficient
        total = product if total is None else total + product
    return total or scalar.const(0)


def _atom_expr(atom: Atom) -> scalar.Expr:
    if isinstance(atom, Symbol):
        return scalar.var(atom.name)
    assert isinstance(atom, Call)
    args = [to_expr(a) for a in atom.args]
    result = args[0]
    for a in args[1:]:
        result = scalar.binary(atom.op, result, a)
    return result


def of_expr(e: scalar.Expr) -> Size:
    """The size that an i64 expression over variables is, each a symbol of its name of which nothing is known.

    Raises ValueError for one that is no size: it loads from memory, or uses another operation.
    """
    match e:
        case scalar.Const(value, _):
            return int(value)
        case scalar.Var(name, _):
            return symbol(name, lo=None)
        case scalar.Binary(op, x, y) if op in _OPERATIONS:
            return _OPERATIONS[op](of_expr(x), of_expr(y))
    raise ValueError(f"no size: {e!r}")


_OPERATIONS: dict[str, Callable[[Size, Size], Size]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": floordiv, "mod": mod,
    "min": minimum, "max": maximum,
}  # fmt: skip


def parse(text: str, known: Mapping[str, Size] | Iterable[Symbol]) -> Size:
    """The size that `str` printed, over the given symbols (name -> size, or `Symbol`s).

    Any Python expression of + - * // %, min and max is read. Raises ValueError for another one or an unknown name.
    """
    names = known if isinstance(known, Mapping) else {s.name: s.dim for s in known}
    return cast(Size, arithmetic.read(text, names, {"min": minimum, "max": maximum}))
