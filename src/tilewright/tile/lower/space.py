"""Index arithmetic for lowering: affine forms over loop variables with known ranges.

In: the extents of a kernel's loops. Out: `Affine` indices on which division and remainder by sizes disappear wherever
the ranges allow it; where they do not, the `Space` notes which loop variable, split or cut at which point, would allow it.
Sizes may be symbolic: extents, coefficients and constants are `Size`s, and only what holds for every value of the symbols counts.
Must not know nodes, buffers or statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ...base import dims
from ...base.dims import Size, provably_le, provably_lt, quotient, to_expr
from ...base.scalar import Expr, Var, var
from ...graph.ir import Node


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + sum of coefficient * atom`. An atom is a loop variable or any other integer expression. Terms are in the order
    in which the atoms entered their space, so that equal forms of one space are equal objects by value."""

    terms: tuple[tuple[Expr, Size], ...]
    const: Size = 0

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, atom: Expr) -> Size:
        return next((c for a, c in self.terms if a is atom), 0)

    def expr(self) -> Expr:
        total: Expr | None = None
        for atom, c in self.terms:
            part = atom if c == 1 else atom * to_expr(c)
            total = part if total is None else total + part
        if total is None:
            return to_expr(self.const)
        return total + to_expr(self.const) if self.const != 0 else total


Index = tuple[Affine, ...]
ZERO = Affine((), 0)


def constant(value: Size) -> Affine:
    return Affine((), value)


