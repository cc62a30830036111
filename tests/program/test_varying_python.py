"""Python that uses an int that varies, or a size: what it gives is eager's, down to types, and no symbol is left in it."""

from __future__ import annotations

import collections
import functools
import warnings

import pytest
import torch

import tilewright as tw


@functools.lru_cache
def kept(n):
    return n * 2


Named = collections.namedtuple("Named", "n")


class Thing:
    pass


def matched(n):
    match n:
        case 5:
            return "five"
        case int(k) if k > 8:
            return k
        case _:
            return "other"


def attributes(n):
    o = Thing()
    o.n = n
    o.__dict__["m"] = n + 1
    return vars(o)


def grouped(n):
    d = collections.defaultdict(list)
    d[n].append(2)
    return d


def a_set(n):
    s = {5, 7}
    s.add(n)
    s.discard(7)
    s.update([n + 1])
    return sorted(s)


def a_dict(n):
    d = {1: 1}
    d.update({n: 3})
    d.setdefault(n + 1, []).append(1)
    return d


EXPRESSIONS = (
    "{n, 3}", "{n + k for k in range(2)}", "set([n, n, 3])", "frozenset((n, 4))", "n in {5, 7}", "{n: 1, n + 1: 2}",
    "{k * n: k for k in range(2)}", "dict([(n, 2)])", "dict(zip([n, n + 1], [1, 2]))", "{7: 1, 5: 2}.get(n, 9)",
    "{7: 1, 5: 2, 9: 1}.pop(n, 3)", "hash(n)", "hash((n, 1))", "{(n, 1): 2}", "(n, 1) in {(5, 1), (7, 1)}",
    "collections.Counter([n, n, 2])", "kept(n)", "dict.fromkeys([n], 1)", "{1} | {n}", "grouped(n)", "a_set(n)", "a_dict(n)",
    "(str(n), repr(n), f'{n:>4}', '%d' % n, '{}'.format(n), ','.join(map(str, [n])), list(map('{}'.format, [n])))",
    "[1] * n", "list(range(20))[n : n + 2]", "divmod(n, 3)", "(n << 1, n >> 1, n & 3, n | 8, n ^ 1, ~n, -n, abs(n), +n)",
    "(round(n), int(n), float(n), complex(n), bool(n), n.bit_length(), n.__index__(), n.real)", "sorted([n, 3, 9])",
    "(sum([n, 1]), max(n, 3), min([n, 4]), any([n]), all([n]))", "(isinstance(n, int), type(n) is int, type(n), n.__class__)",
    "Named(n)", "list(enumerate([n], n))", "(n**2, 2**n, pow(n, 2, 5), n / 2, n // 2, n % 3)", "n**0.5", "(n / 2) ** 0.5",
    "matched(n)", "format(n, 'x') + hex(n) + bin(n) + chr(n + 60)", "n.to_bytes(2, 'big')", "torch.Size([n, 2])",
    "attributes(n)",
)  # fmt: skip
NUMBERS = 5, 7, 9, 12, 8


def has_symbol(v):
    if isinstance(v, dict):
        return any(map(has_symbol, [*v.keys(), *v.values()]))
    if isinstance(v, list | tuple | set | frozenset):
        return any(map(has_symbol, v))
    return isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool)


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize("of_a_size", [False, True], ids=["int", "size"])
def test_as_eager(text, of_a_size):
    f = eval(f"lambda x, n: {text.replace(chr(10), ' ')}", globals())
    g = (lambda x, n: f(x, x.shape[0])) if of_a_size else f
    fast = tw.compile(g)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in NUMBERS:
            x = torch.ones(n if of_a_size else 3)
            want, got = g(x, n), fast(x, n)
            assert got == want and type(got) is type(want) and repr(got) == repr(want) and not has_symbol(got)


def test_containers_from_outside():
    class Keep:
        def __init__(self):
            self.seen, self.table, self.order = set(), {}, []

    def f(x, k, n):
        k.seen.add(n)
        k.table.setdefault(n, 0)
        k.table[n + 1] = n
        k.order.append(n)
        k.seen.discard(7)
        k.table.pop(9, None)
        return n in k.seen, k.table.get(n)

    fast, mine, theirs = tw.compile(f), Keep(), Keep()
    for n in NUMBERS:
        assert fast(torch.ones(2), mine, n) == f(torch.ones(2), theirs, n)
        assert vars(mine) == vars(theirs) and not has_symbol(vars(mine))
