"""A planned program as one LLVM module: its kernels, each once, and the functions that launch them.

In: a `Plan` and an `Isa`. Out: the module's text and the scratch that a thread needs. Must not know how the text becomes code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...base import dims
from ...tile.ir import Kernel
from ...tile.program import Launch
from ..plan import Plan, blocks
from . import llvm, main
from .isa import Isa
from .kernel import KernelInfo, emit_kernel


@dataclass(frozen=True)
class Generated:
    """`text` defines every segment's symbol; `scratch_bytes` is the most that one thread needs."""

    text: str
    scratch_bytes: int


def generate(plan: Plan, isa: Isa) -> Generated:
    """The module of a plan. Raises `errors.CompileError` where the target lacks what a kernel uses."""
    module = llvm.Module()
    infos: dict[Kernel, KernelInfo] = {}
    for number, kernel in enumerate(plan.program.kernels()):
        infos[kernel] = emit_kernel(kernel, f"k{number}_{re.sub(r'[^A-Za-z0-9_]', '_', kernel.name)}", module, isa)
    for segment in plan.segments():
        main.emit_run(module, segment.symbol, [_placed(plan, x, infos[x.kernel]) for x in segment.launches])
    return Generated(module.text(isa.attributes), max((i.scratch_bytes for i in infos.values()), default=0))


def _placed(plan: Plan, launch: Launch, info: KernelInfo) -> main.PlacedLaunch:
    scalars = dims.as_ints(launch.scalars)
    pointers = tuple(map(plan.pointer, launch.args))
    return main.PlacedLaunch(info.symbol, pointers, scalars, blocks(launch), round(launch.kernel.cost), info.checks)