class Space:
    """Loop variables, their ranges, and the requests made of them.

    `splits` holds (variable, inner extent) pairs and `cuts` (variable, position) pairs that would have simplified an index.
    """

    def __init__(self) -> None:
        self.vars: dict[Var, Size] = {}
        self.bounds: dict[Expr, tuple[Size, Size]] = {}  # inclusive
        self.rank: dict[Expr, int] = {}
        self.splits: dict[tuple[Var, Size], None] = {}
        self.cuts: dict[tuple[Var, Size], None] = {}
        self.origin: dict[Expr, tuple[Affine, Size, int]] = {}  # atom -> (dividend, divisor, 0 quotient or 1 remainder)
        self.remainder: dict[Expr, Expr] = {}  # the atom of a quotient -> the atom of the remainder

    def loop(self, name: str, extent: Size) -> Affine:
        """A new loop variable in [0, extent); one of extent 1 is the constant zero."""
        if extent == 1:
            return ZERO
        v = var(name)
        self.vars[v] = extent
        return self.atom(v, 0, extent - 1 if extent != 0 else 0)

    def atom(self, e: Expr, low: Size, high: Size) -> Affine:
        self.rank.setdefault(e, len(self.rank))
        self.bounds[e] = (low, high)
        return Affine(((e, 1),))

    def narrowed(self, v: Var, low: Size, high: Size) -> Space:
        """The same space where `v` is known to lie in [low, high], without requests."""
        new = Space()
        new.vars, new.rank, new.bounds = dict(self.vars), dict(self.rank), dict(self.bounds)
        new.origin, new.remainder = dict(self.origin), dict(self.remainder)
        new.bounds[v] = (low, high)
        return new

    def range(self, a: Affine) -> tuple[Size, Size]:
        low = high = a.const
        for atom, c in a.terms:
            lo, hi = self.bounds[atom]
            one, other = c * lo, c * hi
            if not isinstance(c, int):
                one, other = dims.minimum(one, other), dims.maximum(one, other)
            elif c < 0:
                one, other = other, one
            low, high = low + one, high + other
        return low, high

    def add(self, a: Affine, b: Affine) -> Affine:
        if not a.terms:
            return Affine(b.terms, a.const + b.const)
        if not b.terms:
            return Affine(a.terms, a.const + b.const)
        total = dict(a.terms)
        for atom, c in b.terms:
            total[atom] = total.get(atom, 0) + c
        terms = sorted([(t, c) for t, c in total.items() if c != 0], key=lambda p: self.rank[p[0]])
        result = Affine(tuple(terms), a.const + b.const)
        return self._recombined(result) if self.remainder else result

    def _recombined(self, a: Affine) -> Affine:
        """Quotients and remainders of one division that make up the dividend again."""
        for q, c in a.terms:
            r = self.remainder.get(q)
            if r is None:
                continue
            dividend, d, _ = self.origin[q]
            times = quotient(c, d)
            if times is not None and times == a.coefficient(r):
                rest = Affine(tuple([(t, k) for t, k in a.terms if t is not q and t is not r]), a.const)
                return self.add(rest, self.scale(dividend, times))
        return a

    def scale(self, a: Affine, factor: Size, shift: Size = 0) -> Affine:
        if factor == 0:
            return constant(shift)
        return Affine(tuple((t, c * factor) for t, c in a.terms), a.const * factor + shift)

    def linear(self, index: Iterable[Affine], strides: Iterable[Size], offset: Size = 0) -> Affine:
        """`offset + sum of index * stride`."""
        total = constant(offset)
        for i, s in zip(index, strides, strict=True):
            total = self.add(total, self.scale(i, s))
        return total

    def divmod(self, a: Affine, d: Size) -> tuple[Affine, Affine]:
        """Quotient (rounded down) and remainder of `a` by a size `d` that is positive wherever there are elements."""
        whole, left = [], []
        for t, c in a.terms:
            times = quotient(c, d)
            if times is None:
                left.append((t, c))
            else:
                whole.append((t, times))
        first, last = dims.divided(a.const, d)
        exact, rest = Affine(tuple(whole), first), Affine(tuple(left), last)
        low, high = self.range(rest)
        if provably_le(0, low) and provably_lt(high, d):
            return exact, rest
        smaller = self._reduced(rest, d)
        if smaller is not None:
            return self.add(exact, smaller[0]), smaller[1]
        self._request_split(rest, d)
        e, by = rest.expr(), divisor_expr(d)
        quotient_atom, remainder_atom = e // by, e % by
        self.origin[quotient_atom], self.origin[remainder_atom] = (rest, d, 0), (rest, d, 1)
        self.remainder[quotient_atom] = remainder_atom
        q = self.atom(quotient_atom, low // d, high // d)
        return self.add(exact, q), self.atom(remainder_atom, 0, d - 1)

    def _reduced(self, rest: Affine, d: Size) -> tuple[Affine, Affine] | None:
        """`divmod(rest, d)` by way of a smaller division, where `d` and all coefficients have a common factor."""
        g = dims.common(d, *(c for _, c in rest.terms))
        if g == 1 or g == 0 or not provably_le(1, g):
            return None
        over, under = dims.divided(rest.const, g)
        if not (provably_le(0, under) and provably_lt(under, g)):
            return None
        small = Affine(tuple([(t, _exactly(c, g)) for t, c in rest.terms]), over)
        q, r = self.divmod(small, _exactly(d, g))
        return q, self.scale(r, g, under)

    def substitute(self, a: Affine, source: Space, env: Mapping[Expr, Affine]) -> Affine:
        """`a` of another space, over this one's variables: `env` gives each of its loop variables."""
        total = constant(a.const)
        for atom, c in a.terms:
            found = env.get(atom)
            if found is None:
                rest, d, which = source.origin[atom]
                found = self.divmod(self.substitute(rest, source, env), d)[which]
            total = self.add(total, self.scale(found, c))
        return total

    def _request_split(self, rest: Affine, d: Size) -> None:
        for atom, c in rest.terms:
            if not isinstance(atom, Var) or atom not in self.vars:
                continue
            inner = quotient(d, c)
            if inner is None or not provably_lt(1, inner):
                continue
            outer = quotient(self.vars[atom], inner)
            if outer is not None and outer != 0 and outer != 1:
                self.splits[atom, inner] = None

    def request_cut(self, a: Affine, point: Size) -> bool:
        """Ask that loops be cut where `a` passes `point`; False where `a` is no single variable with a shift."""
        if len(a.terms) != 1 or a.terms[0][1] != 1:
            return False
        v = a.terms[0][0]
        if not isinstance(v, Var) or v not in self.vars:
            return False
        self.cuts[v, point - a.const] = None
        return True


def _exactly(a: Size, b: Size) -> Size:
    """a / b, where b is known to divide a."""
    found = quotient(a, b)
    assert found is not None
    return found


def divisor_expr(d: Size) -> Expr:
    """A divisor in code. Where it may be zero, which is then where nothing is to be computed, it still must not trap."""
    return to_expr(at_least_one(d))


def at_least_one(d: Size) -> Size:
    """The size, or 1 where there is nothing to compute with it."""
    return d if provably_le(1, d) else dims.maximum(d, 1)


def shape_of(n: Node) -> tuple[Size, ...]:
    """The node's shape."""
    return n.shape


def static(*sizes: Size) -> tuple[int, ...]:
    """Sizes as numbers. Raises ValueError for a symbolic one."""
    for s in sizes:
        if not isinstance(s, int):
            raise ValueError(f"a constant size is needed here, not {s}")
    return cast("tuple[int, ...]", sizes)


def row_major(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Strides of a contiguous array."""
    strides: list[Size] = []
    step: Size = 1
    for s in reversed(shape):
        strides.append(step)
        step = step * s if s != 0 else step
    return tuple(reversed(strides))


def matched_groups(a: Sequence[Size], b: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes of one size, paired in the smallest groups of equal product. Dimensions of 1 are left out.

    Shapes without elements have no groups: no index into them matters. Where products are not known to be equal, the rest of
    both shapes is one group.
    """
    if 0 in a or 0 in b:
        return []
    left = [i for i, s in enumerate(a) if s != 1]
    right = [i for i, s in enumerate(b) if s != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        p, q, li, rj = a[left[i]], b[right[j]], [left[i]], [right[j]]
        i, j = i + 1, j + 1
        while p != q and (i < len(left) or j < len(right)):
            if j == len(right) or (i < len(left) and _is_behind(p, q)):
                li.append(left[i])
                p, i = p * a[left[i]], i + 1
            else:
                rj.append(right[j])
                q, j = q * b[right[j]], j + 1
        groups.append((li, rj))
    if groups:
        groups[-1][0].extend(left[i:])
        groups[-1][1].extend(right[j:])
    return groups


def _is_behind(p: Size, q: Size) -> bool:
    """Whether the first of two products of leading dimensions is to grow until both are equal."""
    if isinstance(p, int) and isinstance(q, int):
        return p < q
    return quotient(p, q) is None  # where q divides p it is q that must grow


def reshape_index(space: Space, index: Index, source: Sequence[Size], target: Sequence[Size]) -> Index:
    """The index into `target` of the element at `index` of `source`, both row-major and of one size."""
    out = [ZERO] * len(target)
    for src, dst in matched_groups(source, target):
        if len(src) == 1 and len(dst) == 1:
            out[dst[0]] = index[src[0]]
            continue
        strides = row_major([source[i] for i in src])
        position = space.linear([index[i] for i in src], strides)
        for j in reversed(dst[1:]):
            position, out[j] = space.divmod(position, target[j])
        out[dst[0]] = position
    return tuple(out)
