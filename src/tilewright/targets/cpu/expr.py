"""Expressions to registers: scalar where lanes share the value, a vector where they do not.

In: an `Expr` whose variables are bound in a `Context`. Out: a `Value`, computed once and as far out as it may be. Must not
know statements.
"""

from __future__ import annotations

from ...base import dtypes
from ...base.scalar import Binary, Cast, Const, Expr, Select, Unary, Var
from ...tile.ir import Buffer, Load
from . import llvm, memory, operators, storage
from .context import Bound, Context, Held, Spread, Value
from .indexing import Linear

_INT32 = (-(1 << 31), (1 << 31) - 1)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def value(ctx: Context, e: Expr) -> Value:
    """The value of `e`: one lane where it is uniform, else `ctx.lanes`."""
    if isinstance(e, Const):
        return Value(llvm.number(e.value, e.dtype.compute), literal=True)
    if isinstance(e, Var):
        return _variable(ctx, e)
    copy = ctx.copy_of(e)
    return ctx.recall((e, copy)) or ctx.place(e, copy, ctx.home(e), lambda: _compute(ctx, e), ctx.facts.buffers(e))


def vector(ctx: Context, e: Expr) -> str:
    """The value of `e` in all of `ctx.lanes` lanes."""
    return widened(ctx, e, value(ctx, e), ctx.lanes)


def scalar(ctx: Context, e: Expr) -> str:
    """The value of a uniform `e`."""
    v = value(ctx, e)
    if v.lanes != 1:
        raise ValueError(f"a value that differs between lanes where one is needed: {e}")
    return v.text


def size(ctx: Context, e: Expr) -> int | str:
    """An extent or index: a Python number where it is known, else an i64's name."""
    return index(ctx, ctx.facts.linear(e))


def widened(ctx: Context, e: Expr, v: Value, lanes: int) -> str:
    if v.lanes == lanes:
        return v.text
    o = ctx.ops(e.dtype, lanes)
    if v.literal:
        return o.splat_literal(v.text)
    key = ("wide", e, lanes)
    return ctx.place(key, ctx.copy_of(e), ctx.home(e), lambda: Value(o.broadcast(v.text), lanes), ctx.facts.buffers(e)).text


def _variable(ctx: Context, v: Var) -> Value:
    match ctx.bindings.get(v):
        case Bound(text, _):
            return Value(str(text), literal=isinstance(text, int))
        case Held(values, _):
            return values.get(-1) or values[ctx.copy]
        case Spread():
            if ctx.lanes == 1:
                x = index(ctx, ctx.facts.linear(v))
                return Value(str(x), literal=isinstance(x, int))
            return ctx.place(v, ctx.copy_of(v), ctx.home(v), lambda: _along_lanes(ctx, v, dtypes.i64))
    raise KeyError(f"variable {v.name} is not bound")


def _compute(ctx: Context, e: Expr) -> Value:
    match e:
        case Load():
            return memory.load(ctx, e)
        case Unary(op, x):
            a = value(ctx, x)
            return Value(operators.unary(ctx.ops(x.dtype, a.lanes), op, a.text), a.lanes)
        case Binary():
            return _binary(ctx, e)
        case Select(cond, x, y):
            parts = [value(ctx, k) for k in (cond, x, y)]
            lanes = max(p.lanes for p in parts)
            texts = [widened(ctx, k, p, lanes) for k, p in zip((cond, x, y), parts, strict=True)]
            return Value(ctx.ops(e.dtype, lanes).select(*texts), lanes)
        case Cast(x):
            return _cast(ctx, x, e)
    raise TypeError(f"unknown expression {type(e).__name__}")


def _binary(ctx: Context, e: Binary) -> Value:
    op, x, y = e.op, e.x, e.y
    if x.dtype is dtypes.i64 and not ctx.facts.is_uniform(e) and ctx.lanes > 1:
        if op in _COMPARISONS and is_narrow(ctx, x) and is_narrow(ctx, y):
            return Value(operators.binary(ctx.ops(dtypes.i32, ctx.lanes), op, narrow(ctx, x), narrow(ctx, y)), ctx.lanes)
        if op not in _COMPARISONS and (ctx.facts.step(ctx.facts.linear(e)) is not None or is_narrow(ctx, e)):
            return Value(_along_lanes(ctx, e, dtypes.i64).text, ctx.lanes)
    a, b = value(ctx, x), value(ctx, y)
    if op in ("add", "mul", "min", "max") and isinstance(x, Const):
        x, y, a, b = y, x, b, a
    lanes = max(a.lanes, b.lanes)
    o = ctx.ops(x.dtype, lanes)
    texts = widened(ctx, x, a, lanes), widened(ctx, y, b, lanes)
    constant = y.value if isinstance(y, Const) else None
    if op in ("floordiv", "mod") and x.dtype.is_integer and ctx.facts.bounds(x)[0] >= 0 and ctx.facts.bounds(y)[0] > 0:
        return Value(operators.unsigned_divide(o, op, *texts), lanes)
    return Value(operators.binary(o, op, *texts, constant), lanes)


