"""The rewrite engine: tables of (pattern, function) rows, applied bottom-up until none applies.

In: a table, root nodes, and a `Language` that says what a node is made of. Out: the rewritten roots. Works on any IR whose
equal nodes are one object (interned), in time linear in the number of distinct nodes and steps. Must not know any IR.

    Pattern = P(op, Pattern..., name=, where=)    -- one node; a tuple as op is alternatives; a last `...` takes further operands
            | V(name, where=)                     -- any node, captured; the same name twice must be the same node
    Rule    = name, Pattern, function(captures by name) -> node | None (declines)

    x, y = V("x"), V("y")
    Rule("add_neg", P(ADD, x, P(NEG, y)), lambda x, y: SUB(x, y))

Operands of an operator that the language calls commutative match in either order. Rules are tried in the order of the table.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import Generic, Protocol, TypeAlias, TypeVar

from . import config
from .errors import StepLimit

N = TypeVar("N", bound=Hashable)


class Language(Protocol[N]):
    """How the engine sees an IR."""

    def op(self, node: N) -> Hashable:
        """What a pattern's op is compared with."""

    def args(self, node: N) -> tuple[N, ...]:
        """The operands."""

    def rebuild(self, node: N, args: tuple[N, ...]) -> N:
        """The same operator over other operands."""

    def commutes(self, op: Hashable) -> bool:
        """Whether the two operands may be exchanged."""


@dataclass(frozen=True)
class V:
    """Matches any node for which `where` holds, and captures it under a name."""

    name: str
    where: Callable[..., bool] | None = None


@dataclass(frozen=True, init=False)
class P:
    """Matches a node by operator and operands. Without operands given, any will do."""

    ops: tuple[Hashable, ...]
    args: tuple[Pattern, ...] | None
    rest: bool  # further operands may follow
    name: str | None
    where: Callable[..., bool] | None

    def __init__(
        self,
        op: Hashable,
        *args: Pattern | EllipsisType,
        name: str | None = None,
        where: Callable[..., bool] | None = None,
    ) -> None:
        rest = bool(args) and args[-1] is ...
        patterns = tuple(a for a in args if not isinstance(a, EllipsisType))
        if len(patterns) + rest != len(args):
            raise ValueError("`...` can only be a pattern's last operand")
        object.__setattr__(self, "ops", op if isinstance(op, tuple) else (op,))
        object.__setattr__(self, "args", patterns if args else None)
        object.__setattr__(self, "rest", rest)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "where", where)


Pattern: TypeAlias = P | V
Captures: TypeAlias = dict[str, N]
Trace: TypeAlias = Callable[[str, N, N], None]
"""Told of each step: the rule's name, the node before, the node after."""


class Rule(Generic[N]):
    """A row. `function` takes the captures as keyword arguments, those that it names, and gives a node or None."""

    def __init__(self, name: str, pattern: Pattern, function: Callable[..., N | None]) -> None:
        self.name = name
        self.pattern = pattern
        self.function = function
        wanted = tuple(inspect.signature(function).parameters)
        unknown = set(wanted) - capture_names(pattern)
        if unknown:
            raise ValueError(f"rule {name!r}: the pattern captures no {', '.join(sorted(unknown))}")
        self._wanted = wanted

    def apply(self, node: N, language: Language[N]) -> N | None:
        """What the rule makes of a node: of the first way to match it that the function does not decline."""
        for found in matches(self.pattern, node, language):
            result = self.function(**{name: found[name] for name in self._wanted})
            if result is not None and result is not node:
                return result
        return None

    def __repr__(self) -> str:
        return f"Rule({self.name!r})"


class Table(Generic[N]):
    """Rules in order, found by the operator of the node they apply to. Tables add up with `+`."""

    def __init__(self, rules: Iterable[Rule[N]]) -> None:
        self.rules = tuple(rules)
        self._by_ops: dict[tuple[Hashable, tuple[Hashable, ...]], tuple[Rule[N], ...]] = {}
        repeated = [name for name, n in Counter(r.name for r in self.rules).items() if n > 1]
        if repeated:
            raise ValueError(f"two rules are named {repeated[0]!r}")

    def __add__(self, other: Table[N]) -> Table[N]:
        return Table((*self.rules, *other.rules))

    def rules_for(self, op: Hashable, operands: tuple[Hashable, ...]) -> tuple[Rule[N], ...]:
        """The rules that may match a node with this operator over operands with those: few, so most nodes cost one look-up."""
        key = (op, operands)
        found = self._by_ops.get(key)
        if found is None:
            found = tuple(r for r in self.rules if _may_match(r.pattern, op, operands))
            self._by_ops[key] = found
        return found


def _may_match(pattern: Pattern, op: Hashable, operands: tuple[Hashable, ...]) -> bool:
    """Whether operators and number of operands admit a match; an operand's place is not looked at."""
    if isinstance(pattern, V):
        return True
    if op not in pattern.ops:
        return False
    if pattern.args is None:
        return True
    if len(operands) < len(pattern.args) or (len(operands) > len(pattern.args) and not pattern.rest):
        return False
    return all(isinstance(a, V) or any(o in a.ops for o in operands) for a in pattern.args)


