"""Evaluates the source of a kernel: Python at trace time, with tile statements for what depends on run-time values.

In: a Python function and its arguments. Out: calls on the active `Trace`. What Python knows when the kernel is traced
(constants, closures, lists, helper functions) is computed then; expressions and loops of the tile program are emitted. A
construct that is not in the language is a `LanguageError` that shows the line. Must not know the vocabulary's functions.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from ...base.errors import TilewrightError
from ...base.scalar import Expr
from ..ir import Buffer, Load, Region
from . import expressions
from .evaluation import Evaluation, counted
from .source import Source, source_of
from .trace import Trace, active
from .values import Cell, Grid, LanguageError, Loop, TensorAnnotation, View, dtype_of, element


class Macro:
    """`@T.macro`: a function whose statements go where it is called."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(self.function, args, kwargs)


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


def call(function: types.FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate a function's source on the arguments, in the active trace; what it returns."""
    source = source_of(function.__code__, function)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    run = Function(source, active(), _outer(function), dict(bound.arguments))
    assert isinstance(source.tree, ast.FunctionDef)
    return run.body(source.tree.body)


def _outer(function: types.FunctionType) -> Callable[[str], Any]:
    """What names that a function does not assign stand for: its closure, globals, builtins. The lookup raises KeyError."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def find(name: str) -> Any:
        if name in cells:
            try:
                return cells[name].cell_contents
            except ValueError:
                raise KeyError(name) from None
        if name in function.__globals__:
            return function.__globals__[name]
        return builtins.__dict__[name]

    return find


class Function(Evaluation):
    """One call of one function: its statements."""

    def __init__(self, source: Source, trace: Trace, outer: Callable[[str], Any], arguments: dict[str, Any]) -> None:
        super().__init__(source, trace, outer, arguments)
        self.loops: list[bool] = []  # of each loop around: whether it is one of the tile program
        self.branches = 0  # run-time branches and loops around, within the innermost trace-time loop

    def body(self, statements: Sequence[ast.stmt]) -> Any:
        try:
            self.run(statements)
        except _Return as r:
            return r.value
        return None

    def local(self, tree: ast.FunctionDef | ast.Lambda) -> Any:
        return _Local(self, tree)

    def call(self, function: types.FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return call(function, args, kwargs)

    # --- statements ---

    def run(self, statements: Sequence[ast.stmt]) -> None:
        for s in statements:
            handler = getattr(self, f"do_{type(s).__name__}", None)
            if handler is None:
                raise self.error(s, f"`{_keyword(s)}` is not part of the kernel language", _INSTEAD.get(type(s).__name__, ""))
            with self.trace.made_at(self.source.place(s)):
                try:
                    handler(s)
                except TilewrightError as e:
                    raise e.located(self.source.place(s)) from e.__cause__
                except (TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError, AssertionError) as e:
                    raise self.error(s, f"{type(e).__name__}: {e}") from e

    def do_Expr(self, s: ast.Expr) -> None:
        if not isinstance(s.value, ast.Constant):
            self.eval(s.value)

    def do_Pass(self, s: ast.Pass) -> None:
        pass

    def do_Assign(self, s: ast.Assign) -> None:
        first = s.targets[0]
        self.trace.hint = first.id if isinstance(first, ast.Name) else ""
        value = self.eval(s.value)
        self.trace.hint = ""
        for target in s.targets:
            self.assign(target, value)

    def do_AnnAssign(self, s: ast.AnnAssign) -> None:
        annotation = self.eval(s.annotation)
        if isinstance(annotation, TensorAnnotation):
            if s.value is not None or not isinstance(s.target, ast.Name):
                raise self.error(s, "a tensor's annotation stands alone, on the name of a parameter")
            self.scopes[0][s.target.id] = self.annotated(s, s.target.id, annotation)
            return
        if s.value is None:
            raise self.error(s, "an annotation without a value", "declare it with T.alloc_var(dtype)")
        self.assign(s.target, expressions.expr(self.number(s.value), dtype_of(annotation)))

    def annotated(self, s: ast.AnnAssign, name: str, annotation: TensorAnnotation) -> Any:
        raise self.error(s, "a tensor is annotated in the function's signature")

    def do_AugAssign(self, s: ast.AugAssign) -> None:
        if isinstance(s.target, ast.Name):
            old = self.eval(ast.copy_location(ast.Name(s.target.id, ast.Load()), s.target))
            self.assign(s.target, self.operate(s, s.op, old, self.eval(s.value)))
            return
        if not isinstance(s.target, ast.Subscript):
            raise self.error(s, "only a name or an element is updated in place")
        target, index = self.eval(s.target.value), self.index(s.target)
        if not isinstance(target, (Buffer, View)):
            target[index] = self.operate(s, s.op, target[index], self.eval(s.value))
            return
        at = element(target, index if isinstance(index, tuple) else (index,))
        if not isinstance(at, Load):
            raise self.error(s, "a region is updated in place", "write the loop: for i in T.Parallel(n): x[i] += y[i]")
        self.store(s, at, self.operate(s, s.op, at, self.eval(s.value)))

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self.bind(target, value)
            case ast.Tuple(elts) | ast.List(elts):
                values = list(value)
                if any(isinstance(e, ast.Starred) for e in elts):
                    raise self.error(target, "a starred name in an assignment is not part of the kernel language")
                if len(values) != len(elts):
                    raise self.error(target, f"{len(values)} values for {len(elts)} names")
                for t, v in zip(elts, values, strict=True):
                    self.assign(t, v)
            case ast.Subscript():
                self.assign_element(target, value)
            case _:
                raise self.error(target, f"an assignment to `{ast.unparse(target)}` is not part of the kernel language")

    def assign_element(self, target: ast.Subscript, value: Any) -> None:
        holder, index = self.eval(target.value), self.index(target)
        if isinstance(holder, Cell):
            holder, index = holder.buffer, 0
        if not isinstance(holder, (Buffer, View)):
            holder[index] = value
            return
        at = element(holder, index if isinstance(index, tuple) else (index,))
        if isinstance(at, Load):
            self.store(target, at, value)
        elif expressions.is_scalar(value):
            self.trace.fill(at, self.converted(target, value, at.buffer))
        elif isinstance(value, (Buffer, Region)):
            from .vocabulary import copy

            copy(value, at)
        else:
            raise self.error(target, f"a region is assigned a number or a tile, got {type(value).__name__}")

    def store(self, node: ast.AST, at: Load, value: Any) -> None:
        self.trace.store(at.buffer, at.index, self.converted(node, value, at.buffer))

    def do_If(self, s: ast.If) -> None:
        test = self.plain(self.eval(s.test))
        if not isinstance(test, Expr):
            self.run(s.body if test else s.orelse)
            return
        with self.trace.if_(expressions.truth(test)), self.inner():
            self.run(s.body)
        if s.orelse:
            with self.trace.else_(), self.inner():
                self.run(s.orelse)

    def do_While(self, s: ast.While) -> None:
        if s.orelse:
            raise self.error(s, "`else` of a loop is not part of the kernel language")
        test = self.plain(self.eval(s.test))
        if not isinstance(test, Expr):
            if not test:
                return
            test = True
        with self.trace.while_(expressions.truth(test)), self.inner(loop=True):
            self.run(s.body)

    def do_For(self, s: ast.For) -> None:
        if s.orelse:
            raise self.error(s, "`else` of a loop is not part of the kernel language")
        over = self.iterated(s)
        if isinstance(over, Loop):
            self.tile_loop(s, over)
            return
        outside, self.branches = self.branches, 0
        self.loops.append(False)
        try:
            for value in over:
                self.assign(s.target, value)
                try:
                    self.run(s.body)
                except _Continue:
                    continue
                except _Break:
                    break
        finally:
            self.loops.pop()
            self.branches = outside

    def iterated(self, s: ast.For) -> Loop | Iterable[Any]:
        """What a loop goes over: `range` is a loop of the tile program, unless its variable picks from a Python list."""
        call_ = s.iter
        if isinstance(call_, ast.Call) and isinstance(call_.func, ast.Name) and self.look_up(call_.func) is range:
            args = [self.number(a) for a in call_.args]
            if all(isinstance(a, int) for a in args) and self.picks(s):
                return range(*args)
            start, stop, step = (args + [1])[:3] if len(args) > 1 else (0, args[0], 1)
            if not isinstance(step, int) or step <= 0:
                raise self.error(call_, f"the step of a range is a positive int, got {step}")
            return counted(start, stop, step)
        value = self.eval(s.iter)
        if isinstance(value, (Expr, Buffer, Region, View, Cell)):
            raise self.error(
                s.iter, "a loop goes over T.serial, T.Parallel, T.Pipelined, ..., or what Python knows at trace time"
            )
        return value

    def picks(self, s: ast.For) -> bool:
        """Whether the variable of a loop indexes a Python list, tuple or dict in its body."""
        names = {n.id for n in ast.walk(s.target) if isinstance(n, ast.Name)}
        for n in ast.walk(ast.Module(s.body, [])):
            if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name):
                used = {m.id for m in ast.walk(n.slice) if isinstance(m, ast.Name)}
                if used & names and isinstance(self.maybe(n.value.id), (list, tuple, dict, str)):
                    return True
        return False

    def maybe(self, name: str) -> Any:
        found = next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
        if found is None:
            try:
                return self.outer(name)
            except KeyError:
                return None
        return found

    def tile_loop(self, s: ast.For, loop: Loop) -> None:
        names = [n.id for n in s.target.elts] if isinstance(s.target, ast.Tuple) else [ast.unparse(s.target)]  # type: ignore[attr-defined]
        if loop.kind == "unrolled" and loop.is_constant and loop.extents[0].value <= MOST_UNROLLED:  # type: ignore[attr-defined]
            count = loop.extents[0].value  # type: ignore[attr-defined]
            values = [expressions.arithmetic("add", loop.start, k * loop.step) for k in range(count)]
            self.do_For(ast.copy_location(_Ready.loop(s, values), s))
            return
        if len(names) != len(loop.extents):
            raise self.error(s.target, f"the loop has {len(loop.extents)} variables, {len(names)} names are given")
        with ExitStack() as stack:
            if loop.kind == "parallel":
                variables: Sequence[Expr] = stack.enter_context(self.trace.parallel(*loop.extents, names=names))
            elif loop.kind == "grid":
                variables = [stack.enter_context(self.trace.for_(e, name=n)) for e, n in zip(loop.extents, names, strict=True)]
            else:
                (extent,) = loop.extents
                one = self.trace.for_(extent, loop.kind, loop.stages, names[0])
                variables = [stack.enter_context(one)]
            stack.enter_context(self.trace.made_at(self.source.place(s)))
            with self.inner(loop=True):
                for name, v in zip(names, variables, strict=True):
                    stepped = expressions.arithmetic("mul", v, loop.step)
                    self.scopes[-1][name] = expressions.arithmetic("add", stepped, loop.start)
                self.run(s.body)

    def inner(self, loop: bool = False) -> _Inner:
        return _Inner(self, loop)

    def do_Break(self, s: ast.Break) -> None:
        self.jump(s, _Break, self.trace.break_)

    def do_Continue(self, s: ast.Continue) -> None:
        self.jump(s, _Continue, self.trace.continue_)

    def jump(self, s: ast.stmt, python: type[Exception], emit: Callable[[], None]) -> None:
        if self.loops and self.loops[-1]:
            emit()
            return
        if self.branches:
            raise self.error(
                s, f"`{_keyword(s)}` of a loop that is unrolled depends on run-time values", "use T.serial for the loop"
            )
        raise python

    def do_With(self, s: ast.With) -> None:
        if len(s.items) != 1:
            raise self.error(s, "one context in a `with` is expected")
        item = s.items[0]
        value = self.eval(item.context_expr)
        if not isinstance(value, Grid):
            raise self.error(item.context_expr, "`with` is for T.Kernel(...) in the kernel language")
        if self.trace.threads is not None:
            raise self.error(s, "a kernel has one T.Kernel", "launch several kernels one after another")
        self.trace.threads = value.threads
        names = _names(item.optional_vars)
        if item.optional_vars is not None and len(names) != len(value.extents):
            raise self.error(item.optional_vars, f"the grid has {len(value.extents)} dimensions, {len(names)} names are given")
        names = names or [f"b{'xyz'[k]}" for k in range(len(value.extents))]
        made = self.trace.grid(*reversed(value.extents), names=list(reversed(names)))  # the first one runs fastest
        blocks = list(reversed(made))
        self.scopes.append(dict(zip(names, blocks, strict=True)))
        if isinstance(item.optional_vars, ast.Name) and len(blocks) == 1:
            self.scopes[-1][item.optional_vars.id] = blocks[0]
        self.run(s.body)

    def do_Return(self, s: ast.Return) -> None:
        if self.branches:
            raise self.error(s, "`return` under a run-time loop or branch is not part of the kernel language")
        raise _Return(None if s.value is None else self.eval(s.value))

    def do_Assert(self, s: ast.Assert) -> None:
        test = self.plain(self.eval(s.test))
        message = str(self.eval(s.msg)) if s.msg is not None else ast.unparse(s.test)
        if isinstance(test, Expr):
            self.trace.check(expressions.truth(test), message)
        elif not test:
            raise self.error(s, f"AssertionError: {message}")

    def do_FunctionDef(self, s: ast.FunctionDef) -> None:
        self.scopes[-1][s.name] = _Local(self, s)

    def do_Delete(self, s: ast.Delete) -> None:
        for target in s.targets:
            if not isinstance(target, ast.Name):
                raise self.error(s, "only names are deleted")
            self.scopes[-1].pop(target.id, None)


class _Inner:
    """A body of the tile program: the names it binds end with it."""

    def __init__(self, function: Function, loop: bool) -> None:
        self.function, self.loop = function, loop

    def __enter__(self) -> None:
        f = self.function
        f.scopes.append({})
        f.branches += 1
        if self.loop:
            f.loops.append(True)

    def __exit__(self, *_: Any) -> None:
        f = self.function
        for name in f.scopes.pop():
            f.gone.add(name)
        f.branches -= 1
        if self.loop:
            f.loops.pop()


class _Local:
    """A function that the kernel's own source defines."""

    def __init__(self, owner: Function, tree: ast.FunctionDef | ast.Lambda) -> None:
        self.owner, self.tree = owner, tree
        self.scopes = list(owner.scopes)
        self.defaults = [owner.eval(d) for d in tree.args.defaults]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        a = self.tree.args
        names = [p.arg for p in (*a.posonlyargs, *a.args)]
        if len(args) > len(names):
            raise LanguageError(reason=f"{len(names)} arguments expected, got {len(args)}")
        given = dict(zip(names[len(names) - len(self.defaults) :], self.defaults, strict=True))
        given.update(zip(names, args))  # the rest by name or by default
        given.update(kwargs)
        if missing := [n for n in names if n not in given]:
            raise LanguageError(reason=f"no value for the argument {missing[0]!r}")
        outer = self.owner

        def find(name: str) -> Any:
            for scope in reversed(self.scopes):
                if name in scope:
                    return scope[name]
            return outer.outer(name)

        run = Function(outer.source, outer.trace, find, given)
        if isinstance(self.tree, ast.Lambda):
            return run.eval(self.tree.body)
        return run.body(self.tree.body)


class _Ready(ast.expr):
    """Stands in a syntax tree for values that are known."""

    values: list[Any]

    @staticmethod
    def loop(s: ast.For, values: list[Any]) -> ast.For:
        ready = ast.copy_location(_Ready(), s.iter)
        ready.values = values
        return ast.For(s.target, ready, s.body, [], None)


def _on_ready(self: Function, node: _Ready) -> list[Any]:
    return node.values


Function.on__Ready = _on_ready  # type: ignore[attr-defined]

MOST_UNROLLED = 64

_INSTEAD = {
    "Try": "an error inside a kernel cannot be caught; check with T.device_assert",
    "Raise": "use T.device_assert(condition, message)",
    "Import": "import at the top of the file",
    "ImportFrom": "import at the top of the file",
    "ClassDef": "define classes outside of the kernel",
    "Global": "pass the value in, or return it",
    "Nonlocal": "pass the value in, or return it",
    "Match": "use if and elif",
    "AsyncFor": "use for",
}


def _keyword(s: ast.stmt) -> str:
    return ast.unparse(s).split(maxsplit=1)[0].rstrip(":")


def _names(target: ast.expr | None) -> list[str]:
    match target:
        case None:
            return []
        case ast.Name(id):
            return [id]
        case ast.Tuple(elts) | ast.List(elts):
            return [n.id for n in elts if isinstance(n, ast.Name)]
    return []
