"""ATen's products as `matmul`. In: nodes in ATen's argument order. Out: nodes. Must not know strides or memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ir import Node
from .ops import contract, reduce, view
from .ops import pointwise as pw
from .promotion import as_type, full

Build = Callable[..., Any]


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """`x` of rank 2 or more."""
    y = contract.MATMUL(x, view.PERMUTE(weight, dims=(1, 0)))
    return y if bias is None else pw.ADD(y, bias)


def _product(rank: int) -> Build:
    def build(a: Node, b: Node) -> Node:
        _ranks(rank, a, b)
        return contract.MATMUL(a, b)

    return build


def _ranks(rank: int, *operands: Node) -> None:
    for x in operands:
        if len(x.shape) != rank:
            raise ValueError(f"operands of rank {rank} expected")


def _scaled(x: Node, factor: Any) -> Node:
    if factor == 1:
        return x
    return as_type(pw.MUL(as_type(x, x.dtype.compute), full(factor, x.dtype.compute)), x.dtype)


def _add_product(rank: int) -> Build:
    """beta * x + alpha * (a @ b); with beta 0, `x` is not read, so its NaN does not matter."""

    def build(x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
        _ranks(rank, a, b)
        product = _scaled(contract.MATMUL(a, b), alpha)
        if beta == 0:
            return product
        out = pw.ADD(product, _scaled(x, beta))
        if out.shape != product.shape:
            raise ValueError("the added operand is larger than the product")
        return out

    return build


def _mv(a: Node, x: Node) -> Node:
    _ranks(2, a)
    column = view.RESHAPE(x, shape=(*x.shape, 1))
    return view.RESHAPE(contract.MATMUL(a, column), shape=(a.shape[0],))


def _dot(x: Node, y: Node) -> Node:
    _ranks(1, x, y)
    if not x.dtype.is_float or x.dtype is not y.dtype or x.shape != y.shape:
        raise ValueError("vectors of one float type and size expected")
    wide = x.dtype.compute
    return as_type(reduce.SUM(pw.MUL(as_type(x, wide), as_type(y, wide)), dims=(0,)), x.dtype)


def _addmv(x: Node, a: Node, v: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    product = _scaled(_mv(a, v), alpha)
    return product if beta == 0 else pw.ADD(product, _scaled(x, beta))


def patch_convolution(x: Node, weight: Node, bias: Node | None) -> Node | None:
    """A convolution whose windows tile the image, as one product; x [N, C, *S], weight [O, C, *K].

    Patches are rows: [N, windows, C * window] @ [C * window, O]. With windows of one element it is weight @ x.
    """
    window, size = weight.shape[2:], x.shape[2:]
    n, c, o = x.shape[0], x.shape[1], weight.shape[0]
    grid = tuple(s // k for s, k in zip(size, window))
    if any(k == 0 for k in (*window, *grid, n, c, o)):
        return None
    flat = view.RESHAPE(weight, shape=(o, _product_of(weight.shape[1:])))
    if all(k == 1 for k in window):
        y = contract.MATMUL(flat, view.RESHAPE(x, shape=(n, c, _product_of(size))))
        y = view.RESHAPE(y, shape=(n, o, *size))
    else:
        rows = contract.MATMUL(_patches(x, grid, window), view.PERMUTE(flat, dims=(1, 0)))
        if bias is not None:
            rows, bias = pw.ADD(rows, bias), None
        y = view.RESHAPE(view.PERMUTE(rows, dims=(0, 2, 1)), shape=(n, o, *grid))
    return y if bias is None else pw.ADD(y, view.RESHAPE(bias, shape=(o,) + (1,) * len(size)))


def _patches(x: Node, grid: tuple[Any, ...], window: tuple[Any, ...]) -> Node:
    """[N, C, *S] as [N, windows, C * window]; what no window reaches is cut off."""
    for d, (g, k) in enumerate(zip(grid, window)):
        if g * k != x.shape[2 + d]:
            x = view.SLICE(x, dim=2 + d, start=0, stop=g * k, step=1)
    pairs = tuple(v for pair in zip(grid, window) for v in pair)
    x = view.RESHAPE(x, shape=(x.shape[0], x.shape[1], *pairs))
    dims = len(grid)
    outer, inner = tuple(2 + 2 * d for d in range(dims)), tuple(3 + 2 * d for d in range(dims))
    x = view.PERMUTE(x, dims=(0, *outer, 1, *inner))
    return view.RESHAPE(x, shape=(x.shape[0], _product_of(grid), x.shape[dims + 1] * _product_of(window)))


def _product_of(sizes: tuple[Any, ...]) -> Any:
    total = 1
    for s in sizes:
        total = total * s
    return total


BUILDS: dict[str, Build] = {
    "aten.mm.default": _product(2), "aten.bmm.default": _product(3), "aten.mv.default": _mv, "aten.dot.default": _dot,
    "aten.vdot.default": _dot, "aten.addmm.default": _add_product(2), "aten.baddbmm.default": _add_product(3),
    "aten.addmv.default": _addmv, "aten.linear.default": linear,
}  # fmt: skip
