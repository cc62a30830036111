"""Tile kernels that users write, as operators: one row, whose attribute is the kernel's text.

In: the text of a kernel of the tile IR, what each of its parameters is, the values of its sizes. Out: `kernel` nodes. Must not
know the tile IR: what runs a kernel outside of a compiled graph is set by the layer that can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...base.dims import Size
from ..ir import Attrs, Family, Node, Op, TupleType, Type
from .rules import require, tensor

ROLES = ("in", "out", "inout")


@dataclass(frozen=True)
class KernelAttrs(Attrs):
    """`text`: the kernel's. `roles`, one a parameter: read ("in"), made ("out"), or updated ("inout": an operand and a result).
    `scalars`: its run-time sizes. `type`: of the results, those parameters that are made or updated, in order, row-major.
    """

    text: str
    roles: tuple[str, ...]
    scalars: tuple[Size, ...]
    type: Type


def _infer(attrs: KernelAttrs, *types: Type) -> Type:
    for t in types:
        tensor(t)
    require(set(attrs.roles) <= set(ROLES), f"roles: {', '.join(ROLES)} expected, got {attrs.roles}")
    operands, results = (sum(r in kinds for r in attrs.roles) for kinds in (("in", "inout"), ("out", "inout")))
    require(operands == len(types), f"{operands} operands expected, got {len(types)}")
    made = len(attrs.type.items) if isinstance(attrs.type, TupleType) else 1
    require(results == made, f"{results} results expected, got types of {made}")
    return attrs.type


@dataclass(frozen=True)
class Operator:
    """A kernel as a torch operator.

    `node(operands)` gives the nodes of its results, of made parameters in the order of the call's result, then of updated ones.
    `updated`: the numbers of those among the operator's arguments. `check(tensors)` raises the error that a call with such
    tensors raises.
    """

    node: Callable[[Sequence[Node]], tuple[list[Node], list[Node]]]
    updated: tuple[int, ...]
    check: Callable[[Sequence[torch.Tensor]], None]


OPERATORS: dict[str, Operator] = {}
"""By the operator's name: "tilewright.name.default"."""

Runner = Callable[[KernelAttrs, Sequence[torch.Tensor]], Any]
_RUNNERS: list[Runner] = []


def run_by(runner: Runner) -> None:
    """Set what runs a kernel on tensors: a result, or a tuple of them."""
    _RUNNERS[:] = [runner]


def _eager(attrs: KernelAttrs, *tensors: torch.Tensor) -> Any:
    if not _RUNNERS:
        raise RuntimeError("nothing is set that runs kernels: import tilewright.dispatch")
    return _RUNNERS[0](attrs, tensors)


KERNEL = Op("kernel", Family.KERNEL, _infer, _eager, KernelAttrs)

ROWS = (KERNEL,)
