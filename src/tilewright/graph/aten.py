"""The rules by which an ATen call is recorded, and which rule an overload has.

In: an overload with its arguments, fakes or real tensors among them. Out: fakes, and writes in the recorder's memories.
The tables of the families (`aten_*.py`) say how results are written in rows; here is what surrounds them: strides, views,
in-place and `out=` forms, decompositions, opaque calls. Must not know the function level or how recording starts.

An overload without a row is, in this order: decomposed by torch (composite operators), written by torch's decomposition table
in rows alone, or an opaque `call`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from . import aten_contract, aten_create, aten_index, aten_pointwise, aten_reduce, aten_special, aten_view
from . import fake as fk
from . import strides as st
from . import torch_private as private
from .fake import Fake
from .functionalize import Builder
from .ir import TensorType, TupleType, make
from .ops.kernel import OPERATORS, Operator
from .ops.opaque import CALL, GETITEM, PURE, CallAttrs, spec_of
from .ops.pointwise import CAST
from .ops.torch_dtypes import FROM_TORCH
from .ops.view import PERMUTE
from .promotion import can_cast
from .recorder import Recorder, refuse
from .shadow import eager_error, number_error
from .symbolic import is_open, settle_floats, sizes_in, sizes_of
from .torch_private import OpOverload

Args: TypeAlias = Sequence[Any]
Kwargs: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[Recorder, OpOverload, Args, Kwargs], Any]
Layout: TypeAlias = Callable[[st.Sizes, list[st.Operand]], st.Sizes]

_SEQ = itertools.count()
_RULES: dict[OpOverload, Rule] = {}

# Nothing in rows alone: asking torch's table would only cost its loading.
_OPAQUE = {
    "aten.convolution.default",
    "aten.max_pool2d_with_indices.default",
    "aten.sort.default",
    "aten.sort.stable",
    "aten.topk.default",
}

# In-place overloads whose functional form is not found by name.
_FUNCTIONAL = {
    "aten.bernoulli_.float": "aten.bernoulli.p", "aten.pow_.Scalar": "aten.pow.Tensor_Scalar",
    "aten.pow_.Tensor": "aten.pow.Tensor_Tensor",
    "aten.normal_.default": "aten.normal_functional.default",
}  # fmt: skip


# Random overloads that do not draw in the order of their operand's memory; those that draw otherwise into row-major memory.
_DRAWS_OTHERWISE = {"aten.multinomial.default", "aten.bernoulli.default", "aten.bernoulli.p"}
_DRAWS_IN_BLOCKS = {"aten.normal_functional.default", "aten.randn_like.default"}


class NoHelp(Exception):
    """A decomposition on trial came to an operator without a row."""


def dispatch(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Record one ATen call; its result, fakes for tensors."""
    rule = _RULES.get(func)
    if rule is None:
        rule = _RULES[func] = _rule_of(func)
    return rule(recorder, func, args, kwargs)


def _rule_of(func: OpOverload) -> Rule:
    name = str(func)
    if name in aten_special.RULES:
        return aten_special.RULES[name]
    if name in _VALUES:
        return _value_rule(*_VALUES[name], name in _NUMBERS_MATTER)
    if name in aten_view.SINGLE:
        return _view_rule(aten_view.SINGLE[name])
    if name in aten_view.SEVERAL:
        return _parts_rule(aten_view.SEVERAL[name])
    if name in OPERATORS:
        return _kernel_rule(OPERATORS[name])
    if private.is_composite(func):
        return _decompose
    if private.written(func):
        return _written_rule(func)
    if private.aliases(func):
        return _unknown_view
    return _unknown


# --- operands ---------------------------------------------------------------------------------------------------------

_DROPPED = frozenset(("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"))