def capture_names(pattern: Pattern) -> set[str]:
    if isinstance(pattern, V):
        return {pattern.name}
    names = set().union(*map(capture_names, pattern.args or ()))
    return names | {pattern.name} if pattern.name else names


def match(pattern: Pattern, node: N, language: Language[N]) -> Captures[N] | None:
    """The captures of the first way to match, or None."""
    return next(matches(pattern, node, language), None)


def matches(pattern: Pattern, node: N, language: Language[N]) -> Iterator[Captures[N]]:
    """The captures of each way to match; several where operators commute."""
    if isinstance(pattern, P) and language.op(node) not in pattern.ops:
        return iter(())
    return _matches(((pattern, node),), {}, language)


def _matches(todo: tuple[tuple[Pattern, N], ...], found: Captures[N], language: Language[N]) -> Iterator[Captures[N]]:
    """Match the pairs in `todo`, the last first, extending `found`; alternatives are tried by backtracking."""
    if not todo:
        yield found
        return
    pattern, node = todo[-1]
    if isinstance(pattern, P) and language.op(node) not in pattern.ops:
        return
    if pattern.name is not None:
        if found.get(pattern.name, node) is not node:
            return
        found = {**found, pattern.name: node}
    if pattern.where is not None and not pattern.where(node):
        return
    rest = todo[:-1]
    if isinstance(pattern, V) or pattern.args is None:
        yield from _matches(rest, found, language)
        return
    args = language.args(node)
    n = len(pattern.args)
    if len(args) != n and not (pattern.rest and len(args) > n):
        return
    pairs = tuple(zip(pattern.args, args, strict=False))
    yield from _matches(rest + pairs[::-1], found, language)
    if n == 2 and len(args) == 2 and args[0] is not args[1] and language.commutes(language.op(node)):
        yield from _matches((*rest, (pattern.args[1], args[0]), (pattern.args[0], args[1])), found, language)


class Rewriter(Generic[N]):
    """A table applied to nodes of one language. What was rewritten once is remembered over calls.

    `limit` is the number of steps after which the table counts as looping (None: the setting `TW_STEP_LIMIT`); `trace` is
    told of each step.
    """

    def __init__(self, table: Table[N], language: Language[N], limit: int | None = None, trace: Trace[N] | None = None) -> None:
        self.table = table
        self.language = language
        self.limit = config.get().step_limit if limit is None else limit
        self.trace = trace
        self.applied: Counter[str] = Counter()
        self._final: dict[N, N] = {}
        self._next: dict[N, N] = {}  # node -> what it became; not final yet
        self.steps = 0
        self._last = ""  # the rule applied last

    def __call__(self, root: N) -> N:
        """The root rewritten: no rule applies to it or to anything below it.

        Operands are finished before the operator over them is looked at. Raises StepLimit, naming the rule, for rules that
        lead back to a node under way or go on past the limit.
        """
        todo = [root]
        while todo:
            node = todo[-1]
            if node in self._final:
                todo.pop()
                continue
            successor = self._next.get(node)
            if successor is None:
                successor = self._begin(node, todo)
                if successor is None:
                    continue
                self._next[node] = successor
            if successor in self._final:
                self._final[node] = self._final[successor]
                del self._next[node]
                todo.pop()
            elif successor in self._next:
                raise self._endless("it leads back to where it came from")
            else:
                todo.append(successor)
        return self._final[root]

    def _begin(self, node: N, todo: list[N]) -> N | None:
        """What the node becomes in one step; None if it is final, or if operands, put on `todo`, must be finished first."""
        args = self.language.args(node)
        missing = [a for a in args if a not in self._final]
        if missing:
            if any(a in self._next for a in missing):
                raise self._endless("it puts a node into itself")
            todo += reversed(missing)
            return None
        new = tuple([self._final[a] for a in args])
        if any(a is not b for a, b in zip(args, new, strict=True)):
            rebuilt = self.language.rebuild(node, new)
            if rebuilt is not node:
                return rebuilt
        op = self.language.op
        for rule in self.table.rules_for(op(node), tuple(map(op, new))):
            result = rule.apply(node, self.language)
            if result is not None:
                self._count(rule, node, result)
                return result
        self._final[node] = node
        return None

    def _count(self, rule: Rule[N], before: N, after: N) -> None:
        self.applied[rule.name] += 1
        self.steps += 1
        self._last = rule.name
        if self.trace is not None:
            self.trace(rule.name, before, after)
        if self.steps > self.limit:
            self._last = self.applied.most_common(1)[0][0]
            raise self._endless(f"more than {self.limit} steps")

    def _endless(self, reason: str) -> StepLimit:
        self._next.clear()
        return StepLimit(reason=reason, rule=self._last, count=self.applied[self._last])


def rewrite(
    table: Table[N], roots: Iterable[N], language: Language[N], limit: int | None = None, trace: Trace[N] | None = None
) -> list[N]:
    """The roots rewritten by one `Rewriter`."""
    run = Rewriter(table, language, limit, trace)
    return [run(r) for r in roots]
