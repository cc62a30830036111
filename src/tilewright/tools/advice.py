"""What to do about a call, by what its report says: the most promising first.

In: a `Report`, and the options of the compilation. Out: sentences. Must not know how the report came about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..base import config
from ..program.recompiles import culprit

if TYPE_CHECKING:
    from .explain import Report

SMALL_NS = 20_000
"""Estimated time of a call below which what stands around the kernels weighs more than they do."""
MANY_GUARDS = 5_000
BOUND = 0.6
"""Share of the time from which on a call counts as bound by one kind of kernel."""


def advice(r: Report, options: config.Options) -> list[str]:
    """At least one sentence."""
    found = sorted(_findings(r, options), key=lambda f: -f[0])
    return [text for _, text in found] or [_next(r, options)]


def _findings(r: Report, options: config.Options) -> Iterable[tuple[float, str]]:
    """(weight, sentence): the weight is about the share of the time that is at stake, in percent."""
    if r.fallback:
        _, marked, hint = r.fallback.rpartition("hint: ")
        yield 100, f"Nothing is compiled: {hint if marked else 'the reason stands above'}"
        return
    for n, b in enumerate(r.breaks):
        yield 90 - n / 100, f"The graph breaks at {b.at} ({b.reason}): {b.hint or 'remove the mark'}"
    if len(r.recompiles) >= 2:
        text, hint = culprit(list(r.recompiles))
        count = len(r.recompiles) + 1
        full = count >= options.recompile_limit
        ending = ", its limit; other calls run in eager" if full else ""
        yield 95 if full else 80, f"It was compiled {count} times{ending}. The guard that fails most: {text}; {hint}"
    opaque = [c for c in r.calls if "no row" in c.reason]
    if opaque:
        names = ", ".join(f"{c.operator} × {c.count}" for c in sorted(opaque, key=lambda c: -c.count)[:3])
        yield 60, f"Operators without a row run in eager between kernels, and cut fusion there: {names}"
    if r.eager_backward:
        yield 55, "The backward pass runs the function again in eager: call under torch.no_grad() where no gradients are needed"
    yield from _size(r)
    if options.mode == "reduce-overhead":
        yield 5, 'mode="reduce-overhead" changes nothing on a CPU: a launch costs about a microsecond already'
    if options.mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        yield 5, f'mode="{options.mode}" changes nothing yet: the analytic model chooses the schedules on a CPU'


def _size(r: Report) -> Iterable[tuple[float, str]]:
    """What the sizes of the work say."""
    library = sum(c.count for c in r.calls if "library" in c.reason)
    products = sum(k.share for k in r.kernels if k.kind in ("contract", "attention"))
    if len(r.graphs) == 1 and r.cost_ns < SMALL_NS and not r.calls:
        yield 50, (
            f"Too small to gain much: about {r.cost_ns / 1e3:.1f} µs of work in a call. Compile a larger part of the program at "
            "once, or work on larger batches"
        )
    elif library and library >= sum(k.launches for k in r.kernels if not k.folded) // 2:
        yield 40, f"Bound by the library: {library} of its calls do most of the work, and it is as fast in eager"
    elif products > BOUND:
        yield 30, (
            f"Matrix products and attention take {100 * products:.0f} % of the time: fusion can win little more. Lower precision "
            "(torch.autocast with bfloat16) or larger batches can"
        )
    if len(r.guards) > MANY_GUARDS:
        yield 20, f"{len(r.guards)} guards are checked at each call: compile a function that reaches fewer objects"


def _next(r: Report, options: config.Options) -> str:
    heaviest = max((k for k in r.kernels if not k.folded), key=lambda k: k.share, default=None)
    if heaviest is None:
        return "Nothing is computed"
    text = f"Nothing stands out. Most time goes to {heaviest.name} ({100 * heaviest.share:.0f} %)"
    frozen = '; options={"freeze": True} spares looking for changed weights'
    return text if options.freeze or not r.packed_bytes else text + frozen
