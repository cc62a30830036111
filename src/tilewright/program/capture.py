"""One capture: a function's bytecode interpreted on fakes, from its start or from a place in its middle.

In: a code object with where to start, and the real arguments of a call. Out: `Captured`: the graph, the guards, the values
alive at
the end, the effects. Leaves no trace: what the program changed is put back. Must not know how graphs become code.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..base.errors import Location, RecordError, TilewrightError
from ..graph import aten, functions
from ..graph import fake as fk
from ..graph import functionalize as fz
from ..graph import torch_private as private
from ..graph.fake import Fake
from ..graph.ir import Graph, Output
from ..graph.recorder import Recorder, recording
from ..graph.refine import Refined, applied, refine
from ..graph.strides import contiguous
from . import access, calls, instructions, instructions_calls, instructions_flow, meanings
from .breaks import Break
from .effects import Effects
from .frames import GENERATOR, RETURN, STOP, Frame, Stop
from .generators import Generator
from .guards import modes
from .opcodes import UNSET, decode
from .outside import CONTAINERS, Outside
from .sizes import Policy
from .sources import MISSING, Rows, is_atom, look_up
from .tape import Tape
from .trust import is_opaque, is_own_code, is_python_class, is_trusted_module, skips_guard
from .varying import Varying

DEEPEST = 60
MOST_JUMPS = 200_000


HANDLERS = {**instructions.HANDLERS, **instructions_calls.HANDLERS, **instructions_flow.HANDLERS}


class UserError(Exception):
    """The program itself raised: it is run in eager, where it raises again."""

    def __init__(self, error: BaseException, at: Location | None) -> None:
        super().__init__(f"{type(error).__name__}: {error} ({at})")
        self.error = error
        self.at = at


class _DispatchLevel(private.DispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return aten.dispatch(self.recorder, func, args, kwargs or {})


class _FunctionLevel(private.TorchFunctionMode):
    def __init__(self, cx: Capture) -> None:
        super().__init__()
        self.cx = cx
        self.recorder = cx.recorder
        self.tape = cx.tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if private.turns_gradients_on(func, args):
            self.cx.gradients = self.cx.rows.check_grad = True
        entry = self.tape.before(func, args, kwargs or {})
        result = functions.call(self.recorder, func, args, kwargs or {})
        self.tape.after(entry, result)
        return result


class Interpreted:
    """A function that code which is not interpreted may call."""

    def __init__(self, cx: Capture, f: Any) -> None:
        self.cx = cx
        self.f = f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.cx.call(self.f, [self.cx.outside.see(a) for a in args], kwargs)


@dataclass(frozen=True)
class Captured:
    """What a capture found. `end` is ("return", value) or ("stop", None); `frames`: where it stopped, the innermost first."""

    cx: Capture
    frames: list[Frame]
    end: tuple[str, Any]
    states: list[tuple[Callable[..., Any], tuple[Any, ...]]]


class Capture:
    """The state of one capture, and what frames ask of it."""

    def __init__(
        self, nargs: int, kwnames: tuple[str, ...], stop: int, policy: Policy,
        compiling: bool = True,
    ) -> None:  # fmt: skip
        self.compiling = compiling  # what `torch.compiler.is_compiling()` says
        self.asked_compiling = False
        self.recorder = Recorder({}, freeze=policy.freeze)
        self.effects = Effects()
        self.rows = Rows(nargs, kwnames, torch.is_grad_enabled())
        self.outside = Outside(self.recorder, self.rows, self.effects, policy)
        self.tape = Tape()
        self.gradients = torch.is_grad_enabled()  # whether they are recorded anywhere in the program
        self.stop = stop
        self.executed = 0  # instructions, in all frames
        self.handlers = HANDLERS
        self.functions = meanings.functions()
        self.frame: Frame | None = None
        self.handling: list[BaseException | None] = [None]  # the exception being handled: of the function, of running generators
        self.running = False
        self.lost: Break | None = None  # a graph break in what ran when an object was dropped
        self.raised: tuple[BaseException, Location] | None = None  # the last exception seen, and where it arose
        self.origins: dict[int, tuple[BaseException, Location, str]] = {}  # where exceptions arose, and in which function
        self.memo: set[Any] = set()
        self.global_hooks_read = self.global_hooks = False
        self.new_objects = _NewObjects()
        self.new_classes: set[type] = set()
        self.functions_read: set[int] = set()  # slots of functions whose code is guarded
        self.jumps = 0
        self._globals: dict[tuple[int, str], Any] = {}
        for query, argument, expected in modes():
            self.rows.test("state", query, argument, expected, why=f"torch's {query.__name__} is no longer {expected}")
        holder, key = private.tangent_level()
        slot = self.rows.derive("get", self.rows.derive("const", holder, why="tangents"), key, why="tangents")
        self.rows.test("eq", slot, -1, why="tensors have tangents")

    # --- asked by frames, access and calls ---

    @property
    def handled(self) -> BaseException | None:
        """The exception that is being handled, as `sys.exception()` says."""
        return next((e for e in reversed(self.handling) if e is not None), None)

    def is_raised(self, e: BaseException) -> bool:
        """Whether the program itself raised it."""
        return self.raised is not None and self.raised[0] is e

    def set_context(self, e: BaseException) -> None:
        """What `raise` does with the exception that is being handled."""
        handled = self.handled
        if handled is None or handled is e:
            return
        seen = handled
        while (context := seen.__context__) is not None and context is not e:
            seen = context
        if context is e:
            seen.__context__ = None
        e.__context__ = handled

    def call(self, f: Any, args: list[Any], kwargs: dict[str, Any], then: str = "") -> Any:
        return calls.call(self, f, args, kwargs, then)

    def container_method(self, o: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return calls.container_method(self, o, name, args, kwargs)

    def inline(self, f: types.FunctionType, args: list[Any], kwargs: dict[str, Any], then: str = "") -> Any:
        code = f.__code__
        if is_own_code(code):
            return f(*args, **kwargs)
        depth = (self.frame.depth if self.frame is not None else 0) + 1
        if depth > DEEPEST:
            raise Break("depth", f.__qualname__)
        if code.co_flags & 0x280:
            raise Break("coroutine", f.__qualname__)
        frame = Frame(self, decode(code), f.__globals__, self.bind(f, args, kwargs), depth, then)
        return self.finish_call(frame)

    def finish_call(self, frame: Frame) -> Any:
        kind, value = frame.run()
        if kind != GENERATOR:
            return value
        frame.then = ""  # what it yields, and when, is another matter than the call's result
        return Generator(frame)

    def class_body(self, f: types.FunctionType, namespace: Any) -> None:
        assert self.frame is not None
        frame = Frame(self, decode(f.__code__), f.__globals__, self.bind(f, [], {}), self.frame.depth + 1)
        frame.namespace = namespace
        frame.run()

    def bind(self, f: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        code = decode(f.__code__)
        slots = _bind(f, args, kwargs, self._default(f))
        slots += [UNSET] * (len(code.names) - len(slots))
        for n, cell in enumerate(f.__closure__ or ()):
            if id(cell) not in self.outside.known and not self.new_objects.has(cell):
                self.outside.constant(cell, f"variable {code.names[code.cells + n]}")
            slots[code.cells + n] = cell
        return slots

    def _default(self, f: types.FunctionType) -> Callable[[Any, str | None], Any]:
        """How a default is read: (its value, its name where it is one of `__kwdefaults__`)."""
        if self.new_objects.has(f):
            return lambda v, key: v
        what = f.__qualname__
        if is_trusted_module(f.__module__ or ""):
            return lambda v, key: self.outside.read_constant(v, f"a default of {what}")
        known = self.outside.constant(f, what)
        if known.slot not in self.functions_read:
            self.functions_read.add(known.slot)
            self.rows.test("code", known.slot, f.__code__, why=f"the code of {what} is another")
            for part in ("__defaults__", "__kwdefaults__"):
                slot = self.rows.derive("attr", known.slot, part, why=f"{what} has no {part}")
                self.rows.test("is", slot, getattr(f, part), why=f"{what}.{part} is another")

        def read(value: Any, key: str | None) -> Any:
            if key is None:
                return self.outside.read_constant(value, f"a default of {what}")
            return self.outside.entry(self.outside.constant(f.__kwdefaults__, f"{what}.__kwdefaults__"), key)

        return read

    def class_lookup(self, cls: type, name: str) -> Any:
        """What the class holds under a name, guarded; MISSING where nothing."""
        found = look_up(cls, name)
        if self._is_guarded(cls):
            self.rows.looked_up(cls, name, found)
        return found

    def _is_guarded(self, cls: type) -> bool:
        if cls in self.new_classes or not is_python_class(cls) or cls.__module__.startswith("tilewright"):
            return False
        return not is_trusted_module(cls.__module__) or issubclass(cls, torch.nn.Module)

    def is_new(self, o: Any) -> bool:
        """Whether it was made in this capture."""
        return o in self.new_classes if isinstance(o, type) else self.new_objects.has(o)

    def is_generator(self, o: Any) -> bool:
        return type(o) is Generator

    def original(self, v: Any) -> Any:
        """The function that stands behind one that is interpreted."""
        return v.f if type(v) is Interpreted else v

    def interpreted(self, f: Any) -> Any:
        if f is None or isinstance(f, type | types.BuiltinFunctionType | types.MethodDescriptorType):
            return f
        return Interpreted(self, f)

    def next(self, it: Any) -> Any:
        """`next(it)`. Raises StopIteration."""
        kind = type(it)
        if kind is Generator:
            return it.__next__()
        if type(getattr(kind, "__next__", None)) is types.FunctionType:
            return self.call(access.get_attribute(self, it, "__next__"), [], {})
        if id(it) in self.outside.known or is_opaque(it) or isinstance(it, types.GeneratorType):
            raise Break("object", f"{kind.__name__} from outside")
        return self.outside.see(next(it))

    def take(self, it: Any, most: int) -> list[Any]:
        """At most so many values of an iterator (-1: all)."""
        values: list[Any] = []
        while most < 0 or len(values) < most:
            try:
                values.append(self.next(it))
            except StopIteration:
                break
        return values

    def mapping(self, o: Any) -> dict[Any, Any]:
        """What `**o` passes."""
        if isinstance(o, dict) and type(getattr(type(o), "keys", None)) is not types.FunctionType:
            self.outside.expand(o)
            return {k: self.outside.see(v) for k, v in o.items()}
        try:
            keys = self.call(access.get_attribute(self, o, "keys"), [], {})
        except AttributeError:
            raise TypeError(f"{type(o).__name__!r} object is not a mapping") from None
        return {k: access.get_item(self, o, k) for k in self.take(access.iterate(self, keys), -1)}

    def text(self, v: Any, how: Callable[[Any], str] | None = None) -> Any:
        """`how(v)` as text; without `how`, something that formats as `v` does."""
        if is_atom(v):
            return v if how is None else how(v)
        if type(v) is Varying:
            return v.known() if how is None else how(v.known())
        if type(v) is torch.SymInt:
            return int(v) if how is None else how(int(v))
        if type(v) is torch.Size:
            return str(torch.Size(map(int, v)))
        if type(v) is Fake:
            raise Break("value", "a tensor is printed")
        name = "__repr__" if how is repr or how is ascii else "__str__"
        method = getattr(type(v), name)
        if name == "__str__" and method is object.__str__:
            method = type(v).__repr__
            name = "__repr__"
        if type(method) is types.FunctionType:
            return self.call(access.get_attribute(self, v, name), [], {})
        if isinstance(v, BaseException):
            self.outside.exception_arguments(v)
            if all(map(is_atom, v.args)):
                return (how or str)(v)
        elif isinstance(v, CONTAINERS) and self._plain(v):
            self.outside.expand(v)
            return (how or str)(v)
        elif isinstance(v, type | types.ModuleType):
            return (how or str)(v)
        raise Break("object", f"the text of a {type(v).__name__}")

    def _plain(self, v: Any) -> bool:
        if isinstance(v, dict):
            return all(self._plain(x) for kv in v.items() for x in kv)
        return all(map(self._plain, v)) if type(v) in CONTAINERS else is_atom(v)

    def formatted(self, v: Any, convert: Callable[[Any], str] | None, spec: str) -> str:
        if convert is not None:
            v = self.text(v, convert)
        method = getattr(type(v), "__format__", None)
        if type(method) is types.FunctionType and type(v) is not Fake and not is_atom(v):
            return self.call(access.get_attribute(self, v, "__format__"), [spec], {})
        return format(self.text(v), spec)

    def real(self, fake: Fake) -> torch.Tensor | None:
        """The tensor that an input stands for."""
        if not self.recorder.is_input(fake):
            return None
        assert fake.memory.source is not None
        return self.recorder.tensors[fake.memory.source]

    def slot_of(self, v: Any) -> int | None:
        """Where the object was found, if a later call may find another one there."""
        if type(v) is Fake:
            # type: ignore[arg-type]
            return self.outside.input_slots.get(v.memory.source) if self.recorder.is_input(v) else None
        known = self.outside.known.get(id(v))
        return None if known is None or known.pinned else known.slot

    def global_variable(self, table: dict[str, Any], name: str) -> Any:
        """A global or builtin. Raises NameError."""
        key = id(table), name
        found = self._globals.get(key, MISSING)
        if found is not MISSING and not self.effects.is_written(table, name):
            return found
        trusted = is_trusted_module(str(table.get("__name__", "")))
        value = table.get(name, MISSING)
        if not (trusted and (value is MISSING or skips_guard(value))):
            value = self.outside.global_(table, name)
        if value is MISSING:
            builtins = table.get("__builtins__", __builtins__)
            value = (vars(builtins) if isinstance(builtins, types.ModuleType) else builtins).get(name, MISSING)
            if value is MISSING:
                raise NameError(f"name {name!r} is not defined")
        self._globals[key] = value
        return value

    def refused(self, e: TilewrightError, at: Location) -> Break:
        """What the recorder cannot record, as a break."""
        reason = str(e.fields.get("reason", ""))
        if not isinstance(e, RecordError) or not reason.startswith("its value depends"):
            return Break("operation", e.message, at)
        op = self.frame.code.instructions[self.frame.at].op if self.frame is not None else ""
        return Break("branch" if "JUMP" in op or op == "TO_BOOL" else "value", at=at)

    def spend(self) -> None:
        self.jumps += 1
        if self.jumps > MOST_JUMPS:
            raise Break("long")

    # --- running ---

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        self.recorder.mode = _DispatchLevel(self.recorder)
        compiling = private.compiling() if self.compiling else contextlib.nullcontext()
        with compiling, recording(self.recorder), self.recorder.mode, _FunctionLevel(self):
            yield

    def run(self, start: Callable[[Capture], list[Frame]]) -> Captured:
        """Interpret the frames that `start` makes, the innermost first. Raises Break, UserError."""
        before = _states()
        rng = _RandomState()
        try:
            with private.watching_reseeds(), self.recording():
                frames = start(self)
                self.running = True
                try:
                    end = self._through(frames)
                    frames = []
                except Stop as s:
                    end, frames = (STOP, None), s.frame.chain()
                except BaseException as e:
                    if not isinstance(e, Exception) and not self.is_raised(e):
                        raise
                    raise UserError(e, self.raised and self.raised[1]) from e
                finally:
                    self.running = False
                if self.lost is not None:
                    raise self.lost
                if end[0] not in (RETURN, STOP):
                    raise Break("coroutine", "a generator function is compiled")
            after = _states()
            self.effects.journal = self.effects.settled()
            if rng.restore():
                raise Break("random", "torch's random state changed")
            if self.recorder.refusal is not None:
                raise Break("operation", self.recorder.refusal.message, self.recorder.refusal.at)
        finally:
            self.effects.restore()
            for setter, operands in before:
                setter(*operands)
            rng.restore()
        changed = [a for a, b in zip(after, before) if a != b]
        return Captured(self, frames, end, changed)

    def _through(self, frames: list[Frame]) -> tuple[str, Any]:
        """Run frames that called one another."""
        for frame, caller in zip(frames, frames[1:]):
            frame.parent = caller
        end: tuple[str, Any] = (RETURN, None)
        error: BaseException | None = None
        for n, frame in enumerate(frames):
            try:
                if n:
                    frame.take(frames[n - 1], end[1], error)
                error = None
                end = frame.run()
                if end[0] == RETURN:
                    frame.clear()
            except BaseException as e:
                if not isinstance(e, Exception) and not self.is_raised(e):
                    raise
                error = e
        if error is not None:
            raise error
        return end


def run(
    start: Callable[[Capture], list[Frame]], nargs: int, kwnames: tuple[str, ...], stop: int, policy: Policy
) -> Captured:
    """A capture from what `start` gives. A program that raises where it takes a way of its own for compilers goes eager's way."""
    cx = Capture(nargs, kwnames, stop, policy)
    try:
        return cx.run(start)
    except UserError:
        if not cx.asked_compiling:
            raise
    return Capture(nargs, kwnames, stop, policy, compiling=False).run(start)


