"""Gradients before joint graphs: a compiled forward whose backward re-runs the function eagerly.

In: the function, its tensors and a compiled forward. Out: outputs attached to autograd. The values are the compiled
ones; the gradients are eager's own, with the random state of the forward call restored while it is re-run. Must not
know how the forward was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..base import dims
from ..base.dims import Size
from ..graph.ir import Output
from .torch_link import view


@dataclass(frozen=True)
class Rerun:
    """`forward(*tensors) -> outputs` is compiled. `eager(tensors) -> outputs` runs the same function on the given tensors.

    `differentiable` says which outputs require grad. `written`: tensors, none of which requires grad, that are written in place.
    `on_backward` counts.
    """

    forward: Callable[..., list[torch.Tensor]]
    eager: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    differentiable: tuple[bool, ...]
    on_backward: Callable[[], None]
    written: frozenset[int] = frozenset()


def run(rerun: Rerun, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of `rerun.forward(*tensors)`, with gradients."""
    with torch.enable_grad():  # the program may turn gradients on itself
        return list(_Rerun.apply(rerun, *tensors))


@dataclass(frozen=True)
class Views:
    """Adds to the results of `run`, the outputs numbered `computed`, those that share memory, made as eager makes a view.

    `differentiable`: whether a view, as eager gives it, requires grad where what it is a view of does.
    """

    run: Callable[[Sequence[torch.Tensor], tuple[int, ...]], list[torch.Tensor]] | None
    outputs: tuple[Output, ...]
    computed: list[int]
    differentiable: tuple[bool, ...]
    symbols: tuple[str, ...] = ()

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: tuple[int, ...] = ()) -> list[torch.Tensor]:
        """`sizes`: the values of the symbols."""
        found = dict(zip(self.computed, self.run(tensors, sizes) if self.run is not None else (), strict=True))
        values = dict(zip(self.symbols, sizes, strict=True))

        def of(sizes: tuple[Size, ...]) -> tuple[int, ...]:
            return tuple([dims.evaluate(s, values) for s in sizes])

        with torch.enable_grad():
            for k, o in enumerate(self.outputs):
                if o.alias is not None:
                    base = tensors[o.alias.index] if o.alias.of == "input" else found[o.alias.index]
                    base = base if self.differentiable[k] else base.detach()
                    found[k] = view(base, of(o.node.shape), of(o.strides), dims.evaluate(o.alias.offset, values))  # type: ignore[arg-type]
        return [found[k] for k in range(len(self.outputs))]


class _Rerun(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rerun: Rerun, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.rerun = rerun
        ctx.rng = torch.get_rng_state()
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(*(t.detach().clone() if i in rerun.written else t for i, t in enumerate(tensors)))
        ctx.set_materialize_grads(False)
        outputs = tuple(rerun.forward(*tensors))
        ctx.mark_non_differentiable(*(o for o, d in zip(outputs, rerun.differentiable, strict=True) if not d))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        rerun: Rerun = ctx.rerun
        rerun.on_backward()
        tensors = ctx.saved_tensors
        inputs = [t.detach().requires_grad_(t.requires_grad) if not t.is_leaf else t for t in tensors]
        inputs = [t.clone() if i in rerun.written else t for i, t in enumerate(inputs)]
        enabled, dtype = ctx.autocast
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            torch.set_rng_state(ctx.rng)
            outputs = rerun.eager(inputs)
        wanted = [i for i, t in enumerate(inputs) if ctx.needs_input_grad[i + 1]]
        used = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        result: list[torch.Tensor | None] = [None] * len(inputs)
        if used and wanted:
            found = torch.autograd.grad(
                [o for o, _ in used],
                [inputs[i] for i in wanted],
                [g for _, g in used],
                allow_unused=True,
                create_graph=torch.is_grad_enabled(),
            )
            for i, g in zip(wanted, found, strict=True):
                result[i] = g
        return None, *result
