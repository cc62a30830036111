"""Random Python programs, compiled, behave as in eager: results, exceptions and their lines, output, and every side effect, over
several calls with edits of the world between them.

`TW_FUZZ=5000 python -m pytest tests/program/test_fuzz.py` runs that many.
"""

from __future__ import annotations

import os
import warnings

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tilewright as tw
from program.programs import EDITS, SIZES, alike, observe, programs, world

COUNT = int(os.environ.get("TW_FUZZ", "60"))


def compare(source, edits=(), gradients=False, sizes=SIZES[0], backend="eager"):
    """Run the program twice over, in eager and captured. Raises AssertionError at the first difference."""
    eager, captured = world(source), world(source)
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")
        fast = tw.compile(captured["f"], backend=backend)
        for call in range(len(sizes)):
            if call < len(edits):
                exec(edits[call], eager)
                exec(edits[call], captured)
            want, got = observe(eager, eager["f"], call, sizes), observe(captured, fast, call, sizes)
            assert alike(want, got), f"call {call}\nwant {want}\ngot  {got}\n{source}"


def edited(count: int):
    return settings(
        max_examples=count, deadline=None, derandomize="TW_FUZZ" not in os.environ, database=None,
        suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )  # fmt: skip


CASES = programs(), st.lists(st.sampled_from(EDITS), min_size=4, max_size=4), st.booleans(), st.sampled_from(SIZES)


@edited(COUNT)
@given(*CASES)
def test_random_programs(source, edits, gradients, sizes):
    """Captured graphs run by eager torch: capture alone."""
    compare(source, tuple(edits), gradients, sizes)


@edited(COUNT // 6)
@given(*CASES)
def test_random_programs_compiled(source, edits, gradients, sizes):
    compare(source, tuple(edits), gradients, sizes, "tilewright")
