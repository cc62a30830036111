"""The state of one recording: inputs met so far, results made, writes, refusals.

In: real tensors and nodes. Out: `Fake`s, graph inputs with their sources. Must not know particular operators.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import nn

from ..base.dims import Dim
from ..base.errors import Location, RecordError, TilewrightError, UnsupportedTensor
from . import fake as fk
from . import strides as st
from . import symbolic
from . import torch_private as private
from .fake import Fake
from .functionalize import Chain, Memory, Unsupported
from .interpret import static_attrs
from .ir import INPUT, InputAttrs, InputKind, Node, TensorType, reachable
from .ops.rules import field_names
from .ops.torch_dtypes import FROM_TORCH
from .promotion import full
from .strides import Sizes, span
from .text import collect

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


@dataclass(frozen=True)
class ArgSource:
    """An argument's tensor. `path` starts with a position or a keyword name and goes on into containers."""

    path: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ParameterSource:
    """`module._parameters[key]` or `module._buffers[key]`; `kind` says which, `name` is the qualified name."""

    module: nn.Module
    kind: str
    key: str
    name: str


@dataclass(frozen=True, eq=False)
class ConstantSource:
    """A tensor that the program closed over, or made from Python data.

    Where it was seen in one, it is read there at each call: `holder[key]` of a dict (an object's attributes, globals), or the
    contents of a cell. Else `holder` is None, and it is always this object.
    """

    tensor: torch.Tensor


Source = ArgSource | ParameterSource | ConstantSource


class TracerWarning(UserWarning):
    """A tensor became a Python value while it was traced: the trace keeps that value for good."""


def user_location() -> Location | None:
    """The innermost line on the stack that belongs neither to torch nor to this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, _TORCH, "<")):
            return Location.of_instruction(frame.f_code, frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]
    return None


_ACTIVE = threading.local()


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within, refusals of this thread are the recorder's, should the program catch them."""
    before = getattr(_ACTIVE, "recorder", None)
    _ACTIVE.recorder = recorder
    recorder.symbols.where = user_location
    try:
        with recorder.symbols.active():
            yield
    finally:
        _ACTIVE.recorder = before


def is_recording() -> bool:
    """Whether this thread is recording."""
    return getattr(_ACTIVE, "recorder", None) is not None


def refuse(what: str, reason: str, hint: str = "") -> NoReturn:
    """Raise the RecordError of an operation, at the user's line."""
    _raise(RecordError(what=what, reason=reason, at=user_location(), hint=hint))


def _raise(error: TilewrightError) -> NoReturn:
    active: Recorder | None = getattr(_ACTIVE, "recorder", None)
    if active is not None and not active.trial and active.refusal is None:
        active.refusal = error
    raise error


