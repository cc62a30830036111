"""Every generated case of every row as machine code, against eager and float64, and by the simulator.

The cases of a row are the outputs of a few graphs, so that one module holds many kernels; a wrong one is found by halving.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from compiled.stages import Build, bisect
from graph.compare import near, same, true_value
from graph.op_cases import OPAQUE_ROWS, Case, cases, contiguous, input_node
from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.graph.ir import Family, Graph, Node, Output, make
from tilewright.graph.ops import OPS, index, pointwise, view
from tilewright.graph.ops.torch_dtypes import to_torch
from tilewright.targets.cpu import isa as isas

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")

ROWS = [n for n in OPS if n not in OPAQUE_ROWS]
BATCH = 100
DIVIDING = ("floordiv", "mod", "rem")  # discontinuous: float64 is no reference for a narrower type
HOST = isas.host_isa()


def joined(parts: Sequence[Case]) -> tuple[Graph, list[torch.Tensor]]:
    """One graph with an output a case."""
    inputs: list[Node] = []
    tensors: list[torch.Tensor] = []
    outputs: list[Output] = []
    for case in parts:
        first = len(inputs)
        inputs += [input_node(first + i, t) for i, t in enumerate(case.tensors)]
        tensors += case.tensors
        node = make(case.op, tuple(inputs[first:]), case.attrs)
        outputs.append(Output(node, contiguous(node.shape)))
    return Graph(tuple(inputs), tuple(outputs), tuple(tuple(t.stride()) for t in tensors)), tensors


def compare(case: Case, got: torch.Tensor) -> None:
    want = case.op.eager(case.attrs, *case.tensors)
    if not want.dtype.is_floating_point or want.element_size() == 1 or case.op.family in (Family.VIEW, Family.INDEX):
        same(got, want, case)
    elif case.op.name in DIVIDING:  # bfloat16 instructions flush denormals
        same(got, want, case, floor=torch.finfo(want.dtype).tiny if want.dtype is torch.bfloat16 else 0.0)
    elif want.dtype is torch.float64:
        same(got, want, case, 1e-12, 1e-13)
    else:
        near(got, want, true_value(case), case)


def run(found: Sequence[Case], target: str, simulate: bool) -> None:
    """Compile, run and compare; raises naming each case that fails."""

    def check(numbers: Sequence[int]) -> None:
        parts = [found[i] for i in numbers]
        graph, tensors = joined(parts)
        build = Build(graph, target)
        results = build.run(tensors)
        for case, got in zip(parts, results, strict=True):
            compare(case, got)
        for case, got in zip(parts, build.simulate(tensors) if simulate else (), strict=False):
            assert got is not None
            compare(case, got)

    failed = []
    for start in range(0, len(found), BATCH):
        for i, error in bisect(range(start, min(start + BATCH, len(found))), check):
            failed.append(f"{found[i]}: {type(error).__name__}: {error}")
    if failed:
        pytest.fail(f"{len(failed)} of {len(found)} cases:\n" + "\n".join(text[:600] for text in failed[:5]))


@pytest.mark.parametrize("name", ROWS)
def test_every_case(name: str) -> None:
    found = list(cases(name))
    assert len(found) >= 4
    run(found, "cpu", simulate=True)


MOVES = {
    "flip": (view.FLIP, {"dims": (1,)}), "permute": (view.PERMUTE, {"dims": (1, 0)}), "cat": (index.CAT, {"dim": 1}),
    "slice": (view.SLICE, {"dim": 1, "start": 1, "stop": 9, "step": 2}), "where": (pointwise.WHERE, {}),
    "pad": (index.PAD, {"pads": ((0, 1), (2, 0)), "value": 1}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16, dtypes.f8e4m3, dtypes.f8e5m2], ids=repr)
@pytest.mark.parametrize("name", MOVES)
def test_moved_bits_stay(name: str, dtype: DType) -> None:
    """Every pattern: denormals, and NaNs with their payloads."""
    kind = {1: torch.int8, 2: torch.int16}[dtype.bytes]
    x = torch.arange(1 << dtype.bits).to(kind).view(to_torch(dtype)).reshape(1 << dtype.bits - 4, 16)
    op, attrs = MOVES[name]
    tensors = {"cat": [x, x], "where": [torch.arange(16) % 3 == 0, x, x.view(kind).flip(0).view(x.dtype)]}.get(name, [x])
    case = Case(op, op.attrs(**attrs), tensors)
    graph, _ = joined([case])
    bits = [t.view(kind) if t.dtype is x.dtype else t for t in tensors]
    one = torch.ones((), dtype=x.dtype).view(kind).item()  # what pads
    want = op.eager(op.attrs(**(attrs | ({"value": one} if name == "pad" else {}))), *bits)
    for target in ("cpu", "cpu:x86-64-v3") if HOST.is_x86 else ("cpu",):
        assert torch.equal(Build(graph, target).run(tensors)[0].view(kind), want)


NARROW = [c for name in ROWS for k, c in enumerate(cases(name)) if k % 7 == 0]


@pytest.mark.skipif(not HOST.is_x86, reason="needs an x86 processor")
@pytest.mark.parametrize("part", range(4))
def test_a_part_of_the_cases_with_avx2(part: int) -> None:
    run(NARROW[part::4], "cpu:x86-64-v3", simulate=False)


@pytest.mark.parametrize("part", range(4))
def test_a_part_of_the_cases_assembles_for_aarch64(part: int) -> None:
    """Every row and dtype there is, in some shape; nothing runs."""
    found = NARROW[part::12]
    for start in range(0, len(found), BATCH):
        build = Build(joined(found[start : start + BATCH])[0], "cpu:aarch64", checked=True)
        assert build.object_file[18:20] == b"\xb7\x00"  # the machine that the ELF header names