def _cast(ctx: Context, x: Expr, e: Cast) -> Value:
    if x.dtype is dtypes.i64 and e.dtype.kind != "bool" and ctx.lanes > 1 and not ctx.facts.is_uniform(x) and is_narrow(ctx, x):
        return Value(operators.cast(ctx.ops(dtypes.i32, ctx.lanes), narrow(ctx, x), e.dtype), ctx.lanes)
    a = value(ctx, x)
    return Value(operators.cast(ctx.ops(x.dtype, a.lanes), a.text, e.dtype), a.lanes)


# -- integers that index


def index(ctx: Context, x: Linear) -> int | str:
    """The value of a linear form in lane 0 of the current copy, partial sums as far out as they may be."""
    total: int | str = 0
    done: list[tuple[Expr, int]] = []
    constant, level = x.const, 0
    for level, group, offset in _groups(ctx, x):
        constant += offset
        done += group
        if group:
            key, before = ("sum", frozenset(done)), total
            total = ctx.place(key, _copies(ctx, done), level, lambda b=before, g=group: Value(str(_sum(ctx, b, g)))).text  # type: ignore[misc]
    if isinstance(total, int) or constant == 0:
        return ctx.f.index("add", total, constant)
    whole, most = ("sum", frozenset(done), constant), total
    return ctx.place(whole, _copies(ctx, done), level, lambda: Value(str(ctx.f.index("add", most, constant)))).text


def pointer(ctx: Context, buffer: Buffer, x: Linear) -> str:
    """The address of an element in lane 0 of the current copy, loop-invariant parts as far out as they may be."""
    element = storage.element(buffer.dtype)
    address = ctx.pointers[buffer]
    done: list[tuple[Expr, int]] = []
    constant = x.const
    for level, group, offset in _groups(ctx, x):
        constant += offset
        if not group:
            continue
        done += group
        key = ("at", buffer, frozenset(done))
        before = address
        made = ctx.place(key, _copies(ctx, done), level, lambda b=before, g=group: Value(ctx.f.at(b, _sum(ctx, 0, g), element)))  # type: ignore[misc]
        address = made.text
    return ctx.f.at(address, constant, element)


def _groups(ctx: Context, x: Linear) -> list[tuple[int, list[tuple[Expr, int]], int]]:
    """The terms by the level they belong to, outermost first: (level, terms, numbers that came out of them)."""
    groups: dict[int, list[tuple[Expr, int]]] = {}
    offsets: dict[int, int] = {}
    for atom, factor in x.terms.items():
        match ctx.bindings.get(atom) if isinstance(atom, Var) else None:
            case Bound(int() as number, level):
                offsets[0] = offsets.get(0, 0) + factor * number
                continue
            case Spread(base, level):
                offsets[0] = offsets.get(0, 0) + factor * ctx.copy * ctx.lanes
                if isinstance(base, int):
                    offsets[0] += factor * base
                    continue
                level = ctx.settled(level)
            case Bound(_, level) | Held(_, level):
                level = ctx.settled(level)
            case _:
                level = ctx.home(atom)
        groups.setdefault(level, []).append((atom, factor))
    levels = sorted(groups.keys() | offsets.keys())
    return [(k, groups.get(k, []), offsets.get(k, 0)) for k in levels]


def _copies(ctx: Context, terms: list[tuple[Expr, int]]) -> object:
    """The vector that a sum of terms belongs to; the lane variable itself adds its copy's part as a number."""
    for a, _ in terms:
        if not isinstance(ctx.bindings.get(a) if isinstance(a, Var) else None, Spread) and not ctx.facts.is_uniform(a):
            return ctx.copy_of(a)
    return None


def _sum(ctx: Context, start: int | str, terms: list[tuple[Expr, int]]) -> int | str:
    for atom, factor in terms:
        start = ctx.f.index("add", start, ctx.f.index("mul", _atom(ctx, atom), factor))
    return start


