"""What `tw.compile` returns: a callable that captures, guards and runs.

In: a callable and a `build` that turns a captured graph into an executable. Out: `CompiledFunction`, or for a module a
`CompiledModule` that is the module in every other respect. Must not know how a graph becomes code.

A call goes to the native dispatcher. Where no entry's guards hold it is captured anew; what cannot be captured or compiled
runs in eager, with one warning that says why.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from .. import native
from ..base import config, errors, log
from ..graph import torch_private as private
from ..graph.ir import Graph
from ..graph.recorder import is_recording
from . import control, guards, opcodes, recompiles, start, twins, units
from .breaks import Break, error_of
from .capture import UserError
from .sources import is_atom

Rebuild: TypeAlias = Callable[[list[Any]], Any]


class Executable(Protocol):
    """A compiled graph, as the layers below deliver it."""

    def entry(self, table: guards.GuardTable, rebuild: Rebuild | None, data: Any, identities: Set[int]) -> native.Entry:
        """The native entry that serves calls for which the guards hold; `identities`: outputs that are an input object itself."""

    def forward(self) -> native.Entry:
        """An entry that takes the graph's inputs themselves and returns the list of outputs."""

    def text(self, level: str) -> str:
        """The program at a level: graph, tile, llvm or asm."""

    kernels: int
    library_calls: int
    opaque_calls: int
    arena_bytes: int
    packed_bytes: int


Build: TypeAlias = Callable[[Graph, config.Options, log.Stages], Executable]
"""Compiles a graph, timing its stages. Raises TilewrightError where it cannot."""


@dataclass(frozen=True)
class Stats:
    """What happened so far, and in the last call.

    `compiles`: entries built. `graph_breaks`: distinct break sites. `kernels`, `library_calls`, `opaque_calls`: launches of
    own kernels, library calls that the schedule chose, and ATen calls for want of a row, all in the last call.
    `eager_calls`: calls run wholly in eager. `eager_backwards`: backward passes run by re-running eagerly. `arena_bytes`: the
    peak of temporaries; `packed_bytes`: packed and folded weights. `seconds`: compile time by stage.
    """

    compiles: int = 0
    graph_breaks: int = 0
    kernels: int = 0
    library_calls: int = 0
    opaque_calls: int = 0
    eager_calls: int = 0
    eager_backwards: int = 0
    arena_bytes: int = 0
    packed_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Counts:
    eager_calls: int = 0
    eager_backwards: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def count_backward(self) -> None:
        """Held by results that carry gradients, so it must not lead to the compiled function."""
        self.eager_backwards += 1


Held = units.Held


_METHODS = "_tilewright_methods"


