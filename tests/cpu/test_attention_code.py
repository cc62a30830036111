"""The attention kernel as machine code, against eager in float64; `tests/tile/test_attention.py` has the wider cases."""

from __future__ import annotations

import math

import pytest
import torch

from cpu.kernels import BOTH, execute
from tilewright.graph.ops.torch_dtypes import from_torch
from tilewright.targets.cpu.isa import Isa
from tilewright.tile.lower.attention import lower_attention
from tilewright.tile.program import Storage, Value, View
from tilewright.tile.schedule import Machine

SHAPES = [  # query heads, key heads, queries, keys, D, Dv
    (2, 2, 7, 19, 5, 6),
    (4, 2, 70, 33, 16, 16),
    (6, 2, 1, 40, 16, 16),
    (1, 1, 66, 530, 64, 40),
]


def view(t: torch.Tensor) -> View:
    """A dense tensor in any order of dimensions, from its first element."""
    shape, strides = tuple(t.shape), tuple(t.stride())
    return View(Value(id(t), from_torch(t.dtype), shape, strides, Storage.INPUT), shape, strides)


def run(isa: Isa, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    out = torch.full((q.shape[2], q.shape[1], v.shape[3]), 77.0, dtype=q.dtype).transpose(0, 1)[None]
    tensors = [t for t in (q, k, v, mask, out) if t is not None]
    machine = Machine(lanes=isa.lanes, nr=isa.nr, mr=isa.mr)
    m = None if mask is None else view(mask)
    launch = lower_attention(view(q), view(k), view(v), m, view(out), scale=0.3, causal=causal, machine=machine)
    flat = [torch.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0) for t in tensors]
    arrays = [(x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy() for x in flat]
    execute(launch.kernel, arrays, isa)
    return out


@pytest.mark.parametrize("isa", BOTH, ids=lambda isa: isa.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_values(isa: Isa, shape: tuple[int, ...], mask: str) -> None:
    hq, hk, s, t, d, e = shape
    dtype = {"none": torch.float32, "causal": torch.float64, "bool": torch.bfloat16, "float": torch.float16}[mask]
    q, k, v = (torch.randn(1, *x).to(dtype) for x in ((hq, s, d), (hk, t, d), (hk, t, e)))
    m = None
    if mask == "bool":
        m = torch.rand(s, t) < 0.7
        m[0] = False
    elif mask == "float":
        m = torch.randn(1, 1, 1, t).masked_fill(torch.rand(t) < 0.2, -math.inf).to(dtype)
    wide = m.double() if mask == "float" and m is not None else m
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), wide, is_causal=mask == "causal", scale=0.3, enable_gqa=hq != hk
        )
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(run(isa, q, k, v, m, mask == "causal").double(), expected, rtol=tolerance, atol=tolerance)
