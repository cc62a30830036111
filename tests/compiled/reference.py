"""A random graph with tensors, what it means in float64, and how far rounding may carry its results.

In: a graph whose discontinuous operators read only exact values. Out: true values, tolerances, the differences of a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cpu.guarded import guarded
from tilewright.base import dtypes
from tilewright.graph.ir import INPUT, Graph, Node
from tilewright.graph.ops import composite, contract, index, pointwise, reduce, scan
from tilewright.graph.ops.torch_dtypes import to_torch


@dataclass(frozen=True)
class Sample:
    """`exact`: the nodes whose values are the same in every precision."""

    graph: Graph
    tensors: list[torch.Tensor]
    exact: frozenset[Node]

    def fresh(self) -> list[torch.Tensor]:
        """The tensors again, in own memory, since a run may write into them; a page that faults follows each."""
        return [_copied(t) for t in self.tensors]


def _copied(t: torch.Tensor) -> torch.Tensor:
    memory = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    if memory.numel():
        memory = torch.from_numpy(guarded(memory.view(torch.uint8).numpy())).view(t.dtype)
    return memory.as_strided(t.shape, t.stride(), t.storage_offset())


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.is_floating_point() else t


def evaluate(n: Node, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """A node in float64; integers and bools as they are."""
    attrs = n.attrs
    if isinstance(attrs, pointwise.CastAttrs | pointwise.FullAttrs | index.IotaAttrs) and attrs.dtype.is_float:
        attrs = replace(attrs, dtype=dtypes.f64)
    return n.op.eager(attrs, *args)


def _magnitude(n: Node, args: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """What rounding is relative to where that is not the result: for sums of many terms, the sum of their magnitudes."""
    if n.op in (reduce.SUM, composite.MEAN, scan.CUMSUM):
        return evaluate(n, [args[0].abs()])
    if n.op is contract.MATMUL:
        return args[0].abs() @ args[1].abs()
    if n.op.name in ("gelu", "gelu_tanh", "mish", "silu"):  # x times one plus something near -1
        return args[0].abs()
    if n.op is composite.VAR and args[0].numel():  # of equal numbers it is the square of the mean's rounding
        return evaluate(n, args) + torch.finfo(to_torch(n.dtype)).eps * args[0].abs().max() ** 2
    if n.op is composite.LAYER_NORM and args[0].numel():  # the mean's rounding, made larger by a small deviation
        dims = tuple(range(-n.attrs.ndims, 0))
        spread = (args[0].var(dims, correction=0, keepdim=True) + n.attrs.eps).sqrt()
        weight = args[1].abs() if len(args) > 1 else 1.0
        return evaluate(n, args).abs() + args[0].abs().amax(dims, keepdim=True) / spread * weight
    if n.op is composite.LOG_SOFTMAX and args[0].numel():  # x less its greatest, which may come from one rounding less
        return args[0].abs().amax(n.attrs.dim, keepdim=True).expand(args[0].shape)
    return None


def meaning(sample: Sample, noise: torch.Generator | None = None) -> list[torch.Tensor]:
    """The values of the graph's roots in float64; with `noise` each result is off by a rounding error of its type."""
    values: dict[Node, torch.Tensor] = dict(zip(sample.graph.inputs, map(wide, sample.tensors), strict=True))
    for n in sample.graph.nodes():
        if n.op is INPUT:
            continue
        args = [values[a] for a in n.args]
        result = evaluate(n, args)
        if noise is not None and n.dtype.is_float and n not in sample.exact:
            scale = _magnitude(n, args)
            scale = result.abs() if scale is None else scale
            unit = torch.rand(result.shape, generator=noise, dtype=torch.float64) * 2 - 1
            own = torch.finfo(to_torch(n.dtype))
            result = result + unit * (scale + own.tiny) * own.eps  # denormals keep their last place
        values[n] = result
    return [values[r] for r in sample.graph.roots]


def tolerances(sample: Sample, true: Sequence[torch.Tensor], runs: int = 4) -> list[float]:
    """How far each root may be from the truth: a multiple of what rounding errors were seen to do."""
    generator = torch.Generator().manual_seed(1)
    found = [0.0] * len(true)
    for _ in range(runs):
        for i, (noisy, t) in enumerate(zip(meaning(sample, generator), true, strict=True)):
            if t.is_floating_point() and t.numel():
                difference = (noisy - t).abs()
                found[i] = max(found[i], float(difference[difference.isfinite()].max()) if difference.isfinite().any() else 0.0)
    limits = []
    for n, f, t in zip(sample.graph.roots, found, true, strict=True):
        if not n.dtype.is_float:
            limits.append(0.0)
            continue
        finite = t[t.isfinite()]
        largest = float(finite.abs().max()) if len(finite) else 0.0
        own = torch.finfo(to_torch(n.dtype))
        limits.append(16 * f + (0.0 if n in sample.exact else 4 * own.eps * (largest + own.tiny)))
    return limits


def difference(got: torch.Tensor, true: torch.Tensor, limit: float) -> str | None:
    """What is wrong with a result; None where it is within `limit` of the truth."""
    if tuple(got.shape) != tuple(true.shape):
        return f"shape {tuple(got.shape)} for {tuple(true.shape)}"
    if not got.is_floating_point():
        return None if torch.equal(got, true) else f"{int((got != true).sum())} of {got.numel()} elements differ"
    got = got.double()
    if not torch.equal(got.isnan(), true.isnan()):
        return f"NaN in {int(got.isnan().sum())} elements for {int(true.isnan().sum())}"
    finite = true.isfinite()
    if not torch.equal(got[~finite & ~true.isnan()], true[~finite & ~true.isnan()]):
        return "infinities differ"
    error = (got[finite] - true[finite]).abs()
    if error.numel() == 0 or bool((error <= limit).all()):
        return None
    k = int(error.nan_to_num(math.inf).argmax())
    return f"{float(got[finite][k])} for {float(true[finite][k])}, {float(error[k]):.3g} off with {limit:.3g} allowed"
