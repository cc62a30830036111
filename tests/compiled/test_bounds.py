"""Compiled programs on memory that tells who goes too far: each buffer ends at a page that faults, and what lies before it and
between its elements keeps its pattern."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from compiled.random_graphs import sample
from compiled.reference import Sample, difference, meaning, tolerances
from compiled.stages import Build
from cpu.guarded import guarded
from tilewright import native
from tilewright.graph.ops.torch_dtypes import to_torch
from tilewright.targets.cpu import compile as code
from tilewright.targets.cpu import isa as isas

PATTERN = 0xA5
BEFORE = 256


class Room:
    """`size` bytes that end at a faulting page, with a pattern in them and before them."""

    def __init__(self, size: int) -> None:
        self.bytes = guarded(np.full(BEFORE + size, PATTERN, np.uint8))
        self.address = self.bytes.ctypes.data + BEFORE

    def seen(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(self.bytes[BEFORE:]).view(dtype).as_strided(shape, strides)

    def check(self, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> None:
        """Nothing but the elements may have been written."""
        touched = np.zeros(len(self.bytes), np.bool_)
        if math.prod(shape):
            size = dtype.itemsize
            places = sum(
                np.arange(n).reshape(-1, *[1] * (len(shape) - 1 - d)) * t * size
                for d, (n, t) in enumerate(zip(shape, strides, strict=True))
            )
            for k in range(size):
                touched[BEFORE + np.asarray(places) + k] = True
        assert np.all(self.bytes[~touched] == PATTERN)


def run(s: Sample, target: str) -> None:
    build = Build(s.graph, target)
    plan, scratch = build.plan, build.generated.scratch_bytes
    segments = plan.segments()
    addresses = code.load([build.object_file], [x.symbol for x in segments]) if segments else {}
    tensors = s.fresh()
    outputs = [(to_torch(o.node.dtype), o.node.shape, o.strides) for o in s.graph.outputs]
    spans = [0 if 0 in n else (1 + sum((a - 1) * b for a, b in zip(n, t, strict=True))) * d.itemsize for d, n, t in outputs]
    rooms = [Room(n) for n in spans]
    folded, arena = Room(-(-plan.folded_bytes // 64) * 64), Room(-(-plan.arena_bytes // 64) * 64)
    for x in segments:
        pointers = tuple(t.data_ptr() for t in tensors), tuple(r.address for r in rooms)
        native.run_segment(addresses[x.symbol], *pointers, folded.address, arena.address, scratch, ())
    true = meaning(s)
    found = [r.seen(*o) if n else torch.empty(o[1], dtype=o[0]) for r, o, n in zip(rooms, outputs, spans, strict=True)]
    found += [tensors[e.index] for e in s.graph.effects]
    for root, got, t, limit in zip(s.graph.roots, found, true, tolerances(s, true), strict=True):
        wrong = difference(got, t, limit)
        assert wrong is None, f"{root}: {wrong}"
    for room, o in zip(rooms, outputs, strict=True):
        room.check(*o)
    for room in (folded, arena):
        assert np.all(room.bytes[:BEFORE] == PATTERN)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3"] if isas.host_isa().is_x86 else ["cpu"])
@pytest.mark.parametrize("largest", [3000, 100_000])
def test_nothing_else_is_touched(target: str, largest: int) -> None:
    for seed in range(5000, 5012 if largest > 3000 else 5030):
        run(sample(seed, size=10, largest=largest), target)
