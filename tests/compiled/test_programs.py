"""Random programs of views and writes through tw.compile: values, strides, shared memory, identity and writes are eager's."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from graph.recording import assert_same, leaves, sharing
from graph.test_record_random import INPUTS, program

CHUNK = 25


def same_layout(x: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, laid out alike."""
    flat = x.as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0).clone()
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def check(seed: int) -> bool:
    """Two calls of the compiled program as in eager; whether it was compiled."""
    fn = program(seed)
    first = INPUTS[seed % 3]()
    try:
        fn(same_layout(first))
    except RuntimeError:  # eager refuses it
        return False
    fast = tw.compile(fn)
    for scale in (1, 2):  # the second call takes other values
        ours, theirs = (same_layout(first).mul_(scale) for _ in range(2))
        got, want = leaves(fast(ours)), leaves(fn(theirs))
        assert_same(got, want, None)
        assert_same([ours], [theirs], None)
        assert sharing([ours, *got]) == sharing([theirs, *want]), seed
    return fast.stats.eager_calls == 0


@pytest.mark.filterwarnings("ignore::tilewright.base.log.TilewrightWarning")
@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    with torch.no_grad():
        compiled = sum(check(seed) for seed in range(1000 + part * CHUNK, 1000 + (part + 1) * CHUNK))
    assert compiled > CHUNK // 2
