"""Every private torch name that `graph/` uses, behind names of our own.

In: torch. Out: modes, wrapper tensors, pytrees, operator schemas, the decomposition table. Nothing else in `graph/` may
reach for an underscore of torch's; `tests/graph/test_torch_private.py` fails first where a release moves one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import _ops, overrides
from torch._higher_order_ops import associative_scan as _associative_scan
from torch._higher_order_ops import scan as _scan
from torch._higher_order_ops.map import map as _map
from torch.autograd import forward_ad
from torch.utils import _pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

TorchFunctionMode: TypeAlias = overrides.TorchFunctionMode


class DispatchMode(TorchDispatchMode):
    """torch's mode, without the detour through its compiler (importing that takes a second)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


OpOverload: TypeAlias = _ops.OpOverload
TreeSpec: TypeAlias = _pytree.TreeSpec
tree_unflatten = _pytree.tree_unflatten
without_modes = _disable_current_modes
higher_order_map, scan, associative_scan = _map, _scan, _associative_scan
plain_function = torch._C._disabled_torch_function_impl  # a class's `__torch_function__` that does nothing

SDPA_MATH, SDPA_FLASH = 0, 1  # what `sdpa_backend` gives


def _is_leaf(value: Any) -> bool:
    return type(value) is torch.Size  # else a tuple of numbers


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of nested containers, and their form."""
    return _pytree.tree_flatten(tree, is_leaf=_is_leaf)


def tree_flatten_with_path(tree: Any) -> tuple[list[tuple[Any, Any]], TreeSpec]:
    """As `tree_flatten`, each leaf with its path: `path_step` reads a step."""
    return _pytree.tree_flatten_with_path(tree, is_leaf=_is_leaf)


def path_step(key: Any) -> Any:
    """The index or key of one step of a pytree path."""
    for name in ("idx", "key", "name"):
        if hasattr(key, name):
            return getattr(key, name)
    raise TypeError(f"a pytree step of unknown kind: {key!r}")


def wrapper(cls: type, shape: Any, strides: Any, offset: int, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor of the subclass with that metadata and no memory; its operations come to Python."""
    make = torch.Tensor._make_wrapper_subclass
    return make(cls, shape, strides=strides, storage_offset=offset, dtype=dtype, device=device)


def symbolic_kernels() -> contextlib.AbstractContextManager[Any]:
    """Within, torch's meta kernels written in Python come first: they take symbolic sizes."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def is_composite(func: OpOverload) -> bool:
    """Whether torch itself writes the operator in simpler ones, below autograd."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


class AskedThroughEnvironment:
    """Of a symbolic bool's node: torch's helpers ask a "shape environment" about the node's "expression" (until torch 2.12)."""

    __slots__ = ()

    @property
    def expr(self) -> Any:
        return self

    @property
    def shape_env(self) -> Any:
        return self

    def _maybe_evaluate_static(self, node: Any) -> bool | None:
        found: bool | None = node.constant_bool()
        return found

    def evaluate_sym_node(self, node: Any, **_: Any) -> bool:
        answer: bool = node.guard_bool("", 0)
        return answer


def without_tag(f: Any) -> Any:
    """Of TorchDynamo's wrapper of `nn.Module.__init__`, there once torch.compile has run, what it wraps; else None.

    The wrapper only notes when a module was made, for torch.compile's own guards.
    """
    if f.__code__.co_qualname != "install_generation_tagging_init.<locals>.patched_init":
        return None
    return dict(zip(f.__code__.co_freevars, f.__closure__, strict=True))["init"].cell_contents


