"""`tw.sanitize`: what a kernel does wrong on given arguments, found by running it in the simulator.

In: a compiled kernel and arguments. Out: findings, each with the line of the source. Must not know how the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..base.errors import ArgumentError, Location
from ..dispatch import JitKernel, shape_of
from ..tile.evaluate import stored
from ..tile.ir import Stmt
from ..tile.memory import Memory
from ..tile.simulate import SimulationFault, run_kernel
from ..tile.text import statement_text

KINDS = ("race", "out of bounds", "uninitialised", "aliasing", "assertion", "fault")


@dataclass(frozen=True)
class Finding:
    """`kind`: one of race, out of bounds, uninitialised, aliasing, assertion, fault. `line`: of the source, or 0; `block`: the
    number of the block that did it, in the order of the grid; `times`: how often it was seen."""

    kind: str
    message: str
    at: Location | None
    statement: str
    block: int
    times: int = 1

    @property
    def line(self) -> int:
        return self.at.line if self.at is not None else 0

    def __str__(self) -> str:
        where = f"\n{self.at.render()}" if self.at is not None else ""
        return f"{self.kind}: {self.message} (block {self.block}, {self.times} times){where}"


def sanitize(kernel: JitKernel, *args: Any, **kwargs: Any) -> list[Finding]:
    """Run a kernel on copies of its arguments in the simulator, and list what it does wrong; nothing, if it is clean.

    Raises ArgumentError for what is no kernel, and what calling the kernel raises for bad arguments.
    """
    if not isinstance(kernel, JitKernel):
        raise ArgumentError(function="tw.sanitize", argument="kernel", expected="a compiled kernel", got=type(kernel).__name__)
    tensors, sizes = kernel.admitted(args, kwargs)
    signature, made = kernel.signature, kernel.traced
    arrays: list[np.ndarray | Memory] = []
    given = dict(zip(signature.given, tensors, strict=True))
    for i, p in enumerate(signature.kernel.params):
        if i in given:
            arrays.append(_array(given[i]))
            continue
        shape = shape_of(p, sizes)
        arrays.append(Memory.undefined(p.dtype, int(np.prod(shape, dtype=np.int64))))
    found: dict[tuple[str, str, int], Finding] = {}

    def report(kind: str, problem: str, s: Stmt, block: int) -> None:
        key = (kind, problem.partition(":")[0], id(s))
        old = found.get(key)
        if old is not None:
            found[key] = Finding(kind, old.message, old.at, old.statement, old.block, old.times + 1)
        else:
            found[key] = Finding(kind, problem, made.place(s), statement_text(s), block)

    for message in _aliases(signature.kernel.outputs, signature, given):
        found["aliasing", message, 0] = Finding("aliasing", message, None, "", 0)
    try:
        run_kernel(signature.kernel, arrays, [sizes[v.name] for v in signature.kernel.scalars], True, report)
    except SimulationFault as e:
        found["fault", e.message, 0] = Finding("fault", str(e.fields["problem"]), None, str(e.fields["statement"]), 0)
    return list(found.values())


def _array(t: torch.Tensor) -> np.ndarray:
    """A copy of a tensor's elements as the simulator keeps them."""
    from ..graph.ops.torch_dtypes import from_torch

    kind = stored(from_torch(t.dtype))
    flat = t.detach().contiguous().clone()
    if flat.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        flat = flat.view(torch.int16 if flat.dtype is torch.bfloat16 else torch.uint8)
    return np.ascontiguousarray(flat.numpy().view(kind))


def _aliases(outputs: Sequence[str], signature: Any, given: dict[int, torch.Tensor]) -> list[str]:
    """Parameters that are written and share memory with another one."""
    spans = {}
    for i, t in given.items():
        start = t.data_ptr()
        spans[i] = (start, start + t.numel() * t.element_size())
    found = []
    for i, (low, high) in spans.items():
        for j, (other_low, other_high) in spans.items():
            p, q = signature.kernel.params[i].name, signature.kernel.params[j].name
            if i != j and p in outputs and low < other_high and other_low < high and (q not in outputs or i < j):
                found.append(f"{p} is written and shares memory with {q}")
    return found
