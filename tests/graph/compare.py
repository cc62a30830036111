"""Comparisons of a case's result with eager's. In: tensors. Out: an assertion that names the case."""

from __future__ import annotations

import torch

from graph.op_cases import Case
from tilewright.base import dtypes
from tilewright.graph.ops import pointwise


def same(actual: torch.Tensor, expected: torch.Tensor, case: Case, error: float = 0.0, floor: float = 0.0) -> None:
    """Equal dtype, shape and values; NaN equals NaN, and signed zeros are told apart where the error is 0."""
    assert actual.dtype == expected.dtype, case
    assert actual.shape == expected.shape, case
    if actual.dtype.is_floating_point and actual.element_size() == 1:
        actual, expected = actual.float(), expected.float()
    if error == 0 and actual.dtype.is_floating_point:
        both = ~(actual.isnan() | expected.isnan())
        assert torch.equal(actual[both].signbit(), expected[both].signbit()), case
    torch.testing.assert_close(actual, expected, rtol=error, atol=floor, equal_nan=True, msg=lambda m: f"{case}: {m}")


def near(actual: torch.Tensor, eager: torch.Tensor, true: torch.Tensor, case: Case) -> None:
    """The error against `true`, in float64, is at most twice eager's greatest, or two roundings; NaN where `true` has it."""
    assert actual.dtype == eager.dtype and actual.shape == eager.shape, case
    assert torch.equal(actual.isnan(), true.isnan()), f"{case}: {actual} {true}"
    infinite = true.isinf()
    assert torch.equal(actual[infinite].double(), true[infinite]), f"{case}: {actual} {true}"
    limits = torch.finfo(actual.dtype)
    finite = true.isfinite() & (true.abs() < limits.max)
    actual, eager, true = (t.double()[finite] for t in (actual, eager, true))
    eagers = (eager - true).abs()
    error, allowed = (actual - true).abs(), 2 * limits.eps * true.abs() + limits.tiny
    greatest = eagers[eagers.isfinite()].max() if len(eagers) else 0.0
    assert (error <= 2 * greatest + allowed).all(), f"{case}: {actual[error.argmax()]} for {true[error.argmax()]}"


def true_value(case: Case) -> torch.Tensor:
    """Eager's result in float64."""
    attrs = pointwise.CastAttrs(dtypes.f64) if case.op is pointwise.CAST else case.attrs
    return case.op.eager(attrs, *(t.double() if t.is_floating_point() else t for t in case.tensors))
