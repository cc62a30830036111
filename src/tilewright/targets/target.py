"""A target: what code is generated for, how it is described to the lowering, and what tells it apart in a cache key.

In: a name ("cpu", "cpu:x86-64-v3"). Out: a frozen `Target`. Must not know graphs, or how a target writes its code.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base import errors
from ..tile.schedule import Machine
from .cpu import amx
from .cpu import isa as cpu_isa
from .cpu.isa import Isa


@dataclass(frozen=True)
class Target:
    """A processor to generate code for. `kind` names the folder of the code generator."""

    kind: str
    isa: Isa

    @property
    def key(self) -> str:
        """Everything about the target that decides the code, as text for cache keys."""
        return f"{self.kind} {self.isa.text}"

    def machine(self, threads: int) -> Machine:
        """One core, as the schedule model sees it: clock and bandwidth are those of a typical server of the level."""
        isa = self.isa
        ghz = 2.6 if isa.lanes == 16 else 3.0
        units = 4 if isa.lanes == 4 else 2
        return Machine(
            lanes=isa.lanes, nr=isa.nr, mr=isa.mr, l1_bytes=isa.l1_bytes, l2_bytes=isa.l2_bytes, threads=threads,
            gflops=0.9 * ghz * 2 * units * isa.lanes, ghz=ghz,
            dot_pairs=isa.multiplies_pairs, pair_depth=amx.DEPTH if isa.has_amx else 2, tile=amx.ROWS if isa.has_amx else 0,
        )  # fmt: skip


def target_named(name: str = "cpu") -> Target:
    """ "cpu" is the instruction set that the settings select, "cpu:x86-64-v3" a level of `cpu.isa`.

    Raises `errors.UnknownBackend`, or what the instruction set's name raises.
    """
    kind, _, level = name.partition(":")
    if kind != "cpu":
        raise errors.UnknownBackend(backend=kind, choices=["cpu"])
    return Target("cpu", cpu_isa.named(level) if level else cpu_isa.selected_isa())
