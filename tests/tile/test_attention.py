"""The attention kernel, run by the simulator, against eager in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tilewright.graph.ops.torch_dtypes import from_torch
from tilewright.tile.lower import attention
from tilewright.tile.lower.attention import lower_attention
from tilewright.tile.memory import Memory
from tilewright.tile.program import Launch, Storage, Value, View
from tilewright.tile.schedule import Machine
from tilewright.tile.simulate import run_kernel
from tilewright.tile.verify import verify

MACHINE = Machine(nr=8, lanes=4, threads=2)
_IDS = itertools.count()


def view(t: torch.Tensor, storage: Storage = Storage.INPUT) -> View:
    """A view of a value that holds all of the tensor's memory."""
    elements = t.untyped_storage().nbytes() // t.element_size()
    value = Value(next(_IDS), from_torch(t.dtype), (elements,), (1,), storage)
    return View(value, tuple(t.shape), tuple(t.stride()), t.storage_offset())


def flat(t: torch.Tensor) -> np.ndarray:
    """The whole memory of a tensor, as the simulator stores it."""
    whole = torch.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    return (whole.view(torch.int16).numpy().view(np.uint16) if t.dtype is torch.bfloat16 else whole.numpy()).copy()


def simulate(launch: Launch, tensors: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Run the launch; `tensors` are in the order of its arguments, the result last."""
    arrays = [flat(t) for t in (*tensors, out)]
    memories = [Memory(a, int(arg.offset)) for a, arg in zip(arrays, launch.args, strict=True)]
    run_kernel(launch.kernel, memories)
    result = torch.from_numpy(arrays[-1].view(np.int16) if out.dtype is torch.bfloat16 else arrays[-1]).view(out.dtype)
    return torch.as_strided(result, out.shape, out.stride(), out.storage_offset())


def lowered(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float = 0.25,
    causal: bool = False,
    safe: bool = True,
    machine: Machine = MACHINE,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the kernel computes."""
    out = torch.full((*q.shape[:-1], v.shape[-1]), 77.0, dtype=q.dtype) if out is None else out
    tensors = [t for t in (q, k, v, mask) if t is not None]
    *views, target = [view(t) for t in tensors], view(out, Storage.OUTPUT)
    vq, vk, vv, *vm = views[0]
    launch = lower_attention(vq, vk, vv, vm[0] if vm else None, target, scale=scale, causal=causal, machine=machine, safe=safe)
    verify(launch.kernel)
    assert launch.kernel.cost > 0 or out.numel() == 0
    return simulate(launch, tensors, out)


def eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool
) -> torch.Tensor:
    """Eager in float64, by plain operators (its fused kernels give 0 for a query with a NaN)."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wide = None if mask is None else mask if mask.dtype is torch.bool else mask.double()
        return torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), wide, is_causal=causal, scale=scale, enable_gqa=q.shape[-3] != k.shape[-3]
        )


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that few rows and columns make several."""
    monkeypatch.setattr(attention, "ROWS", 8)
    monkeypatch.setattr(attention, "WHOLE", 24)
    monkeypatch.setattr(attention, "COLUMNS", 16)


SHAPES = [  # batch.., query heads, key heads, queries, keys, D, Dv
    (1, 2, 2, 12, 12, 8, 8),
    (2, 3, 3, 7, 19, 5, 6),
    (1, 4, 2, 11, 23, 4, 12),  # grouped, two uneven blocks of rows
    (1, 6, 2, 1, 20, 16, 16),  # one query, grouped
    (1, 2, 2, 1, 40, 8, 4),  # one query, several blocks of columns
    (1, 2, 1, 2, 9, 3, 1),
    (1, 1, 1, 17, 1, 8, 8),
    (1, 2, 1, 22, 45, 4, 8),  # blocks of columns, the last one ragged
    (1, 1, 1, 50, 38, 4, 4),
    (2, 2, 2, 2, 5, 5, 3, 3),  # two dimensions of batch
]


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *batch, hq, hk, s, t, d, e = shape
    q, k, v = (torch.randn(*batch, *x, dtype=torch.float64).to(dtype) for x in ((hq, s, d), (hk, t, d), (hk, t, e)))
    return q, k, v


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_masks(shape: tuple[int, ...], mask: str) -> None:
    q, k, v = operands(shape)
    scores = (*q.shape[:-1], k.shape[-2])
    m = None
    if mask == "bool":
        m = torch.rand(scores[-2:]) < 0.7
    elif mask == "float":
        m = torch.randn(scores, dtype=q.dtype).masked_fill(torch.rand(scores) < 0.2, -math.inf)
    check(lowered(q, k, v, m, causal=mask == "causal"), eager(q, k, v, m, 0.25, mask == "causal"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [23, 24, 25, 32, 33, 48, 65])
def test_around_the_block_sizes(length: int, causal: bool) -> None:
    q, k, v = operands((1, 1, 1, length, length, 2, 2))
    check(lowered(q, k, v, causal=causal), eager(q, k, v, None, 0.25, causal))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[3]], ids=str)
def test_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = operands(shape, dtype)
    m = torch.randn(q.shape[-2], k.shape[-2]).to(dtype)
    check(lowered(q, k, v, m, scale=0.3), eager(q, k, v, m, 0.3, False))


