"""Compiled pieces of a program: a captured function, the rests of it after graph breaks, and the glue between them.

In: captures. Out: native entries: guards, a graph, and generated Python that rebuilds values, replays effects, makes the call
that broke
the graph and goes on in the next piece. Must not know bytecode's meaning or how graphs become code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import native
from ..base import errors, log
from ..graph.recorder import ArgSource
from . import control, eager_backward, glue, recompiles
from .breaks import Break, error_of
from .capture import Capture, Captured, Finished, UserError, finish, run
from .frames import RETURN, Frame, Handled
from .guards import GuardTable
from .hook import Hook
from .opcodes import decode
from .outside import Outside
from .rebuild import Rebuild
from .resume import Iter, Place, run_natively
from .sizes import History, Policy
from .trust import is_standard_code, runs_as_is
from .varying import scalar


class MarkError(errors.RecordError):
    """A dim that is marked as dynamic has one size only."""


MOST_STEPS = 4  # of a loop, for each of which the piece behind a break in its body is compiled
MOST_POINTS = 8  # places at which a capture is ended in turn, until the state there can be made anew


class Nothing:
    """Stands for the executable of a graph that computes nothing."""

    kernels = library_calls = opaque_calls = arena_bytes = packed_bytes = 0

    def text(self, level: str) -> str:
        return ""

    def forget(self) -> None:
        pass


@dataclass(frozen=True)
class Held:
    """What an entry keeps for statistics and texts. `gradients`: whether its results carry some."""

    executable: Any
    table: GuardTable
    glued: bool = False
    gradients: bool = False


@dataclass
class Program:
    """What a compiled function and the pieces after its breaks share."""

    name: str
    build: Callable[..., Any]
    options: Any
    fullgraph: bool
    child: Callable[[Any], Any]  # a function -> its own compiled function
    on_backward: Callable[[], None]
    seconds: dict[str, float]
    breaks: dict[tuple[str, int], Break] = field(default_factory=dict)  # by file and line
    rests: dict[Any, Rest] = field(default_factory=dict)
    compiles: int = 0
    varying: set[str] = field(default_factory=set)  # names of ints that changed from call to call
    native_tails: int = 0  # calls of pieces that ran without being compiled
    ran: list[Any] = field(default_factory=list)  # the pieces that the last call went through
    children: dict[Any, Any] = field(default_factory=dict)
    recompiles: list[tuple[str, str]] = field(default_factory=list)  # (kind of guard, what changed), each time
    history: History = field(default_factory=History)  # sizes that the function itself saw
    hook: Hook = field(init=False)

    def __post_init__(self) -> None:
        self.hook = Hook(self)

    def policy(self, history: History, varying: frozenset[str]) -> Policy:
        return Policy(self.options.freeze, varying, self.options.dynamic, history)

    def learn(self, entries: tuple[native.Entry, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[str]:
        """The names of ints known to vary: those for whose value an entry was refused."""
        if found := recompiles.failures(entries[:1], args, kwargs):
            self.recompiles.append(found[0])
        for entry in entries:
            failed, table = entry.check(*args, **kwargs), entry.data.table
            if failed is not None and 0 <= failed < len(table.rows):
                row = table.rows[failed]
                if row[0] == "eq" and type(row[2]) in ((int,) if self.fullgraph else (int, float)):
                    self.varying.add(table.reasons[failed].partition(" is no longer ")[0])
        return frozenset(self.varying)

    def note(self, b: Break) -> None:
        at = (b.at.file, b.at.line) if b.at is not None else ("", 0)
        if at not in self.breaks:
            self.breaks[at] = Break(b.reason, b.what, b.at)  # the one raised holds the frames of all its callers
            log.breaks.write(f"{self.name}: {b}")

    def rest(self, places: tuple[Place, ...], tables: tuple[dict[str, Any], ...], wanted: bool) -> Rest:
        key = places, tuple(map(id, tables)), wanted
        found = self.rests.get(key)
        if found is None:
            found = self.rests[key] = Rest(self, places, tables, wanted)
        return found

    def route(self, f: Any) -> Any:
        """What is called where a call broke the graph: user functions and modules in their compiled form."""
        function = f.__func__ if type(f) is types.MethodType else f
        if control.is_disabled(function):
            return f
        if type(function) is types.FunctionType:
            code = function.__code__
            if runs_as_is(code, function.__module__ or "") or is_standard_code(code):
                return functools.partial(native.segment, self.hook, f)
            if code.co_flags & 0x2A0 or code.co_filename.startswith("<"):
                return f
            if type(f) is types.MethodType and isinstance(f.__self__, nn.Module):  # a module's method has entries of its own
                return self._child((function, id(f.__self__)), f)
            key: Any = function
        elif isinstance(f, nn.Module) and not hasattr(f, "_tilewright"):
            key = id(f)
            function = f
        else:
            return functools.partial(native.segment, self.hook, f)
        child = self._child(key, function)
        return types.MethodType(child, f.__self__) if type(f) is types.MethodType else child

    def _child(self, key: Any, f: Any) -> Any:
        child = self.children.get(key)
        if child is None:
            child = self.children[key] = self.child(f)
        self.ran.append(child)
        return child


class Rest(native.Dispatcher):
    """The rest of a function, and of those that called it, after a graph break: compiled at its first call."""

    def __init__(self, program: Program, places: tuple[Place, ...], tables: tuple[dict[str, Any], ...], wanted: bool) -> None:
        self.program = program
        self.places = places
        self.tables = tables
        self.wanted = wanted
        self.failures = 0
        self.history = History()
        self.loops = any(isinstance(f, Iter) for p in places for f in p.forms)
        self.data: set[int] = set()  # arguments that depend on a tensor's data: numbers among them vary
        self.miss = self._miss
        self.failed = lambda args, kwargs: self._native(args)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.loops and self.wanted and len(self.entries) >= min(MOST_STEPS, self.program.options.recompile_limit):
            return self._with_iterators(args)
        if not self.wanted or self.failures >= 3 or self._keeps_from_compiling(args):
            return self._native(args)
        entry = self._try(args)
        if entry is None:
            return self._native(args)
        self.entries = (entry, *self.entries)
        self.last = entry
        try:
            return entry.run(*args)
        except native.Failed:
            pass
        return self._native(args)  # outside of any `except`: the program must not see our exceptions

    def _with_iterators(self, args: tuple[Any, ...]) -> Any:
        """The piece for a loop that breaks the graph in many of its steps: one that does not know at which step it is."""
        places, passed, rest = [], [], args
        for place in self.places:
            made, values = place.with_iterators(rest[: place.width])
            places.append(made)
            passed += values
            rest = rest[place.width :]
        piece = self.program.rest(tuple(places), self.tables, True)
        self.program.ran.append(piece)
        return native.go_on(piece, *passed)

    def _try(self, args: tuple[Any, ...]) -> native.Entry | None:
        try:
            varying = self.program.learn(self.entries, args, {})
            varying |= {f"argument {i}" for i in self.data}
            policy = self.program.policy(self.history, varying)
            entry = compile_entry(self.program, lambda stop, policy: self._capture(args, stop, policy), policy)
            if (failed := entry.check(*args)) is not None:
                raise errors.CompileError(reason=f"a guard does not hold from the start: {entry.data.table.explain(failed)}")
            return entry
        except UserError:
            pass
        except (Break, errors.TilewrightError) as e:
            self.failures += 1
            log.breaks.write(f"{self.program.name}: the rest runs in eager: {e}")
        except Exception as e:  # a fault of ours
            self.failures += 1
            fault = errors.CompileError(reason=f"{type(e).__name__}: {e}")
            name = f"the rest of {self.program.name}, from line {self.places[0].line},"
            log.warn_once((id(self), str(fault)), f"{name} runs in eager: {fault}")
        return None

    def _keeps_from_compiling(self, args: tuple[Any, ...]) -> bool:
        """Whether the stance, or the limit, has the call run in eager. Raises RecompileError where the stance says so."""
        name = f"the rest of {self.program.name}, from line {self.places[0].line},"
        if control.stance() != "default":
            if control.stance() == "fail_on_recompile":
                raise recompiles.error(name, "the stance is fail_on_recompile", self.entries, args, {})
            return True
        if len(self.entries) < self.program.options.recompile_limit:
            return False
        recompiles.warn(self, name, self.entries, args, {})
        return True

    def _native(self, args: tuple[Any, ...]) -> Any:
        self.program.native_tails += 1
        self.last = None
        return native.segment(self.program.hook, run_natively, self.places, self.tables, args)

    def _capture(self, args: tuple[Any, ...], stop: int, policy: Policy) -> Captured:
        def start(cx: Capture) -> list[Frame]:
            values = [read_argument(cx.outside, v, i, i) for i, v in enumerate(args)]
            frames: list[Frame] = []
            depth = len(self.places)
            for place, globals_ in zip(self.places, self.tables, strict=True):
                depth -= 1
                frames.append(_frame(cx, place, globals_, tuple(values[: place.width]), depth))
                del values[: place.width]
            for frame in reversed(frames):
                for v in frame.stack:
                    if type(v) is Handled:
                        v.previous, cx.handling[-1] = cx.handling[-1], v.current
            return frames

        return run(start, len(args), (), stop, policy)


def _frame(cx: Capture, place: Place, globals_: dict[str, Any], values: tuple[Any, ...], depth: int) -> Frame:
    """A frame as it stood at its place."""
    code, at = decode(place.code), 0
    for number, form in zip((*place.slots, *[-1] * len(place.forms)), place.forms):
        for v in values[at : at + form.width]:
            if type(v) is types.CellType and number >= 0:
                cx.outside.known[id(v)].name = code.names[number]
            if isinstance(form, Iter):
                cx.outside.expand(v)
        at += form.width
    slots, stack = place.split(values)
    frame = Frame(cx, code, globals_, slots, depth, place.then)
    frame.stack, frame.at = stack, place.at
    return frame


def read_argument(outside: Outside, value: Any, slot: int, key: int | str) -> Any:
    name = f"argument {key}"
    return outside.read(value, slot, name, argument=True, source=ArgSource((key,)) if isinstance(value, torch.Tensor) else None)


def compile_entry(program: Program, capture: Callable[[int, Policy], Captured], policy: Policy) -> native.Entry:
    """Capture and compile one entry; `capture(stop, policy)` ends before its stop-th instruction.

    What does not work with open sizes is compiled for those of the call. Raises Break, UserError, TilewrightError.
    """
    policy.history.compilation += 1
    policy.history.opened = False
    try:
        return _compile(program, lambda stop: capture(stop, policy))
    except Exception as e:
        if not policy.history.opened or isinstance(e, MarkError):
            raise
        reason = f"{type(e).__name__}: {e}"
    log.guards.write(f"{program.name} is compiled for the sizes of one call: {reason}")
    return _compile(program, lambda stop: capture(stop, policy.still()))


def _compile(program: Program, capture: Callable[[int], Captured]) -> native.Entry:
    stages = log.Stages()
    with stages.stage("record"):
        piece = _piece(program, capture)
    entry = piece.entry(stages)
    program.compiles += 1
    for stage, seconds in stages.seconds.items():
        program.seconds[stage] = program.seconds.get(stage, 0.0) + seconds
    return entry


def _piece(program: Program, capture: Callable[[int], Captured]) -> _Piece:
    """A capture to the end; or to where the graph breaks; or, where that state cannot be made anew, to a call before it."""
    try:
        return _Piece(program, capture(-1), None)
    except Break as b:
        if b.reason == "import":
            raise UserError(b, b.at) from None
        why = b
    if program.fullgraph:
        raise error_of(why) from None
    program.note(why)
    failure = why
    for count in why.points[:MOST_POINTS]:
        try:
            return _Piece(program, capture(count), why)
        except Break as b:
            failure = b
    raise failure


class _Piece:
    """One capture on its way to an entry."""

    def __init__(self, program: Program, captured: Captured, why: Break | None) -> None:
        self.program = program
        self.captured = captured
        cx = captured.cx
        self.rebuild = Rebuild(cx)
        kind, value = captured.end
        with cx.recorder.symbols.active():
            self.effects = self._effect_lines()
            if kind == RETURN:
                self.ending = [f"return {self.rebuild.expression(value)}"]
            else:
                self.ending = glue.break_lines(program, captured.frames, self.rebuild, why)
            for made in cx.outside.computed.values():
                self.rebuild.expression(made)
        self.finished: Finished = finish(cx.recorder, self.rebuild.tensors)
        self._check_marks()
        self.line = captured.frames[0].location() if kind != RETURN else None
        self.table, self.inputs = self._rows()

    def _check_marks(self) -> None:
        for broken in self.captured.cx.outside.sizes.broken_marks(self.finished.refined):
            if self.program.fullgraph:
                raise MarkError(what=self.program.name, reason=broken)
            log.warn_once((self.program.name, broken), f"{self.program.name}: {broken}")

    def _effect_lines(self) -> list[str]:
        r = self.rebuild
        lines = []
        for effect in self.captured.cx.effects.journal:
            if effect.changes and id(effect.operands[0]) not in self.captured.cx.outside.known:
                raise Break("effect", f"a {type(effect.operands[0]).__name__} that is not known")
            operands = ", ".join([r.expression(o) for o in effect.operands])
            lines.append(f"{r.constant(effect.function)}({operands})")
        for setter, operands in self.captured.states:
            lines.append(f"{r.constant(setter)}({', '.join([r.expression(o) for o in operands])})")
        return lines

    @property
    def _simple(self) -> bool:
        """Whether a function of the graph's outputs alone is enough."""
        f = self.finished
        return (
            self.captured.end[0] == RETURN and not self.effects and not self.rebuild.passed and len(f.graph.outputs) > 0
            and all(i is None for i in f.inputs) and not self.captured.cx.outside.computed
        )  # fmt: skip

    def entry(self, stages: log.Stages) -> native.Entry:
        f, gradients = self.finished, any(self.finished.requires_grad)
        computed = [k for k, o in enumerate(f.graph.outputs) if o.alias is None or not gradients]
        graph = dataclasses.replace(f.graph, outputs=tuple(f.graph.outputs[k] for k in computed))
        computes = bool(graph.outputs or graph.effects)
        if gradients:
            self._check_gradients()
        executable = self.program.build(graph, self.program.options, stages) if computes else Nothing()
        with stages.stage("guards"):
            held = Held(executable, self.table, not self._simple, gradients)
            run = self._run_function(executable, computed) if computes and (gradients or not self._simple) else None
            if len(computed) < len(f.graph.outputs):
                hints = tuple(name for name, _ in f.graph.hints)
                run = eager_backward.Views(run, f.graph.outputs, computed, f.requires_grad, hints)
            written = [e.index for e in graph.effects]
            if not self._simple:
                return _entry(self.table, None, self._glue(run, len(self.captured.cx.recorder.nodes), self.inputs), held, written)
            if run is None:
                return executable.entry(self.table, self._rebuild_function(), held, frozenset())
            return _entry(
                self.table, self._rebuild_function(), lambda tensors, folded, sizes=(): run(tensors, sizes), held, written
            )

    def _check_gradients(self) -> None:
        """Raise RecordError where what is written would need more than eager's views of results."""
        graph, recorder = self.finished.graph, self.captured.cx.recorder
        written = {e.index for e in graph.effects}
        tracked = any(m.source in written and m.tracked for m in recorder.memories)
        if tracked or any(o.alias and o.alias.of == "input" and o.alias.index in written for o in graph.outputs):
            raise errors.RecordError(
                what=self.program.name, reason="it writes into an input that requires grad while gradients are recorded"
            )

    def _run_function(self, executable: Any, computed: list[int]) -> Callable[[Any, tuple[int, ...]], list[torch.Tensor]]:
        """Runs the graph: of its inputs and the values of its size symbols, the outputs numbered `computed`."""
        f, cx = self.finished, self.captured.cx
        forward = executable.forward().run
        ints = [k for k, (name, _) in enumerate(f.graph.hints) if cx.outside.sizes.places[name].dim < 0]
        differentiable = tuple(f.requires_grad[k] for k in computed)
        if not any(differentiable):
            return lambda tensors, sizes: forward(*tensors, *[sizes[k] for k in ints])
        known: Any = cx.recorder.known
        replay = cx.tape.replay(
            [known(t) for t in cx.recorder.tensors], [f.holders[k] for k in computed], known, f.refined
        )
        written = frozenset(e.index for e in f.graph.effects)
        on_backward = self.program.on_backward

        def run(tensors: Any, sizes: tuple[int, ...]) -> list[torch.Tensor]:
            rest = [sizes[k] for k in ints]
            again = eager_backward.Rerun(
                lambda *t: forward(*t, *rest), lambda t: replay(t, sizes), differentiable, on_backward, written
            )
            return eager_backward.run(again, tensors)

        return run

    def _rows(self) -> tuple[GuardTable, list[int]]:
        cx = self.captured.cx
        count = len(cx.recorder.nodes)
        for index, node in enumerate(cx.recorder.nodes):
            if index not in cx.outside.input_slots and index not in cx.outside.computed:
                if node not in cx.recorder.frozen:
                    raise Break("unknown tensor", f"of shape {list(cx.recorder.tensors[index].shape)}")
                tensor = cx.recorder.tensors[index]
                slot = cx.rows.derive("const", tensor, why="a tensor made of Python data")
                cx.rows.tensor(slot, tensor, index, "a tensor made of Python data")
        passed = list(self.rebuild.passed)
        for n, slot in enumerate(passed):
            cx.rows.test("pass", slot, count + n, why="")
        cx.outside.keep_apart()
        cx.outside.sizes.guard(cx.rows, self.finished.refined)
        table = cx.rows.table(count)
        return table, passed

    def _tensor_lines(self) -> list[str]:
        f = self.finished
        return [f"T{n} = I[{i}]" if i is not None else f"T{n} = R[{k}]" for n, (k, i) in enumerate(zip(f.numbers, f.inputs))]

    def _rebuild_function(self) -> Any:
        f = self.finished
        if self.ending == ["return T0"] and f.numbers == (0,) and len(f.graph.outputs) == 1:
            return None
        return self._function("rebuild", "R", [*self._tensor_lines(), *self.rebuild.lines, *self.ending], {})

    def _glue(self, run: Any, count: int, passed: list[int]) -> Any:
        run_text = f"run({'I' if not passed else f'I[:{count}]'}, S)" if run is not None else "()"
        lines = [f"P{slot} = I[{count + n}]" for n, slot in enumerate(passed)]
        make = self.rebuild.constant(scalar)
        lines += [f"I[{i}] = {make}({v.text})" for i, v in self.captured.cx.outside.computed.items()]
        lines += [f"R = {run_text}", *self._tensor_lines()]
        extra: dict[str, Any] = {"run": run}
        if self.captured.cx.outside.sizes.policy.history is self.program.history:  # the function itself, not a rest of it
            lines.insert(0, "ran.clear()")
            extra["ran"] = self.program.ran
        body = self._function("glue", "I, S", [*lines, *self.rebuild.lines, *self.effects, *self.ending], extra)
        return lambda inputs, folded, sizes=(): [body(inputs, sizes)]

    def _function(self, name: str, parameter: str, lines: list[str], extra: dict[str, Any]) -> Any:
        source = "\n".join([f"def {name}({parameter}):", *(f"    {line}" for line in lines)])
        tree = ast.parse(source)
        file = "<tilewright>"
        if self.line is not None:
            file = self.line.file
            for node in ast.walk(tree):
                if hasattr(node, "lineno"):
                    node.lineno = node.end_lineno = self.line.line  # type: ignore[attr-defined]
        namespace: dict[str, Any] = {"math": math, **self.rebuild.constants, **extra}
        exec(compile(tree, file, "exec"), namespace)
        return namespace[name]


def _entry(table: GuardTable, rebuild: Any, runner: Any, held: Held, written: list[int]) -> native.Entry:
    inputs = table.inputs + sum(row[0] == "pass" for row in table.rows)
    return native.Entry(table.nargs, table.kwnames, table.rows, inputs, [], rebuild, runner, held, 0, 0, 0, 0, 0, 0, [], written)
