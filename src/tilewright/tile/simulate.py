"""The meaning of tile programs, in NumPy: runs kernels and lowered programs, and proves them free of races.

In: a `Kernel` with its arrays, or a `Program` with its inputs. Out: the arrays written, or a `SimulationFault`. Must
not know targets or torch; an eager call inside a program is the caller's to run.

Grid blocks run one after another; the iterations of a `Parallel` run together, as array operations. With `check` every
element carries who read and wrote it, so a race is found whatever the order of execution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ..base import dims, dtypes
from ..base.dims import Size
from ..base.errors import TilewrightError
from . import ir
from .evaluate import Array, combined, convert, evaluate, held, reduced, scanned, stored
from .ir import Alloc, Buffer, Expr, Kernel, Load, Region, Scope, Stmt, Var
from .memory import Bound, Memory, Races
from .program import Call, Launch, Program, Storage
from .text import statement_text

LANES = 1 << 20
"""Elements evaluated together; a larger Parallel goes in pieces along its first variable."""


class SimulationFault(TilewrightError):
    """A kernel did what its meaning does not allow."""

    template = "{kernel}: {problem}\n  in: {statement}"


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


Report: TypeAlias = Callable[[str, str, Stmt, int], None]
"""Told of a fault: its kind, what it is, the statement and the number of the block."""


def run_kernel(
    kernel: Kernel, arrays: Sequence[np.ndarray | Memory], scalars: Sequence[int] = (), check: bool = True,
    report: Report | None = None,
) -> None:  # fmt: skip
    """Run `kernel` on `arrays`, one a parameter, in place. With `report` it is told of faults, and the run goes on.

    An array is taken as flat memory, in row-major order, and seen through the parameter's strides from its first element;
    a `Memory` starts elsewhere. Arrays must be C-contiguous and hold the parameter's `evaluate.stored` type (bfloat16:
    its bits in uint16, or float32). Raises ValueError for arrays that do not fit, SimulationFault as the module says.
    """
    if len(arrays) != len(kernel.params) or len(scalars) != len(kernel.scalars):
        raise ValueError(f"{kernel.name}: {len(kernel.params)} arrays and {len(kernel.scalars)} scalars expected")
    memories = [a if isinstance(a, Memory) else Memory(_flat(a)) for a in arrays]
    for p, m in zip(kernel.params, memories, strict=True):
        if m.flat.dtype not in (stored(p.dtype), held(p.dtype)):
            raise ValueError(f"{kernel.name}: {p.name} is {p.dtype}, stored as {stored(p.dtype)}; got {m.flat.dtype}")
    with np.errstate(all="ignore"):
        _Run(kernel, memories, scalars, check, report).run()


def _flat(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        raise ValueError("a C-contiguous array is expected; pass Memory(flat, offset) for a view")
    return array.reshape(-1)


@dataclass
class _Frame:
    """Where execution stands. Inside a Parallel, `shape` is the box of iterations and a variable's values broadcast to it."""

    shape: tuple[int, ...]
    env: dict[Expr, Array]
    parallel: bool = False
    lanes: Array = 0  # each iteration's stamp, of `shape`
    base: int = 0  # of this phase's stamps
    written: frozenset[int] = frozenset()  # the memories (by id) that this Parallel writes

    def inside(self, variables: Sequence[Var], extents: Sequence[int], start: int = 0) -> _Frame:
        """The frame of a nest of `variables` within this one, the first from `start` on."""
        rank, inner = len(self.shape), len(extents)
        env = {v: a.reshape(a.shape + (1,) * inner) if a.ndim else a for v, a in self.env.items()}
        for k, (v, n) in enumerate(zip(variables, extents, strict=True)):
            first = start if k == 0 else 0
            values = np.arange(first, first + n, dtype=held(v.dtype))
            env[v] = values.reshape((1,) * (rank + k) + (n,) + (1,) * (inner - k - 1))
        lanes = self.lanes.reshape(self.shape + (1,) * inner) if np.ndim(self.lanes) else self.lanes
        return replace(self, shape=self.shape + tuple(extents), env=env, lanes=lanes)

    def where(self, mask: Array) -> _Frame:
        """The frame of the iterations that `mask`, of the frame's shape, selects."""
        env = {v: np.broadcast_to(a, self.shape)[mask] if a.ndim else a for v, a in self.env.items()}
        lanes = self.lanes[mask] if np.ndim(self.lanes) else self.lanes
        return replace(self, shape=(int(mask.sum()),), env=env, lanes=lanes)


