"""A planned program as one LLVM module: its kernels, each once, and the functions that launch them.

In: a `Plan` and an `Isa`. Out: the module's text and the scratch that a thread needs. Must not know how the text becomes code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...base import dims
from ...base.dims import Size
from ...tile.ir import Kernel
from ...tile.program import Launch
from ..plan import Plan, blocks, output_sizes
from . import llvm, main
from .isa import Isa
from .kernel import KernelInfo, emit_kernel


@dataclass(frozen=True)
class Generated:
    """`text` defines every segment's symbol, and `tw_plan` where sizes are symbolic; `scratch_bytes` is the most that one thread
    needs."""

    text: str
    scratch_bytes: Size


def generate(plan: Plan, isa: Isa) -> Generated:
    """The module of a plan. Raises `errors.CompileError` where the target lacks what a kernel uses."""
    module = llvm.Module()
    infos: dict[Kernel, KernelInfo] = {}
    for number, kernel in enumerate(plan.program.kernels()):
        infos[kernel] = emit_kernel(kernel, f"k{number}_{re.sub(r'[^A-Za-z0-9_]', '_', kernel.name)}", module, isa)
    symbols = [s.name for s in plan.symbols]
    for segment in plan.segments():
        launches = [_placed(plan, x, infos[x.kernel]) for x in segment.launches]
        main.emit_run(module, segment.symbol, launches, symbols, plan.slots)
    scratch = {_scratch(x, infos[x.kernel]) for segment in plan.segments() for x in segment.launches}
    if symbols:
        main.emit_plan(module, symbols, plan.slots, output_sizes(plan), sorted(scratch, key=str))
    return Generated(module.text(isa.attributes), dims.maximum(0, *sorted(scratch, key=str)))


def _scratch(launch: Launch, info: KernelInfo) -> Size:
    """What a launch needs: of a kernel, it may depend on the sizes that the kernel takes."""
    return dims.substitute(info.scratch_bytes, {v.name: s for v, s in zip(launch.kernel.scalars, launch.scalars, strict=True)})


def _placed(plan: Plan, launch: Launch, info: KernelInfo) -> main.PlacedLaunch:
    pointers = tuple(map(plan.pointer, launch.args))
    touched = sum(a.value.bytes for a in launch.args)
    return main.PlacedLaunch(
        info.symbol, pointers, launch.scalars, blocks(launch), round(launch.kernel.cost), info.checks, touched, plan.hint(touched)
    )
