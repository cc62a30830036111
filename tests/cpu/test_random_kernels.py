"""Kernels made at random (stores, conditions and reductions over operands indexed in every way) against the simulator."""

from __future__ import annotations

import random as randomness

import numpy as np
import pytest

from cpu import kernels
from cpu.kernels import buffer, random
from tilewright.base import dtypes, scalar
from tilewright.base.dtypes import DType
from tilewright.tile import ir, simulate
from tilewright.tile.ir import Expr, If, Kernel, Load, Parallel, Reduce, Stmt, Store, block, const, var

EVERY = [*kernels.BOTH, kernels.SCALAR]
TYPES = [dtypes.f32, dtypes.f32, dtypes.f32, dtypes.bf16, dtypes.f16, dtypes.i32, dtypes.i64, dtypes.u8, dtypes.f64]
NOTHING: tuple[list[Expr], list[int]] = ([], [])


class Maker:
    """Draws one kernel; `kernel()` gives it with memory for its parameters."""

    def __init__(self, seed: int) -> None:
        self.r = randomness.Random(seed)
        rank = self.r.choice([1, 2, 2, 3])
        self.shape = [self.r.choice([1, 2, 3, 4, 7, 16, 17, 32, 40]) for _ in range(rank)]
        self.vars = [var("ijk"[d]) for d in range(rank)]
        self.blocks, self.block = self.r.choice([1, 1, 2, 3]), var("g")
        self.dtype = self.r.choice(TYPES)
        self.inputs: list[tuple[ir.Buffer, np.ndarray]] = []
        self.outputs: list[tuple[ir.Buffer, np.ndarray]] = []

    def kernel(self) -> tuple[Kernel, list[np.ndarray]]:
        body = Parallel(
            tuple(self.vars), tuple(map(const, self.shape)), block(*(self.statement() for _ in range(self.r.choice([1, 1, 2]))))
        )
        grid = ((self.block, const(self.blocks)),) if self.blocks > 1 else ()
        both = [*self.inputs, *self.outputs]
        return Kernel("random", tuple(b for b, _ in both), grid, body, tuple(b.name for b, _ in self.outputs)), [
            a for _, a in both
        ]

    def statement(self) -> Stmt:
        kind = self.r.random()
        if kind < 0.5:
            return Store(*self.output(self.dtype), self.value(self.r.choice([1, 2, 3]), self.dtype))
        if kind < 0.65:
            target = self.output(self.dtype)
            other = Store(*target, self.value(1, self.dtype)) if self.r.random() < 0.5 else None
            return If(self.condition(), Store(*target, self.value(2, self.dtype)), other)
        if kind < 0.75:
            to = self.r.choice([dtypes.f32, dtypes.i32, dtypes.b1, dtypes.bf16])
            value = scalar.minimum(scalar.maximum(self.value(1, dtypes.f32), -50.0), 50.0)
            return Store(*self.output(to), scalar.cast(value, to))
        variables = [var("rs"[d]) for d in range(self.r.choice([1, 2]))]
        extents = [self.r.choice([1, 3, 16, 20, 70]) for _ in variables]
        op = self.r.choice(["sum", "max", "min", "argmax", "sum"])
        position = op == "argmax"
        more = (list(variables), list(extents)) if self.r.random() < 0.6 else (variables[::-1], extents[::-1])
        value = self.value(self.r.choice([0, 1]), self.dtype, more)
        target = self.output(dtypes.i64 if position else self.dtype)
        return Reduce(op, *target, tuple(variables), tuple(map(const, extents)), value, position or self.r.random() < 0.7)

    def value(self, depth: int, dtype: DType, more: tuple[list[Expr], list[int]] = NOTHING) -> Expr:
        kind = self.r.random()
        if depth == 0 or kind < 0.2:
            if dtype is not dtypes.u8 and kind < 0.05:
                return scalar.cast(self.r.choice(self.vars) * self.r.choice([1, 2, -1]) + self.r.choice([0, 1, 5]), dtype)
            return self.load(dtype, more)
        if kind < 0.6 or not dtype.is_float:
            op = self.r.choice(["add", "sub", "mul", "min", "max"])
            return scalar.binary(op, self.value(depth - 1, dtype, more), self.value(depth - 1, dtype, more))
        if kind < 0.75:
            return scalar.select(self.condition(), self.value(depth - 1, dtype, more), self.value(depth - 1, dtype, more))
        op = self.r.choice(["neg", "abs", "exp", "tanh", "floor"])
        return scalar.unary(op, scalar.minimum(self.value(depth - 1, dtype, more), 2.0))

    def condition(self) -> Expr:
        kind = self.r.random()
        if kind < 0.4:
            return self.r.choice(self.vars) * 2 <= self.r.choice(self.vars) + self.r.choice([0, 1, 4])
        if kind < 0.6:
            return (self.r.choice(self.vars) % 3).eq(1)
        return scalar.binary(self.r.choice(["lt", "ge"]), self.load(dtypes.f32, NOTHING), 0.1)

    def load(self, dtype: DType, more: tuple[list[Expr], list[int]]) -> Expr:
        """An operand whose dimensions are the nest's: swapped, split, reversed, strided, shifted beyond the end, or missing."""
        index: list[Expr] = [self.block] if self.blocks > 1 and self.r.random() < 0.5 else []
        dims = [self.blocks] * len(index)
        for d in self.r.sample(range(len(self.shape)), len(self.shape)):
            v, n, kind = self.vars[d], self.shape[d], self.r.random()
            c = self.r.choice([2, 3, 4, 16])
            part: tuple[list[Expr], list[int]] = ([v], [n])
            if kind > 0.93:
                part = [v + 3], [n if self.r.random() < 0.5 else n + 3]
            elif kind > 0.85:
                part = [v * 2 + 1], [2 * n]
            elif kind > 0.75:
                part = [v // c, v % c], [(n - 1) // c + 1, c]
            elif kind > 0.65:
                part = [(n - 1) - v], [n]
            elif kind > 0.55:
                part = NOTHING
            index += part[0]
            dims += part[1]
        index += more[0] or ([] if index else [const(0)])
        dims += more[1] or ([] if dims else [1])
        order = self.r.sample(range(len(dims)), len(dims)) if self.r.random() < 0.4 else list(reversed(range(len(dims))))
        strides, size = self.strides(dims, order, [0, 0, 0, 1, 16])
        found = buffer(f"x{len(self.inputs)}", dtype, *dims, strides=strides)
        self.inputs.append((found, random(dtype, (size,), self.r.randrange(1000))))
        return Load(found, tuple(index))

    def output(self, dtype: DType) -> tuple[ir.Buffer, tuple[Expr, ...]]:
        dims = [self.blocks, *self.shape]
        order = (
            self.r.sample(range(1, len(dims)), len(self.shape)) if self.r.random() < 0.4 else list(reversed(range(1, len(dims))))
        )
        strides, size = self.strides(dims, [*order, 0], [0, 0, 5])
        out = buffer(f"out{len(self.outputs)}", dtype, *dims, strides=strides)
        self.outputs.append((out, random(dtype, (size,), self.r.randrange(1000))))
        return out, (self.block if self.blocks > 1 else const(0), *self.vars)

    def strides(self, dims: list[int], order: list[int], gaps: list[int]) -> tuple[tuple[int, ...], int]:
        """Strides with the dimensions of `order` from the innermost outwards, and the elements they span."""
        steps, step = [0] * len(dims), 1
        for d in order:
            steps[d] = step
            step *= dims[d] + self.r.choice(gaps)
        return tuple(steps), 1 + sum((n - 1) * t for n, t in zip(dims, steps, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_random(seed: int) -> None:
    kernel, arrays = Maker(seed).kernel()
    expected = [a.copy() for a in arrays]
    simulate.run_kernel(kernel, expected)
    for isa in EVERY:
        got = [a.copy() for a in arrays]
        kernels.execute(kernel, got, isa)
        for p, x, y in zip(kernel.params, got, expected, strict=True):
            _near(p.dtype, kernels.decode(x, p.dtype), kernels.decode(y, p.dtype), f"{isa.name}: {p.name}")


def _near(dtype: DType, x: np.ndarray, y: np.ndarray, name: str) -> None:
    """Equal but for rounding: a value next to a step of floor, or a position of an extreme, may fall on either side."""
    loose = dtype.is_float and dtype.bytes < 4
    small = 2e-2 if loose else 1e-9 if dtype is dtypes.f64 else 2e-4
    far = ~np.isclose(x, y, rtol=small, atol=small, equal_nan=True) if dtype.is_float else x != y
    allowed = 0.02 if loose or not dtype.is_float else 0.0
    assert far.mean() <= allowed, f"{name}: {x[far][:5]} where {y[far][:5]} is expected"
