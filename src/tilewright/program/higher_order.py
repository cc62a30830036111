"""torch's operators that take functions (`cond`, `map`, `scan`, `associative_scan`): what they compute, by calls of those.

In: the capture, functions and trees of tensors. Out: trees of tensors. Must not know bytecode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..graph import fake as fk
from ..graph import torch_private as private
from ..graph.fake import Fake
from ..graph.ir import Family, Node
from . import access
from .breaks import Break
from .calls import call

if TYPE_CHECKING:
    from .capture import Capture

Leaves = list[Any]


def _flatten(cx: Capture, tree: Any) -> tuple[Leaves, Any]:
    cx.outside.expand(tree)
    leaves, spec = private.tree_flatten(tree)
    return [cx.outside.see(v) for v in leaves], spec


def cond(cx: Capture, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """One branch where the predicate is known; else both, of which it selects: neither may have effects."""
    operands = list(access.iterate(cx, operands))
    if type(pred) is not Fake:
        return call(cx, true_fn if access.truth(cx, pred) else false_fn, operands, {})
    before = len(cx.effects.journal), len(cx.recorder.effectful), [m.version for m in cx.recorder.memories]
    yes, spec = _flatten(cx, call(cx, true_fn, operands, {}))
    no, other = _flatten(cx, call(cx, false_fn, operands, {}))
    after = len(cx.effects.journal), len(cx.recorder.effectful), [m.version for m in cx.recorder.memories][: len(before[2])]
    if before != after or spec != other or not all(_fit(a, b) for a, b in zip(yes, no)):
        raise Break("operation", "torch's cond, whose branches have effects or results of different kinds")
    chosen = [torch.where(pred.reshape(()).bool(), a, b) if type(a) is Fake else a for a, b in zip(yes, no)]
    return private.tree_unflatten(chosen, spec)


def _fit(a: Any, b: Any) -> bool:
    if type(a) is not Fake or type(b) is not Fake:
        return a is b or (type(a) is type(b) is int and a == b)
    return a.sizes == b.sizes and a.dtype == b.dtype and not fk.tracked(a) and not fk.tracked(b)


def _steps(leaves: Leaves, dim: int, reverse: bool = False) -> list[Leaves]:
    """The slices of all leaves, one step after the other."""
    if not leaves or not all(type(v) is Fake and v.sizes and v.sizes[dim] == leaves[0].sizes[dim] for v in leaves):
        raise Break("operation", "torch's operators on functions take tensors of one length")
    slices = list(zip(*[v.unbind(dim) for v in leaves]))
    return [list(s) for s in (reversed(slices) if reverse else slices)]


def _stacked(steps: list[Leaves], dim: int, reverse: bool = False) -> Leaves:
    return [torch.stack(list(reversed(v)) if reverse else list(v), dim) for v in zip(*steps)]


def map_(cx: Capture, f: Any, xs: Any, *args: Any) -> Any:
    leaves, spec = _flatten(cx, xs)
    results = [_flatten(cx, call(cx, f, [private.tree_unflatten(s, spec), *args], {})) for s in _steps(leaves, 0)]
    return private.tree_unflatten(_stacked([r for r, _ in results], 0), results[0][1])


def scan(cx: Capture, combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = _flatten(cx, xs)
    carry, results, form = init, [], None
    for step in _steps(leaves, dim, reverse):
        pair = call(cx, combine_fn, [carry, private.tree_unflatten(step, spec)], {})
        carry = access.get_item(cx, pair, 0)
        y, form = _flatten(cx, access.get_item(cx, pair, 1))
        results.append(y)
    return carry, private.tree_unflatten(_stacked(results, 0, reverse), form)


def associative_scan(
    cx: Capture, combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """In a tree of few levels where the function works on each element alone, else step by step."""
    leaves, spec = _flatten(cx, xs)
    steps = _steps(leaves, dim, reverse)

    def combine(left: Leaves, right: Leaves) -> Leaves:
        trees = [private.tree_unflatten(v, spec) for v in (left, right)]
        return _flatten(cx, call(cx, combine_fn, trees, {}))[0]

    if len(steps) > 2 and _is_elementwise(combine(steps[0], steps[1]), [*steps[0], *steps[1]]):
        moved = [v.movedim(dim, 0).flip([0]) if reverse else v.movedim(dim, 0) for v in leaves]
        made = [v.flip([0]) if reverse else v for v in _levels(combine, moved)]
        return private.tree_unflatten([v.movedim(0, dim) for v in made], spec)
    results = steps[:1]
    for step in steps[1:]:
        results.append(combine(results[-1], step))
    return private.tree_unflatten(_stacked(results, dim, reverse), spec)


def _levels(combine: Callable[[Leaves, Leaves], Leaves], xs: Leaves) -> Leaves:
    """Inclusive scan along dim 0: pairs first, then what lies between them (Blelloch 1990)."""
    count = xs[0].sizes[0]
    if count < 2:
        return xs
    odd = _levels(combine, combine([v[:-1:2] for v in xs], [v[1::2] for v in xs]))
    earlier = [v[:-1] for v in odd] if count % 2 == 0 else odd
    even = [v[:1] for v in xs]
    if count > 2:
        even = [torch.cat([a, b]) for a, b in zip(even, combine(earlier, [v[2::2] for v in xs]))]
    pairs = [torch.stack([a[: b.sizes[0]], b], 1).flatten(0, 1) for a, b in zip(even, odd)]
    return pairs if count % 2 == 0 else [torch.cat([p, a[-1:]]) for p, a in zip(pairs, even)]


def _is_elementwise(results: Leaves, operands: Leaves) -> bool:
    """Whether each element of the results depends on the elements at its own place alone."""
    shape, known = operands[0].sizes, {fk.value(v) for v in operands}
    seen: set[Node] = set()
    todo = [fk.value(v) for v in results if type(v) is Fake]
    if len(todo) < len(results) or any(n.shape != shape for n in (*todo, *known)):
        return False
    while todo:
        n = todo.pop()
        if n in known or n in seen:
            continue
        seen.add(n)
        if n.op.family is not Family.POINTWISE or n.shape not in (shape, ()):
            return False
        todo += n.args
    return True
