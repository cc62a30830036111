"""A kernel of the tile IR as one LLVM function that runs a range of its grid.

In: a `Kernel`, a name, the module to put it in, an `Isa`. Out: the function `void name(ptr args, i64 lo, i64 hi, ptr
scratch)` in the module, and how much scratch it wants. Must not know programs, threads, or how objects are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.dims import Size
from ...tile import ir
from ...tile.ir import Assert, Kernel
from ...tile.ir import statements as statements_of
from . import expr, llvm, moves, prepare, statements
from .context import Context
from .isa import Isa


@dataclass(frozen=True)
class KernelInfo:
    """`scratch_bytes`: what each thread that runs the kernel must provide, 64-byte aligned; it may depend on the kernel's
    scalars. `checks`: the kernel holds
    assertions, and takes the address of an error message after its other arguments."""

    symbol: str
    scratch_bytes: Size
    checks: bool = False


def emit_kernel(kernel: Kernel, symbol: str, module: llvm.Module, isa: Isa) -> KernelInfo:
    """Write `kernel` into `module` as `symbol`.

    `args` points to one pointer a parameter (the first element of its view), then one i64 a scalar, then, where the kernel
    holds assertions, a pointer to room for an error message (256 bytes; the first is zero while nothing failed). Blocks `lo` to
    `hi - 1` of the flattened grid (last axis fastest) are run. Raises `errors.CompileError` where the target lacks
    something that the kernel uses.
    """
    kernel = moves.as_bits(kernel)
    f = llvm.Function(module, symbol, ["ptr noalias %args", "i64 %lo", "i64 %hi", "ptr noalias %scratch"])
    ctx = Context(f, isa, kernel.scalars)
    ctx.in_bounds = kernel.bounded
    for k, buffer in enumerate(kernel.params):
        ctx.pointers[buffer] = f.let(f"load ptr, ptr {f.at('%args', k, 'ptr')}, align 8", "a")
    for k, v in enumerate(kernel.scalars):
        ctx.bind(v, f.let(f"load i64, ptr {f.at('%args', len(kernel.params) + k, 'i64')}, align 8", "n"), (0, float("inf")))
    checks = any(isinstance(s, Assert) for s in statements_of(kernel.body))
    if checks:
        ctx.error = f.let(f"load ptr, ptr {f.at('%args', len(kernel.params) + len(kernel.scalars), 'ptr')}, align 8", "e")
    body = prepare.without_lets(kernel.body)
    some = f.let("icmp slt i64 %lo, %hi")
    f.do(f"br i1 {some}, label %start, label %done")
    f.label("start")

    def block(position: str) -> None:
        _bind_grid(ctx, kernel, position)
        statements.emit(ctx, body)

    ctx.loop("%lo", "%hi", 1, block, writes=ir.written(body), surely=True)
    f.do("br label %done")
    f.label("done")
    ctx.finish()
    f.close()
    return KernelInfo(symbol, ctx.scratch_bytes, checks)


def _bind_grid(ctx: Context, kernel: Kernel, position: str) -> None:
    """Recover the grid's indices from the flattened block number."""
    rest: int | str = position
    axes = list(kernel.grid)
    while axes:
        v, extent = axes.pop()
        ctx.ends(v, extent)
        n = expr.size(ctx, extent)
        top = n - 1 if isinstance(n, int) else float("inf")
        if n == 1:
            ctx.bind(v, 0)
        elif not any(expr.size(ctx, e) != 1 for _, e in axes):
            ctx.bind(v, rest, (0, top))
            rest = 0
        else:
            ctx.bind(v, ctx.f.let(f"urem i64 {rest}, {n}", "g"), (0, top))
            rest = ctx.f.let(f"udiv i64 {rest}, {n}", "g")