def _operand(recorder: Recorder, value: Any, fakes: list[Fake]) -> Any:
    """Fakes and real tensors become nodes, torch's dtypes ours; lists are walked. The fakes are added to `fakes`."""
    cls = type(value)
    if cls is Fake:
        fakes.append(value)
        return fk.value(value)
    if cls is int or cls is float or value is None:
        return value
    if cls is torch.SymInt:
        return value.node.size
    if cls is list or cls is tuple:
        return [_operand(recorder, v, fakes) for v in value]
    if isinstance(value, torch.Tensor):
        found = recorder.fake_of(value)
        fakes.append(found)
        return fk.value(found)
    if cls is torch.dtype:
        if value not in FROM_TORCH:
            refuse("a tensor", f"{value} is not compiled")
        return FROM_TORCH[value]
    return value


def _twins(recorder: Recorder, value: Any) -> Any:
    """The same arguments with meta tensors, and factories pointed at the meta device."""
    cls = type(value)
    if cls is Fake:
        return fk.twin(value)
    if cls is list or cls is tuple:
        return [_twins(recorder, v) for v in value]
    if isinstance(value, torch.Tensor):
        return fk.twin(recorder.fake_of(value))
    return torch.device("meta") if cls is torch.device else value


def check_device(recorder: Recorder, func: OpOverload, kwargs: Kwargs) -> None:
    """Everything recorded lives on one device."""
    device = kwargs.get("device")
    if device is not None and torch.device(device) != recorder.place:
        if torch.device(device).type != recorder.place.type or torch.device(device).index not in (None, recorder.place.index):
            refuse(
                str(func),
                f"it makes a tensor on {device}, other tensors are on {recorder.place}",
                "keep all tensors on one device",
            )


# --- values -----------------------------------------------------------------------------------------------------------


def _value_rule(build: Callable[..., Any], layout: Layout, numbers: bool, checked: bool) -> Rule:
    """Results in new memory. `numbers`: Python numbers count as operands for the strides. `checked`: eager may refuse one."""

    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        fakes: list[Fake] = []
        if is_open():
            args = tuple(settle_floats(args))
        nodes = [_operand(recorder, a, fakes) for a in args]
        if kwargs:
            if kwargs.get("generator") is not None:
                refuse(str(func), "it has a generator of its own")
            check_device(recorder, func, kwargs)
        try:
            given = {k: _operand(recorder, v, fakes) for k, v in kwargs.items() if k not in _DROPPED} if kwargs else {}
            made = build(*nodes, **given)
        except (ValueError, KeyError, IndexError, TypeError, ZeroDivisionError, OverflowError) as e:
            return _without_row(recorder, func, args, kwargs, e)
        if checked:
            number_error(recorder, func, args, kwargs, fakes)
        operands = [(f.sizes, f.strides) for f in fakes]
        if numbers:
            operands += [((), ()) for a in args if isinstance(a, int | float)]
        if type(made) is tuple:
            return tuple([recorder.result(m, layout(m.shape, operands), fakes) for m in made])
        return recorder.result(made, layout(made.shape, operands), fakes)

    return rule


def _without_row(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs, reason: Exception) -> Any:
    """The rows do not admit these operands. Where eager does not either, its error is raised."""
    eager_error(recorder, func, args, kwargs)
    if private.is_composite(func):
        return _decompose(recorder, func, args, kwargs)
    return opaque(recorder, func, args, kwargs)


def _contiguous(shape: st.Sizes, operands: list[st.Operand]) -> st.Sizes:
    return st.contiguous(shape)


def _like_first(shape: st.Sizes, operands: list[st.Operand]) -> st.Sizes:
    return st.like(*operands[0]) if operands[0][0] == shape else st.contiguous(shape)


def _second_first(shape: st.Sizes, operands: list[st.Operand]) -> st.Sizes:
    return st.elementwise(shape, operands[::-1])


def _kernel_rule(operator: Operator) -> Rule:
    """A user's kernel: its node, and what it updates written back."""

    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        fakes: list[Fake] = []
        nodes = [_operand(recorder, a, fakes) for a in args]
        operator.check(fakes)
        made, updated = operator.node(nodes)
        results = [recorder.result(n, st.contiguous(n.shape), fakes) for n in made]
        for index, n in zip(operator.updated, updated):
            assign(recorder, func, fakes[index], recorder.result(n, st.contiguous(n.shape), fakes), args, kwargs)
        return results[0] if len(results) == 1 else tuple(results) if results else None

    return rule