class _Methods(dict[tuple[Any, int], Any]):
    """A module's compiled methods, kept among its attributes. A copy of the module begins with none."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Methods, ()


class CompiledFunction(native.Dispatcher):
    """`fn`, compiled at its first call and again whenever a guard fails. Safe to call from several threads.

    `stats` counts, `text(level)` shows the program of the last entry.
    """

    __tilewright_compiled__ = True

    def __init__(self, fn: Callable[..., Any], build: Build, options: config.Options, fullgraph: bool) -> None:
        self.fn = fn
        self.options = options
        self.fullgraph = fullgraph
        self._build = build
        self._lock = threading.RLock()
        self.reset()
        self.miss = self._miss
        self.failed = self._eager
        if not isinstance(fn, nn.Module):
            functools.update_wrapper(self, fn)
        control.register(self)

    def reset(self) -> None:
        """Forget what is compiled and learnt: the next call starts anew."""
        with self._lock:
            fn, build, options, fullgraph = self.fn, self._build, self.options, self.fullgraph
            self._counts = _Counts()
            self._refused: dict[Any, str] = {}
            self.program = units.Program(
                _name(fn), build, options, fullgraph, lambda f: CompiledFunction(f, build, options, fullgraph),
                self._counts.count_backward, self._counts.seconds,
            )  # fmt: skip
            self.entries, self.last = (), None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method of an object. A module has its own, with its own entries, which live as long as it does."""
        if instance is None:
            return self
        if not isinstance(instance, nn.Module) or is_recording():
            return types.MethodType(self, instance)
        methods, key = instance.__dict__.get(_METHODS), (self, id(instance))
        if methods is None:
            methods = instance.__dict__.setdefault(_METHODS, _Methods())
        found = methods.get(key)
        if found is None or found.fn.__self__ is not instance:  # another had this id: the dictionary came with a copy
            bound = types.MethodType(self.fn, instance)
            found = methods[key] = CompiledFunction(bound, self._build, self.options, self.fullgraph)
        return found

    def __reduce__(self) -> Any:
        return type(self), (self.fn, self._build, self.options, self.fullgraph)

    @property
    def stats(self) -> Stats:
        program, last = self.program, self.last
        children = [c.stats for c in {id(c): c for c in program.children.values()}.values()]
        pieces = [] if last is None else [last.data]
        ran = set()
        if last is not None and last.data.glued:
            pieces += [p.last.data for p in program.ran if isinstance(p, units.Rest) and p.last is not None]
            ran = {id(p) for p in program.ran}
        called = [c.stats for c in program.children.values() if id(c) in ran]
        entries = [e for d in (self, *program.rests.values()) for e in d.entries]

        def total(name: str) -> int:
            return sum(getattr(p.executable, name) for p in pieces) + sum(getattr(c, name) for c in called)

        seconds = {stage: round(s, 6) for stage, s in self._counts.seconds.items()}
        for c in children:
            seconds = {k: seconds.get(k, 0.0) + c.seconds.get(k, 0.0) for k in {**seconds, **c.seconds}}
        return Stats(
            program.compiles + sum(c.compiles for c in children), len(program.breaks) + sum(c.graph_breaks for c in children),
            total("kernels"), total("library_calls"), total("opaque_calls"), self._counts.eager_calls,
            self._counts.eager_backwards + sum(c.eager_backwards for c in children), total("arena_bytes"),
            sum(e.data.executable.packed_bytes for e in entries) + sum(c.packed_bytes for c in children), seconds,
        )  # fmt: skip

    def text(self, level: str = "graph") -> str:
        """The last compiled program: "graph", "tile", "llvm" or "asm". Raises ValueError for another level."""
        if not self.entries:
            raise ValueError("nothing is compiled yet: call it first")
        entry = self.last if self.last is not None else self.entries[0]
        return entry.data.executable.text(level)

    def computes(self) -> bool:
        """Whether a compiled call has shown that there is a graph in it; True while nothing is known."""
        if not self.entries:
            return not self._refused and not self._counts.eager_calls
        return bool(self.program.rests) or any(not isinstance(e.data.executable, units.Nothing) for e in self.entries)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if opcodes.VERSION not in opcodes.KNOWN_VERSIONS:
            return self._unknown_python(args, kwargs)
        if not private.is_plain_call():
            return self._under_modes(args, kwargs)
        if control.stance() != "default" and self._keeps_from_compiling(args, kwargs):
            return self._eager(args, kwargs)
        signature = _signature(args, kwargs, self.fn)
        if signature in self._refused or self._is_full(args, kwargs):
            return self._eager(args, kwargs)
        with self._lock:  # another thread may have compiled it meanwhile
            made = next((e for e in self.entries if e.check(*args, **kwargs) is None), None)
            if made is None and not self._is_full(args, kwargs):
                made = self._try(signature, args, kwargs)
                if isinstance(made, native.Entry):
                    self.entries = (made, *self.entries)
        if isinstance(made, native.Entry):
            return self._run(made, args, kwargs)
        result = self._eager(args, kwargs)  # outside of any `except`: the program must not see our exceptions
        if made is not None:
            self._fault(signature, made)
        return result

    def _try(self, signature: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> native.Entry | Exception | None:
        """An entry; None where the call is for eager; the exception where it is the program's own or a fault of ours."""
        try:
            entry = self.new_entry(args, kwargs)
            if (failed := entry.check(*args, **kwargs)) is not None:
                raise errors.CompileError(reason=f"a guard does not hold from the start: {entry.data.table.explain(failed)}")
            return entry
        except UserError:
            return None
        except errors.TilewrightError as e:
            if self.fullgraph:
                raise
            self._give_up(signature, e)
            return None
        except Exception as e:
            return e

    def _fault(self, signature: Any, e: Exception) -> None:
        """Eager did not raise what the compilation did."""
        if self.fullgraph:
            raise errors.CompileError(reason=f"{type(e).__name__}: {e}") from e
        self._give_up(signature, errors.CompileError(reason=f"{type(e).__name__}: {e}"))

    def _keeps_from_compiling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the stance has a call run in eager that no entry serves. Raises RecompileError where the stance says so."""
        if control.stance() == "fail_on_recompile":
            raise recompiles.error(_name(self.fn), "the stance is fail_on_recompile", self.entries, args, kwargs)
        return True

    def _is_full(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether it has as many entries as it may have; said once. Raises RecompileError with `fullgraph`."""
        entries, limit = self.entries, self.options.recompile_limit
        if len(entries) + len(self._refused) < limit:
            return False
        if self.fullgraph:
            raise recompiles.error(_name(self.fn), f"it reached its recompile_limit of {limit}", entries, args, kwargs)
        recompiles.warn(self, _name(self.fn), entries, args, kwargs)
        return True

    def _unknown_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        running, known = (", ".join(f"{a}.{b}" for a, b in v) for v in ((opcodes.VERSION,), opcodes.KNOWN_VERSIONS))
        reason = f"the bytecode of Python {running} is not known, only that of {known}"
        if self.fullgraph:
            raise errors.RecordError(what=_name(self.fn), reason=reason)
        log.warn_once("unknown Python", f"compiled functions run in eager: {reason}")
        return self._eager(args, kwargs)

    def _under_modes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call within a recording, a transform (vmap, grad), a tracer or a mode: the function itself, for them to see."""
        if is_recording():
            return self.fn(*args, **kwargs)
        reason = "it is called within a function transform, a tracer or a mode of torch"
        if self.fullgraph:
            raise errors.RecordError(what=_name(self.fn), reason=reason)
        log.warn_once((id(self), "modes"), f"{_name(self.fn)} runs in eager: {reason}")
        return self._eager(args, kwargs)

    def _give_up(self, signature: Any, error: errors.TilewrightError) -> None:
        """Calls of this signature run in eager from now on."""
        self._refused[signature] = str(error)
        log.warn_once((id(self), type(error), str(error)), f"{_name(self.fn)} runs in eager: {error}")

    def _run(self, entry: native.Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.last = entry
        try:
            return entry.run(*args, **kwargs)
        except native.Failed:  # an assertion, such as an index out of range: eager raises its own error
            pass
        return self._eager(args, kwargs)

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._counts.eager_calls += 1
        self.last = None
        return self.fn(*args, **kwargs)

    def new_entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> native.Entry:
        """Compile for these arguments, without a call. Raises TilewrightError where that is impossible, UserError where
        the program itself raises."""
        _explain_recompile(self, args, kwargs)
        try:
            policy = self.program.policy(self.program.history, self.program.learn(self.entries, args, kwargs))
            capture = lambda stop, policy: start.capture_call(self.fn, args, kwargs, stop, policy)  # noqa: E731
            return units.compile_entry(self.program, capture, policy)
        except Break as b:
            raise error_of(b) from None

class _CompiledModule:
    """Mixed into a module's own class: the compiled module is the module, sharing its `__dict__`; only calls differ.

    A module that its own methods make of its class (a slice of a Sequential) is not compiled.
    """

    __slots__ = ("_tilewright",)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        f = getattr(self, "_tilewright", None)
        return super().__call__(*args, **kwargs) if f is None else f(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        f = getattr(self, "_tilewright", None)
        if f is None:
            return _itself, (twins.plain(self),)  # type: ignore[arg-type]
        return _recompiled, (f.fn, f._build, f.options, f.fullgraph)

    @property
    def stats(self) -> Stats:
        return self._tilewright.stats

    def text(self, level: str = "graph") -> str:
        """The last compiled program: "graph", "tile", "llvm" or "asm"."""
        return self._tilewright.text(level)


def compiled_module(module: nn.Module, function: CompiledFunction) -> nn.Module:
    """A module of the same type, state and attributes whose calls go to `function`."""
    new = twins.twin(module, _CompiledModule)
    _CompiledModule._tilewright.__set__(new, function)  # type: ignore[attr-defined]
    return new


def _itself(module: nn.Module) -> nn.Module:
    return module


def _recompiled(module: nn.Module, build: Any, options: config.Options, fullgraph: bool) -> nn.Module:
    return compiled_module(module, CompiledFunction(module, build, options, fullgraph))


def _name(fn: Any) -> str:
    return type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__qualname__", repr(fn))


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any], fn: Any) -> Any:
    """What a refusal is remembered by: types and metadata of the arguments, and the modes."""

    def one(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return type(v), v.dtype, tuple(v.shape), v.layout, v.device, v.requires_grad
        if isinstance(v, (list, tuple)):
            return type(v), tuple(map(one, v))
        if isinstance(v, dict):
            return type(v), tuple((k, one(x)) for k, x in v.items())
        return type(v), v if is_atom(v) else id(v)

    return one(args), one(kwargs), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), getattr(fn, "training", None)


def _explain_recompile(compiled: CompiledFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for _, reason in recompiles.failures(compiled.entries, args, kwargs):
        log.guards.write(f"{_name(compiled.fn)} is compiled anew: {reason}")
