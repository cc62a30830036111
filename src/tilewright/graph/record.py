"""Runs a Python callable on fakes and gives the graph of what it computed.

In: a function or module and example arguments. Out: `Recorded`: the graph, where each input is found, how the Python result is
rebuilt. Recording leaves no trace: no data is touched, Python state is put back. Must not know guards, passes or targets.

Two levels: a function mode records some torch functions as one row, and puts fakes for real tensors; a dispatch mode records
the ATen calls that all others come down to, below autograd and autocast.
"""

from __future__ import annotations

import enum
import gc
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import aten, functions
from . import fake as fk
from . import functionalize as fz
from . import torch_private as private
from .fake import Fake
from .ir import Alias, Graph, Output
from .recorder import ArgSource, ConstantSource, ParameterSource, Recorder, Source, TracerWarning, recording, refuse
from .strides import contiguous
from .torch_private import TreeSpec
from .untouched import Watch, root_modules

__all__ = [
    "ArgSource", "ConstantSource", "OutSpec", "ParameterSource", "Recorded", "Recorder", "Source", "TracerWarning", "record",
]  # fmt: skip

# What a result may hold beside tensors: the same object is given at each call.
_CONSTANTS = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    enum.Enum, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, nn.Module, range, slice, type(Ellipsis),
    torch.finfo,
)  # fmt: skip


@dataclass(frozen=True)
class OutSpec:
    """How the result is rebuilt. `leaves`: for each leaf of the tree, the graph output's number, or a constant's value."""

    tree: TreeSpec
    leaves: tuple[int | _Constant, ...]

    def __call__(self, outputs: Any) -> Any:
        """The result, from one tensor a graph output."""
        return private.tree_unflatten([outputs[v] if type(v) is int else v.get() for v in self.leaves], self.tree)  # type: ignore[union-attr]

    @property
    def is_single(self) -> bool:
        """Whether the result is the first output itself."""
        return self.tree.is_leaf() and self.leaves == (0,)


@dataclass(frozen=True)
class _Constant:
    value: Any

    def get(self) -> Any:
        """The value; a set is a new one at each call."""
        return set(self.value) if type(self.value) is set else self.value


@dataclass(frozen=True)
class Recorded:
    """One recording.

    `inputs`: where each graph input is found. `requires_grad`: whether eager's result would, an output each.
    `identities`: outputs that are an input object itself, not a view of it. `out_spec` rebuilds the result from the graph's
    outputs; some outputs may be no part of it (they hold memory that others share, or keep a random draw). An alias's offset
    counts from the first element of the tensor that it names.
    """

    graph: Graph
    inputs: tuple[Source, ...]
    out_spec: OutSpec
    requires_grad: tuple[bool, ...]
    identities: frozenset[int] = field(default_factory=frozenset)

    @property
    def rebuild(self) -> Callable[[Any], Any] | None:
        """Makes the result of the list of outputs; None where it is the first output itself."""
        return None if self.out_spec.is_single else self.out_spec


def record(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, module: nn.Module | None = None,
    *, concrete: bool = False,
) -> Recorded:  # fmt: skip
    """Run `fn(*args, **kwargs)` on fakes.

    `module` owns the parameters, beside those of `fn` itself and of modules that it is bound to, closes over, names or is given.
    With `concrete`, a tensor that becomes a Python value gets the value that the example arguments give, with a
    `TracerWarning`. Raises RecordError (or UnsupportedTensor) where the program cannot be recorded, and whatever the program
    itself raises.
    """
    with_paths, tree = private.tree_flatten_with_path((args, kwargs or {}))
    given = [*args, *(kwargs or {}).values(), *(v for _, v in with_paths)]
    roots = root_modules(fn, module, given)
    watch = Watch(fn, [m for _, m in roots], given)
    recorder = Recorder(_parameters(roots), concrete=concrete)
    leaves = _arguments(recorder, with_paths)
    fake_args, fake_kwargs = private.tree_unflatten(leaves, tree)
    watch.arguments([*fake_args, *fake_kwargs.values()])
    del leaves
    finished = False
    try:
        result = _run(recorder, fn, fake_args, fake_kwargs)
        finished = True
    except Exception as e:
        if recorder.refusal is not None and e is not recorder.refusal:  # the program caught it, and raised what eager would not
            raise recorder.refusal from e
        raise
    finally:
        changed = watch.restore()
        if not finished:
            recorder.forget()
    del fake_args, fake_kwargs, watch
    if recorder.refusal is not None:  # the program caught it
        raise recorder.refusal
    if changed:
        refuse(
            _named(fn), f"it changes {changed}", "keep state out of the compiled function, or in tensors that it writes in place"
        )
    recorded = _finish(recorder, result)
    del result
    _check_nothing_kept(recorder, fn)
    return recorded


