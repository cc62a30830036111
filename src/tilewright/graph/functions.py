"""The function level: what a torch function means to a recording before it comes down to ATen.

In: a torch function or method with its arguments. Out: one row where ATen would take many calls (linear, matmul, attention,
norms), answers about metadata, refusals of what cannot be recorded. Everything else runs, and is recorded as ATen calls.
Must not know ATen's rules.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import torch

from ..base import dtypes
from . import aten_contract, aten_reduce, aten_special, symbolic
from . import fake as fk
from . import strides as st
from . import torch_private as private
from .fake import Fake
from .ir import Node
from .ops import composite, contract
from .recorder import Recorder, refuse
from .symbolic import settled

Handler = Callable[..., Any]  # (recorder, func, *args, **kwargs); NotImplemented: as any other function
T = torch.Tensor
functional = torch.nn.functional


def call(recorder: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function while recording. The function mode is off within."""
    handlers, plain = _tables()
    if func in plain:
        return func(*args, **kwargs)
    handler = handlers.get(func)
    if handler is None and getattr(func, "__name__", "") in ("__set__", "__delete__"):
        handler = _sets_attribute
    if handler is not None and "out" not in kwargs and not _transformed(args):
        result = handler(recorder, func, *args, **kwargs)
        if result is not NotImplemented:
            return result
    swapped = [_swap(recorder, a) for a in args]
    result = func(*swapped, **{k: _swap(recorder, v) for k, v in kwargs.items()}) if kwargs else func(*swapped)
    if args and result is swapped[0] and type(result) is Fake:
        return args[0]  # written in place: the very object, which may be a real tensor
    return result


def _transformed(args: tuple[Any, ...]) -> bool:
    """Whether it is called within a function transform: its operands become fakes further down."""
    return bool(args) and type(args[0]) is torch.Tensor and private.in_transform(args[0])


def _swap(recorder: Recorder, value: Any) -> Any:
    """Fakes for real tensors, in lists too."""
    cls = type(value)
    if cls is Fake or cls is int or cls is float or cls is str or value is None:
        return value
    if isinstance(value, torch.Tensor):
        return value if private.in_transform(value) else recorder.fake_of(value)
    if cls is list or cls is tuple:
        return cls([_swap(recorder, v) for v in value])
    return value


# --- one row for many calls -------------------------------------------------------------------------------------------


def _operands(recorder: Recorder, *tensors: Any) -> list[Fake] | None:
    """The fakes, if all are float tensors of one dtype on which a shortcut means what ATen means."""
    if torch.is_autocast_enabled(recorder.place.type):
        return None
    fakes: list[Fake] = []
    for t in tensors:
        if type(t) is Fake:
            fakes.append(t)
        elif isinstance(t, torch.Tensor) and not private.in_transform(t):
            fakes.append(recorder.fake_of(t))
        else:
            return None
    dtype = fakes[0].node.dtype
    return fakes if dtype.is_float and all(f.node.dtype is dtype for f in fakes) else None


def _result(recorder: Recorder, node: Node, operands: list[Fake], strides: st.Sizes | None = None) -> Fake:
    return recorder.result(node, st.contiguous(node.shape) if strides is None else strides, operands)


