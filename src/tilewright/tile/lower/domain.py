"""The iteration space of a kernel: dimensions split so that indices are affine, then merged again where memory allows.

In: a group and a probe that evaluates what its kernel computes. Out: a `Domain` on which the probe asks for no more splits,
and the axes that loops run over. Must not know statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...base.dims import Size, quotient
from ...base.scalar import Expr, Var
from ...graph.ir import Node
from ..fuse import Group
from ..hints import Hints
from .emit import Axis, fits
from .space import ZERO, Affine, Index, Space, row_major

MOST_SPLITS = 12
MOST_BOXES = 8


@dataclass(eq=False)
class Domain:
    """`dims[i]`: the variables (with extents) that dimension i of the group's shape is split into, outermost first.

    `index`: the members' indices over these variables; `start` of a variable is not zero in a box cut from its range.
    """

    space: Space
    dims: list[list[tuple[Var, Size]]]
    domain: Index
    index: dict[Node, Index]

    @property
    def vars(self) -> list[tuple[Var, Size]]:
        return [v for dim in self.dims for v in dim]

    def own_axes(self) -> list[Axis]:
        """One axis a variable, standing for itself."""
        return [Axis((v,), (e,), v) for v, e in self.vars]


Run = list[tuple[Var, Size]]
Factors = list[list[Size]]


def build(group: Group, factors: Factors) -> Domain:
    """The group's indices with dimension i split into `factors[i]`."""
    space = Space()
    dims: list[Run] = []
    domain: list[Affine] = []
    for i, parts in enumerate(factors):
        loops = [space.loop(f"d{i}" if len(parts) == 1 else f"d{i}_{k}", e) for k, e in enumerate(parts)]
        dims.append([(v, e) for a, e in zip(loops, parts, strict=True) if a.terms and isinstance(v := a.terms[0][0], Var)])
        domain.append(space.linear(loops, row_major(parts)))
    env: dict[Expr, Affine] = {d.terms[0][0]: new for d, new in zip(group.domain, domain, strict=True) if d.terms}
    identity = dict(zip(group.domain, domain, strict=True))
    index: dict[Node, Index] = {}
    for m, at in group.index.items():
        index[m] = tuple(identity[a] if a in identity and a.terms else space.substitute(a, group.space, env) for a in at)
    return Domain(space, dims, tuple(domain), index)


def refined(group: Group, probe: Callable[[Domain], object]) -> Domain:
    """The coarsest domain on which the indices that `probe` computes are affine, as far as splitting can make them so."""
    factors: Factors = [[s] for s in group.shape]
    domain = build(group, factors)
    for _ in range(MOST_SPLITS):
        probe(domain)
        if not _split(domain, factors):
            break
        domain = build(group, factors)
    return domain


def _split(domain: Domain, factors: Factors) -> bool:
    """Apply one request for every variable; whether there was any."""
    wanted: dict[Var, Size] = {}
    for v, inner in domain.space.splits:
        wanted.setdefault(v, inner)
    for i, dim in enumerate(domain.dims):
        if any(v in wanted for v, _ in dim):
            factors[i] = [f for v, e in dim for f in (_parts(e, wanted[v]) if v in wanted else (e,))]
    return bool(wanted)


def _parts(extent: Size, inner: Size) -> tuple[Size, Size]:
    outer = quotient(extent, inner)
    assert outer is not None  # or it had not been asked for
    return outer, inner


def merged(variables: Sequence[tuple[Var, Size]], forms: Iterable[Affine], alone: Iterable[Var] = ()) -> list[Run]:
    """Runs of adjacent variables over which every form counts as over one; those in `alone` stay single."""
    runs: list[Run] = []
    forms, alone = list(forms), set(alone)
    for v, e in variables:
        if runs and v not in alone and runs[-1][-1][0] not in alone:
            candidate = [*runs[-1], (v, e)]
            extents = [n for _, n in candidate]
            if all(fits([f.coefficient(u) for u, _ in candidate], extents) for f in forms):
                runs[-1] = candidate
                continue
        runs.append([(v, e)])
    return runs


def by_stride(variables: Sequence[tuple[Var, Size]], store: Affine, hints: Hints) -> Run:
    """The variables in the order of memory of a store, outermost first; those it does not step in come first."""
    return sorted(variables, key=lambda v: (store.coefficient(v[0]) != 0, -abs(hints(store.coefficient(v[0])))))


def extent(run: Sequence[tuple[Var, Size]]) -> Size:
    return math.prod(e for _, e in run)


def axis(run: Sequence[tuple[Var, Size]], expr: Expr, parts: tuple[Expr, ...] | None = None) -> Axis:
    return Axis(tuple([v for v, _ in run]), tuple([e for _, e in run]), expr, parts)


def cut_axis(run: Sequence[tuple[Var, Size]], expr: Expr, start: Size, size: Size) -> Axis:
    """The axis of a single variable that runs over `size` values from `start` on."""
    return Axis((run[0][0],), (size,), expr, None, start)


Box = dict[Var, tuple[Size, Size]]


def boxes(cuts: dict[Var, list[Size]], extents: dict[Var, Size]) -> list[Box]:
    """The boxes that cutting each variable at its points, which ascend, makes: variable -> (first, extent). Empty cuts give
    one box."""
    found: list[Box] = [{}]
    for v, points in cuts.items():
        edges = [0, *points, extents[v]]
        found = [{**box, v: (low, high - low)} for box in found for low, high in zip(edges, edges[1:])]
    return found


__all__ = ["ZERO", "Box", "Domain", "Run", "axis", "boxes", "build", "by_stride", "cut_axis", "extent", "merged", "refined"]
