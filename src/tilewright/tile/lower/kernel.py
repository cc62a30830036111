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
from ..ir import Buffer, Kernel, Stmt
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
    blocks = math.prod(number(e, known) for _, e in kernel.grid)
    for v, e in kernel.grid:
        known[v] = (number(e, known) - 1) / 2
    return dataclasses.replace(kernel, cost=float(round(blocks * _cost(kernel.body, known, machine))))


def _cost(s: Stmt, known: Mapping[Expr, float], machine: Machine) -> float:
    match s:
        case ir.For(var, extent, body):
            turns = number(extent, known)
            return turns * _cost(body, {**known, var: max(turns - 1, 0) / 2}, machine)
        case ir.While(_, body):
            return UNKNOWN * _cost(body, known, machine)
        case ir.Parallel(_, extents, body):
            elements = math.prod(number(e, known) for e in extents)
            inner = [x for t in ir.statements(body) for x in ir.expressions(t)]
            reduced = sum(
                math.prod(number(e, known) for e in t.extents) for t in ir.statements(body) if isinstance(t, ir.Reduce)
            )
            bytes_ = sum(x.dtype.bytes for e in inner for x in ir.loads(e))
            return elementwise_ns(
                machine, round(elements * max(reduced, 1)), 1 + expression_cycles(*inner), round(elements * bytes_)
            )
        case ir.Reduce(_, _, _, _, extents, value):
            return elementwise_ns(machine, round(math.prod(number(e, known) for e in extents)), expression_cycles(value), 0)
        case ir.Copy(src, dst):
            n = math.prod(number(e, known) for e in dst.shape)
            return elementwise_ns(machine, round(n), 2, round(n * (src.buffer.dtype.bytes + dst.buffer.dtype.bytes)))
        case ir.Fill(dst) | ir.Scan(_, _, dst):
            n = math.prod(number(e, known) for e in dst.shape)
            return elementwise_ns(machine, round(n), 2, round(n * dst.buffer.dtype.bytes))
        case ir.Gemm(a, b, acc):
            m, n = (number(e, known) for e in acc.shape)
            k = number(a.shape[0 if s.transpose_a else 1], known)
            return gemm_ns(machine, round(m), round(n), round(k), 1, b.buffer.dtype.bytes)
    return 1.0 + sum(_cost(inner, known, machine) for inner in ir.bodies(s))


def number(e: Expr, known: Mapping[Expr, float]) -> float:
    """About the value of a size; `UNKNOWN` where it depends on memory."""
    match e:
        case Const(value, _):
            return float(value)
        case _ if e in known:
            return known[e]
        case Binary(op, x, y) if op in _APPROXIMATE:
            return _APPROXIMATE[op](number(x, known), number(y, known))
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


# --- what a kernel admits ---


@functools.lru_cache(1024)
def reads_elements(text: str, param: int) -> bool:
    """Whether all that a kernel does with a parameter is to read single elements and to copy regions out of it."""
    kernel = parsed(text)
    return _is_only(kernel, kernel.params[param], written=False)


@functools.lru_cache(1024)
def writes_elements(text: str, param: int) -> bool:
    """Whether all that a kernel does with a parameter is to store single elements, to fill, and to copy regions into it."""
    kernel = parsed(text)
    return _is_only(kernel, kernel.params[param], written=True)


def _is_only(kernel: Kernel, p: Buffer, written: bool) -> bool:
    for s in ir.statements(kernel.body):
        if any(load.buffer is p for e in ir.expressions(s) for load in ir.loads(e)) and written:
            return False
        match s:
            case ir.Copy(src, dst):
                wrong = src.buffer is p if written else dst.buffer is p
            case ir.Store(buffer):
                wrong = buffer is p and not written
            case ir.Fill(dst):
                wrong = dst.buffer is p and not written
            case ir.Gemm(a, b, acc):
                wrong = p in (a.buffer, b.buffer, acc.buffer)
            case ir.Scan(_, src, dst):
                wrong = p in (src.buffer, dst.buffer)
            case ir.Reduce():
                wrong = s.dst is p
            case ir.Atomic(_, buffer):
                wrong = buffer is p
            case _:
                wrong = False
        if wrong:
            return False
    return True


def elements_read(text: str, param: int, scalars: Sequence[int]) -> float:
    """About how many elements of a parameter a launch reads."""
    kernel = parsed(text)
    p = kernel.params[param]
    known: dict[Expr, float] = dict(zip(kernel.scalars, scalars, strict=True))
    blocks = 1.0
    for v, e in kernel.grid:
        blocks *= number(e, known)
        known[v] = (number(e, known) - 1) / 2

    def count(s: Stmt, times: float) -> float:
        match s:
            case ir.For(v, extent):
                times *= number(extent, known)
                known[v] = number(extent, known) / 2
            case ir.Parallel(_, extents) | ir.Reduce(_, _, _, _, extents):
                for e in extents:
                    times *= number(e, known)
        own = sum(load.buffer is p for e in ir.expressions(s) for load in ir.loads(e)) * times
        if isinstance(s, ir.Copy) and s.src.buffer is p:
            size = 1.0
            for e in s.src.shape:
                size *= number(e, known)
            own += size * times
        return own + sum(count(inner, times) for inner in ir.bodies(s))

    return count(kernel.body, blocks)