def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def overloads(namespace: str, name: str) -> list[OpOverload]:
    """All overloads of an operator; none where torch has no such operator."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def written(func: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that the operator writes into."""
    return tuple(a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def aliases(func: OpOverload) -> bool:
    """Whether a result may share memory with an argument that is only read."""
    returned = any(r.alias_info is not None for r in func._schema.returns)
    return returned and not func._schema.is_mutable


def parameters(func: OpOverload) -> list[tuple[str, str, bool]]:
    """(name, type, whether keyword-only) of each argument."""
    return [(a.name, str(a.type), a.kwarg_only) for a in func._schema.arguments]


def defaults(func: OpOverload) -> dict[str, Any]:
    """The arguments that have a default, and it."""
    return {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}


def below_python(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run the operator's own kernel on wrapper tensors: it must not touch their elements."""
    with torch._C._DisableTorchDispatch():
        return func(*args, **kwargs)


def in_autograd_function(frame: FrameType | None) -> bool:
    """Whether a frame runs within the forward of a custom `torch.autograd.Function`."""
    apply = torch.autograd.Function.apply.__func__.__code__
    while frame is not None:
        if frame.f_code is apply:
            return True
        frame = frame.f_back
    return False


def in_transform(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a wrapper of a function transform (vmap, grad)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def plain_calls() -> list[tuple[Callable[[], Any], Any]]:
    """(query, its answer) that hold where nothing stands between this thread and torch: no modes, transforms and tracers."""
    depth = torch._C._len_torch_function_stack() if only_cpu_devices() else 0
    rows: list[tuple[Callable[[], Any], Any]] = [
        (torch._C._len_torch_function_stack, depth), (torch._C._len_torch_dispatch_stack, 0),
        (torch._C._functorch.peek_interpreter_stack, None), (torch._C._get_tracing_state, None),
    ]  # fmt: skip
    return [*rows, (only_cpu_devices, True)] if depth else rows


def only_cpu_devices() -> bool:
    """Whether the function modes in force say no more than that new tensors are on the CPU."""
    modes = overrides._get_current_function_mode_stack()
    return all(isinstance(m, DeviceContext) and torch.device(m.device).type == "cpu" for m in modes)


def turns_gradients_on(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call, as a function mode sees it, turns the recording of gradients on."""
    return function is torch._C._set_grad_enabled and bool(args[0])


def is_plain_call() -> bool:
    """Whether `plain_calls` hold, and tensors have no tangents."""
    return all(query() == answer for query, answer in plain_calls()) and forward_ad._current_level < 0


def global_hooks() -> list[tuple[str, dict[int, Any]]]:
    """Hooks that run at the call of any module."""
    held = vars(torch.nn.modules.module)
    return [(name, held[name]) for name in ("_global_forward_pre_hooks", "_global_forward_hooks")]


def tangent_level() -> tuple[dict[str, Any], str]:
    """(a dict, the key in it) that holds -1 where tensors have no tangents."""
    return vars(forward_ad), "_current_level"


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """torch's own table of operators in simpler ones. The first call loads it (about 0.2 s)."""
    from torch._decomp import decomposition_table

    return decomposition_table


def sdpa_backend(qkv: Sequence[torch.Tensor], mask: torch.Tensor | None, causal: bool, scale: float | None, gqa: bool) -> int:
    """The kernel that eager's attention takes for such tensors: `SDPA_MATH` or `SDPA_FLASH` on a CPU."""
    return torch._fused_sdp_choice(*qkv, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


def flash_strides(qkv: Sequence[torch.Tensor], mask: torch.Tensor | None, causal: bool, scale: float | None) -> tuple[int, ...]:
    """The strides of what the CPU's flash kernel gives for such (meta) tensors."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(*qkv, 0.0, causal, attn_mask=mask, scale=scale)[0].stride()


_LOCK = threading.Lock()
_DEPTH = 0
_BEFORE = False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Within, `torch.compiler.is_compiling()` is true, in every thread; restored when the last of several leaves."""
    global _DEPTH, _BEFORE
    import torch.compiler

    with _LOCK:
        if _DEPTH == 0:
            _BEFORE = torch.compiler._is_compiling_flag
            torch.compiler._is_compiling_flag = True
        _DEPTH += 1
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                torch.compiler._is_compiling_flag = _BEFORE


_RESEEDS = threading.local()
_WATCHES = 0


def reseeds() -> int:
    """How often this thread has set torch's random state, within `watching_reseeds`."""
    return getattr(_RESEEDS, "count", 0)


class _Watched:
    """Stands for torch's default generator where `torch.manual_seed` and its like find it."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        if name in ("manual_seed", "seed", "set_state"):
            _RESEEDS.count = reseeds() + 1
        return getattr(self._generator, name)


@contextlib.contextmanager
def watching_reseeds() -> Iterator[None]:
    """Within, `reseeds` counts."""
    global _WATCHES
    with _LOCK:
        _WATCHES += 1
        if _WATCHES == 1:
            torch.random.default_generator = _Watched(torch.default_generator)
    try:
        yield
    finally:
        with _LOCK:
            _WATCHES -= 1
            if _WATCHES == 0:
                torch.random.default_generator = torch.default_generator


@contextlib.contextmanager
def own_random_state() -> Iterator[None]:
    """Within, draws leave no trace; `reseeds` does not count this."""
    before = reseeds()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        _RESEEDS.count = before