class _NewObjects:
    """Objects made in a capture, kept alive so that their identity stays theirs."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def append(self, o: Any) -> None:
        self._held[id(o)] = o

    def has(self, o: Any) -> bool:
        return id(o) in self._held


class _RandomState:
    """torch's random state as it was: put back where this thread set it, or no other could have drawn from it."""

    def __init__(self) -> None:
        self._reseeds, self._threads, self._drawn = private.reseeds(), threading.active_count(), torch.get_rng_state()

    def restore(self) -> bool:
        """Whether there was something to put back."""
        alone = max(self._threads, threading.active_count()) == 1
        if private.reseeds() == self._reseeds and not (alone and not torch.equal(torch.get_rng_state(), self._drawn)):
            return False
        torch.set_rng_state(self._drawn)
        return True


def _states() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """torch's modes: how each is set to what it is now."""
    return [
        (torch.set_grad_enabled, (torch.is_grad_enabled(),)),
        (torch.set_autocast_enabled, ("cpu", torch.is_autocast_enabled("cpu"))),
        (torch.set_autocast_dtype, ("cpu", torch.get_autocast_dtype("cpu"))),
        (torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled(),)),
        (torch.set_default_dtype, (torch.get_default_dtype(),)),
    ]


def _bind(
    f: types.FunctionType, args: list[Any], kwargs: dict[str, Any], default: Callable[[Any, str | None], Any]
) -> list[Any]:
    """Values of the parameters, in their slots. Raises TypeError as a call does."""
    code = f.__code__
    n, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    slots: list[Any] = [*args[:n], *[UNSET] * (n - len(args)), *[UNSET] * code.co_kwonlyargcount]
    rest = dict(kwargs)
    if len(args) > n and not code.co_flags & 4:
        raise TypeError(f"{f.__qualname__}() takes {n} positional arguments but {len(args)} were given")
    for i in range(code.co_posonlyargcount, total):
        if names[i] in rest:
            if slots[i] is not UNSET:
                raise TypeError(f"{f.__qualname__}() got multiple values for argument {names[i]!r}")
            slots[i] = rest.pop(names[i])
    if rest and not code.co_flags & 8:
        raise TypeError(f"{f.__qualname__}() got an unexpected keyword argument {next(iter(rest))!r}")
    defaults = f.__defaults__ or ()
    for i in range(total):
        if slots[i] is UNSET:
            j = i - (n - len(defaults))
            if i < n and j >= 0:
                slots[i] = default(defaults[j], None)
            elif i >= n and names[i] in (f.__kwdefaults__ or {}):
                slots[i] = default(f.__kwdefaults__[names[i]], names[i])  # type: ignore[index]
            else:
                raise TypeError(f"{f.__qualname__}() missing required argument: {names[i]!r}")
    if code.co_flags & 4:
        slots.append(tuple(args[n:]))
    if code.co_flags & 8:
        slots.append(rest)
    return slots


