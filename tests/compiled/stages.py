"""A graph through every stage by hand: passes, lowering, plan, LLVM, machine code, native entry; and through the simulator.

In: a `Graph` and tensors. Out: `Build`, which runs the compiled code and the simulated program on the same tensors. The plan
that the simulator runs is the one that was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tilewright import native
from tilewright.base import config, dtypes
from tilewright.executable import Executable
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import Graph
from tilewright.graph.ops.torch_dtypes import from_torch, to_torch
from tilewright.graph.pipeline import optimise
from tilewright.program import torch_link
from tilewright.program.guards import GuardTable
from tilewright.targets.cpu import compile as code
from tilewright.targets.cpu.generate import Generated, generate
from tilewright.targets.plan import Plan, make_plan
from tilewright.targets.recipe import call_graph, make_recipe
from tilewright.targets.target import target_named
from tilewright.tile.evaluate import stored
from tilewright.tile.memory import Memory
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Call
from tilewright.tile.simulate import run_program
from tilewright.tile.verify import verify

torch_link.connect()


@dataclass
class Build:
    """A graph compiled for `target`, a name that `target_named` takes."""

    graph: Graph
    target: str = "cpu"
    threads: int = 2
    checked: bool = False
    """Run the tile verifier on every kernel and LLVM's on the module."""

    def __post_init__(self) -> None:
        target = target_named(self.target)
        self.isa = target.isa
        self.optimised = optimise(self.graph, debug=self.checked)
        program = lower(self.optimised, target.machine(self.threads), config.Options())
        for kernel in program.kernels() if self.checked else ():
            verify(kernel)
        self.plan: Plan = make_plan(program, self.optimised)
        self.generated: Generated = generate(self.plan, self.isa)
        if self.checked:
            code.check(self.generated.text, self.isa)
        self.object_file = code.compile_module(self.generated.text, self.isa)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The compiled code's outputs; effects are written into `tensors`."""
        return self.entry(tensors).run(*tensors)

    def entry(self, tensors: Sequence[torch.Tensor]) -> native.Entry:
        recipe = make_recipe(self.plan, self.generated.scratch_bytes)
        rows = [
            ("tensor", i, (type(t), i, *torch_link.dlpack_dtype(t.dtype), 1, 0, None, tuple(t.shape), t.stride()))
            for i, t in enumerate(tensors)
        ]
        table = GuardTable(len(tensors), (), rows, [], len(tensors))
        executable = Executable(recipe, self.object_file, lambda level: "")
        return executable.entry(table, lambda outputs: outputs, executable)  # the code lives as long as its executable

    def simulate(self, tensors: Sequence[torch.Tensor], check: bool = True) -> list[torch.Tensor | None]:
        """The simulated program's outputs; None for one that only shares memory. `tensors` stay as they are."""
        found = run_program(self.plan.program, [memory_of(t) for t in tensors], call=_run_call, check=check)
        dtypes_ = [o.node.dtype for o in self.plan.graph.outputs] if self.plan.graph else []
        return [None if a is None else tensor_of(a, d) for a, d in zip(found, dtypes_, strict=False)]


def _run_call(step: Call, views: list[np.ndarray]) -> list[np.ndarray]:
    tensors = [tensor_of(v, a.value.dtype) for v, a in zip(views, step.args, strict=True)]
    return [array_of(t) for t in interpret(call_graph(step), tensors)]


def array_of(t: torch.Tensor) -> np.ndarray:
    """A copy of the tensor's elements as the simulator stores them."""
    kind = stored(from_torch(t.dtype))
    t = t.contiguous()
    if kind == np.uint16 and t.dtype.is_floating_point:
        t = t.view(torch.int16)
    elif kind == np.uint8 and t.dtype.is_floating_point:
        t = t.view(torch.uint8)
    return np.array(t.numpy()).view(kind)


def memory_of(t: torch.Tensor) -> Memory:
    """A copy of all the memory behind a tensor, and the element at which the tensor starts."""
    count = t.untyped_storage().nbytes() // t.element_size()
    return Memory(array_of(t.as_strided((count,), (1,), 0)), t.storage_offset())


def tensor_of(a: np.ndarray, dtype: dtypes.DType) -> torch.Tensor:
    """What the simulator stored as `dtype`, as a tensor."""
    a = np.array(a, order="C")  # unlike ascontiguousarray, this leaves a scalar a scalar
    kind = to_torch(dtype)
    if dtype.is_float and dtype.bytes < 4 and a.dtype.kind == "u":
        plain = torch.from_numpy(a.view({1: np.uint8, 2: np.int16}[dtype.bytes]))
        return plain.view(kind)
    return torch.from_numpy(a).view(kind)


Check = Callable[[Sequence[int]], None]


def bisect(items: Sequence[int], check: Check) -> Iterator[tuple[int, Exception]]:
    """The items for which `check` of that one alone raises, found by halving lists that raise."""
    try:
        check(items)
    except Exception as error:  # whatever a stage raises is the finding
        if len(items) == 1:
            yield items[0], error
            return
        found = False
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            for each in bisect(half, check):
                found = True
                yield each
        if not found:
            raise