@dataclass(eq=False)
class Recorder:
    """What one recording has seen. `concrete`: values may be read, with a warning (a trace).
    `freeze`: parameters are taken never to change."""

    names: dict[int, ParameterSource]
    concrete: bool = False
    freeze: bool = False
    device: torch.device | None = None
    symbols: symbolic.Symbols = field(default_factory=symbolic.Symbols)
    nodes: list[Node] = field(default_factory=list)  # the graph's inputs
    strides: list[Sizes] = field(default_factory=list)  # theirs
    sources: list[Source] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)  # the real ones, an input each; kept alive
    memories: list[Memory] = field(default_factory=list)
    frozen: set[Node] = field(default_factory=set)  # inputs whose contents the program wrote down
    effectful: list[tuple[Node, Node]] = field(default_factory=list)  # calls that must run, used or not, and their first results
    gradients: bool = field(default_factory=torch.is_grad_enabled)  # at the start
    trial: bool = False  # a decomposition is being tried
    mode: Any = None  # the dispatch mode, to be entered again for what torch decomposes
    masks: dict[Node, str] = field(default_factory=dict)  # attention masks that depend on nothing: what they are
    refusal: TilewrightError | None = None
    born: list[weakref.ref[Fake]] = field(default_factory=list)  # every fake
    _fakes: dict[int, Fake] = field(default_factory=dict)
    _values: dict[Node, Any] = field(default_factory=dict)

    # --- inputs ---

    def fake_of(self, tensor: torch.Tensor) -> Fake:
        """The fake that stands for a real tensor: an input of the graph, the same for the same object."""
        found = self._fakes.get(id(tensor))
        if found is None:
            found = self.input(tensor, self.names.get(id(tensor)) or ConstantSource(tensor))
        return found

    def is_input(self, fake: Fake) -> bool:
        """Whether it is the input itself, not a view of it."""
        source = fake.memory.source
        return source is not None and self._fakes[id(self.tensors[source])] is fake

    def known(self, tensor: torch.Tensor) -> Fake | None:
        return self._fakes.get(id(tensor))

    def input(self, tensor: torch.Tensor, source: Source, seen: tuple[Sizes, Sizes] | None = None) -> Fake:
        """A new graph input. `seen`: its shape and strides, where some of them are open.

        Raises UnsupportedTensor for what is no ordinary dense tensor.
        """
        self._check(tensor, source)
        index = len(self.nodes)
        shape, strides = seen or (tuple(tensor.shape), tensor.stride())
        offset = tensor.storage_offset()
        attrs = InputAttrs(
            index, _name(source, index), _kind(source, tensor, self.freeze), TensorType(FROM_TORCH[tensor.dtype], shape)
        )
        node = INPUT(**{f: getattr(attrs, f) for f in ("index", "name", "kind", "type")})
        grad = tensor.requires_grad
        memory = Memory(node, shape, strides, offset, source=index, tracked=grad, leaf=grad and tensor.is_leaf, initial=node)
        fake = fk.of(memory, (), node, shape, strides, offset, tensor.device)
        self.nodes.append(node)
        self.strides.append(strides)
        self.sources.append(source)
        self.tensors.append(tensor)
        self.memories.append(memory)
        self._fakes[id(tensor)] = fake
        self.born.append(weakref.ref(fake))
        return fake

    def forget(self) -> list[weakref.ref[Fake]]:
        """Let go of all fakes; references to those ever made."""
        self._fakes.clear()
        self._values.clear()
        self.mode = None
        return self.born

    def data(self, tensor: torch.Tensor) -> Fake:
        """A tensor that the program has just made from Python data: new memory at each call, with the same contents."""
        strides = tensor.stride()
        if tensor.numel() == 1 and not tensor.is_complex() and tensor.dtype in FROM_TORCH:
            return self.result(full(tensor.item(), FROM_TORCH[tensor.dtype], tuple(tensor.shape)), strides, ())
        given = self.input(tensor, ConstantSource(tensor))
        self.frozen.add(given.node)
        return self.result(given.node, strides, ())

    def _check(self, tensor: torch.Tensor, source: Source) -> None:
        what = describe(source)
        if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            _raise(UnsupportedTensor(argument=what, kind=type(tensor).__name__, at=user_location()))
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            _raise(UnsupportedTensor(argument=what, kind=kind, at=user_location()))
        if tensor.dtype not in FROM_TORCH:
            _raise(UnsupportedTensor(argument=what, kind=str(tensor.dtype), at=user_location()))
        if tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg():
            kind = "meta" if tensor.device.type == "meta" else "lazily conjugated or negated"
            _raise(UnsupportedTensor(argument=what, kind=kind, at=user_location()))
        if self.device is None:
            self.device = tensor.device
        elif tensor.device != self.device and tensor.dim() > 0:
            refuse(what, f"it is on {tensor.device}, other tensors are on {self.device}", "move all tensors to one device")

    # --- results ---

    @property
    def place(self) -> torch.device:
        """The device of everything recorded."""
        if self.device is None:
            self.device = torch.get_default_device()
        return self.device

    def result(self, node: Node, strides: Sizes, operands: Sequence[Fake]) -> Fake:
        """A new tensor with that value."""
        tracked = False
        for f in operands:
            if f.memory.tracked and not f.detached:
                tracked = node.dtype.kind in ("float", "complex") and self._records_gradients()
                break
        fake = fk.fresh(node, strides, self.device or self.place, tracked)
        self.born.append(weakref.ref(fake))
        return fake

    def _records_gradients(self) -> bool:
        """Whether eager would: a custom autograd function's forward runs without, but its results have gradients."""
        return torch.is_grad_enabled() or (self.gradients and private.in_autograd_function(sys._getframe(2)))

    def view(
        self, base: Fake, shape: Sizes, strides: Sizes, offset: int, chain: Chain, detached: bool = False, restart: bool = False
    ) -> Fake:
        """A tensor that shares the base's memory. `chain` goes on from the base's, or starts anew from the memory's."""
        if restart:
            node = base.memory.read(chain)
        else:
            node = fk.value(base)
            for step in chain[len(base.chain) :]:
                node = step.apply(node)
        cut = detached or base.detached or (base.memory.tracked and not self._records_gradients())
        fake = fk.of(base.memory, chain, node, shape, strides, offset, base.device, cut)
        self.born.append(weakref.ref(fake))
        return fake

    def write(self, target: Fake, node: Node, operands: Sequence[Fake], what: str) -> None:
        """Let the tensor and all that share its memory hold the value; `node` has its shape and dtype."""
        memory = target.memory
        if torch.is_grad_enabled():
            if memory.leaf and not target.detached:
                refuse(what, "it writes into a leaf that requires grad")
            memory.tracked = memory.tracked or any(fk.tracked(f) for f in operands)
        if memory.source is not None:
            if self.tensors[memory.source].is_inference() and not torch.is_inference_mode_enabled():
                refuse(what, "it writes into an inference tensor outside of inference mode")
            self.check_unshared(memory, what)
        try:
            self._write(target, node)
        except Unsupported as e:
            refuse(what, str(e))

    def _write(self, target: Fake, node: Node) -> None:
        """Backwards along the view's chain; where that is impossible (a part of a repeated dim), by its places in memory."""
        memory = target.memory
        try:
            fk.write(target, node)
        except Unsupported:
            if st.may_overlap(target.sizes, target.strides) or memory.opaque:
                raise
            target.chain = memory.flat().strided(target.sizes, target.strides, target.offset - memory.offset).chain
            fk.write(target, node)

    def check_unshared(self, memory: Memory, what: str) -> None:
        """Another input in the same storage would see the write: that is not recorded."""
        assert memory.source is not None
        written = _interval(self.tensors[memory.source])
        for i, t in enumerate(self.tensors):
            if i != memory.source and _overlap(written, _interval(t)):
                names = f"{describe(self.sources[memory.source])} and {describe(self.sources[i])}"
                refuse(
                    what, f"it writes into memory that {names} share", "pass tensors that do not overlap, or clone one of them"
                )

    def unused_draws(self, roots: list[Node]) -> list[Node]:
        """Results of effectful calls that the roots and the memories written do not need."""
        if not self.effectful:
            return []
        written = [m.value for m in self.memories if m.value is not m.initial]
        needed = set(reachable([*roots, *written]))
        return [first for call, first in self.effectful if call not in needed]

    # --- reading values ---

    def read(self, tensor: Fake, what: str) -> torch.Tensor:
        """The tensor's value, where it depends on no input; in a trace, the value that the example inputs give.

        Raises RecordError where it depends on inputs.
        """
        node = fk.value(tensor)
        inputs, drawn = self._leaves(node)
        if drawn or (inputs and not self.concrete):
            refuse(
                what, "its value depends on " + ("random numbers" if drawn else "the data of a tensor"),
                "keep the decision on the tensor (torch.where), or move it out of the compiled function",
            )  # fmt: skip
        if inputs:
            message = f"{what} made a tensor a Python value: the trace keeps the value it has for the example inputs"
            warnings.warn(message, TracerWarning, stacklevel=_stack_level())
        for size in sorted(_sizes_below(node), key=str):
            self.symbols.settle(size)
        with private.without_modes(), torch.no_grad():
            return self._evaluate(node).clone()

    def constant(self, node: Node) -> torch.Tensor | None:
        """The value of a node that depends on nothing, else None."""
        if node not in self._values:
            if any(self._leaves(node)) or not _is_static(node):
                return None
            with private.without_modes(), torch.no_grad():
                self._evaluate(node)
        return self._values[node]

    def _evaluate(self, node: Node) -> Any:
        todo = [node]
        while todo:
            n = todo[-1]
            missing = [a for a in n.args if a not in self._values]
            if n in self._values:
                todo.pop()
            elif missing:
                todo += missing
            elif n.op is INPUT:
                self._values[n] = self.tensors[n.attrs.index].detach()  # type: ignore[attr-defined]
            else:
                attrs = static_attrs(n.attrs, self.symbols.hints) if self.symbols.hints else n.attrs
                self._values[n] = n.op.eager(attrs, *(self._values[a] for a in n.args))
        return self._values[node]

    def _leaves(self, node: Node) -> tuple[bool, bool]:
        """Whether a value depends on (graph inputs, effectful calls)."""
        inputs = drawn = False
        seen, todo = {node}, [node]
        while todo:
            n = todo.pop()
            inputs = inputs or (n.op is INPUT and n not in self.frozen)
            drawn = drawn or getattr(n.attrs, "seq", -1) >= 0
            new = [a for a in n.args if a not in seen]
            seen.update(new)
            todo += new
        return inputs, drawn


