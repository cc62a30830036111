"""ATen overloads that are neither plain values nor views: copies, writes of whole tensors, attention, convolution, reads.

In: the recorder and the call. Out: fakes. Must not know how an overload without a rule is treated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base import dtypes
from . import aten_contract, aten_create, aten_reduce, symbolic
from . import fake as fk
from . import strides as st
from . import torch_private as private
from .fake import Fake
from .functionalize import Unsupported
from .ir import Node, TensorType, TupleType, make
from .ops import contract, view
from .ops import pointwise as pw
from .ops.opaque import CALL, GETITEM, CallAttrs, spec_of
from .ops.torch_dtypes import FROM_TORCH
from .promotion import as_type, full
from .recorder import Recorder, refuse
from .shadow import eager_error

Rule = Callable[[Recorder, Any, Sequence[Any], dict[str, Any]], Any]


def _fake(recorder: Recorder, value: Any) -> Fake:
    return value if type(value) is Fake else recorder.fake_of(value)


def _on_place(recorder: Recorder, func: Any, device: Any) -> None:
    if device is None:
        return
    device = torch.device(device)
    if device.type != recorder.place.type or device.index not in (None, recorder.place.index):
        refuse(
            str(func), f"it puts a tensor on {device}, other tensors are on {recorder.place}", "keep all tensors on one device"
        )


def formatted(shape: st.Sizes, strides: st.Sizes, memory_format: Any) -> st.Sizes:
    """The strides of a copy in that memory format."""
    if memory_format is None or memory_format is torch.preserve_format:
        return st.like(shape, strides)
    if memory_format is torch.contiguous_format:
        return st.contiguous(shape)
    return st.channels_last(shape)


# --- copies and factories ---------------------------------------------------------------------------------------------


def _clone(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    x = _fake(recorder, args[0])
    return recorder.result(fk.value(x), formatted(x.sizes, x.strides, kwargs.get("memory_format")), [x])


def _to_copy(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    from .aten import opaque

    x = _fake(recorder, args[0])
    _on_place(recorder, func, kwargs.get("device"))
    dtype = kwargs.get("dtype")
    node = fk.value(x)
    if dtype is not None:
        if dtype not in FROM_TORCH:
            refuse(str(func), f"{dtype} is not compiled")
        if "complex" in (FROM_TORCH[dtype].kind, node.dtype.kind) and FROM_TORCH[dtype] is not node.dtype:
            return opaque(recorder, func, (x,), {"dtype": dtype, "memory_format": kwargs.get("memory_format")})
        node = as_type(node, FROM_TORCH[dtype])
    return recorder.result(node, formatted(x.sizes, x.strides, kwargs.get("memory_format")), [x])


def _like(name: str) -> Rule:
    build = aten_create.BUILDS[name]

    def rule(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
        x = _fake(recorder, args[0])
        _on_place(recorder, func, kwargs.get("device"))
        dtype = kwargs.get("dtype")
        given = {} if dtype is None else {"dtype": FROM_TORCH[dtype]}
        node = build(fk.value(x), *args[1:], **given)
        return recorder.result(node, formatted(x.sizes, x.strides, kwargs.get("memory_format")), [])

    return rule


def _strided(name: str, at: int) -> Rule:
    build = aten_create.BUILDS[name]

    def rule(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
        _on_place(recorder, func, kwargs.get("device"))
        dtype = kwargs.get("dtype")
        given = {} if dtype is None else {"dtype": FROM_TORCH[dtype]}
        nodes = [fk.value(a) if type(a) is Fake else a for a in args]
        strides = tuple(args[at])
        if st.may_overlap(tuple(args[at - 1]), strides):
            refuse(str(func), "several elements of its result share one place")
        return recorder.result(build(*nodes, **given), strides, [])

    return rule


def _lift_fresh(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    """A tensor made from Python data."""
    return args[0] if type(args[0]) is Fake else recorder.data(args[0])


# --- writes -----------------------------------------------------------------------------------------------------------


def _copy_(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    from .aten import check_operands, opaque

    target, source = _fake(recorder, args[0]), _fake(recorder, args[1])
    if source is target:
        return target
    check_operands(recorder, func, target, (target, source, *args[2:]), kwargs)
    node, mine = fk.value(source), fk.value(target)
    if "complex" in (node.dtype.kind, mine.dtype.kind) and (node.dtype is not mine.dtype or node.shape != mine.shape):
        given = opaque(recorder, torch.ops.aten.copy.default, (target, source), {})
        recorder.write(target, fk.value(given), [source], str(func))
        return target
    try:
        node = _spread(as_type(node, mine.dtype), target.sizes)
    except ValueError:
        eager_error(recorder, func, args, kwargs)
        raise
    recorder.write(target, node, [source], str(func))
    return target


def _spread(node: Node, shape: st.Sizes) -> Node:
    """Broadcast to the shape; leading dims of size 1 too many are dropped, as `copy_` does."""
    extra = len(node.shape) - len(shape)
    if extra > 0 and all(n == 1 for n in node.shape[:extra]):
        node = view.RESHAPE(node, shape=node.shape[extra:])
    return node if node.shape == shape else view.EXPAND(node, shape=shape)


def _fill_(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    target = _fake(recorder, args[0])
    value = args[1] if len(args) > 1 else 0
    dtype = fk.value(target).dtype
    sources: list[Fake] = []
    try:
        if isinstance(value, torch.Tensor):
            sources = [_fake(recorder, value)]
            node = view.EXPAND(view.RESHAPE(as_type(fk.value(sources[0]), dtype), shape=()), shape=target.sizes)
        else:
            node = full(value, dtype, target.sizes)
    except ValueError:
        eager_error(recorder, func, args, kwargs)
        refuse(str(func), f"{value} is no value of {dtype}")
    recorder.write(target, node, sources, str(func))
    return target


def _changes_memory(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    refuse(str(func), "it changes the size or the memory of an existing tensor", "use the form that gives a new tensor")


def _views_in_place(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`squeeze_` and its like: the same tensor, seen in another way from now on."""
    from .aten import dispatch

    target = _fake(recorder, args[0])
    if recorder.is_input(target):
        refuse(str(func), "it changes the shape of an input", "use the form that gives a new tensor")
    name, overload = str(func).split(".")[1:]
    overload = "int" if name == "transpose_" else overload
    viewed: Fake = dispatch(recorder, getattr(getattr(torch.ops.aten, name.removesuffix("_")), overload), args, kwargs)
    private.below_python(func, target, *args[1:], **kwargs)
    for field in ("chain", "node", "version", "sizes", "strides", "offset", "twin"):
        setattr(target, field, getattr(viewed, field))
    return target


