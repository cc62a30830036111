"""Every row of the op table, lowered alone and simulated, against the reference interpreter."""

from __future__ import annotations

import itertools
import warnings

import pytest

from graph.op_cases import Case, cases, graph_of
from tile.lower_cases import check
from tilewright.graph.ir import Family
from tilewright.graph.ops import OPS

warnings.filterwarnings("ignore", message="The operator .* does not have a registered", category=UserWarning)

_MANY = (Family.REDUCE, Family.VIEW, Family.INDEX, Family.CONTRACT, Family.SCAN, Family.COMPOSITE)
_NAMES = [name for name, op in OPS.items() if op.family in (*_MANY, Family.POINTWISE)]
_EDGES = {"gelu"}  # what eager's own kernels give for infinities depends on the shape


def _error(case: Case) -> float:
    bytes_ = min((t.element_size() for t in case.tensors if t.is_floating_point()), default=4)
    return {2: 2e-2, 1: 2e-1}.get(bytes_, 1e-4)


def _some(name: str) -> list[Case]:
    """All cases of data movement and reductions would take a minute: a spread of each row's."""
    found = [c for c in cases(name) if not any("float8" in str(t.dtype) for t in c.tensors) and "f8" not in str(c.attrs)]
    step = 2 if OPS[name].family in _MANY else 5
    return list(itertools.islice(found, 0, None, step))


@pytest.mark.parametrize("name", _NAMES)
def test_row(name: str) -> None:
    for case in _some(name):
        if name in _EDGES and any(t.isinf().any() for t in case.tensors):
            continue
        check(graph_of(case), case.tensors, _error(case))
