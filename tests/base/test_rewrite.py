"""The rewrite engine on a toy language of arithmetic."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from tilewright.base import errors
from tilewright.base.interned import Interned
from tilewright.base.rewrite import P, Rewriter, Rule, Table, V, match, matches, rewrite


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Term(metaclass=Interned):
    op: str
    args: tuple[Term, ...] = ()
    value: int = 0

    def __repr__(self) -> str:
        return (
            f"{self.op}({', '.join(map(repr, self.args))})" if self.args else (str(self.value) if self.op == "const" else self.op)
        )


class Arithmetic:
    def op(self, node: Term) -> str:
        return node.op

    def args(self, node: Term) -> tuple[Term, ...]:
        return node.args

    def rebuild(self, node: Term, args: tuple[Term, ...]) -> Term:
        return Term(node.op, args, node.value)

    def commutes(self, op: object) -> bool:
        return op in ("add", "mul")


LANGUAGE = Arithmetic()


def const(value: int) -> Term:
    return Term("const", (), value)


def add(*args: Term) -> Term:
    return Term("add", args)


def mul(x: Term, y: Term) -> Term:
    return Term("mul", (x, y))


def neg(x: Term) -> Term:
    return Term("neg", (x,))


A, B, C = Term("a"), Term("b"), Term("c")
x, y = V("x"), V("y")
number, other = V("m", where=lambda n: n.op == "const"), V("n", where=lambda n: n.op == "const")

RULES = Table(
    [
        Rule("fold", P(("add", "mul"), number, other, name="root"), lambda root, m, n: folded(root.op, m.value, n.value)),
        Rule("add_zero", P("add", x, P("const", where=lambda n: n.value == 0)), lambda x: x),
        Rule("mul_one", P("mul", x, P("const", where=lambda n: n.value == 1)), lambda x: x),
        Rule("mul_zero", P("mul", x, P("const", where=lambda n: n.value == 0)), lambda: const(0)),
        Rule("neg_neg", P("neg", P("neg", x)), lambda x: x),
        Rule("add_neg", P("add", x, P("neg", x)), lambda x: const(0)),
        Rule("factor", P("add", P("mul", x, y), P("mul", x, V("z"))), lambda x, y, z: mul(x, add(y, z))),
    ]
)


def folded(op: str, m: int, n: int) -> Term:
    return const(m + n if op == "add" else m * n)


def simplified(term: Term) -> Term:
    return rewrite(RULES, [term], LANGUAGE)[0]


@pytest.mark.parametrize(
    ("term", "result"),
    [
        (add(A, const(0)), A),
        (add(const(0), A), A),  # commuted
        (add(const(2), const(3)), const(5)),
        (mul(add(A, const(0)), add(const(0), const(1))), A),  # below, then above
        (neg(neg(neg(A))), neg(A)),
        (add(neg(add(A, B)), add(A, B)), const(0)),  # the same capture twice
        (add(mul(A, B), mul(A, C)), mul(A, add(B, C))),
        (add(mul(B, A), mul(C, A)), mul(A, add(B, C))),  # both operands commuted
        (add(mul(A, B), mul(A, neg(B))), const(0)),  # what a rule makes is rewritten too
        (add(mul(A, B), mul(C, C)), add(mul(A, B), mul(C, C))),
        (A, A),
    ],
)
def test_rewrites(term: Term, result: Term) -> None:
    assert simplified(term) is result


def value(term: Term, env: dict[str, int]) -> int:
    args = [value(a, env) for a in term.args]
    match term.op:
        case "const":
            return term.value
        case "add":
            return sum(args)
        case "mul":
            return args[0] * args[1]
        case "neg":
            return -args[0]
    return env[term.op]


def test_random_terms_keep_their_value_and_reach_a_fixpoint() -> None:
    rng = random.Random(0)
    env = {"a": 3, "b": -5, "c": 7}
    for _ in range(300):
        pool = [A, B, C, const(0), const(1), const(2)]
        for _ in range(12):
            op = rng.choice(("add", "mul", "neg"))
            pool.append(Term(op, tuple(rng.choice(pool) for _ in range(1 if op == "neg" else 2))))
        result = simplified(pool[-1])
        assert value(result, env) == value(pool[-1], env)
        assert simplified(result) is result


def test_every_way_to_match_is_tried() -> None:
    ways = list(matches(P("add", P("mul", x, y), V("z")), add(mul(A, B), mul(C, A)), LANGUAGE))
    assert [(w["x"], w["y"], w["z"]) for w in ways] == [
        (A, B, mul(C, A)),
        (B, A, mul(C, A)),
        (C, A, mul(A, B)),
        (A, C, mul(A, B)),
    ]
    takes_b = Rule("takes_b", P("add", x, y), lambda x, y: y if x is B else None)  # declines the first way
    assert rewrite(Table([takes_b]), [add(A, B)], LANGUAGE) == [A]


def test_patterns() -> None:
    assert match(P("add", x, ...), add(A, B, C), LANGUAGE) == {"x": A}
    assert match(P("add", x, y), add(A, B, C), LANGUAGE) is None
    assert match(P("add"), add(A, B, C), LANGUAGE) == {}
    assert match(P("neg", P("add", x, y, name="sum"), name="root"), neg(add(A, B)), LANGUAGE) == {
        "root": neg(add(A, B)),
        "sum": add(A, B),
        "x": A,
        "y": B,
    }
    assert match(P("sub", x, y), add(A, B), LANGUAGE) is None
    assert match(V("x", where=lambda n: n is A), B, LANGUAGE) is None
    with pytest.raises(ValueError, match="last"):
        P("add", ..., x)


def test_rules_are_checked_when_written() -> None:
    with pytest.raises(ValueError, match="captures no z"):
        Rule("bad", P("add", x, y), lambda x, z: x)
    rule = Rule("same", P("neg", x), lambda x: None)
    with pytest.raises(ValueError, match="named 'same'"):
        Table([rule]) + Table([rule])


def test_rules_apply_in_the_order_of_the_table() -> None:
    to_a, to_b = Rule("to_a", P("neg", x), lambda: A), Rule("to_b", V("x", where=lambda n: n.op == "neg"), lambda: B)
    assert rewrite(Table([to_a, to_b]), [neg(C)], LANGUAGE) == [A]
    assert rewrite(Table([to_b]) + Table([to_a]), [neg(C)], LANGUAGE) == [B]


def test_shared_nodes_are_rewritten_once() -> None:
    steps: list[str] = []
    term = neg(neg(A))
    for _ in range(40):  # a tree of 2**40 leaves, 41 nodes
        term = add(term, term)
    rewrite(RULES, [term, term], LANGUAGE, trace=lambda rule, before, after: steps.append(f"{rule}: {before} -> {after}"))
    assert steps == ["neg_neg: neg(neg(a)) -> a"]


def test_a_rewriter_remembers() -> None:
    run = Rewriter(RULES, LANGUAGE)
    assert run(add(neg(neg(A)), B)) is add(A, B)
    assert run(mul(neg(neg(A)), B)) is mul(A, B)
    assert run.applied == {"neg_neg": 1} and run.steps == 1


@pytest.mark.parametrize(
    ("rules", "blamed", "why"),
    [
        ([Rule("swap", P("add", x, y), lambda x, y: add(y, x))], "swap", "back"),
        (
            [Rule("there", P("neg", x), lambda x: mul(x, const(-1))), Rule("back", P("mul", x, y), lambda x, y: neg(x))],
            "back",
            "back",
        ),
        ([Rule("wrap", P("add", x, y, name="root"), lambda root: Term("neg", (root,)))], "wrap", "itself"),
        ([Rule("grow", P("add", x, y), lambda x, y: add(neg(x), y))], "grow", "more than 500 steps"),
    ],
)
def test_endless_rules_are_named(rules: list[Rule[Term]], blamed: str, why: str) -> None:
    term = neg(A) if blamed == "back" else neg(add(A, B))
    with pytest.raises(errors.StepLimit, match=why) as caught:
        rewrite(Table(rules), [term], LANGUAGE, limit=500)
    assert caught.value.fields["rule"] == blamed


def test_deep_terms_need_no_stack() -> None:
    term = A
    for _ in range(20_000):
        term = add(term, const(0))
    assert simplified(term) is A


def test_speed() -> None:
    """A few thousand nodes, as large models have, take milliseconds; the bound is generous for busy machines."""
    rng = random.Random(1)
    pool = [A, B, C, const(1)]
    while len(pool) < 4000:
        op = rng.choice(("add", "mul", "neg"))
        pool.append(Term(op, tuple(rng.choice(pool[-50:]) for _ in range(1 if op == "neg" else 2))))
    start = time.perf_counter()
    rewrite(RULES, pool, LANGUAGE)
    assert time.perf_counter() - start < 2.0