def _suggested_first(shape: st.Sizes, operands: list[st.Operand]) -> st.Sizes:
    last = len(shape) in (4, 5) and st.suggests_channels_last(*operands[0])
    return st.channels_last(shape) if last else st.contiguous(shape)


def _suggested_all(shape: st.Sizes, operands: list[st.Operand]) -> st.Sizes:
    last = len(shape) in (4, 5) and all(len(s) == len(shape) and st.suggests_channels_last(s, t) for s, t in operands)
    return st.channels_last(shape) if last else st.contiguous(shape)


_NUMBERED = {
    "add", "sub", "rsub", "mul", "div", "floor_divide", "fmod", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor",
    "__and__",
    "__or__", "__xor__", "eq", "ne", "lt", "le", "gt", "ge", "where", "atan2", "copysign", "xlogy",
}  # fmt: skip

_LAYOUTS: dict[str, Layout] = {
    "aten.cat.default": _suggested_all, "aten.roll.default": _suggested_all, "aten.constant_pad_nd.default": _suggested_first,
    "aten.flip.default": _like_first, "aten.slice_scatter.default": _like_first, "aten.select_scatter.default": _like_first,
    "aten.index_put.default": _like_first, "aten._unsafe_index_put.default": _like_first,
    "aten.native_group_norm.default": _suggested_first, "aten.rsub.Tensor": _second_first, "aten.rsub.Scalar": _second_first,
    "aten.log_sigmoid_forward.default": _contiguous,
}  # fmt: skip


def _values() -> dict[str, tuple[Callable[..., Any], Layout, bool]]:
    table: dict[str, tuple[Callable[..., Any], Layout, bool]] = {}
    for family in (aten_reduce, aten_contract, aten_index, aten_create):
        for name, build in family.BUILDS.items():
            table[name] = build, _LAYOUTS.get(name, _contiguous), False
    for name, build in aten_pointwise.BUILDS.items():
        table[name] = build, _LAYOUTS.get(name, st.elementwise), name.split(".")[1] in _NUMBERED
    return table


_VALUES = _values()
_NUMBERS_MATTER = frozenset(aten_pointwise.BUILDS) | {"aten.fill.Scalar", "aten.full_like.default", "aten.masked_fill.Scalar"}


# --- views ------------------------------------------------------------------------------------------------------------


def _view_rule(extend: aten_view.Single) -> Rule:
    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        base = args[0] if type(args[0]) is Fake else recorder.fake_of(args[0])
        if base.node.dtype.kind == "complex" and func is not torch.ops.aten.detach.default:
            return _unknown_view(recorder, func, args, kwargs)
        rest = [_twins(recorder, a) for a in args[1:]]
        with fk.kernels():
            seen = func(fk.twin(base), *rest, **kwargs)
        shape, strides, offset = fk.geometry(seen)
        plain, named = sizes_in(args[1:]), {k: sizes_in(v) for k, v in kwargs.items()}
        chain = extend(Builder(base.chain, base.sizes), shape, *plain, **named).chain
        new = recorder.view(base, shape, strides, offset, chain, func is torch.ops.aten.detach.default)
        new.twin = seen
        return new

    return rule


def _parts_rule(parts: Callable[..., list[tuple[int, int, int]]]) -> Rule:
    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        base = args[0] if type(args[0]) is Fake else recorder.fake_of(args[0])
        if base.node.dtype.kind == "complex":
            return _unknown_view(recorder, func, args, kwargs)
        with fk.kernels():
            seen = func(fk.twin(base), *args[1:], **kwargs)
        places = [fk.geometry(t) for t in seen]
        made = []
        plain, named = sizes_in(args[1:]), {k: sizes_in(v) for k, v in kwargs.items()}
        ranges = parts(base.sizes, [p[0] for p in places], *plain, **named)
        for t, (shape, strides, offset), (dim, start, stop) in zip(seen, places, ranges):
            chain = Builder(base.chain, base.sizes).slice(dim, start, stop).reshape(shape).chain
            new = recorder.view(base, shape, strides, offset, chain)
            new.twin = t
            made.append(new)
        return made

    return rule


