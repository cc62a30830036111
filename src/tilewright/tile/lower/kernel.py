"""Users' kernels in a lowered program: their text read, their cost estimated, and the copies that they need.

In: a kernel's text, the values of its sizes. Out: kernels. Must not know graphs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

from ...base.dims import to_expr
from ...base.scalar import Binary, Const, Expr
from .. import ir
from ..builder import KernelBuilder
from ..ir import Kernel, Stmt
from ..parse import parse_kernel
from ..program import Value, View
from ..schedule import Machine, elementwise_ns, expression_cycles, gemm_ns

UNKNOWN = 16  # turns of a loop whose length depends on more than sizes


@functools.lru_cache(256)
def parsed(text: str) -> Kernel:
    return parse_kernel(text)


def costed(kernel: Kernel, scalars: Sequence[int], machine: Machine) -> Kernel:
    """The kernel with an estimate of its one-thread time in nanoseconds, for these values of its sizes."""
    known: dict[Expr, float] = dict(zip(kernel.scalars, scalars, strict=True))
    blocks = math.prod(_number(e, known) for _, e in kernel.grid)
    for v, e in kernel.grid:
        known[v] = (_number(e, known) - 1) / 2
    return dataclasses.replace(kernel, cost=float(round(blocks * _cost(kernel.body, known, machine))))


def _cost(s: Stmt, known: Mapping[Expr, float], machine: Machine) -> float:
    match s:
        case ir.For(var, extent, body):
            turns = _number(extent, known)
            return turns * _cost(body, {**known, var: max(turns - 1, 0) / 2}, machine)
        case ir.While(_, body):
            return UNKNOWN * _cost(body, known, machine)
        case ir.Parallel(_, extents, body):
            elements = math.prod(_number(e, known) for e in extents)
            inner = [x for t in ir.statements(body) for x in ir.expressions(t)]
            reduced = sum(
                math.prod(_number(e, known) for e in t.extents) for t in ir.statements(body) if isinstance(t, ir.Reduce)
            )
            bytes_ = sum(x.dtype.bytes for e in inner for x in ir.loads(e))
            return elementwise_ns(
                machine, round(elements * max(reduced, 1)), 1 + expression_cycles(*inner), round(elements * bytes_)
            )
        case ir.Reduce(_, _, _, _, extents, value):
            return elementwise_ns(machine, round(math.prod(_number(e, known) for e in extents)), expression_cycles(value), 0)
        case ir.Copy(src, dst):
            n = math.prod(_number(e, known) for e in dst.shape)
            return elementwise_ns(machine, round(n), 2, round(n * (src.buffer.dtype.bytes + dst.buffer.dtype.bytes)))
        case ir.Fill(dst) | ir.Scan(_, _, dst):
            n = math.prod(_number(e, known) for e in dst.shape)
            return elementwise_ns(machine, round(n), 2, round(n * dst.buffer.dtype.bytes))
        case ir.Gemm(a, b, acc):
            m, n = (_number(e, known) for e in acc.shape)
            k = _number(a.shape[0 if s.transpose_a else 1], known)
            return gemm_ns(machine, round(m), round(n), round(k), 1, b.buffer.dtype.bytes)
    return 1.0 + sum(_cost(inner, known, machine) for inner in ir.bodies(s))


def _number(e: Expr, known: Mapping[Expr, float]) -> float:
    """About the value of a size; `UNKNOWN` where it depends on memory."""
    match e:
        case Const(value, _):
            return float(value)
        case _ if e in known:
            return known[e]
        case Binary(op, x, y) if op in _APPROXIMATE:
            return _APPROXIMATE[op](_number(x, known), _number(y, known))
    return float(UNKNOWN)


_APPROXIMATE: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "min": min, "max": max,
    "floordiv": lambda a, b: a // b if b else 0.0, "mod": lambda a, b: a % b if b else 0.0,
}  # fmt: skip


def copy_kernel(src: View, dst: Value) -> Kernel:
    """Copies a view into memory of the same shape."""
    b = KernelBuilder("copy")
    shape = [to_expr(n) for n in dst.shape] or [ir.const(1)]
    x = b.param("x0", dst.dtype, shape, [to_expr(s) for s in src.strides] or [1])
    y = b.param("y0", dst.dtype, shape, [to_expr(s) for s in dst.strides] or [1], out=True)
    rows = b.grid(*shape[:1]) if len(shape) > 1 else ()
    with b.parallel(*shape[len(rows) :]) as index:
        b.store(y, (*rows, *index), x[(*rows, *index)])
    return b.build(cost=float(math.prod([n if isinstance(n, int) else UNKNOWN for n in dst.shape])))
