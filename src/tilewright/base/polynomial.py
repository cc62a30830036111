"""Polynomials with integer coefficients over symbols and over `//`, `%`, `min` and `max` of other polynomials.

In: operators on `Dim` and int. Out: a `Size` in canonical form. `dims.py` is the face of this module: names, evaluation, proofs.
Must not know what a size is the size of.

    Size   = int | Dim
    Dim    = sum of integer * Atom * Atom ...                                       -- interned
    Atom   = Symbol(name, lo, hi, divisor) | Call("floordiv" | "mod" | "min" | "max", Size...)   -- interned
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from . import interval
from .deciding import DECIDES, answer
from .interned import Interned
from .interval import Bound, Range


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Atom(metaclass=Interned):
    """What a polynomial is over. `text` orders the atoms of a term, `range` bounds the value, `factor` divides it."""

    text: str = field(init=False, repr=False)
    range: Range = field(init=False, repr=False)
    factor: int = field(init=False, repr=False)

    __match_args__ = ()

    def _set(self, text: str, range: Range, factor: int) -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "range", range)
        object.__setattr__(self, "factor", factor)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Symbol(Atom):
    """An unknown integer with lo <= value <= hi (None: unbounded) that `divisor` divides. A name stands for one symbol."""

    name: str
    lo: int | None
    hi: int | None
    divisor: int

    __match_args__ = ("name", "lo", "hi", "divisor")

    def __post_init__(self) -> None:
        lo = -math.inf if self.lo is None else self.lo
        self._set(self.name, (lo, math.inf if self.hi is None else self.hi), self.divisor)

    @property
    def dim(self) -> Dim:
        return Dim((((self,), 1),))

    def __reduce__(self) -> tuple[object, ...]:
        return Symbol, (self.name, self.lo, self.hi, self.divisor)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Call(Atom):
    """An operation that is no polynomial. Build one with `//`, `%`, `minimum` and `maximum`, which simplify."""

    op: str
    args: tuple[Size, ...]

    __match_args__ = ("op", "args")

    def __post_init__(self) -> None:
        self._set(_call_text(self.op, self.args), _call_range(self.op, self.args), _call_factor(self.op, self.args))

    def __reduce__(self) -> tuple[object, ...]:
        return Call, (self.op, self.args)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Dim(metaclass=Interned):
    """A size that is not constant. `terms` are (atoms, coefficient): by falling degree, then by text; the constant is last."""

    terms: tuple[tuple[Monomial, int], ...]
    range: Range = field(init=False, repr=False)

    __match_args__ = ("terms",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "range", _terms_range(self.terms))

    def __add__(self, other: Size) -> Size:
        return _sum((self, 1), (other, 1)) if isinstance(other, _SIZE) else NotImplemented

    def __radd__(self, other: int) -> Size:
        return _sum((self, 1), (other, 1)) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: Size) -> Size:
        return _sum((self, 1), (other, -1)) if isinstance(other, _SIZE) else NotImplemented

    def __rsub__(self, other: int) -> Size:
        return _sum((self, -1), (other, 1)) if isinstance(other, int) else NotImplemented

    def __neg__(self) -> Size:
        return _sum((self, -1))

    def __mul__(self, other: Size) -> Size:
        return _product(self, other) if isinstance(other, _SIZE) else NotImplemented

    def __rmul__(self, other: int) -> Size:
        return _product(self, other) if isinstance(other, int) else NotImplemented

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other) if isinstance(other, _SIZE) else NotImplemented

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Size) -> Size:
        return mod(self, other) if isinstance(other, _SIZE) else NotImplemented

    def __rmod__(self, other: int) -> Size:
        return mod(other, self) if isinstance(other, int) else NotImplemented

    # Comparisons have an answer only where someone is `deciding`; mypy knows of none, and flags them everywhere.
    if not TYPE_CHECKING:

        def __eq__(self, other):
            return self is other or (DECIDES.by is not None and isinstance(other, _SIZE) and DECIDES.by("==", self, other))

        __hash__ = object.__hash__

        def __lt__(self, other):
            return answer("<", self, other) if isinstance(other, _SIZE) else NotImplemented

        def __le__(self, other):
            return answer("<=", self, other) if isinstance(other, _SIZE) else NotImplemented

        def __gt__(self, other):
            return answer("<", other, self) if isinstance(other, _SIZE) else NotImplemented

        def __ge__(self, other):
            return answer("<=", other, self) if isinstance(other, _SIZE) else NotImplemented

        def __bool__(self):
            return DECIDES.by is None or not DECIDES.by("==", self, 0)

    def __str__(self) -> str:
        return _text(self.terms)

    def __repr__(self) -> str:
        return _text(self.terms)

    def __reduce__(self) -> tuple[object, ...]:
        return Dim, (self.terms,)

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self


Size: TypeAlias = int | Dim
Monomial: TypeAlias = tuple[Atom, ...]
_SIZE = (int, Dim)


# What is known of a size.


def divisor(size: Size) -> int:
    """The greatest integer known to divide the size whatever its symbols are; 0 for 0."""
    if isinstance(size, int):
        return abs(size)
    return math.gcd(*(coefficient * math.prod(a.factor for a in monomial) for monomial, coefficient in size.terms))


def divides(n: Size, size: Size) -> bool:
    """Whether `n` is known to divide `size` whatever the symbols are."""
    if isinstance(n, int):
        return n != 0 and divisor(size) % n == 0
    return quotient(size, n) is not None


def provably_le(a: Size, b: Size) -> bool:
    """Whether a <= b for every value of the symbols. False says only that it is not known."""
    difference = b - a
    return difference >= 0 if isinstance(difference, int) else least(difference) >= 0


def provably_lt(a: Size, b: Size) -> bool:
    return provably_le(a + 1, b)


# Polynomials, as dicts from monomial to coefficient while under construction.

_Poly: TypeAlias = dict[Monomial, int]
_MOST_TERMS = 64  # of a quotient


def _poly(size: Size) -> _Poly:
    return {(): int(size)} if isinstance(size, int) else dict(size.terms)


def _size(poly: _Poly) -> Size:
    """The canonical size of a polynomial: zero terms dropped, an exact `(a//n)*n` resolved, terms in order."""
    terms = {m: c for m, c in poly.items() if c}
    for monomial, coefficient in terms.items():
        resolved = _resolve(monomial, coefficient) if monomial and abs(coefficient) > 1 else None
        if resolved is not None:
            del terms[monomial]
            return _size(terms) + resolved
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Dim(tuple(sorted(terms.items(), key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [a.text for a in term[0]]


def _resolve(monomial: Monomial, coefficient: int) -> Size | None:
    """coefficient * (a//n) * rest as a multiple of a, where n divides both a and the coefficient; else None."""
    for atom in monomial:
        if isinstance(atom, Call) and atom.op == "floordiv":
            a, n = atom.args
            if isinstance(n, int) and coefficient % n == 0 and divides(n, a):
                rest = list(monomial)
                rest.remove(atom)
                return _size({tuple(rest): coefficient // n}) * a
    return None


def _sum(*parts: tuple[Size, int]) -> Size:
    total: _Poly = {}
    for size, factor in parts:
        for monomial, coefficient in (((), int(size)),) if isinstance(size, int) else size.terms:
            total[monomial] = total.get(monomial, 0) + factor * coefficient
    return _size(total)


@functools.lru_cache(2048)  # strides and element counts multiply the same few sizes again and again
def _product(a: Size, b: Size) -> Size:
    total: _Poly = {}
    for m, c in _poly(a).items():
        for n, d in _poly(b).items():
            monomial = _joined(m, n)
            total[monomial] = total.get(monomial, 0) + c * d
    return _size(total)


def _joined(m: Monomial, n: Monomial) -> Monomial:
    return tuple(sorted(m + n, key=lambda a: a.text)) if m and n else m or n


def _without(m: Monomial, n: Monomial) -> Monomial | None:
    """The monomial m / n, or None where n does not divide m."""
    rest = list(m)
    for atom in n:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def quotient(a: Size, b: Size) -> Size | None:
    """The polynomial a / b, or None where b does not divide a: long division by falling terms."""
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        return _size({m: c // b for m, c in a.terms}) if all(c % b == 0 for _, c in a.terms) else None
    part = _part_of(b)
    if part > 1:
        return quotient(a * part, b * part)
    head, factor = b.terms[0]
    result: _Poly = {}
    while not isinstance(a, int):
        monomial, coefficient = a.terms[0]
        rest = _without(monomial, head)
        if rest is None or coefficient % factor or rest in result or len(result) == _MOST_TERMS:
            return None
        result[rest] = coefficient // factor
        a = a - _size({rest: coefficient // factor}) * b
    return _size(result) if a == 0 else None


def _part_of(b: Dim) -> int:
    """n where `b` is x//n of an x that n divides, else 1."""
    (monomial, coefficient), *others = b.terms
    if others or coefficient != 1 or len(monomial) != 1 or not isinstance(monomial[0], Call) or monomial[0].op != "floordiv":
        return 1
    x, n = monomial[0].args
    return n if isinstance(n, int) and n > 1 and divides(n, x) else 1


def divided(a: Size, b: Size) -> tuple[Size, Size]:
    """Sizes (whole, rest) with a = whole * b + rest: the terms of a that b divides, and the others.

    Of an integer, and of the constant of a over an integer b, rest is the remainder.
    """
    if isinstance(a, int) and isinstance(b, int):
        return divmod(a, b)
    exact = quotient(a, b)
    if exact is not None:
        return exact, 0
    if isinstance(b, Dim):
        whole, rest = _split(a, b)
        return _size(whole), rest
    terms = _poly(a)
    over = _size({m: c // b for m, c in terms.items() if not m or c % b == 0})
    return over, a - over * b


def common(*sizes: Size) -> Size:
    """A size that divides all of them: the greatest integer and the atoms that all their terms share, one of each."""
    terms = [t for s in sizes for t in _poly(s).items() if t[1]]
    if not terms:
        return 0
    shared = [a for a in dict.fromkeys(terms[0][0]) if all(a in m for m, _ in terms)]
    return _size({tuple(shared): math.gcd(*(c for _, c in terms))})


# Simplification of the operations that are no polynomials.


def floordiv(a: Size, b: Size) -> Size:
    if isinstance(b, int):
        return a // b if isinstance(a, int) else _floordiv_int(a, b)
    exact = quotient(a, b)
    if exact is not None:
        return exact
    whole, rest = _split(a, b)
    if whole:
        return _size(whole) + floordiv(rest, b)
    reduced = _reduced(a, b)
    if reduced is not None:
        return floordiv(*reduced)
    if provably_le(0, a) and provably_lt(a, b):
        return 0
    return _call("floordiv", a, b)


def _floordiv_int(a: Dim, n: int) -> Size:
    if n == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if n < 0:
        return floordiv(-a, -n)
    # Terms that n divides come out whole; the constant leaves what lies below n; (g*a + c)//(g*m) is (a + c//g)//m.
    whole: _Poly = {}
    exact: Size = 0
    rest: _Poly = {}
    for monomial, coefficient in a.terms:
        if coefficient % n == 0 or not monomial:
            whole[monomial] = coefficient // n
            rest[monomial] = coefficient % n
        elif coefficient * math.prod(x.factor for x in monomial) % n == 0:
            exact = exact + _exact_call(monomial, coefficient, n)
        else:
            rest[monomial] = coefficient
    constant = rest.pop((), 0)
    common = math.gcd(n, *rest.values())
    n //= common
    inner = _size({m: c // common for m, c in rest.items()} | {(): constant // common})
    return _size(whole) + exact + _floordiv_last(inner, n)


def _exact_call(monomial: Monomial, coefficient: int, n: int) -> Size:
    """coefficient * monomial // n, where n divides the product but not the coefficient."""
    common = math.gcd(coefficient, n)
    return _call("floordiv", _size({monomial: coefficient // common}), n // common)


def _floordiv_last(a: Size, n: int) -> Size:
    """a // n, for n > 0, once no term of a is a multiple of n."""
    if isinstance(a, int) or n == 1:
        return a // n
    lo, hi = a.range
    if interval.is_finite((lo, hi)) and lo // n == hi // n:
        return int(lo // n)
    head, factor = a.terms[0]
    nested = head[0] if len(head) == 1 and factor == 1 else None
    if isinstance(nested, Call) and nested.op == "floordiv" and (len(a.terms) == 1 or (len(a.terms) == 2 and not a.terms[1][0])):
        inner, k = nested.args
        if isinstance(k, int):  # (inner//k + c)//n is (inner + c*k)//(k*n)
            offset = a.terms[1][1] if len(a.terms) == 2 else 0
            return (inner + offset * k) // (k * n)
    return _call("floordiv", a, n)


def mod(a: Size, b: Size) -> Size:
    if isinstance(b, int):
        return a % b if isinstance(a, int) else _mod_int(a, b)
    if quotient(a, b) is not None:
        return 0
    _, a = _split(a, b)
    if provably_le(0, a) and provably_lt(a, b):
        return a
    return _call("mod", a, b)


def _mod_int(a: Dim, n: int) -> Size:
    if n == 0:
        raise ZeroDivisionError(f"{a} % 0")
    if n < 0:
        return -((-a) % -n)
    rest: Size = 0
    for monomial, coefficient in a.terms:
        inner = _unwrapped(monomial, coefficient, n)
        if inner is not None:
            return mod(a - _size({monomial: coefficient}) + coefficient * inner, n)
        if coefficient * math.prod(x.factor for x in monomial) % n:
            rest = rest + _size({monomial: coefficient})
    if isinstance(rest, int):
        return rest % n
    small = _size({m: c % n for m, c in rest.terms})
    for candidate in (rest, small):
        lo, hi = range_of(candidate)
        if interval.is_finite((lo, hi)) and lo // n == hi // n:
            return candidate - int(lo // n) * n
    poly = _poly(small)
    constant = poly.pop((), 0)
    common = math.gcd(n, *poly.values())
    if common == 1:
        return _call("mod", small, n)
    # (g*a + c) % (g*m) is g*((a + c//g) % m) + c % g
    return (
        common * mod(_size({m: c // common for m, c in poly.items()} | {(): constant // common}), n // common) + constant % common
    )


def _unwrapped(monomial: Monomial, coefficient: int, n: int) -> Size | None:
    """x, where the term is coefficient * (x % m) and, modulo n, that is coefficient * x."""
    if len(monomial) != 1 or not isinstance(monomial[0], Call) or monomial[0].op != "mod":
        return None
    x, m = monomial[0].args
    return x if isinstance(m, int) and coefficient * m % n == 0 else None


def _split(a: Size, b: Dim) -> tuple[_Poly, Size]:
    """a as whole * b + rest, for a single-term b: the terms of a that b divides, and the others."""
    if len(b.terms) > 1:
        return {}, a
    head, factor = b.terms[0]
    whole: _Poly = {}
    rest: _Poly = {}
    for monomial, coefficient in _poly(a).items():
        quotient = _without(monomial, head)
        if quotient is None or coefficient % factor:
            rest[monomial] = coefficient
        else:
            whole[quotient] = coefficient // factor
    return whole, _size(rest)


def _reduced(a: Size, b: Dim) -> tuple[Size, Size] | None:
    """a and b without the integer and the atoms that every term of both shares, and b's first coefficient positive.

    None where that changes nothing. A shared atom is not zero, or the division were one by zero.
    """
    left = [m for m, _ in (*_poly(a).items(), *b.terms)]
    for atom in b.terms[-1][0]:
        without = [_without(m, (atom,)) for m in left]
        left = [m for m in without if m is not None] if None not in without else left
    common = math.gcd(*(c for _, c in (*_poly(a).items(), *b.terms)))
    common = -common if b.terms[0][1] < 0 else common
    if common == 1 and len(left[-1]) == len(b.terms[-1][0]):
        return None
    n = len(left) - len(b.terms)
    coefficients = [c // common for _, c in (*_poly(a).items(), *b.terms)]
    return _size(dict(zip(left[:n], coefficients[:n], strict=True))), _size(dict(zip(left[n:], coefficients[n:], strict=True)))


def extreme(op: str, sizes: tuple[Size, ...]) -> Size:
    flat: list[Size] = []
    for size in sizes:
        atom = _single(size)
        flat += atom.args if isinstance(atom, Call) and atom.op == op else (size,)
    kept: list[Size] = []
    for size in dict.fromkeys(flat):
        if any(_decided(op, other, size) for other in kept):
            continue
        kept = [other for other in kept if not _decided(op, size, other)] + [size]
    if not kept:
        raise ValueError(f"{op} of no sizes")
    return kept[0] if len(kept) == 1 else _call(op, *sorted(kept, key=str))


def _decided(op: str, winner: Size, other: Size) -> bool:
    return provably_le(winner, other) if op == "min" else provably_le(other, winner)


def _single(size: Size) -> Atom | None:
    """The atom that the size consists of, if it is only one."""
    if isinstance(size, int) or len(size.terms) > 1:
        return None
    monomial, coefficient = size.terms[0]
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def _call(op: str, *args: Size) -> Dim:
    return Dim((((Call(op, args),), 1),))


# Bounds.


def range_of(size: Size) -> Range:
    return (size, size) if isinstance(size, int) else size.range


def _terms_range(terms: tuple[tuple[Monomial, int], ...]) -> Range:
    lo: Bound = 0
    hi: Bound = 0
    for monomial, coefficient in terms:
        term: Range = (coefficient, coefficient)
        for atom in dict.fromkeys(monomial):
            term = interval.times(term, interval.power(atom.range, monomial.count(atom)))
        lo, hi = lo + term[0], hi + term[1]
    return lo, hi


def _call_range(op: str, args: tuple[Size, ...]) -> Range:
    ranges = [range_of(a) for a in args]
    match op:
        case "min":
            return interval.minimum(*ranges)
        case "max":
            return interval.maximum(*ranges)
        case "floordiv":
            return interval.floordiv(*ranges)
    return interval.mod(*ranges)


def _call_factor(op: str, args: tuple[Size, ...]) -> int:
    """An integer known to divide the value of the call; 0, which all divide, counts as 1."""
    factors = [divisor(a) for a in args]
    if op == "floordiv":
        n = args[1]
        return factors[0] // abs(n) if isinstance(n, int) and factors[0] % n == 0 else 1
    return math.gcd(*factors) or 1


def least(size: Size, depth: int = 3) -> Bound:
    """A lower bound of the size. Where intervals alone give none, an atom is replaced by what bounds it:
    n*(a//n) <= a, a % n <= a, min(a, b) <= a, max(a, b) >= a."""
    lo = range_of(size)[0]
    if isinstance(size, int) or lo >= 0 or depth == 0:
        return lo
    for monomial, coefficient in size.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Call):
            continue
        rest = size - _size({monomial: coefficient})
        for scale, replacement in _relaxed(monomial[0], coefficient):
            bound = least(scale * rest + coefficient * replacement, depth - 1)
            lo = max(lo, bound if math.isinf(bound) else -(-bound // scale))
    return lo


def _relaxed(atom: Call, sign: int) -> list[tuple[int, Size]]:
    """Pairs (scale > 0, size) with sign * scale * atom >= sign * size."""
    if atom.op == "min":
        return [(1, a) for a in atom.args] if sign < 0 else []
    if atom.op == "max":
        return [(1, a) for a in atom.args] if sign > 0 else []
    a, n = atom.args
    if not isinstance(n, int):
        return []
    if atom.op == "floordiv":
        return [(n, a if sign < 0 else a - (n - 1))]
    return [(1, a)] if sign < 0 and range_of(a)[0] >= 0 else []


# Text.


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    parts: list[str] = []
    for i, (monomial, coefficient) in enumerate(terms):
        sign = ("-" if coefficient < 0 else "") if i == 0 else (" - " if coefficient < 0 else " + ")
        factors = [] if abs(coefficient) == 1 and monomial else [str(abs(coefficient))]
        alone = len(monomial) == 1 and not factors and coefficient > 0
        factors += [a.text if alone or not _needs_parentheses(a) else f"({a.text})" for a in monomial]
        parts.append(sign + "*".join(factors))
    return "".join(parts)


def _needs_parentheses(atom: Atom) -> bool:
    return isinstance(atom, Call) and atom.op in ("floordiv", "mod")


def _call_text(op: str, args: tuple[Size, ...]) -> str:
    if op in ("min", "max"):
        return f"{op}({', '.join(map(str, args))})"
    x, y = (str(a) if str(a).isidentifier() or str(a).isdigit() else f"({a})" for a in args)
    return f"{x}//{y}" if op == "floordiv" else f"{x} % {y}"
