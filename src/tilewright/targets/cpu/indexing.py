"""What can be known of an index expression before any code exists: its linear form, its bounds, its step between lanes.

In: integer expressions, and facts about variables. Out: numbers and linear forms. Must not know LLVM or statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...base import interval, scalar
from ...base.interval import Range
from ...base.scalar import Binary, Cast, Const, Expr, Select, Var
from ...tile.ir import Buffer, Load

UNKNOWN: Range = (-math.inf, math.inf)
_MAKES_RANGE: dict[str, Callable[[Range, Range], Range]] = {
    "floordiv": interval.floordiv, "mod": interval.mod, "min": lambda a, b: interval.minimum(a, b),
    "max": lambda a, b: interval.maximum(a, b), "mul": interval.times,
}  # fmt: skip


@dataclass(frozen=True)
class Linear:
    """const + sum of factor * atom; an atom is a variable or an expression that is not linear itself. Factors are not 0."""

    const: int
    terms: Mapping[Expr, int] = field(default_factory=dict)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        if factor == 0:
            return self
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            total = terms.get(atom, 0) + c * factor
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(self.const + factor * other.const, terms)

    def times(self, factor: int) -> Linear:
        return Linear(0).plus(self, factor)


class Facts:
    """What holds for the variables in scope: ranges, and how they run along the lanes.

    `lane` is the variable that runs along the lanes of vectors, `lanes` their number; the variable's value in lane 0 is
    then a multiple of `lanes`. `varying` are other variables whose values differ between lanes in no known way.
    """

    def __init__(self) -> None:
        self.ranges: dict[Var, Range] = {}
        self.ends: dict[Var, Expr] = {}  # what variables stay below, where that is no number
        self.lane: Var | None = None
        self.lanes = 1
        self.varying: set[Var] = set()
        self._variables: dict[Expr, frozenset[Var]] = {}
        self._buffers: dict[Expr, frozenset[Buffer]] = {}
        self._linear: dict[Expr, Linear] = {}
        self._lasting: dict[Expr, Linear] = {}  # those that no range can simplify
        self._addresses: dict[Expr, Linear] = {}
        self._steps: dict[Buffer, tuple[int | Expr, ...]] = {}
        self._divides: dict[Expr, bool] = {}
        self._bounds: dict[Expr, Range] = {}

    def changed(self) -> None:
        """Forget what was derived from facts that no longer hold. To be called after any field is changed."""
        self._linear.clear()
        self._addresses.clear()
        self._bounds.clear()

    def variables(self, e: Expr) -> frozenset[Var]:
        """The variables below `e`, those in indices of loads included."""
        found = self._variables.get(e)
        if found is None:
            found = frozenset((e,)) if isinstance(e, Var) else frozenset().union(*map(self.variables, scalar.children(e)))
            self._variables[e] = found
        return found

    def buffers(self, e: Expr) -> frozenset[Buffer]:
        """The buffers that `e` reads."""
        found = self._buffers.get(e)
        if found is None:
            found = frozenset().union(*map(self.buffers, scalar.children(e)))
            if isinstance(e, Load):
                found |= {e.buffer}
            self._buffers[e] = found
        return found

    def is_uniform(self, e: Expr) -> bool:
        """Whether `e` has one value in all lanes as far as its variables go."""
        variables = self.variables(e)
        return self.lane not in variables and self.varying.isdisjoint(variables)

    def linear(self, e: Expr) -> Linear:
        known = self._lasting.get(e) or self._linear.get(e)
        if known is None:
            known = self._as_linear(e)
            (self._linear if self._has_division(e) else self._lasting)[e] = known
        return known

    def _has_division(self, e: Expr) -> bool:
        found = self._divides.get(e)
        if found is None:
            found = isinstance(e, Binary) and e.op in ("floordiv", "mod")
            found = self._divides[e] = found or any(map(self._has_division, scalar.children(e)))
        return found

    def _as_linear(self, e: Expr) -> Linear:
        match e:
            case Const(value, _):
                return Linear(int(value))
            case Var():
                return Linear(0, {e: 1})
            case Binary("add", x, y):
                return self.linear(x).plus(self.linear(y))
            case Binary("sub", x, y):
                return self.linear(x).plus(self.linear(y), -1)
            case Binary("mul", x, y):
                a, b = self.linear(x), self.linear(y)
                if not a.terms:
                    return b.times(a.const)
                if not b.terms:
                    return a.times(b.const)
            case Binary("floordiv" | "mod" as op, x, y):
                b = self.linear(y)
                if not b.terms and b.const > 0:
                    return self._divided(e, op, self.linear(x), b.const)
        return Linear(0, {e: 1})

    def _divided(self, e: Expr, op: str, x: Linear, c: int) -> Linear:
        """x // c or x % c, by parts: what c divides exactly, and a rest within [0, c)."""
        whole = Linear(x.const // c * c, {a: k for a, k in x.terms.items() if k % c == 0})
        rest = x.plus(whole, -1)
        low, high = self.range(rest)
        if low < 0 or high >= c:
            return Linear(0, {e: 1})
        return rest if op == "mod" else Linear(whole.const // c, {a: k // c for a, k in whole.terms.items()})

    def bounds(self, e: Expr) -> Range:
        """Between what `e` lies; infinities where nothing is known."""
        return self.range(self.linear(e))

    def range(self, x: Linear) -> Range:
        """Between what a linear form lies."""
        low: float = x.const
        high: float = x.const
        for atom, c in x.terms.items():
            r = self._atom_range(atom)
            low += interval.times(r, (c, c))[0]
            high += interval.times(r, (c, c))[1]
        return low, high

    def _atom_range(self, e: Expr) -> Range:
        known = self._bounds.get(e)
        if known is None:
            known = self._bounds[e] = self._range_of(e)
        return known

    def _range_of(self, e: Expr) -> Range:
        match e:
            case Var():
                return self.ranges.get(e, UNKNOWN)
            case Binary("floordiv" | "mod" as op, x, y):
                by = self.bounds(y)
                return UNKNOWN if by[0] <= 0 <= by[1] else _MAKES_RANGE[op](self.bounds(x), by)
            case Binary("min" | "max" | "mul" as op, x, y):
                return _MAKES_RANGE[op](self.bounds(x), self.bounds(y))
            case Select(_, x, y):
                a, b = self.bounds(x), self.bounds(y)
                return min(a[0], b[0]), max(a[1], b[1])
            case Cast(x, _) if x.dtype.kind == "bool":
                return 0, 1
            case Cast(x, _) if x.dtype.is_integer and x.dtype.bytes < 8:
                size = 1 << x.dtype.bits
                return (0, size - 1) if x.dtype.kind == "uint" else (-size // 2, size // 2 - 1)
        return UNKNOWN

    def divisor(self, x: Linear) -> int:
        """The largest number known to divide the value that `x` has in lane 0 (0 divides by everything)."""
        result = abs(x.const)
        for atom, c in x.terms.items():
            known = 1
            if atom is self.lane:
                known = self.lanes
            elif isinstance(atom, Binary) and atom.op == "mod":
                known = math.gcd(self.divisor(self.linear(atom.x)), self.divisor(self.linear(atom.y)))
            result = math.gcd(result, abs(c) * known)
        return result

    def step(self, x: Linear) -> int | None:
        """By how much `x` grows from lane to lane, or None where that is not one number."""
        total = 0
        for atom, c in x.terms.items():
            s = self._atom_step(atom)
            if s is None:
                return None
            total += c * s
        return total

    def _atom_step(self, e: Expr) -> int | None:
        if e is self.lane:
            return 1
        if self.is_uniform(e):
            return 0
        if isinstance(e, Binary) and e.op in ("floordiv", "mod"):
            x, y = self.linear(e.x), self.linear(e.y)
            s = self.step(x)
            if s is None or s < 0 or y.terms or y.const <= 0:
                return None
            room = math.gcd(self.divisor(x), y.const)
            if (self.lanes - 1) * s < room:
                return s if e.op == "mod" else 0
        return None

    def is_below(self, index: Expr, size: Expr) -> bool:
        """Whether index < size surely holds: by numbers, or because the index ends at a symbolic size."""
        room = self.linear(size).plus(self.linear(index), -1)
        if self.range(room)[0] >= 1:
            return True
        for v, end in self.ends.items():
            c = room.terms.get(v, 0)
            if c < 0:  # it is least where v is greatest
                room = room.plus(Linear(1, {v: 1}), -c).plus(self.linear(end), c)
                if self.range(room)[0] >= 1:
                    return True
        return False

    def address(self, buffer: Buffer, index: Sequence[Expr]) -> Linear:
        """Where an element lives, in elements from the buffer's base."""
        key = Load(buffer, tuple(index))
        known = self._addresses.get(key)
        if known is None:
            known = self._addresses[key] = self._address(buffer, index)
        return known

    def _address(self, buffer: Buffer, index: Sequence[Expr]) -> Linear:
        if buffer.layout is not None:
            layout = buffer.layout
            return self.linear(scalar.substitute(layout.address, dict(zip(layout.vars, index, strict=True))))
        steps = self._steps.get(buffer)
        if steps is None:
            steps = tuple(int(s.value) if isinstance(s, Const) else s for s in buffer.steps())
            self._steps[buffer] = steps
        total = Linear(0)
        for i, step in zip(index, steps, strict=True):
            total = total.plus(self.linear(i), step) if isinstance(step, int) else total.plus(self.linear(i * step))
        return total