def _run(recorder: Recorder, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    recorder.mode = _DispatchLevel(recorder)
    with private.compiling(), private.watching_reseeds(), recording(recorder), recorder.mode, _FunctionLevel(recorder):
        return fn(*args, **kwargs)


class _DispatchLevel(private.DispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return aten.dispatch(self.recorder, func, args, kwargs or {})


class _FunctionLevel(private.TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return functions.call(self.recorder, func, args, kwargs or {})


def _parameters(roots: Sequence[tuple[str, nn.Module]]) -> dict[int, ParameterSource]:
    """By identity: where in the trees a parameter or buffer is first found."""
    found: dict[int, ParameterSource] = {}
    for name, root in roots:
        for path, m in root.named_modules(prefix=name):
            for kind in ("_parameters", "_buffers"):
                for key, tensor in m.__dict__[kind].items():
                    if tensor is not None and id(tensor) not in found:
                        found[id(tensor)] = ParameterSource(m, kind, key, f"{path}.{key}" if path else key)
    return found


def _path(path: Any) -> tuple[Any, ...]:
    """From `(args, kwargs)`: the position or the keyword name comes first."""
    return tuple(private.path_step(key) for key in path[1:])


def _arguments(recorder: Recorder, with_paths: Any) -> list[Any]:
    """Fakes for the argument tensors; an object passed twice is one input."""
    leaves = []
    for path, leaf in with_paths:
        if isinstance(leaf, torch.Tensor):
            source = ArgSource(_path(path))
            if id(leaf) in recorder.names:
                refuse(f"argument {source.path[0]}", "it is a parameter of the module itself", "read it from the module instead")
            known = recorder.known(leaf)
            if known is None:
                known = recorder.input(leaf, source)
            leaf = known
        leaves.append(leaf)
    return leaves


# --- the result -------------------------------------------------------------------------------------------------------


def _finish(recorder: Recorder, result: Any) -> Recorded:
    leaves, tree = private.tree_flatten(result)
    fakes: dict[int, Fake] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            fakes[id(leaf)] = leaf if type(leaf) is Fake else recorder.fake_of(leaf)
        elif not _is_constant(leaf):
            refuse(
                "the result", f"it holds a {type(leaf).__name__}", "return tensors, plain Python values and containers of them"
            )
    if fz.is_split([f.memory for f in fakes.values()]):
        refuse("the result", "it shares memory with a tensor of another dtype or form", "return a clone of it")
    for memory in recorder.memories:
        if memory.version:
            recorder.check_unshared(memory, "the function")
    results = fz.Results(lambda i: recorder.tensors[i].storage_offset())
    distinct = list({id(f): f for f in fakes.values()}.values())
    own = [f for f in distinct if not recorder.is_input(f)]
    numbers = dict(zip(map(id, own), results.add([fz.Place(f.memory, f.chain, f.sizes, f.strides, f.offset) for f in own])))
    outputs = results.outputs
    identities = set()
    for f in distinct:
        if recorder.is_input(f):
            assert f.memory.source is not None
            numbers[id(f)] = len(outputs)
            identities.add(len(outputs))
            outputs.append(Output(fk.value(f), f.strides, Alias("input", f.memory.source)))
    tracked = {numbers[id(f)]: fk.tracked(f) for f in distinct}
    outputs += [Output(n, contiguous(n.shape)) for n in recorder.unused_draws([o.node for o in outputs])]
    graph = Graph(
        inputs=tuple(recorder.nodes), outputs=tuple(outputs), strides=tuple(t.stride() for t in recorder.tensors),
        effects=fz.effects(recorder.memories),
    )  # fmt: skip
    places = tuple(numbers[id(fakes[id(v)])] if id(v) in fakes else _Constant(v) for v in leaves)
    grads = tuple(tracked.get(i, False) for i in range(len(outputs)))
    return Recorded(graph, tuple(recorder.sources), OutSpec(tree, places), grads, frozenset(identities))


def _is_constant(leaf: Any) -> bool:
    if type(leaf) in (set, frozenset):
        return all(isinstance(v, _CONSTANTS) for v in leaf)
    return isinstance(leaf, _CONSTANTS)


def _named(fn: Any) -> str:
    return type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__qualname__", repr(fn))


def _check_nothing_kept(recorder: Recorder, fn: Callable[..., Any]) -> None:
    """No fake may live on in Python state: it would stand where eager keeps a tensor."""
    born: list[weakref.ref[Fake]] = recorder.forget()
    if any(r() is not None for r in born):
        gc.collect(1)
        kept = next((f for r in born if (f := r()) is not None), None)
        if kept is not None:
            refuse(_named(fn), f"it keeps a tensor of shape {list(kept.sizes)} in Python state", "return the tensor instead")
