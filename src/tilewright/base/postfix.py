"""Sizes as programs of the native guards.

In: a `Size`, and the number of each symbol among a call's sizes. Out: a tuple in postfix: ints, "$k" for size k, and
operators, as native/sizes.c reads it. Must not know guards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from .dims import Size
from .polynomial import Atom, Call, Symbol

Program: TypeAlias = tuple[int | str, ...]

_OPERATORS = {"floordiv": "//", "mod": "%", "min": "min", "max": "max"}


def postfix(size: Size, numbers: Mapping[str, int]) -> Program:
    """The program that computes `size`. Raises KeyError for a symbol without a number."""
    if isinstance(size, int):
        return (size,)
    program: list[int | str] = []
    for k, (monomial, coefficient) in enumerate(size.terms):
        product: list[int | str] = []
        for atom in monomial:
            product += [*_atom(atom, numbers), *(["*"] if product else [])]
        if not product:
            product = [coefficient]
        elif coefficient != 1:
            product += [coefficient, "*"]
        program += [*product, *(["+"] if k else [])]
    return tuple(program)


def _atom(atom: Atom, numbers: Mapping[str, int]) -> Program:
    if isinstance(atom, Symbol):
        return (f"${numbers[atom.name]}",)
    assert isinstance(atom, Call)
    first, *rest = (postfix(a, numbers) for a in atom.args)
    return (*first, *(x for part in rest for x in (*part, _OPERATORS[atom.op])))
