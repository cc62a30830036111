"""What every template is given and what it gives back.

In: a machine, the nodes in memory, where results go. Out: `Lowered`, a kernel and what its parameters are bound to.
Must not know particular templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...graph.ir import Family, Node
from ..fuse import Group
from ..hints import Hints
from ..ir import Buffer, Expr, Kernel, Stmt, Var
from ..program import Value
from ..schedule import Machine
from .emit import Binding, Params


@dataclass
class Context:
    """`values` are read, `targets` (members of the group at hand) are written. `hints` are examples of symbolic sizes."""

    machine: Machine
    values: Mapping[Node, Value]
    targets: Mapping[Node, Value]
    hints: Hints = field(default_factory=Hints)


@dataclass(frozen=True)
class Lowered:
    kernel: Kernel
    bindings: tuple[Binding, ...]


@dataclass
class Draft:
    """A kernel being put together."""

    name: str
    params: Params = field(default_factory=Params)

    def finish(self, grid: Sequence[tuple[Var, Expr]], body: Stmt, cost: float, bounded: bool = False) -> Lowered:
        """`bounded`: outside of Copy and Gemm the body names only elements that the emitter gave it."""
        params: tuple[Buffer, ...] = tuple(self.params.buffers)
        bounded = bounded and self.params.bounded
        kernel = Kernel(self.name, params, tuple(grid), body, tuple(self.params.outputs), (), round(cost), bounded)
        return Lowered(kernel, tuple(self.params.bindings))


_LONG = 5
_PLAIN = {"add", "sub", "mul", "div", "neg", "where", "cast", "full", "minimum", "maximum", "le", "lt", "ge", "gt", "eq", "ne"}
_SOFTMAX, _NORM = {"amax", "exp", "sum"}, {"sum", "rsqrt"}


def kernel_name(group: Group) -> str:
    """A readable name from the operators of a group: `matmul_add_gelu`. Equal structures have equal names."""
    inlined = sorted(group.inlined, key=lambda n: n.serial)
    ordered = [group.core] if group.core is not None else []
    ordered += [n for n in (*inlined, *group.members) if n is not group.core]
    operators = [_operator(group, n) for n in ordered]
    names = list(dict.fromkeys(operators))
    if group.kind == "rows" and set(names) >= _SOFTMAX:
        names = [n for n in names if n not in _SOFTMAX | {"sub", "div"}] + ["softmax"]
    elif group.kind == "rows" and set(names) >= _NORM:
        norm = "layer_norm" if operators.count("sum") > 1 else "rms_norm"
        names = [n for n in names if n not in _NORM | _PLAIN] + [norm]
    if len(names) > 1:
        names = [n for n in names if n != "cast"]
    if len(names) > _LONG:
        names = [n for n in names if n not in _PLAIN] or names
    return "_".join(names[:_LONG] + ["etc"] * (len(names) > _LONG))


def _operator(group: Group, n: Node) -> str:
    copied = n.op.family is Family.VIEW or not n.args or (group.kind == "copy" and n not in group.inlined)
    return "copy" if copied else n.op.name.removeprefix("packed_")
