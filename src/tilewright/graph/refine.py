"""What the assumptions of a recording say of its sizes, and its graph in those terms.

In: the `Symbols` of a recording that is over. Out: `Refined`: each symbol as a number, as a size of others, or with the bounds
and the divisor that it was assumed to have; what is assumed beside that. Must not know where a size comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..base import dims
from ..base.dims import Dim, Size
from ..base.polynomial import Atom, Call
from .ir import Alias, Effect, Graph, InputAttrs, Node, Output, TensorType, TupleType, make, reachable
from .ops.rules import field_names
from .symbolic import Assumption, Symbols, known

Sizes = Mapping[str, Size]


@dataclass(frozen=True)
class Refined:
    """`sizes`: what stands for each symbol. `hints`: those left, in order. `beside`: assumptions that `sizes` leave open."""

    sizes: Sizes
    hints: tuple[tuple[str, int], ...]
    beside: tuple[Assumption, ...]

    @property
    def symbols(self) -> list[dims.Symbol]:
        """The symbols that are left, with what is known of them."""
        return [s for name, _ in self.hints for s in dims.symbols(self.sizes[name])]

    def size(self, size: Size) -> Size:
        return dims.substitute(size, self.sizes)


def refine(symbols: Symbols) -> Refined:
    """Raises ValueError where the assumptions exclude one another."""
    equal = _solved(symbols.assumed)
    facts = {s.name: _Facts(s) for size in symbols.sizes.values() for s in dims.symbols(size) if s.name not in equal}
    given = [Assumption(a.op, dims.substitute(a.left, equal), dims.substitute(a.right, equal), a.holds) for a in symbols.assumed]
    for a in given:
        _learn(facts, a)
    left = {name: f.symbol() for name, f in facts.items()}
    sizes = {name: dims.substitute(equal[name], left) if name in equal else left[name] for name in symbols.hints}
    beside = []
    for a in given:
        a = Assumption(a.op, dims.substitute(a.left, left), dims.substitute(a.right, left), a.holds)
        if known(a.op, a.left, a.right) is not a.holds:
            beside.append(a)
    hints = tuple((name, hint) for name, hint in symbols.hints.items() if name in left)
    return Refined(sizes, hints, tuple(dict.fromkeys(beside)))


def applied(graph: Graph, refined: Refined) -> Graph:
    """The graph, with the sizes put for its symbols. Raises ValueError where an operator does not admit them."""
    value = _substitution(refined.sizes)
    new: dict[Node, Node] = {}
    roots = [*graph.inputs, *(o.node for o in graph.outputs), *(e.node for e in graph.effects)]
    for n in reachable(roots):
        attrs = n.attrs
        values = {f: value(getattr(attrs, f)) for f in field_names(attrs)}
        new[n] = make(n.op, tuple([new[a] for a in n.args]), type(attrs)(**values))
    outputs = tuple(
        Output(new[o.node], value(o.strides), o.alias and Alias(o.alias.of, o.alias.index, value(o.alias.offset)))
        for o in graph.outputs
    )
    effects = tuple(Effect(e.index, new[e.node]) for e in graph.effects)
    inputs = tuple(new[n] for n in graph.inputs)
    return Graph(inputs, outputs, value(graph.strides), effects, graph.constraints, refined.hints)


def _substitution(sizes: Sizes) -> Callable[[Any], Any]:
    def value(v: Any) -> Any:
        if isinstance(v, Dim):
            return dims.substitute(v, sizes)
        if isinstance(v, tuple):
            return tuple([value(x) for x in v])
        if isinstance(v, TensorType):
            return TensorType(v.dtype, value(v.shape))
        if isinstance(v, TupleType):
            return TupleType(value(v.items))
        if isinstance(v, InputAttrs):
            return InputAttrs(v.index, v.name, v.kind, value(v.type))
        return v

    return value


# --- equalities -------------------------------------------------------------------------------------------------------


def _solved(assumed: Iterable[Assumption]) -> dict[str, Size]:
    """Symbols as sizes of others, from the equalities that are linear in one."""
    equal: dict[str, Size] = {}
    for a in assumed:
        if a.op != "==" or not a.holds:
            continue
        solution = _solve(_reduced(dims.substitute(a.left - a.right, equal)))
        if solution is not None:
            name, size = solution
            equal = {n: dims.substitute(s, {name: size}) for n, s in equal.items()}
            equal[name] = size
    return equal


def _reduced(e: Size) -> Size:
    """Of the same sign, without factors that are positive."""
    if isinstance(e, int):
        return e
    scale = dims.common(e)
    if isinstance(scale, int) or not dims.provably_gt(scale, 0):
        return e
    reduced = dims.quotient(e, scale)
    return e if reduced is None else reduced


def _solve(e: Size) -> tuple[str, Size] | None:
    """A symbol, the last if there are several, and the size that it has where `e` is 0."""
    for s in sorted(dims.symbols(e), key=lambda s: (len(s.name), s.name), reverse=True):
        c = _coefficient(e, s)
        if not c:
            continue
        rest = e - s.dim * c
        if s not in dims.symbols(rest):
            size = dims.quotient(-rest, c)
            if size is not None:
                return s.name, size
    return None


def _coefficient(e: Size, s: dims.Symbol) -> int:
    """Of the symbol, alone."""
    return 0 if isinstance(e, int) else next((c for m, c in e.terms if m == (s,)), 0)


# --- bounds and divisors ----------------------------------------------------------------------------------------------


class _Facts:
    """What is known of a symbol."""

    def __init__(self, s: dims.Symbol) -> None:
        self.name, self.lo, self.hi, self.divisor = s.name, s.lo, s.hi, s.divisor

    def symbol(self) -> Dim:
        return dims.symbol(self.name, self.lo, self.hi, self.divisor)


def _learn(facts: dict[str, _Facts], a: Assumption) -> None:
    if a.op == "==":
        if a.holds:
            _learn_divisor(facts, a.left - a.right)
        return
    low, high = (a.left, a.right) if a.holds else (a.right, a.left)
    e = _reduced(high - low - ((a.op == "<") == a.holds))  # not negative
    found = dims.symbols(e)
    if len(found) != 1 or isinstance(e, int):
        return
    s, f = found[0], facts[found[0].name]
    c = _coefficient(e, s)
    rest = e - s.dim * c
    if not c or not isinstance(rest, int):
        return
    if c > 0:
        least = -(rest // c)
        f.lo = least if f.lo is None else max(f.lo, least)
    else:
        most = rest // -c
        f.hi = most if f.hi is None else min(f.hi, most)


def _learn_divisor(facts: dict[str, _Facts], e: Size) -> None:
    """From `e` = 0, which says that an integer divides a symbol."""
    if isinstance(e, int):
        return
    for name, factor in _rounded_factors(e):
        facts[name].divisor = math.lcm(facts[name].divisor, factor)
    for monomial, _ in e.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Call) or monomial[0].op not in ("mod", "floordiv"):
            continue
        x, n = monomial[0].args
        rounded = _rounds_up(e, monomial[0])
        if rounded is not None:
            facts[rounded].divisor = math.lcm(facts[rounded].divisor, cast(int, n))
            return
        if not isinstance(n, int) or n < 2 or isinstance(x, int) or len(x.terms) != 1 or len(x.terms[0][0]) != 1:
            continue
        atom, scale = x.terms[0][0][0], x.terms[0][1]
        if isinstance(atom, dims.Symbol) and _is_multiple(e, x - n * (x // n), x % n):
            f = facts[atom.name]
            f.divisor = math.lcm(f.divisor, n // math.gcd(n, scale))
            return


def _rounded_factors(e: Dim) -> list[tuple[str, int]]:
    """(s, n), (t, m) of `e` = c*(s*t - n*(s//n)*m*(t//m)), which says that n divides s, and m divides t: no factor is greater on
    the right, and all are positive."""
    for monomial, _ in e.terms:
        found: list[tuple[str, int]] = []
        full: Size = 1
        low: Size = 1
        for atom in monomial:
            x, n = atom.args if isinstance(atom, Call) and atom.op == "floordiv" else (_alone(atom), 1)
            names = dims.symbols(x)
            if len(names) != 1 or names[0].dim is not x or not isinstance(n, int) or not dims.provably_gt(x, 0):
                break
            full, low = full * x, low * n * (x // n)
            found += [(names[0].name, n)] if n > 1 else []
        else:
            if len(found) > 1 and full is not low and isinstance(dims.quotient(e, full - low), int):
                return found
    return []


def _alone(atom: Atom) -> Size:
    return atom.dim if isinstance(atom, dims.Symbol) else 0


def _rounds_up(e: Size, call: Call) -> str | None:
    """The symbol s of `e` = c*(n*((s + r)//n) - s), which says that n divides it, for 0 <= r < n."""
    x, n = call.args
    found = dims.symbols(x)
    if call.op != "floordiv" or len(found) != 1 or not isinstance(n, int):
        return None
    s, rest = found[0], x - found[0].dim
    fits = isinstance(rest, int) and 0 < rest < n
    return s.name if fits and isinstance(dims.quotient(e, n * (x // n) - s.dim), int) else None


def _is_multiple(e: Size, rest: Size, remainder: Size) -> bool:
    """Whether `e` is the remainder of a division, in either form, up to a number as factor."""
    return any(not isinstance(r, int) and isinstance(dims.quotient(e, r), int) for r in (rest, remainder))