def _linear(recorder: Recorder, func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    operands = _operands(recorder, input, weight, *(() if bias is None else (bias,)))
    if operands is None:
        return NotImplemented
    x, w, *b = operands
    fits = len(x.sizes) >= 2 and len(w.sizes) == 2 and x.sizes[-1] == w.sizes[1] and all(v.sizes == w.sizes[:1] for v in b)
    return _result(recorder, aten_contract.linear(*map(fk.value, operands)), operands) if fits else NotImplemented


def _matmul(recorder: Recorder, func: Any, input: Any, other: Any) -> Any:
    operands = _operands(recorder, input, other)
    if operands is None:
        return NotImplemented
    a, b = operands
    ranks = len(a.sizes), len(b.sizes)
    if min(ranks) < 2 or ranks[0] < ranks[1]:  # a smaller first operand gives a transposed result
        return NotImplemented
    try:
        return _result(recorder, contract.MATMUL(fk.value(a), fk.value(b)), operands)
    except ValueError:
        return NotImplemented


def _attention(
    recorder: Recorder, func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    operands = _operands(recorder, query, key, value) if dropout_p == 0.0 else None
    if operands is None or not isinstance(attn_mask, Fake | torch.Tensor | None):
        return NotImplemented
    q, k, v = operands
    grouped = len(q.sizes) >= 3 and q.sizes[-3] != k.sizes[-3]
    if len(q.sizes) < 3 or 0 in k.sizes or (grouped and not enable_gqa) or not _plain_mask(recorder, attn_mask, q):
        return NotImplemented
    mask = None if attn_mask is None else attn_mask if type(attn_mask) is Fake else recorder.fake_of(attn_mask)
    _, strides = aten_special.attention_kernel(operands, mask, bool(is_causal), scale, enable_gqa)
    kind = "" if mask is None or is_causal else _known_mask(recorder, mask, (q.sizes[-2], k.sizes[-2]))
    if kind:
        mask, is_causal = None, kind == "causal"
    nodes = [fk.value(f) for f in (q, k, v)] + ([] if mask is None else [fk.value(mask)])
    factor = float(scale) if scale is not None else 1 / math.sqrt(settled(q.sizes[-1])) if q.sizes[-1] else 1.0
    try:
        out = contract.ATTENTION(*nodes, scale=factor, causal=bool(is_causal))
    except ValueError:
        return NotImplemented
    return _result(recorder, out, operands if mask is None else [*operands, mask], strides)


def _known_mask(recorder: Recorder, mask: Fake, scores: st.Sizes) -> str:
    """Of a bool mask that depends on no input: "causal" or "full" where it is that, else ""."""
    node = fk.value(mask)
    found = recorder.masks.get(node)
    if found is None:
        found = recorder.masks[node] = _kind_of_mask(recorder, mask, node, scores)
    return found


def _kind_of_mask(recorder: Recorder, mask: Fake, node: Node, scores: st.Sizes) -> str:
    if node.dtype is not dtypes.b1 or symbolic.is_open() or math.prod(mask.sizes) > _LARGEST_MASK or mask.sizes[-2:] != scores:
        return ""
    real = recorder.constant(node)
    if real is None or 0 in mask.sizes:
        return ""
    with private.without_modes():
        if bool(real.all()):
            return "full"
        return "causal" if torch.equal(real, torch.ones(scores, dtype=torch.bool).tril().expand(mask.sizes)) else ""


_LARGEST_MASK = 1 << 24


def _plain_mask(recorder: Recorder, mask: Any, q: Fake) -> bool:
    return mask is None or (mask.dtype in (torch.bool, q.dtype) and mask.dim() >= 2 and not private.in_transform(mask))


def _layer_norm(
    recorder: Recorder, func: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    operands = _operands(recorder, input, *[p for p in (weight, bias) if p is not None])
    if operands is None or (weight is None and bias is not None):
        return NotImplemented
    x, shape = operands[0], tuple(normalized_shape)
    if not shape or x.sizes[-len(shape) :] != shape or any(p.sizes != shape for p in operands[1:]):
        return NotImplemented
    nodes = [fk.value(f) for f in operands] + [None, None]
    return _result(recorder, aten_reduce.layer_norm(nodes[0], len(shape), nodes[1], nodes[2], eps), operands)  # type: ignore[arg-type]


def _rms_norm(
    recorder: Recorder, func: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    operands = _operands(recorder, input, *(() if weight is None else (weight,)))
    if operands is None:
        return NotImplemented
    x, shape = operands[0], tuple(normalized_shape)
    fits = shape and x.sizes[-len(shape) :] == shape and all(p.sizes == shape for p in operands[1:])
    if not fits or not st.is_contiguous(x.sizes, x.strides):
        return NotImplemented
    smallest = torch.finfo(x.dtype if x.node.dtype is dtypes.f64 else torch.float32).eps
    nodes = [fk.value(f) for f in operands]
    return _result(recorder, composite.RMS_NORM(*nodes, ndims=len(shape), eps=smallest if eps is None else float(eps)), operands)


def _one_hot(recorder: Recorder, func: Any, tensor: Any, num_classes: int = -1) -> Any:
    """By a scatter, which checks its indices: a class out of range is an error."""
    fake = tensor if type(tensor) is Fake else recorder.fake_of(tensor)
    if num_classes < 1 or fake.dtype is not torch.int64:
        return NotImplemented
    zeros = torch.zeros((*symbolic.to_symints(fake.sizes), num_classes), dtype=torch.int64, device=fake.device)
    return zeros.scatter(-1, fake.unsqueeze(-1), 1)


# --- sizes where torch's C++ wants ints -------------------------------------------------------------------------------


def _get_item(recorder: Recorder, func: Any, tensor: Any, key: Any) -> Any:
    view = _selected(tensor, key)
    return NotImplemented if view is None else view


def _set_item(recorder: Recorder, func: Any, tensor: Any, key: Any, value: Any) -> Any:
    view = _selected(tensor, key)
    if view is None:
        return NotImplemented
    view[...] = value
    return None


def _selected(tensor: Any, key: Any) -> Any:
    """What a key with indices of open size selects, in torch's order; None where it has none, or one that is out of range."""
    keys = key if type(key) is tuple else (key,)
    kinds = [type(k) for k in keys]
    if torch.SymInt not in kinds or not all(k in (int, slice, torch.SymInt, types.NoneType, types.EllipsisType) for k in kinds):
        return None
    rest = tensor.dim() - sum(k is not None and k is not ... for k in keys)
    if rest < 0 or kinds.count(types.EllipsisType) > 1:
        return None
    dim, view = 0, tensor
    for k in keys:
        if k is None:
            view = view.unsqueeze(dim)
        elif type(k) is slice:
            view = view[(*[slice(None)] * dim, k)]
        elif k is not ...:
            if not -view.shape[dim] <= k < view.shape[dim]:
                return None
            view = view.select(dim, k)
            continue
        dim += rest if k is ... else 1
    return view


def _tensor(recorder: Recorder, func: Any, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    """`torch.tensor` of sizes."""
    several = type(data) in (list, tuple)
    numbers = data if several else (data,)
    sizes = any(type(n) is torch.SymInt for n in numbers) and all(type(n) in (int, torch.SymInt) for n in numbers)
    if not sizes or any(kwargs.values()):
        return NotImplemented
    made = [torch.full((), n, dtype=dtype or torch.int64, device=device) for n in numbers]
    return torch.stack(made) if several else made[0]


def _max_pool1d(
    recorder: Recorder, func: Any, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    if return_indices or not symbolic.is_open():
        return NotImplemented
    one = [v[0] if isinstance(v, list | tuple) else v for v in (kernel_size, stride or kernel_size, padding, dilation)]
    pairs = [(low, v) for low, v in zip((1, 1, 0, 1), one)]
    return torch.max_pool2d(_swap(recorder, input).unsqueeze(-2), *pairs, ceil_mode).squeeze(-2)


def _interpolate(
    recorder: Recorder, func: Any, input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Any:  # fmt: skip
    x, dims = _swap(recorder, input), input.dim() - 2
    name = _UPSAMPLES.get((mode, dims))
    if name is None or antialias or not symbolic.is_open() or (size is None) == (scale_factor is None):
        return NotImplemented
    scales: list[Any] = [None] * dims
    if size is not None:
        out = list(size) if isinstance(size, list | tuple) else [size] * dims
    else:
        factors = [float(f) for f in (scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * dims)]
        parts = [f.as_integer_ratio() for f in factors]
        if any(not 0 < above <= 64 or below > 64 for above, below in parts):
            return NotImplemented
        out = [n * above // below for n, (above, below) in zip(x.shape[2:], parts)]
        scales = scales if recompute_scale_factor else list(factors)
    if len(out) != dims or len(scales) != dims:
        return NotImplemented
    corners = () if "nearest" in mode else (bool(align_corners),)
    return getattr(torch.ops.aten, name)(x, out, *corners, *scales)


_UPSAMPLES = {
    **{("nearest", n): f"upsample_nearest{n}d" for n in (1, 2, 3)}, ("linear", 1): "upsample_linear1d",
    **{("nearest-exact", n): f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)}, ("bilinear", 2): "upsample_bilinear2d",
    ("bicubic", 2): "upsample_bicubic2d", ("trilinear", 3): "upsample_trilinear3d",
}  # fmt: skip


# --- questions about a tensor -----------------------------------------------------------------------------------------


def _requires_grad(recorder: Recorder, func: Any, tensor: Any) -> Any:
    return fk.tracked(tensor) if type(tensor) is Fake else func(tensor)


def _is_leaf(recorder: Recorder, func: Any, tensor: Any) -> Any:
    return (not fk.tracked(tensor) or (tensor.memory.leaf and not tensor.chain)) if type(tensor) is Fake else func(tensor)


def _grad_fn(recorder: Recorder, func: Any, tensor: Any) -> Any:
    if type(tensor) is Fake and fk.tracked(tensor):
        refuse("grad_fn", "autograd's graph is not recorded")
    return None if type(tensor) is Fake else func(tensor)


def _grad(recorder: Recorder, func: Any, tensor: Any) -> Any:
    refuse("grad", "a tensor's gradient is no input of the recording", "pass the gradient as an argument")


def _data(recorder: Recorder, func: Any, tensor: Any) -> Any:
    return torch.Tensor.detach(_swap(recorder, tensor))


# --- values that leave the graph --------------------------------------------------------------------------------------


def _reads(recorder: Recorder, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Needs the tensor's elements as Python or NumPy values."""
    real = recorder.read(_swap(recorder, args[0]), f"Tensor.{getattr(func, '__name__', func)}")
    with private.without_modes():
        return func(real, *args[1:], **kwargs)


def _refusal(reason: str, hint: str = "") -> Handler:
    def handler(recorder: Recorder, func: Any, *args: Any, **kwargs: Any) -> Any:
        refuse(f"Tensor.{getattr(func, '__name__', func)}", reason, hint)

    return handler


def _requires_grad_(recorder: Recorder, func: Any, tensor: Any, requires_grad: bool = True) -> Any:
    """Changes nothing, or makes a new tensor a leaf where nothing is recorded anyway."""
    fake = _swap(recorder, tensor)
    if fk.tracked(fake) != requires_grad:
        if recorder.is_input(fake) or fake.chain or not requires_grad or torch.is_grad_enabled():
            refuse("Tensor.requires_grad_", "it changes what autograd records", "call it outside the compiled function")
        fake.memory.tracked = fake.memory.leaf = True
    return tensor


def _detach_(recorder: Recorder, func: Any, tensor: Any) -> Any:
    if fk.tracked(_swap(recorder, tensor)):
        refuse("Tensor.detach_", "it changes what autograd records", "use detach()")
    return tensor


def _sets_attribute(recorder: Recorder, func: Any, *args: Any, **kwargs: Any) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "an attribute")
    refuse(f"setting Tensor.{name}", "it changes an existing tensor in a way that is no operation")


_METADATA = (
    "shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta", "is_mkldnn",
    "is_mps",
    "is_nested", "itemsize", "nbytes", "is_xla", "is_xpu", "is_sparse_csr", "is_ipu", "is_vulkan", "is_mtia", "is_maia", "names",
)  # fmt: skip
_QUERIES = (
    "size", "dim", "stride", "is_contiguous", "numel", "nelement", "is_floating_point", "is_complex", "storage_offset",
    "element_size",
    "get_device", "ndimension", "is_signed", "__len__", "is_conj", "is_neg", "is_inference", "dim_order", "__hash__",
    "is_same_size",
    "has_names", "__dir__", "_is_view",
)  # fmt: skip
_READ = ("tolist", "numpy", "__array__", "__repr__", "__format__", "__dlpack__", "__str__")
_MEMORY = (
    "data_ptr",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "share_memory_",
    "is_shared",
    "storage_type",
    "is_set_to",
    "set_",
)
_AUTOGRAD = ("backward", "register_hook", "register_post_accumulate_grad_hook", "retain_grad")


@functools.cache
def _tables() -> tuple[dict[Any, Handler], frozenset[Any]]:
    """(function -> handler, functions that run as they are). Built at the first recording: torch's functions are the keys."""
    plain = {getattr(T, name).__get__ for name in _METADATA if hasattr(getattr(T, name, None), "__get__")}
    plain |= {getattr(T, name) for name in _QUERIES if hasattr(T, name)}
    plain |= {torch.is_floating_point, torch.is_complex, torch.numel, torch.is_signed, torch.is_storage}
    handlers: dict[Any, Handler] = {
        functional.linear: _linear, torch.matmul: _matmul, T.matmul: _matmul, T.__matmul__: _matmul,
        functional.scaled_dot_product_attention: _attention, functional.layer_norm: _layer_norm, functional.rms_norm: _rms_norm,
        functional.one_hot: _one_hot, T.__getitem__: _get_item, T.__setitem__: _set_item, torch.tensor: _tensor,
        torch.max_pool1d: _max_pool1d, functional.max_pool1d: _max_pool1d, functional.interpolate: _interpolate,
        T.requires_grad.__get__: _requires_grad, T.is_leaf.__get__: _is_leaf, T.grad_fn.__get__: _grad_fn,
        T.grad.__get__: _grad, T.data.__get__: _data, T.requires_grad_: _requires_grad_, T.detach_: _detach_,
        torch.detach_: _detach_,
        T.__deepcopy__: _refusal("a recorded tensor is not copied in Python", "use clone()"),
        T.__reduce_ex__: _refusal("a recorded tensor cannot be pickled"),
        T._version.__get__: _refusal("a version counter is no input of the recording"),
    }  # fmt: skip
    handlers |= {getattr(T, name): _reads for name in _READ if hasattr(T, name)}
    handlers |= {getattr(T, name): _refusal("it looks at the tensor's memory") for name in _MEMORY if hasattr(T, name)}
    hint = "call it outside the compiled function"
    handlers |= {getattr(T, name): _refusal("it changes what autograd records", hint) for name in _AUTOGRAD if hasattr(T, name)}
    return handlers, frozenset(plain)