# --- views of the storage ---------------------------------------------------------------------------------------------


def _as_strided(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fake:
    """Counted in the storage, whatever view it is called on."""
    x = _fake(recorder, args[0])
    seen = func(fk.twin(x), *args[1:], **kwargs)
    shape, strides, offset = fk.geometry(seen)
    if symbolic.is_open():
        m = x.memory
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides))
        end = m.offset + sum((n - 1) * s for n, s in zip(m.shape, m.strides))
        symbolic.active().decide("<=", last, end)
    try:
        chain = x.memory.flat().strided(shape, strides, offset - x.memory.offset).chain
        new = recorder.view(x, shape, strides, offset, chain, restart=True)
    except (Unsupported, ValueError) as e:
        refuse(str(func), str(e))
    new.twin = seen
    return new


# --- reads ------------------------------------------------------------------------------------------------------------


def _item(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return recorder.read(_fake(recorder, args[0]), "reading a tensor's value").item()


def _is_nonzero(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(_item(recorder, func, args, kwargs))


def _equal(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    a, b = (recorder.read(_fake(recorder, x), "comparing tensors") for x in args)
    with private.without_modes():
        return torch.equal(a, b)


# --- attention, convolution, batch norm -------------------------------------------------------------------------------


def _sdpa_choice(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    bound = {**dict(zip(names, args)), **kwargs}
    if bound.get("dropout_p", 0.0) != 0.0:
        return private.SDPA_MATH
    tensors = [_fake(recorder, bound[n]) for n in names[:3]]
    mask = bound.get("attn_mask")
    masked = None if mask is None else _fake(recorder, mask)
    return attention_kernel(tensors, masked, bool(bound.get("is_causal")), kwargs.get("scale"), bool(kwargs.get("enable_gqa")))[0]


_KERNELS: dict[Any, tuple[int, st.Sizes]] = {}


def attention_kernel(
    tensors: Sequence[Fake], mask: Fake | None, causal: bool, scale: float | None, gqa: bool
) -> tuple[int, st.Sizes]:
    """Which of its kernels eager takes, and the strides of the result: asked of torch once for each kind of operands."""
    given = [*tensors, mask] if mask is not None else list(tensors)
    key = (
        tuple((t.sizes, t.strides, t.dtype, t.device, fk.tracked(t)) for t in given),
        causal,
        scale,
        gqa,
        mask is None,
        torch.is_grad_enabled(),
    )
    if symbolic.is_open():  # strides in these symbols are of no use to another recording
        with private.without_modes(), fk.kernels():
            return _ask_kernel(given, causal, scale, gqa)
    found = _KERNELS.get(key)
    if found is None:
        with private.without_modes():
            found = _KERNELS[key] = _ask_kernel(given, causal, scale, gqa)
    return found


def _ask_kernel(given: Sequence[Fake], causal: bool, scale: float | None, gqa: bool) -> tuple[int, st.Sizes]:
    real = [_example(t) for t in given]
    chosen = private.sdpa_backend(real[:3], real[3] if len(real) > 3 else None, causal, scale, gqa)
    shape = (*given[0].sizes[:-1], given[2].sizes[-1])
    if chosen != private.SDPA_FLASH:
        return chosen, st.contiguous(shape)
    meta = [fk.twin(t) for t in given]
    meta = [m if m.stride(-1) == 1 else m.contiguous() for m in meta[:3]] + meta[3:]
    return chosen, symbolic.sizes_of(private.flash_strides(meta[:3], meta[3] if len(meta) > 3 else None, causal, scale))


def _example(t: Fake) -> torch.Tensor:
    """A tensor of the same metadata, of the sizes of the example, with anything in it."""
    sizes, strides = (tuple(map(symbolic.hint_of, v)) for v in (t.sizes, t.strides))
    return torch.empty_strided(sizes, strides, dtype=t.dtype, device=t.device, requires_grad=fk.tracked(t))


def _flash_attention(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """(query, key, value, dropout_p, is_causal; attn_mask, scale) -> (result, logsumexp [B, H, S])."""
    q, k, v = (_fake(recorder, a) for a in args[:3])
    dropout = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
    causal = bool(args[4] if len(args) > 4 else kwargs.get("is_causal", False))
    if dropout != 0.0:
        refuse(str(func), "attention with dropout has no row")
    masks = [_fake(recorder, kwargs["attn_mask"])] if kwargs.get("attn_mask") is not None else []
    given = kwargs.get("scale")
    scale = symbolic.settled(q.sizes[-1]) ** -0.5 if given is None else float(given)
    nq, nk, nv = (fk.value(t) for t in (q, k, v))
    nodes = [as_type(fk.value(m), nq.dtype) if fk.value(m).dtype is not dtypes.b1 else fk.value(m) for m in masks]
    out = contract.ATTENTION(nq, nk, nv, *nodes, scale=scale, causal=causal)
    operands = [q, k, v, *masks]
    made = recorder.result(out, st.like(q.sizes, q.strides), operands)
    b, h, s = q.sizes[:3]
    sums = TensorType(nq.dtype.compute, (b, h, s))  # of no use but to a backward pass: an opaque call, where it is read
    spec, tensors = spec_of([nq, nk, nv, 0.0, causal], {"attn_mask": nodes[0] if nodes else None, "scale": scale})
    call = make(CALL, tuple(tensors), CallAttrs(str(func), *spec, TupleType((out.tensor, sums))))
    return made, recorder.result(GETITEM(call, index=1), (s * h, 1, h), operands)


def _convolution(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A product where windows tile the image; any other convolution is opaque."""
    from .aten import opaque

    x, weight = _fake(recorder, args[0]), _fake(recorder, args[1])
    bias = None if args[2] is None else _fake(recorder, args[2])
    stride, padding, dilation, transposed, _, groups = args[3:9]
    dims = len(x.sizes) - 2
    last = dims in (2, 3) and any(st.suggests_channels_last(t.sizes, t.strides) for t in (x, weight))
    layout = st.channels_last if last else st.contiguous
    wide = [list(v) * dims if len(v) == 1 else list(v) for v in (stride, padding, dilation)]
    tiles = not transposed and groups == 1 and not any(wide[1]) and wide[0] == list(weight.sizes[2:])
    plain = all(d == 1 for d in wide[2]) or all(k == 1 for k in weight.sizes[2:])
    if tiles and plain and x.sizes[1] == weight.sizes[1] and x.dtype == weight.dtype and x.dtype.is_floating_point:
        node = aten_contract.patch_convolution(fk.value(x), fk.value(weight), None if bias is None else fk.value(bias))
        if node is not None:
            shape: st.Sizes = node.shape
            return recorder.result(node, layout(shape), [x, weight] if bias is None else [x, weight, bias])
    return opaque(recorder, func, args, kwargs, layout)


def _batch_norm(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """(x, weight, bias, running_mean, running_var, training, momentum, eps) -> (result, saved mean, saved 1/std)."""
    x = _fake(recorder, args[0])
    weight, bias, mean, variance = (None if a is None else _fake(recorder, a) for a in args[1:5])
    training, momentum, eps = args[5:8]
    shape = x.sizes
    last = len(shape) in (4, 5) and st.suggests_channels_last(shape, x.strides)
    strides = st.channels_last(shape) if last else st.contiguous(shape)
    nodes = [None if f is None else fk.value(f) for f in (x, weight, bias, mean, variance)]
    fakes = [f for f in (x, weight, bias, mean, variance) if f is not None]
    nx, nw, nb, nm, nv = nodes
    assert nx is not None
    if not training:
        assert nm is not None
        assert nv is not None
        out = recorder.result(aten_reduce.batch_norm(nx, nw, nb, nm, nv, eps), strides, fakes)
        empty = recorder.result(full(0.0, nm.dtype, (0,)), (1,), [])
        return out, empty, empty
    mine, deviation, unbiased = aten_reduce.batch_statistics(nx)
    out = recorder.result(aten_reduce.batch_norm(nx, nw, nb, mine, deviation, eps), strides, fakes)
    for buffer, new in ((mean, mine), (variance, unbiased)):
        if buffer is not None:
            recorder.write(buffer, aten_reduce.moved(fk.value(buffer), new, momentum), [], str(func))
    inverse = pw.RSQRT(pw.ADD(deviation, full(eps, deviation.dtype)))
    saved = [recorder.result(n, st.contiguous(n.shape), []) for n in (mine, inverse)]
    return out, *saved


def _metadata_of(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """torch's Python kernels ask a tensor of symbolic sizes for them by a call."""
    x = _fake(recorder, args[0])
    match func.name():
        case "aten::size" | "aten::sym_size":
            return x.size(*args[1:])
        case "aten::stride" | "aten::sym_stride":
            return x.stride(*args[1:])
        case "aten::numel" | "aten::sym_numel":
            return x.numel()
        case "aten::dim":
            return x.dim()
        case "aten::is_contiguous":
            return st.is_contiguous(x.sizes, x.strides)
    return symbolic.to_symint(x.offset)


_QUERIES = (
    "size", "sym_size", "stride", "sym_stride", "numel", "sym_numel", "dim", "is_contiguous", "storage_offset",
    "sym_storage_offset",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}.{overload}": _metadata_of for name in _QUERIES for overload in ("default", "int")},
    "aten.clone.default": _clone, "aten._to_copy.default": _to_copy,
    **{name: _like(name) for name in aten_create.BUILDS if "_like." in name},
    **{name: _strided(name, at) for name, at in aten_create.STRIDED.items()},
    "aten.lift_fresh.default": _lift_fresh,
    "aten.copy_.default": _copy_, "aten.fill_.Scalar": _fill_, "aten.fill_.Tensor": _fill_, "aten.zero_.default": _fill_,
    **dict.fromkeys(
        (
            "aten.set_.source_Tensor", "aten.set_.source_Storage", "aten.set_.source_Storage_storage_offset", "aten.set_.default",
            "aten.resize_.default", "aten.resize_as_.default", "aten.detach_.default",
        ),
        _changes_memory,
    ),
    **dict.fromkeys(
        (
            "aten.squeeze_.default", "aten.squeeze_.dim", "aten.squeeze_.dims", "aten.unsqueeze_.default", "aten.t_.default",
            "aten.transpose_.default", "aten.as_strided_.default",
        ),
        _views_in_place,
    ),
    "aten.as_strided.default": _as_strided,
    "aten._local_scalar_dense.default": _item, "aten.item.default": _item, "aten.is_nonzero.default": _is_nonzero,
    "aten.equal.default": _equal,
    "aten._fused_sdp_choice.default": _sdpa_choice, "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_attention,
    "aten.convolution.default": _convolution, "aten._convolution.default": _convolution,
    "aten.native_batch_norm.default": _batch_norm,
}  # fmt: skip