class _Run:
    """One launch."""

    def __init__(
        self, kernel: Kernel, memories: Sequence[Memory], scalars: Sequence[int], check: bool, report: Report | None = None
    ) -> None:
        self.kernel, self.check, self.report = kernel, check, report
        self.current: Stmt = kernel.body
        self.sizes: dict[Expr, Array] = {v: held(v.dtype).type(s) for v, s in zip(kernel.scalars, scalars, strict=True)}
        self.bound: dict[Buffer, Bound] = {}
        self.races: dict[int, Races] = {}  # among the iterations of a Parallel, by id of the flat array
        self.block_races: dict[int, Races] = {}  # among blocks
        self.block = 0
        self.stamp = 0
        self.alive: list[np.ndarray] = []  # keeps ids of tracked arrays unique
        frame = _Frame((), self.sizes)
        for p, m in zip(kernel.params, memories, strict=True):
            self.bound[p] = self._bind(p, m, frame)
            if check and p.name in kernel.outputs:
                self.block_races.setdefault(id(m.flat), Races(m.flat.size))

    def run(self) -> None:
        extents = [self._int(e, _Frame((), self.sizes)) for _, e in self.kernel.grid]
        for self.block, index in enumerate(np.ndindex(*extents)):
            env = dict(self.sizes)
            for (v, _), i in zip(self.kernel.grid, index, strict=True):
                env[v] = held(v.dtype).type(i)
            self.execute(self.kernel.body, _Frame((), env))

    def fault(self, problem: str) -> NoReturn:
        raise SimulationFault(kernel=self.kernel.name, statement=statement_text(self.current), problem=problem)

    def found(self, kind: str, problem: str) -> None:
        """A fault after which the run can go on, where someone is told of it."""
        if self.report is None:
            self.fault(problem)
        self.report(kind, problem, self.current, self.block)

    # statements

    def execute(self, s: Stmt, frame: _Frame) -> None:
        if isinstance(s, ir.Block):
            for inner in s.body:
                self.execute(inner, frame)
            return
        self.current = s
        match s:
            case ir.Store(buffer, index, value):
                memo: dict[Expr, Array] = {}
                self._store(
                    buffer, [self._eval(i, frame, memo) for i in index], self._eval(value, frame, memo), value.dtype, frame
                )
            case ir.Let(var, value, body):
                self.execute(body, replace(frame, env=frame.env | {var: self._eval(value, frame)}))
            case ir.If():
                self._if(s, frame)
            case ir.Reduce():
                self._reduce(s, frame)
            case ir.Atomic():
                self._atomic(s, frame)
            case ir.Parallel():
                self._parallel(s, frame)
            case ir.Assert(cond, message):
                if not np.all(self._eval(cond, frame)):
                    self.found("assertion", f"assertion failed: {message}")
            case _ if frame.parallel:
                self.fault(f"{type(s).__name__} is not allowed inside Parallel")
            case _:
                self._serial(s, frame)

    def _serial(self, s: Stmt, frame: _Frame) -> None:
        match s:
            case ir.For(var, extent, body):
                self._loop(var, self._int(extent, frame), body, frame)
            case ir.While(cond, body):
                while bool(self._eval(cond, frame)) and self._turn(body, frame):
                    self.current = s
            case Alloc(buffer, body):
                size = self._size(buffer, frame)
                self.bound[buffer] = self._bind(buffer, Memory.undefined(buffer.dtype, size, self.check), frame)
                self.execute(body, frame)
            case ir.Copy(src, dst, transpose):
                value = self._read_region(src, frame)
                value = np.swapaxes(value, -1, -2) if transpose else value
                self._write_region(dst, convert(value, src.buffer.dtype, dst.buffer.dtype), frame)
            case ir.Fill(dst, value):
                filled = convert(self._eval(value, frame), value.dtype, dst.buffer.dtype)
                self._write_region(dst, np.broadcast_to(filled, self._extents(dst, frame)), frame)
            case ir.Gemm():
                self._gemm(s, frame)
            case ir.Scan():
                self._scan(s, frame)
            case ir.Break():
                raise _Break
            case ir.Continue():
                raise _Continue
            case ir.Print(message, args):
                print(message, *(self._eval(a, frame) for a in args))
            case ir.Sync():
                pass
            case _:
                self.fault(f"unknown statement {type(s).__name__}")

    def _loop(self, var: Var, extent: int, body: Stmt, frame: _Frame) -> None:
        kind = held(var.dtype).type
        for i in range(extent):
            frame.env[var] = kind(i)
            if not self._turn(body, frame):
                break

    def _turn(self, body: Stmt, frame: _Frame) -> bool:
        """One turn of a loop; False where it broke out."""
        try:
            self.execute(body, frame)
        except _Continue:
            pass
        except _Break:
            return False
        return True

    def _if(self, s: ir.If, frame: _Frame) -> None:
        cond = self._eval(s.cond, frame)
        if not np.ndim(cond):
            chosen = s.then if cond else s.orelse
            if chosen is not None:
                self.execute(chosen, frame)
            return
        mask = np.broadcast_to(cond, frame.shape)
        for body, active in ((s.then, mask), (s.orelse, ~mask)):
            if body is not None and active.any():
                self.execute(body, frame if active.all() else frame.where(active))

    def _parallel(self, s: ir.Parallel, frame: _Frame) -> None:
        extents = [self._int(e, frame) for e in s.extents]
        if 0 in extents or not extents:
            if not extents:
                self.execute(s.body, replace(frame, parallel=True))
            return
        row = math.prod(frame.shape) * math.prod(extents[1:]) * self._widest_reduction(s.body)
        step = max(1, LANES // max(row, 1))
        lanes: Array = 0
        base, written = frame.base, frame.written
        if self.check:
            outer = math.prod(frame.shape)
            count = outer * math.prod(extents)
            base, self.stamp = self.stamp, self.stamp + count + Races.FIRST
            lanes = np.arange(base + Races.FIRST, base + Races.FIRST + count).reshape(*frame.shape, *extents)
            written = frozenset(id(self.bound[b].memory.flat) for b in ir.written(s.body)) | frame.written
        for start in range(0, extents[0], step):
            here = [min(step, extents[0] - start), *extents[1:]]
            inner = frame.inside(s.vars, here, start)
            if self.check:
                axis = len(frame.shape)
                piece = np.take(lanes, range(start, start + here[0]), axis=axis) if here[0] < extents[0] else lanes
                inner = replace(inner, lanes=piece, base=base, written=written)
            self.execute(s.body, replace(inner, parallel=True))

    def _widest_reduction(self, body: Stmt) -> int:
        sizes = [
            math.prod(e.value if isinstance(e, ir.Const) else 1 for e in r.extents)
            for r in ir.statements(body)
            if isinstance(r, ir.Reduce)
        ]
        return int(max(sizes, default=1)) or 1

    def _reduce(self, s: ir.Reduce, frame: _Frame) -> None:
        extents = [self._int(e, frame) for e in s.extents]
        index = [self._eval(i, frame) for i in s.index]
        if 0 in extents:
            value: Array = np.zeros((*frame.shape, 0), held(s.value.dtype))
        else:
            inner = frame.inside(s.vars, extents)
            value = np.broadcast_to(self._eval(s.value, inner), inner.shape).reshape(*frame.shape, -1)
        try:
            result, dtype = reduced(s.op, value, s.value.dtype)
            if not s.clear:
                wide = s.dst.dtype.compute
                old = convert(self._load(s.dst, index, frame), s.dst.dtype, wide)
                result, dtype = combined(s.op, old, convert(result, dtype, wide), wide), wide
        except ValueError as error:
            self.fault(str(error))
        self._store(s.dst, index, result, dtype, frame)

    def _atomic(self, s: ir.Atomic, frame: _Frame) -> None:
        ufunc = _ATOMIC.get(s.op)
        if ufunc is None and s.op != "exchange":
            self.fault(f"unknown atomic operation {s.op!r}")
        memo: dict[Expr, Array] = {}
        bound = self.bound[s.buffer]
        index = [self._eval(i, frame, memo) for i in s.index]
        value = convert(self._eval(s.value, frame, memo), s.value.dtype, s.buffer.dtype)
        address, keep = self._address(bound, index, frame, write=True)
        value = np.broadcast_to(value, np.shape(address) if keep is None else frame.shape)
        value = value if keep is None else value[keep]
        if ufunc is not None and bound.undefined(address):
            self.found("uninitialised", f"{s.buffer.name}: an atomic update of an element that holds no value")
        self._note_write(bound, address, None, frame)
        if ufunc is None or stored(s.buffer.dtype) != held(s.buffer.dtype):
            for a, v in zip(np.ravel(address), np.ravel(value), strict=True):
                old = bound.load(a)
                bound.store(a, v if ufunc is None else convert(ufunc(old, v), s.buffer.dtype.compute, s.buffer.dtype))
            return
        ufunc.at(bound.memory.flat, address, value)

    def _gemm(self, s: ir.Gemm, frame: _Frame) -> None:
        wide = s.acc.buffer.dtype.compute
        a = convert(self._read_region(s.a, frame), s.a.buffer.dtype, wide)
        b = convert(self._read_region(s.b, frame), s.b.buffer.dtype, wide)
        a, b = (a.T if s.transpose_a else a), (b.T if s.transpose_b else b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            self.fault(f"shapes {a.shape} and {b.shape} do not multiply")
        product = np.matmul(a, b)
        if not s.clear:
            product = convert(self._read_region(s.acc, frame), s.acc.buffer.dtype, wide) + product
        self._write_region(s.acc, convert(product, wide, s.acc.buffer.dtype), frame)

    def _scan(self, s: ir.Scan, frame: _Frame) -> None:
        source = s.src.buffer.dtype
        value = convert(self._read_region(s.src, frame), source, source.compute)
        value = np.flip(value, s.axis) if s.reverse else value
        value = scanned(s.op, value, s.axis)
        value = np.flip(value, s.axis) if s.reverse else value
        self._write_region(s.dst, convert(value, source.compute, s.dst.buffer.dtype), frame)

    # expressions

    def _eval(self, e: Expr, frame: _Frame, memo: dict[Expr, Array] | None = None) -> Array:
        env = frame.env
        memo = {} if memo is None else memo

        def leaf(node: Expr) -> Array:
            if isinstance(node, Load):
                return self._load(node.buffer, [evaluate(i, leaf, memo) for i in node.index], frame)
            value = env.get(node)
            if value is None:
                self.fault(f"{node} has no value here")
            return value

        try:
            return evaluate(e, leaf, memo)
        except (ZeroDivisionError, TypeError) as error:
            self.fault(str(error))

    def _int(self, e: Expr, frame: _Frame) -> int:
        if isinstance(e, ir.Const):
            return int(e.value)
        value = self._eval(e, frame)
        if np.ndim(value):
            self.fault("an extent must be the same for all iterations")
        return int(value)

    # buffers

    def _bind(self, buffer: Buffer, memory: Memory, frame: _Frame) -> Bound:
        shape = tuple(self._int(e, frame) for e in buffer.shape)
        if buffer.layout is not None:
            return Bound(buffer, memory, shape, None, self.sizes)
        return Bound(buffer, memory, shape, tuple(self._int(e, frame) for e in buffer.steps()))

    def _size(self, buffer: Buffer, frame: _Frame) -> int:
        if buffer.layout is not None:
            return self._int(buffer.layout.size, frame)
        shape = [self._int(e, frame) for e in buffer.shape]
        steps = [self._int(e, frame) for e in buffer.steps()]
        return 0 if 0 in shape else 1 + sum((n - 1) * t for n, t in zip(shape, steps, strict=True))

    def _address(
        self, bound: Bound, index: Sequence[Array], frame: _Frame, write: bool, masked: bool | None = None
    ) -> tuple[Array, Array | None]:
        """Addresses, and which of the frame's iterations lie inside the buffer (None: all).

        Only those iterations' addresses are given where some do not (a 1-D array), and for a write in any case all of the
        frame's shape.
        """
        if masked is None:
            masked = frame.parallel and not self.kernel.bounded
        masked = masked and bound.buffer.scope is Scope.GLOBAL
        keep: Array | None = None
        for d, (i, n) in enumerate(zip(index, bound.shape, strict=True)):
            low, high = (int(i), int(i)) if not i.ndim else (int(i.min()), int(i.max())) if i.size else (0, -1)
            if low < 0:
                self.found("out of bounds", f"{bound.buffer.name}: index {low} of dimension {d} is negative")
                index = [*index[:d], np.maximum(i, 0), *index[d + 1 :]]
                i = index[d]
            if high < n:
                continue
            if not masked:
                self.found("out of bounds", f"{bound.buffer.name}: index {high} of dimension {d} is outside its extent {n}")
                index = [*index[:d], np.minimum(i, n - 1), *index[d + 1 :]]
                continue
            keep = i < n if keep is None else keep & (i < n)
        if keep is None:
            address = bound.address(index)
            address = np.broadcast_to(address, frame.shape) if write else address
        else:
            keep = np.broadcast_to(keep, frame.shape)
            address = bound.address([np.broadcast_to(i, frame.shape)[keep] for i in index])
            address = np.broadcast_to(address, (int(keep.sum()),))
        if not bound.fits and np.size(address) and not (np.min(address) >= 0 and np.max(address) < bound.memory.flat.size):
            self.fault(
                f"{bound.buffer.name}: its memory of {bound.memory.flat.size} elements ends before an element in its shape"
            )
        return address, keep

    def _load(self, buffer: Buffer, index: Sequence[Array], frame: _Frame) -> Array:
        bound = self._lookup(buffer)
        address, keep = self._address(bound, index, frame, write=False)
        self._note_read(bound, address, keep, frame)
        if keep is None:
            return bound.load(address)
        value = np.zeros(frame.shape, held(buffer.dtype))
        value[keep] = bound.load(address)
        return value

    def _store(self, buffer: Buffer, index: Sequence[Array], value: Array, dtype: dtypes.DType, frame: _Frame) -> None:
        bound = self._lookup(buffer)
        value = convert(value, dtype, buffer.dtype)
        address, keep = self._address(bound, index, frame, write=True)
        value = value if keep is None or not np.ndim(value) else np.broadcast_to(value, frame.shape)[keep]
        self._note_write(bound, address, frame.lanes if keep is None or not np.ndim(frame.lanes) else frame.lanes[keep], frame)
        bound.store(address, value)

    def _lookup(self, buffer: Buffer) -> Bound:
        bound = self.bound.get(buffer)
        if bound is None:
            self.fault(f"{buffer.name} is not a parameter and not allocated here")
        return bound

    def _extents(self, r: Region, frame: _Frame) -> tuple[int, ...]:
        return tuple(self._int(e, frame) for e in r.shape)

    def _box(self, r: Region, frame: _Frame, write: bool) -> tuple[Bound, Array, Array | None, tuple[int, ...]]:
        """The addresses of a region, as `_address` gives them, and its shape."""
        shape = self._extents(r, frame)
        index: list[Array] = []
        for o, e in zip(r.offsets, r.extents, strict=True):
            start = self._eval(o, frame)
            if e is None:
                index.append(start)
                continue
            axis = sum(np.ndim(i) > 0 for i in index)
            index.append((start + np.arange(shape[axis])).reshape((-1,) + (1,) * (len(shape) - axis - 1)))
        bound = self._lookup(r.buffer)
        address, keep = self._address(bound, index, replace(frame, shape=shape), write, masked=True)
        return bound, address, keep, shape

    def _read_region(self, r: Region, frame: _Frame) -> np.ndarray:
        """The region's elements, zero above a global buffer's bounds."""
        bound, address, keep, shape = self._box(r, frame, write=False)
        self._note_read(bound, address, keep, frame)
        if keep is None:
            return np.broadcast_to(bound.load(address), shape)
        value = np.zeros(shape, held(r.buffer.dtype))
        value[keep] = bound.load(address)
        return value

    def _write_region(self, r: Region, value: Array, frame: _Frame) -> None:
        bound, address, keep, shape = self._box(r, frame, write=True)
        if np.shape(value) != shape:
            self.fault(f"a value of shape {np.shape(value)} for a region of shape {shape}")
        self._note_write(bound, address, frame.lanes, frame)
        bound.store(address, value if keep is None else value[keep])

    # checks

    def _note_read(self, bound: Bound, address: Array, keep: Array | None, frame: _Frame) -> None:
        if bound.undefined(address):
            self.found("uninitialised", f"{bound.buffer.name}: an element is read that was never written")
        if not self.check:
            return
        key = id(bound.memory.flat)
        name = bound.buffer.name
        if key in self.block_races and not self.block_races[key].read(address, np.int64(self.block + Races.FIRST), 0):
            self.found("race", f"{name}: a block reads an element that another block writes")
        if key in frame.written:
            lanes = frame.lanes if keep is None or not np.ndim(frame.lanes) else np.broadcast_to(frame.lanes, frame.shape)[keep]
            if keep is None:
                address, lanes = np.broadcast_arrays(address, lanes)
            if not self._races(bound).read(address, lanes, frame.base):
                self.found("race", f"{name}: an iteration reads an element that another one writes")

    def _note_write(self, bound: Bound, address: Array, lanes: Array | None, frame: _Frame) -> None:
        """`lanes` None: an atomic update."""
        if not self.check:
            return
        key = id(bound.memory.flat)
        name = bound.buffer.name
        if bound.buffer.scope is Scope.GLOBAL:
            if key not in self.block_races:
                self.fault(f"{name} is written but is not among the kernel's outputs")
            stamp = np.int64(1 if lanes is None else self.block + Races.FIRST)
            if not self.block_races[key].write(address, stamp, 0):
                self.found("race", f"{name}: two blocks write one element, or one reads what another writes")
        if frame.parallel:
            stamps: Any = np.int64(frame.base + 1) if lanes is None else lanes
            if not self._races(bound).write(address, stamps, frame.base):
                self.found("race", f"{name}: two iterations write one element, or one reads what another writes")

    def _races(self, bound: Bound) -> Races:
        flat = bound.memory.flat
        if id(flat) not in self.races:
            self.races[id(flat)] = Races(flat.size)
            self.alive.append(flat)
        return self.races[id(flat)]


_ATOMIC: dict[str, Any] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


# programs

Runner = Callable[[Call, list[np.ndarray]], Sequence[np.ndarray]]
"""Runs an eager call: strided views of the operands as stored, in; the results, in."""


def run_program(
    program: Program,
    inputs: Sequence[np.ndarray | Memory],
    call: Runner | None = None,
    check: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> list[np.ndarray | None]:
    """Run the folded steps, then the steps; the outputs by index, of each value's shape and strides (None where no value has
    that index: an output that only aliases an input).

    `inputs` are the memories of the program's INPUT values by index, starting at the view's first element, as for
    `run_kernel`; effects are written there. `call` runs the `Call` steps; `sizes` gives the symbols' values. Raises
    ValueError for a Call without a runner.
    """
    memory: dict[int, Memory] = {}
    known = sizes or {}
    for v in program.values:
        if v.storage is Storage.INPUT:
            source = inputs[v.index]
            memory[v.id] = source if isinstance(source, Memory) else Memory(_flat(source))
        else:
            memory[v.id] = Memory.undefined(v.dtype, dims.evaluate(v.size, known), check)
    for step in (*program.folded, *program.steps):
        if isinstance(step, Launch):
            args = [memory[a.value.id].at(dims.evaluate(a.offset, known)) for a in step.args]
            run_kernel(step.kernel, args, [dims.evaluate(s, known) for s in step.scalars], check)
        else:
            _call(step, memory, call, known)
    count = 1 + max((v.index for v in program.values if v.storage is Storage.OUTPUT), default=-1)
    outputs: list[np.ndarray | None] = [None] * count
    for v in program.values:
        if v.storage is Storage.OUTPUT:
            outputs[v.index] = _view(memory[v.id], v.shape, v.strides, known)
    return outputs


def _call(step: Call, memory: dict[int, Memory], call: Runner | None, known: Mapping[str, int]) -> None:
    if call is None:
        raise ValueError(f"the program calls {step.node.op.name}: pass a runner")
    offsets = [dims.evaluate(a.offset, known) for a in step.args]
    views = [_view(memory[a.value.id].at(o), a.shape, a.strides, known) for a, o in zip(step.args, offsets, strict=True)]
    for value, result in zip(step.results, call(step, views), strict=True):
        target = memory[value.id]
        _view(target, value.shape, value.strides, known)[...] = result
        if target.defined is not None:
            _view(Memory(target.defined, target.offset), value.shape, value.strides, known)[...] = True


def _view(memory: Memory, shape: Sequence[Size], strides: Sequence[Size], known: Mapping[str, int]) -> np.ndarray:
    start = memory.flat[memory.offset :]
    steps = [dims.evaluate(t, known) * start.itemsize for t in strides]
    return np.lib.stride_tricks.as_strided(start, [dims.evaluate(s, known) for s in shape], steps)
