"""Index arithmetic for lowering: affine forms over loop variables with known ranges.

In: the extents of a kernel's loops. Out: `Affine` indices on which division and remainder by constants disappear wherever
the ranges allow it; where they do not, the `Space` notes which loop variable, split or cut at which point, would allow it.
Must not know nodes, buffers or statements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ...base.dims import Size
from ...base.scalar import Expr, Var, const, var
from ...graph.ir import Node


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + sum of coefficient * atom`. An atom is a loop variable or any other integer expression. Terms are in the order
    in which the atoms entered their space, so that equal forms of one space are equal objects by value."""

    terms: tuple[tuple[Expr, int], ...]
    const: int = 0

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, atom: Expr) -> int:
        return next((c for a, c in self.terms if a is atom), 0)

    def expr(self) -> Expr:
        total: Expr | None = None
        for atom, c in self.terms:
            part = atom if c == 1 else atom * const(c)
            total = part if total is None else total + part
        if total is None:
            return const(self.const)
        return total + const(self.const) if self.const else total


Index = tuple[Affine, ...]
ZERO = Affine((), 0)


def constant(value: int) -> Affine:
    return Affine((), value)


class Space:
    """Loop variables, their ranges, and the requests made of them.

    `splits` holds (variable, inner extent) pairs and `cuts` (variable, position) pairs that would have simplified an index.
    """

    def __init__(self) -> None:
        self.vars: dict[Var, int] = {}
        self.bounds: dict[Expr, tuple[int, int]] = {}  # inclusive
        self.rank: dict[Expr, int] = {}
        self.splits: dict[tuple[Var, int], None] = {}
        self.cuts: dict[tuple[Var, int], None] = {}
        self.origin: dict[Expr, tuple[Affine, int, int]] = {}  # atom -> (dividend, divisor, 0 quotient or 1 remainder)
        self.remainder: dict[Expr, Expr] = {}  # the atom of a quotient -> the atom of the remainder

    def loop(self, name: str, extent: int) -> Affine:
        """A new loop variable in [0, extent); one of extent 1 is the constant zero."""
        if extent == 1:
            return ZERO
        v = var(name)
        self.vars[v] = extent
        return self.atom(v, 0, max(extent - 1, 0))

    def atom(self, e: Expr, low: int, high: int) -> Affine:
        self.rank.setdefault(e, len(self.rank))
        self.bounds[e] = (low, high)
        return Affine(((e, 1),))

    def narrowed(self, v: Var, low: int, high: int) -> Space:
        """The same space where `v` is known to lie in [low, high], without requests."""
        new = Space()
        new.vars, new.rank, new.bounds = dict(self.vars), dict(self.rank), dict(self.bounds)
        new.origin, new.remainder = dict(self.origin), dict(self.remainder)
        new.bounds[v] = (low, high)
        return new

    def range(self, a: Affine) -> tuple[int, int]:
        low = high = a.const
        for atom, c in a.terms:
            lo, hi = self.bounds[atom]
            low += c * (lo if c > 0 else hi)
            high += c * (hi if c > 0 else lo)
        return low, high

    def add(self, a: Affine, b: Affine) -> Affine:
        if not a.terms:
            return Affine(b.terms, a.const + b.const)
        if not b.terms:
            return Affine(a.terms, a.const + b.const)
        total = dict(a.terms)
        for atom, c in b.terms:
            total[atom] = total.get(atom, 0) + c
        terms = sorted([(t, c) for t, c in total.items() if c], key=lambda p: self.rank[p[0]])
        result = Affine(tuple(terms), a.const + b.const)
        return self._recombined(result) if self.remainder else result

    def _recombined(self, a: Affine) -> Affine:
        """Quotients and remainders of one division that make up the dividend again."""
        for q, c in a.terms:
            r = self.remainder.get(q)
            if r is None:
                continue
            dividend, d, _ = self.origin[q]
            if c % d == 0 and c // d == a.coefficient(r):
                rest = Affine(tuple([(t, k) for t, k in a.terms if t is not q and t is not r]), a.const)
                return self.add(rest, self.scale(dividend, c // d))
        return a

    def scale(self, a: Affine, factor: int, shift: int = 0) -> Affine:
        if factor == 0:
            return constant(shift)
        return Affine(tuple((t, c * factor) for t, c in a.terms), a.const * factor + shift)

    def linear(self, index: Iterable[Affine], strides: Iterable[int], offset: int = 0) -> Affine:
        """`offset + sum of index * stride`."""
        total = constant(offset)
        for i, s in zip(index, strides, strict=True):
            total = self.add(total, self.scale(i, s))
        return total

    def divmod(self, a: Affine, d: int) -> tuple[Affine, Affine]:
        """Quotient (rounded down) and remainder of `a` by the positive constant `d`."""
        whole = tuple((t, c // d) for t, c in a.terms if c % d == 0)
        rest = Affine(tuple((t, c) for t, c in a.terms if c % d), a.const % d)
        quotient = Affine(whole, a.const // d)
        low, high = self.range(rest)
        if 0 <= low and high < d:
            return quotient, rest
        g = math.gcd(d, *(c for _, c in rest.terms))
        if g > 1:
            small = Affine(tuple((t, c // g) for t, c in rest.terms), rest.const // g)
            q, r = self.divmod(small, d // g)
            return self.add(quotient, q), self.scale(r, g, rest.const % g)
        self._request_split(rest, d)
        e = rest.expr()
        quotient_atom, remainder_atom = e // const(d), e % const(d)
        self.origin[quotient_atom], self.origin[remainder_atom] = (rest, d, 0), (rest, d, 1)
        self.remainder[quotient_atom] = remainder_atom
        q = self.atom(quotient_atom, low // d, high // d)
        return self.add(quotient, q), self.atom(remainder_atom, 0, d - 1)

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

    def _request_split(self, rest: Affine, d: int) -> None:
        for atom, c in rest.terms:
            if not isinstance(atom, Var) or atom not in self.vars or c <= 0 or d % c:
                continue
            extent = self.vars[atom]
            inner = d // c
            if 1 < inner < extent and extent % inner == 0:
                self.splits[atom, inner] = None

    def request_cut(self, a: Affine, point: int) -> bool:
        """Ask that loops be cut where `a` passes `point`; False where `a` is no single variable with a shift."""
        if len(a.terms) != 1 or a.terms[0][1] != 1:
            return False
        v = a.terms[0][0]
        if not isinstance(v, Var) or v not in self.vars:
            return False
        self.cuts[v, point - a.const] = None
        return True


def shape_of(n: Node) -> tuple[int, ...]:
    """The node's shape; `lower` has refused symbolic sizes before any template runs."""
    return cast("tuple[int, ...]", n.shape)


def static(*sizes: Size) -> tuple[int, ...]:
    """Sizes as numbers. Raises ValueError for a symbolic one."""
    for s in sizes:
        if not isinstance(s, int):
            raise ValueError(f"lowering wants constant sizes, not {s}")
    return cast("tuple[int, ...]", sizes)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    strides, step = [], 1
    for s in reversed(shape):
        strides.append(step)
        step *= max(s, 1)
    return tuple(reversed(strides))


def matched_groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes of one size, paired in the smallest groups of equal product. Dimensions of 1 are left out.

    Shapes without elements have no groups: no index into them matters.
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
        while p != q:
            if p < q:
                li.append(left[i])
                p, i = p * a[left[i]], i + 1
            else:
                rj.append(right[j])
                q, j = q * b[right[j]], j + 1
        groups.append((li, rj))
    return groups


def reshape_index(space: Space, index: Index, source: Sequence[int], target: Sequence[int]) -> Index:
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