# --- the graph --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """`numbers[i]`: the graph output that holds tensor i, or None where it is an input itself (`inputs[i]`). `refined`: what
    stands for the symbols of the recording."""

    graph: Graph
    numbers: tuple[int | None, ...]
    inputs: tuple[int | None, ...]
    requires_grad: tuple[bool, ...]
    holders: tuple[Fake | None, ...]
    refined: Refined


def finish(recorder: Recorder, fakes: list[Fake]) -> Finished:
    """The graph of what was recorded, whose outputs are the given tensors. Raises ValueError where its sizes cannot stay open."""
    with recorder.symbols.active():
        f = _finish(recorder, fakes)
    if not recorder.symbols.hints:
        return f
    refined = refine(recorder.symbols)
    return replace(f, graph=applied(f.graph, refined), refined=refined)


def _finish(recorder: Recorder, fakes: list[Fake]) -> Finished:
    for memory in recorder.memories:
        if memory.version:
            recorder.check_unshared(memory, "the function")
    if fz.is_split([f.memory for f in fakes]):
        raise RecordError(what="the result", reason="it shares memory with a tensor of another dtype or form")
    results = fz.Results(lambda i: recorder.tensors[i].storage_offset())
    own = [f for f in fakes if not recorder.is_input(f)]
    numbered = dict(zip(map(id, own), results.add([fz.Place(f.memory, f.chain, f.sizes, f.strides, f.offset) for f in own])))
    outputs = results.outputs
    # type: ignore[arg-type]
    outputs += [Output(n, contiguous(n.shape)) for n in recorder.unused_draws([o.node for o in outputs])]
    graph = Graph(
        inputs=tuple(recorder.nodes), outputs=tuple(outputs), strides=tuple(recorder.strides),
        effects=fz.effects(recorder.memories), hints=tuple(recorder.symbols.hints.items()),
    )  # fmt: skip
    holders: list[Fake | None] = [None] * len(outputs)
    for f in own:
        holders[numbered[id(f)]] = f
    grads = tuple(f is not None and fk.tracked(f) for f in holders)
    numbers = tuple(numbered.get(id(f)) for f in fakes)
    inputs = tuple(f.memory.source if recorder.is_input(f) else None for f in fakes)
    return Finished(graph, numbers, inputs, grads, tuple(holders), Refined({}, (), ()))
