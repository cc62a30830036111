"""Running sums and products along one dimension.

In: a scan group. Out: one kernel, a block a line: the operand is computed into a row buffer, scanned there, and stored.
Must not know what reads the result.
"""

from __future__ import annotations

from ...base import scalar
from ...base.dims import to_expr
from ...base.scalar import const
from ...graph.ops.scan import ScanAttrs
from ..fuse import Group
from ..ir import Alloc, Buffer, Parallel, Region, Scan, Scope, Store, block
from ..schedule import elementwise_ns, expression_cycles
from .context import Context, Draft, Lowered, kernel_name
from .domain import Domain, axis, extent, merged, refined
from .emit import Axis, Emitter, Params, Trace

_OPS = {"cumsum": "sum", "cumprod": "prod"}


def lower_scan(group: Group, context: Context) -> list[Lowered]:
    core = group.core
    assert core is not None
    assert isinstance(core.attrs, ScanAttrs)
    dim = core.attrs.dim

    def emitter(domain: Domain, axes: list[Axis], params: Params, trace: Trace) -> Emitter:
        return Emitter(domain.space, axes, params, context.values, context.targets, {*group.members, *group.inlined}, trace)

    def probe(domain: Domain, trace: Trace) -> None:
        e = emitter(domain, domain.own_axes(), Params(), trace)
        e.value(core.args[0], domain.domain)
        e.store(core, domain.domain)

    domain = refined(group, lambda d: probe(d, Trace()))
    trace = Trace()
    probe(domain, trace)
    outer = [v for d, vs in enumerate(domain.dims) if d != dim for v in vs]
    runs = merged(outer, trace.forms)
    grid = [(scalar.var(f"g{i}"), to_expr(extent(run))) for i, run in enumerate(runs)]
    axes = [axis(run, g) for run, (g, _) in zip(runs, grid, strict=True)]
    line, i = domain.dims[dim], scalar.var("i")
    length, elements = to_expr(group.shape[dim]), context.hints.product(group.shape)
    if line:
        axes.append(axis(line, i))
    draft = Draft(kernel_name(group))
    e = emitter(domain, axes, draft.params, Trace())
    value = e.value(core.args[0], domain.domain)
    target, at = e.store(core, domain.domain)
    source = Buffer("row0", core.dtype.compute, (length,), Scope.SHARED)
    result = Buffer("row1", core.dtype.compute, (length,), Scope.SHARED)
    whole = (const(0),), (length,)
    body = block(
        Parallel((i,), (length,), Store(source, (i,), scalar.cast(value, core.dtype.compute))),
        Scan(_OPS[core.op.name], Region(source, *whole), Region(result, *whole), 0),
        Parallel((i,), (length,), Store(target, at, result[i])),
    )
    cost = elementwise_ns(context.machine, elements, expression_cycles(value) + 4 * context.machine.lanes, 8 * elements)
    return [draft.finish(grid, Alloc(source, Alloc(result, body)), cost, bounded=True)]