def _sizes_below(node: Node) -> set[Dim]:
    """The symbolic sizes among the attributes and shapes of a value and of what it is made of."""
    found: set[Dim] = set()
    for n in reachable([node]):
        collect(n.type, found)
        for name in field_names(n.attrs):
            collect(getattr(n.attrs, name), found)
    return found


def _is_static(node: Node) -> bool:
    return not symbolic.is_open() or not _sizes_below(node)


def _stack_level() -> int:
    """How far up the user's line is, for `warnings.warn` in the caller."""
    level, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH, "<")):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level + 1


def describe(source: Source) -> str:
    match source:
        case ArgSource(path):
            return "argument " + str(path[0]) + "".join(f"[{p!r}]" for p in path[1:])
        case ParameterSource(name=name):
            return name
    return "a tensor that the function closes over"


def _name(source: Source, index: int) -> str:
    match source:
        case ArgSource(path):
            return "_".join(str(p) for p in path)
        case ParameterSource(name=name):
            return name
    return f"constant{index}"


def _kind(source: Source, tensor: torch.Tensor, freeze: bool) -> InputKind:
    """An inference tensor has no version counter to tell of changes, so unless it is frozen it counts as an argument."""
    if isinstance(source, ArgSource) or (tensor.is_inference() and not freeze):
        return InputKind.USER
    return InputKind.PARAMETER if isinstance(source, ParameterSource) else InputKind.CONSTANT


def _interval(t: torch.Tensor) -> tuple[int, int]:
    """The bytes it reaches."""
    start = t.data_ptr()
    return start, start + t.element_size() * span(tuple(t.shape), t.stride())


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


__all__ = [
    "ArgSource", "ConstantSource", "ParameterSource", "Recorder", "Source", "TracerWarning", "describe", "is_recording",
    "recording", "refuse", "user_location",
]  # fmt: skip