def _unknown_view(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A view that no row describes (another dtype's, ...): its value is recorded; no write to the memory may follow."""
    base = args[0] if type(args[0]) is Fake else recorder.fake_of(args[0])
    if func is torch.ops.aten.view.dtype and args[1] == base.dtype:
        return dispatch(recorder, torch.ops.aten.alias.default, args[:1], {})
    reason = f"it writes into memory that {func} shows in another way"
    made = opaque(recorder, func, args, kwargs)
    base.memory.opaque = reason
    for result in made if isinstance(made, list | tuple) else (made,):
        result.memory.opaque, result.memory.foreign = reason, base.memory
    return made


# --- writes -----------------------------------------------------------------------------------------------------------


def _written_rule(func: OpOverload) -> Rule:
    """In-place and `out=` overloads: the functional overload's value is written."""
    names = private.written(func)
    functional = _functional_of(func, names)
    if functional is None:
        return _unsupported_write
    parameters = private.parameters(func)
    if names == (parameters[0][0],) and parameters[0][0] == "self":
        return _in_place_rule(functional)
    return _out_rule(functional, names)


def _functional_of(func: OpOverload, written: tuple[str, ...]) -> OpOverload | None:
    """The overload that computes the same without writing: the same parameters but for the outputs."""
    namespace, name, overload = str(func).split(".")
    known = _FUNCTIONAL.get(str(func))
    if known is not None:
        _, name, overload = known.split(".")
        return next(f for f in private.overloads(namespace, name) if str(f) == known)
    base = name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name
    mine = [(n, t) for n, t, _ in private.parameters(func) if base != name or n not in written]
    candidates = [f for f in private.overloads(namespace, base) if f is not func and not private.written(f)]
    same = [f for f in candidates if [(n, t) for n, t, _ in private.parameters(f)] == mine]
    return next((f for f in same if str(f).split(".")[2] == overload), same[0] if same else None)


def _unsupported_write(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    refuse(str(func), "it changes a tensor in a way that has no functional form")


def _in_place_rule(functional: OpOverload) -> Rule:
    missing, random = private.defaults(functional), private.is_random(functional)

    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        target = args[0] if type(args[0]) is Fake else recorder.fake_of(args[0])
        own = private.defaults(func)
        for name, _, only in private.parameters(functional)[len(args) :]:
            if not only and name not in missing and name not in kwargs:
                args = (*args, own[name])
        check_operands(recorder, func, target, args, kwargs)
        if random and _strided(target):
            result = _drawn_in_memory_order(recorder, functional, (target, *args[1:]), kwargs)
        else:
            result = dispatch(recorder, functional, (target, *args[1:]), kwargs)
        assign(recorder, func, target, result, args, kwargs)
        return target

    return rule


def check_operands(recorder: Recorder, func: OpOverload, target: Fake, args: Args, kwargs: Kwargs) -> None:
    """A write may not read its own memory in another order: eager refuses it, or gives what its loops happen to give."""
    mine = _geometry(target)
    others = [_geometry(f) for f in _fakes_in((*args, *kwargs.values())) if f.memory is target.memory]
    if st.overlaps_itself(target.sizes, target.strides):
        eager_error(recorder, func, args, kwargs)
    elif any(other != mine and st.intersect(mine, other) for other in others):
        eager_error(recorder, func, args, kwargs)
        refuse(str(func), "it reads the memory that it writes in another order", "clone the operand that is read")


def _geometry(x: Fake) -> st.Geometry:
    """Where its elements lie; dims of size 1 do not matter."""
    dims = [(n, s) for n, s in zip(x.sizes, x.strides) if n != 1]
    return tuple(n for n, _ in dims), tuple(s for _, s in dims), x.offset


def _fakes_in(values: Args) -> list[Fake]:
    found: list[Fake] = []
    for v in values:
        if type(v) is Fake:
            found.append(v)
        elif type(v) in (list, tuple):
            found += _fakes_in(v)
    return found


def assign(recorder: Recorder, func: OpOverload, target: Fake, result: Fake, args: Args, kwargs: Kwargs) -> None:
    """Write a result into a tensor of the same shape, cast to its dtype. Where eager refuses that, its error is raised."""
    node, mine = fk.value(result), fk.value(target)
    if node.shape != mine.shape or not can_cast(node.dtype, mine.dtype):
        eager_error(recorder, func, args, kwargs)
        refuse(str(func), f"a {node.type} is written into a {mine.type}")
    recorder.write(target, node if node.dtype is mine.dtype else CAST(node, dtype=mine.dtype), [result], str(func))


def _out_rule(functional: OpOverload, names: tuple[str, ...]) -> Rule:
    def rule(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        order = [name for name, _, _ in private.parameters(func)]
        bound = {**dict(zip(order, args)), **kwargs}
        targets = [t if type(t) is Fake else recorder.fake_of(t) for t in (bound[name] for name in names)]
        positional = [name for name, _, only in private.parameters(functional) if not only and name in bound]
        given = {name: v for name, v in bound.items() if name not in names and name not in positional}
        made = dispatch(recorder, functional, [bound[n] for n in positional], given)
        results = made if isinstance(made, list | tuple) else (made,)
        for target, result in zip(targets, results):
            if target.sizes != result.sizes:
                refuse(str(func), f"it resizes its output from {target.sizes} to {result.sizes}")
            assign(recorder, func, target, result, args, kwargs)
        return tuple(targets) if len(targets) > 1 else targets[0]

    return rule


# --- operators without a row ------------------------------------------------------------------------------------------


def _decompose(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    with recorder.mode:
        return func.decompose(*args, **kwargs)


def _unknown(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    if not private.is_random(func) and str(func) not in _OPAQUE and func.namespace == "aten":
        written = private.decompositions().get(func)
        if written is not None:
            try:
                return _strided_as_eager(recorder, func, args, kwargs, _on_trial(recorder, written, args, kwargs))
            except Exception:
                pass  # an error of the operator itself comes again below, as eager words it
    return opaque(recorder, func, args, kwargs)


def _on_trial(recorder: Recorder, written: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    before, recorder.trial = recorder.trial, True
    try:
        with recorder.mode:
            made = written(*args, **kwargs)
    finally:
        recorder.trial = before
    if made is NotImplemented:
        raise NoHelp
    return made


def _strided_as_eager(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs, made: Any) -> Any:
    """The results of a decomposition with the strides that the operator itself gives them."""
    seen = _metadata(recorder, func, args, kwargs)
    if isinstance(made, Fake):
        return _restrided(recorder, made, seen)
    return type(made)([_restrided(recorder, m, s) for m, s in zip(made, seen)])


def _restrided(recorder: Recorder, made: Fake, seen: torch.Tensor) -> Fake:
    strides = sizes_of(seen.stride())
    return made if made.strides == strides else recorder.result(fk.value(made), strides, [made])


def _drawn_in_memory_order(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A random call on a tensor that is not row-major: eager draws in the order of memory, so the call is made on that."""
    x: Fake = args[0]
    if str(func) in _DRAWS_IN_BLOCKS and st.numel(x.sizes) >= 16:
        refuse(str(func), "eager draws other numbers for a tensor that is not row-major", "draw into a contiguous tensor")
    order = st.memory_order(x.sizes, x.strides)
    packed = PERMUTE(fk.value(x), dims=order)
    drawn = opaque(recorder, func, (recorder.result(packed, st.contiguous(packed.shape), [x]), *args[1:]), kwargs)
    back = tuple(order.index(d) for d in range(len(order)))
    seen = _metadata(recorder, func, args, kwargs)
    if not isinstance(drawn, Fake):
        made = [recorder.result(PERMUTE(fk.value(d), dims=back), sizes_of(s.stride()), [x]) for d, s in zip(drawn, seen)]
        return made if isinstance(drawn, list) else tuple(made)
    return recorder.result(PERMUTE(fk.value(drawn), dims=back), sizes_of(seen.stride()), [x])


def _draws_like(func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """Whether a random call's results have the shape of its one tensor, a dense one that is not row-major."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    return len(tensors) == 1 and type(args[0]) is Fake and str(func) not in _DRAWS_OTHERWISE and _strided(args[0])


def _strided(x: Fake) -> bool:
    return not st.is_contiguous(x.sizes, x.strides) and not st.may_overlap(x.sizes, x.strides)


def opaque(
    recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs, layout: Callable[[st.Sizes], st.Sizes] | None = None
) -> Any:
    """A `call` that eager torch runs on row-major operands. Its results' metadata come from torch's meta kernels.

    `layout` gives the strides of the results from their shape, where the meta kernel does not know eager's.
    """
    if recorder.trial:
        raise NoHelp
    if private.is_random(func) and _draws_like(func, args, kwargs):
        return _drawn_in_memory_order(recorder, func, args, kwargs)
    fakes: list[Fake] = []
    check_device(recorder, func, kwargs)
    nodes = [_tensors(recorder, a, fakes) for a in args]
    given = {k: _tensors(recorder, v, fakes) for k, v in kwargs.items() if v is not None}
    try:
        (positional, named), operands = spec_of(nodes, given)
    except ValueError as e:
        refuse(str(func), str(e))
    seen = _metadata(recorder, func, args, kwargs)
    several = isinstance(seen, list | tuple)
    results = list(seen) if several else [seen]
    if any(not isinstance(r, torch.Tensor) for r in results):
        refuse(str(func), "it gives something else than tensors")
    types = [TensorType(FROM_TORCH[r.dtype], sizes_of(r.shape)) for r in results]
    effectful = private.is_random(func) or func.namespace not in ("aten", "prims")
    attrs = CallAttrs(
        str(func), positional, named, TupleType(tuple(types)) if several else types[0], next(_SEQ) if effectful else PURE
    )
    call = make(CALL, tuple(operands), attrs)
    made = [GETITEM(call, index=i) for i in range(len(types))] if several else [call]
    if effectful:
        recorder.effectful.append((call, made[0]))
    strides = [layout(sizes_of(r.shape)) if layout else sizes_of(r.stride()) for r in results]
    fresh = [recorder.result(n, s, fakes) for n, s in zip(made, strides)]
    return fresh if isinstance(seen, list) else tuple(fresh) if several else fresh[0]


def _tensors(recorder: Recorder, value: Any, fakes: list[Fake]) -> Any:
    """The argument with nodes for tensors; torch's own dtypes stay."""
    if type(value) in (list, tuple):
        return [_tensors(recorder, v, fakes) for v in value]
    return _operand(recorder, value, fakes) if isinstance(value, torch.Tensor | torch.SymInt) else value


def _metadata(recorder: Recorder, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What the call gives for meta tensors. Raises eager's error where there is one, RecordError where sizes depend on data."""
    dynamic = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
    if dynamic and not str(func).startswith("aten.index."):
        refuse(str(func), "the size of its result depends on the data", "use torch.where or a mask of fixed size")
    on_meta = {k: _twins(recorder, v) for k, v in kwargs.items()}
    fakes: list[Fake] = []
    for a in (*args, *kwargs.values()):
        _tensors(recorder, a, fakes)
    if not fakes:
        on_meta["device"] = torch.device("meta")
    try:
        with fk.kernels():
            return func(*[_twins(recorder, a) for a in args], **on_meta)
    except NotImplementedError as e:
        refuse(str(func), f"torch cannot tell its result's size without running it ({str(e).splitlines()[0]})")
    except Exception as e:
        eager_error(recorder, func, args, kwargs)
        refuse(str(func), f"torch cannot tell its result's size without running it ({type(e).__name__}: {e})")