def _atom(ctx: Context, e: Expr) -> int | str:
    """An atom's value in lane 0; of the lane variable, its base."""
    match ctx.bindings.get(e) if isinstance(e, Var) else None:
        case Bound(text, _):
            return text
        case Spread(base, _):
            return base
    if ctx.lanes == 1 or ctx.facts.is_uniform(e):
        return value(ctx, e).text
    assert isinstance(e, Binary), "an atom with a known step is a floordiv or a mod"
    x, y = index(ctx, ctx.facts.linear(e.x)), index(ctx, ctx.facts.linear(e.y))
    if isinstance(x, int) and isinstance(y, int):
        return x // y if e.op == "floordiv" else x % y
    if ctx.facts.bounds(e.x)[0] >= 0:
        return operators.unsigned_divide(ctx.i64, e.op, str(x), str(y))
    return operators.binary(ctx.i64, e.op, str(x), str(y), y if isinstance(y, int) else None)


def is_narrow(ctx: Context, e: Expr) -> bool:
    """Whether `narrow` can compute `e`: it fits 32 bits, and every part that differs between lanes does."""
    low, high = ctx.facts.bounds(e)
    if low < _INT32[0] or high > _INT32[1]:
        return False
    x = ctx.facts.linear(e)
    return ctx.facts.step(x) is not None or all(ctx.facts.is_uniform(a) or _is_narrow_atom(ctx, a) for a in x.terms)


def fits_narrow(ctx: Context, terms: dict[Expr, int]) -> bool:
    """Whether the sum of these terms, each of which differs between lanes, may be computed in 32 bits."""
    low, high = ctx.facts.range(Linear(0, terms))
    return low >= _INT32[0] // 2 and high <= _INT32[1] // 2 and all(is_narrow(ctx, a) for a in terms)


def _is_narrow_atom(ctx: Context, e: Expr) -> bool:
    if isinstance(e, Var):
        return isinstance(ctx.bindings.get(e), Spread)
    if not isinstance(e, Binary) or e.op not in ("floordiv", "mod", "min", "max", "mul"):
        return False
    return is_narrow(ctx, e.x) and is_narrow(ctx, e.y)


def narrow(ctx: Context, e: Expr) -> str:
    """A 64-bit index expression that `is_narrow`, computed in 32 bits in every lane."""
    key = ("narrow", e, ctx.lanes)
    return ctx.place(key, ctx.copy_of(e), ctx.home(e), lambda: _along_lanes(ctx, e, dtypes.i32), ctx.facts.buffers(e)).text


def _along_lanes(ctx: Context, e: Expr, dtype: dtypes.DType) -> Value:
    """An index expression as a vector of i32 or i64: its value in lane 0 plus steps, or else part by part."""
    x = ctx.facts.linear(e)
    step = ctx.facts.step(x)
    o = ctx.ops(dtype, ctx.lanes)
    if step is not None:
        return Value(_from_first(ctx, x, step, dtype), ctx.lanes)
    if dtype is dtypes.i64:
        return Value(ctx.ops(dtypes.i32, ctx.lanes).resized(narrow(ctx, e), o), ctx.lanes)
    known = Linear(x.const, {a: c for a, c in x.terms.items() if ctx.facts.is_uniform(a) or isinstance(a, Var)})
    total = _from_first(ctx, known, ctx.facts.step(known) or 0, dtype)
    for atom, factor in x.terms.items():
        if atom in known.terms:
            continue
        assert isinstance(atom, Binary)
        texts = narrow(ctx, atom.x), narrow(ctx, atom.y)
        if atom.op in ("floordiv", "mod") and ctx.facts.bounds(atom.x)[0] >= 0 and ctx.facts.bounds(atom.y)[0] > 0:
            part = operators.unsigned_divide(o, atom.op, *texts)
        else:
            part = operators.binary(o, atom.op, *texts)
        total = o.add(total, part if factor == 1 else o.mul(part, o.const(factor)))
    return Value(total, ctx.lanes)


def _from_first(ctx: Context, x: Linear, step: int, dtype: dtypes.DType) -> str:
    """A vector that starts at `x` in lane 0 and grows by `step`."""
    o = ctx.ops(dtype, ctx.lanes)
    first = index(ctx, x)
    if isinstance(first, int):
        return o.listed([first + step * k for k in range(ctx.lanes)])
    one = ctx.ops(dtype, 1)
    wide = o.broadcast(ctx.i64.resized(first, one))
    return o.add(wide, o.listed([step * k for k in range(ctx.lanes)])) if step else wide