@pytest.mark.parametrize("mask_shape", [(1,), (9,), (7, 1), (1, 1, 7, 9), (2, 1, 1, 9), (2, 3, 1, 1), (3, 7, 9)])
def test_masks_broadcast(mask_shape: tuple[int, ...]) -> None:
    q, k, v = operands((2, 3, 3, 7, 9, 4, 4))
    for m in (torch.randn(mask_shape, dtype=torch.float64), torch.rand(mask_shape) < 0.8):
        check(lowered(q, k, v, m), eager(q, k, v, m, 0.25, False))
        expanded = m.expand(2, 3, 7, 9)
        check(lowered(q, k, v, expanded), eager(q, k, v, m, 0.25, False))


@pytest.mark.parametrize("queries", [1, 5])
def test_masks_broadcast_over_groups(queries: int) -> None:
    q, k, v = operands((2, 4, 2, queries, 9, 4, 4))
    for shape in ((4, 1, 9), (2, 1, 1, 9), (2, 4, queries, 1)):
        m = torch.randn(shape, dtype=torch.float64)
        check(lowered(q, k, v, m), eager(q, k, v, m, 0.25, False))


def test_heads_split_from_one_product() -> None:
    """q, k and v are slices of one tensor, and the result is written as [B, S, H, D]."""
    joint = torch.randn(2, 11, 3 * 4 * 8, dtype=torch.float64)
    q, k, v = (x.reshape(2, 11, 4, 8).transpose(1, 2) for x in joint.split(32, -1))
    out = torch.zeros(2, 11, 4, 8, dtype=torch.float64).transpose(1, 2)
    check(lowered(q, k, v, out=out), eager(q, k, v, None, 0.25, False))


def test_strides_that_need_a_copy() -> None:
    q, k, v = operands((1, 2, 2, 18, 20, 8, 128))
    v = v.transpose(-1, -2).contiguous().transpose(-1, -2)  # contiguous along the keys
    k = k.transpose(-1, -2).contiguous().transpose(-1, -2)
    check(lowered(q, k, v), eager(q, k, v, None, 0.25, False))
    wide = torch.randn(1, 2, 20, 128, dtype=torch.float64)  # rows a KB apart
    check(lowered(q, k, wide), eager(q, k, wide, None, 0.25, False))


@pytest.mark.parametrize("threads", [1, 8])
def test_threads_only_change_who_computes(threads: int) -> None:
    q, k, v = operands((1, 2, 1, 50, 20, 4, 4))
    machine = Machine(nr=8, lanes=4, threads=threads)
    check(lowered(q, k, v, causal=True, machine=machine), eager(q, k, v, None, 0.25, True))


def test_rows_that_attend_to_nothing() -> None:
    q, k, v = operands((1, 1, 1, 5, 6, 4, 4))
    m = torch.ones(5, 6, dtype=torch.bool)
    m[2] = False
    expected = eager(q, k, v, m, 0.25, False)
    assert bool((expected[0, 0, 2] == 0).all())
    check(lowered(q, k, v, m), expected)
    check(lowered(q, k, v, torch.zeros(5, 6).double().masked_fill(~m, -math.inf)), expected)
    expected[0, 0, 2] = math.nan
    check(lowered(q, k, v, m, safe=False), expected)


def test_a_block_that_attends_to_nothing_before_one_that_does() -> None:
    q, k, v = operands((1, 1, 1, 3, 40, 2, 2))
    m = torch.zeros(3, 40, dtype=torch.bool)
    m[0, 37], m[1, 5] = True, True
    check(lowered(q, k, v, m), eager(q, k, v, m, 0.25, False))


@pytest.mark.parametrize("length", [9, 40])
def test_nan_and_infinity(length: int) -> None:
    q, k, v = operands((1, 1, 1, 6, length, 3, 3))
    q[0, 0, 1, 0] = math.nan
    q[0, 0, 2, 1] = math.inf
    k[0, 0, 4, 1] = -3.0
    v[0, 0, 3, 2] = math.nan
    check(lowered(q, k, v), eager(q, k, v, None, 0.25, False))
    m = torch.ones(6, length, dtype=torch.bool)
    m[:, 7] = False
    expected = eager(q, k, v, m, 0.25, False)
    k[0, 0, 7] = math.nan  # a masked score never counts
    check(lowered(q, k, v, m), expected)


def test_a_negative_scale_and_large_scores() -> None:
    q, k, v = operands((1, 1, 1, 9, 30, 4, 4))
    for scale in (-0.7, -2.0, 300.0):
        check(lowered(q, k, v, scale=scale), eager(q, k, v, None, scale, False))


def test_no_keys() -> None:
    q, k, v = operands((1, 2, 1, 3, 0, 4, 4))
    check(lowered(q, k, v), eager(q, k, v, None, 0.25, False))
    assert bool((lowered(q, k, v) == 0).all())
    assert bool((lowered(q, k, v, safe=False) == 0).all())


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_as_they_are(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    q, k, v = operands((1, 1, 1, 70, 520, 2, 2))
    check(lowered(q, k, v, causal=causal), eager(q, k, v, None, 0.25, causal))


def test_equal_problems_give_one_kernel() -> None:
    q, k, v = operands(SHAPES[0])
    launches = [
        lower_attention(view(q), view(k), view(v), None, view(q), scale=1.0, causal=True, machine=MACHINE) for _ in range(2)
    ]
    assert launches[0].kernel == launches[1].kernel


