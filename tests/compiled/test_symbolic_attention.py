"""Attention over symbolic lengths, heads and batches: lowered once, right at every size, in the simulator and as machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch

from tile.lower_cases import MACHINE, Builder, agree, tensors
from tilewright import driver
from tilewright.base import config, dims, dtypes, log
from tilewright.base.dims import Size
from tilewright.base.dtypes import DType
from tilewright.graph.interpret import interpret
from tilewright.graph.ir import Graph
from tilewright.graph.ops import contract, view
from tilewright.program import torch_link
from tilewright.tile.lower import attention
from tilewright.tile.pipeline import lower
from tilewright.tile.verify import verify

torch_link.connect()

B, S, T = dims.symbol("b"), dims.symbol("s"), dims.symbol("t")
HINTS = (("b", 2), ("s", 16), ("t", 24))
SIZES = ((2, 2, 2), (3, 5, 7), (2, 9, 32), (2, 33, 24), (2, 14, 65))
BF16 = dataclasses.replace(MACHINE, dot_pairs=True)
TILES = dataclasses.replace(MACHINE, dot_pairs=True, tile=32, pair_depth=32)


def attended(
    q: Sequence[Size],
    k: Sequence[Size],
    v: Sequence[Size],
    mask: Sequence[Size] | None = None,
    dtype: DType = dtypes.f32,
    mask_dtype: DType | None = None,
    causal: bool = False,
    scale: float = 0.3,
    safe: bool = True,
) -> Graph:
    b = Builder()
    operands = [b.input(B, S, T), *(b.input(*shape, dtype=dtype) for shape in (q, k, v))]
    if mask is not None:
        operands.append(b.input(*mask, dtype=mask_dtype or dtype))
    out = contract.ATTENTION(*operands[1:], scale=scale, causal=causal, safe=safe)
    return dataclasses.replace(b.graph(out), hints=HINTS)


def split_from_one(causal: bool = False) -> Graph:
    """q, k and v are slices of one product, and k is read as it lies."""
    b = Builder()
    joint = b.input(B, S, 3 * 32)
    b.input(T)
    parts = [view.SLICE(joint, dim=2, start=i * 32, stop=i * 32 + 32, step=1) for i in range(3)]
    q, k, v = (view.PERMUTE(view.RESHAPE(x, shape=(B, S, 4, 8)), dims=(0, 2, 1, 3)) for x in parts)
    out = view.PERMUTE(contract.ATTENTION(q, k, v, scale=0.25, causal=causal), dims=(0, 2, 1, 3))
    return dataclasses.replace(b.graph(view.RESHAPE(out, shape=(B, S, 32))), hints=HINTS)


def turned_values() -> Graph:
    """v lies along the keys, and rows of it are a kilobyte apart where there are 256 of them."""
    b = Builder()
    q, k, v = b.input(B, 2, S, 8), b.input(B, 2, T, 8), b.input(B, 2, 12, T)
    out = contract.ATTENTION(q, k, view.PERMUTE(v, dims=(0, 1, 3, 2)), scale=0.25)
    return dataclasses.replace(b.graph(out), hints=HINTS)


CASES: dict[str, Callable[[], Graph]] = {
    "plain": lambda: attended((B, 2, S, 8), (B, 2, T, 8), (B, 2, T, 12)),
    "causal": lambda: attended((B, 2, S, 8), (B, 2, S, 8), (B, 2, S, 8), causal=True),
    "causal of two lengths": lambda: attended((2, S, 8), (2, T, 8), (2, T, 8), causal=True, scale=0.25),
    "grouped": lambda: attended((B, 4, S, 8), (B, 2, T, 8), (B, 2, T, 8), mask=(S, T)),
    "grouped, symbolic heads": lambda: attended((2, 3 * B, S, 4), (2, B, T, 4), (2, B, T, 4), mask=(2, 1, 1, T)),
    "bool mask": lambda: attended((B, 2, S, 8), (B, 2, T, 8), (B, 2, T, 8), mask=(B, 1, S, T), mask_dtype=dtypes.b1),
    "one query": lambda: attended((B, 4, 1, 8), (B, 2, T, 8), (B, 2, T, 8), mask=(B, 1, 1, T)),
    "one query, causal": lambda: attended((B, 2, 1, 8), (B, 2, T, 8), (B, 2, T, 8), causal=True),
    "two queries": lambda: attended((B, 2, 2, 8), (B, 2, T, 8), (B, 2, T, 8)),
    "known queries": lambda: attended((B, 2, 19, 8), (B, 2, T, 8), (B, 2, T, 8), causal=True),
    "known keys": lambda: attended((B, 2, S, 8), (B, 2, 21, 8), (B, 2, 21, 8), causal=True),
    "many known keys": lambda: attended((B, 2, S, 8), (B, 2, 39, 8), (B, 2, 39, 8)),
    "perhaps no keys": lambda: attended((B, 2, S, 8), (B, 2, T - 2, 8), (B, 2, T - 2, 8)),
    "perhaps no keys, softmax": lambda: attended((B, 2, S, 8), (B, 2, T - 2, 8), (B, 2, T - 2, 8), safe=False),
    "one feature": lambda: attended((B, 2, S, 1), (B, 2, T, 1), (B, 2, T, 1)),
    "symbolic features": lambda: attended((2, 2, S, T), (2, 2, 20, T), (2, 2, 20, 8), mask=(S, 20)),
    "split from one": split_from_one,
    "split from one, causal": lambda: split_from_one(True),
    "turned values": turned_values,
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROWS", 8)
    monkeypatch.setattr(attention, "WHOLE", 24)
    monkeypatch.setattr(attention, "COLUMNS", 32)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", CASES)
def test_simulated(name: str) -> None:
    graph = CASES[name]()
    program = lower(graph, MACHINE)
    for kernel in program.kernels():
        verify(kernel)
    for values in SIZES:
        known = dict(zip("bst", values, strict=True))
        agree(graph, program, tensors(graph, known), sizes=known)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("machine", [BF16, TILES], ids=["pairs", "tiles"])
@pytest.mark.parametrize("causal", [False, True])
def test_bf16_in_pairs(machine: object, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "COLUMNS", 64)
    monkeypatch.setattr(attention, "CHUNK", 32)
    graph = attended((B, 2, S, 32), (B, 2, T, 32), (B, 2, T, 32), dtype=dtypes.bf16, causal=causal)
    program = lower(graph, machine)  # type: ignore[arg-type]
    for values in (*SIZES, (2, 3, 200)):
        known = dict(zip("bst", values, strict=True))
        agree(graph, program, tensors(graph, known), 2e-2, sizes=known)


@pytest.mark.parametrize("name", CASES)
def test_native(name: str) -> None:
    check_native(CASES[name](), (*SIZES, (2, 15, 40), (2, 64, 512), (2, 57, 513), (2, 130, 1100)))


@pytest.mark.parametrize("dtype", [dtypes.bf16, dtypes.f16, dtypes.f64])
@pytest.mark.parametrize("causal", [False, True])
def test_native_types(dtype: DType, causal: bool) -> None:
    graph = attended((B, 4, S, 32), (B, 2, T, 32), (B, 2, T, 32), dtype=dtype, causal=causal)
    check_native(graph, (*SIZES, (2, 100, 170), (2, 57, 513)), 1e-6 if dtype is dtypes.f64 else 2e-2)


def check_native(graph: Graph, sizes: Sequence[tuple[int, ...]], error: float = 1e-4) -> None:
    executable = driver.build(graph, config.Options(), log.Stages())
    for values in sizes:
        given = tensors(graph, dict(zip("bst", values, strict=True)))
        for got, want in zip(executable.execute(given), interpret(graph, given), strict=True):
            torch.testing.assert_close(got, want, rtol=error, atol=error, equal_nan=True)
