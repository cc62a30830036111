"""What every template is given and what it gives back.

In: a machine, the nodes in memory, where results go. Out: `Lowered`, a kernel and what its parameters are bound to.
Must not know particular templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...graph.ir import Family, Node
from ..fuse import Group
from ..ir import Buffer, Expr, Kernel, Stmt, Var
from ..program import Value
from ..schedule import Machine
from .emit import Binding, Params


@dataclass
class Context:
    """`values` are read, `targets` (members of the group at hand) are written."""

    machine: Machine
    values: Mapping[Node, Value]
    targets: Mapping[Node, Value]


@dataclass(frozen=True)
class Lowered:
    kernel: Kernel
    bindings: tuple[Binding, ...]


@dataclass
class Draft:
    """A kernel being put together."""

    name: str
    params: Params = field(default_factory=Params)

    def finish(self, grid: Sequence[tuple[Var, Expr]], body: Stmt, cost: float) -> Lowered:
        params: tuple[Buffer, ...] = tuple(self.params.buffers)
        kernel = Kernel(self.name, params, tuple(grid), body, tuple(self.params.outputs), cost=round(cost))
        return Lowered(kernel, tuple(self.params.bindings))


_LONG = 5


def kernel_name(group: Group) -> str:
    """A readable name from the operators of a group: `matmul_add_gelu`. Equal structures have equal names."""
    names: list[str] = []
    inlined = sorted(group.inlined, key=lambda n: n.serial)
    ordered = [group.core] if group.core is not None else []
    ordered += [n for n in (*inlined, *group.members) if n is not group.core]
    for n in ordered:
        name = "copy" if n.op.family is Family.VIEW or not n.args else n.op.name.removeprefix("packed_")
        if name not in names[-1:] and name != "cast":
            names.append(name)
    if not names:
        names = ["cast"]
    if len(names) > _LONG:
        names = [*names[: _LONG - 1], f"and_{len(names) - _LONG + 1}_more"]
    return "_".join(names)
