"""Evaluates the expressions of a kernel's source: what Python knows at trace time as Python does, the rest as `Expr`s.

In: syntax trees and the names in scope. Out: values. Must not know statements, or the vocabulary's functions.
"""

from __future__ import annotations

import ast
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...base.errors import TilewrightError, did_you_mean
from ...base.scalar import Expr
from ..ir import Buffer, Load, Region, const
from . import expressions
from .source import Source
from .trace import Trace, is_loaded
from .values import Cell, LanguageError, Loop, View, element


class Evaluation:
    """The names of one call of one function, and the values of expressions over them."""

    def __init__(self, source: Source, trace: Trace, outer: Callable[[str], Any], arguments: dict[str, Any]) -> None:
        self.source, self.trace, self.outer = source, trace, outer
        self.scopes: list[dict[str, Any]] = [arguments]
        self.gone: set[str] = set()  # names of bodies that have ended

    def local(self, tree: ast.FunctionDef | ast.Lambda) -> Any:
        """The function that the source itself defines."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind a name, or several."""
        raise NotImplementedError

    def call(self, function: types.FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Evaluate a helper of the user's."""
        raise NotImplementedError

    # --- errors ---

    def error(self, node: ast.AST, reason: str, hint: str = "") -> LanguageError:
        return LanguageError(reason=reason, at=self.source.place(node), hint=hint)

    # --- names ---

    def look_up(self, node: ast.Name) -> Any:
        for scope in reversed(self.scopes):
            if node.id in scope:
                return scope[node.id]
        try:
            return self.outer(node.id)
        except KeyError:
            pass
        if node.id in self.gone:
            raise self.error(
                node, f"{node.id!r} is not defined here: it was assigned inside a loop or branch that has ended",
                "declare it before with T.alloc_var(dtype)",
            )  # fmt: skip
        raise self.error(node, f"the name {node.id!r} is not defined")

    def bind(self, node: ast.Name, value: Any) -> None:
        for scope in reversed(self.scopes):
            if node.id in scope:
                known = scope[node.id]
                if isinstance(known, Cell) and not isinstance(value, Cell):
                    self.trace.store(known.buffer, 0, self.converted(node, value, known.buffer))
                    return
                if scope is not self.scopes[-1]:
                    if known is value:
                        return
                    raise self.error(
                        node, f"{node.id!r} is assigned anew inside a loop or branch of the kernel",
                        f'declare it before with T.alloc_var(dtype), then assign: {node.id} = T.alloc_var("float32")',
                    )  # fmt: skip
                break
        if is_loaded(value):
            value = self.trace.let(value, node.id)
        self.scopes[-1][node.id] = value

    def converted(self, node: ast.AST, value: Any, buffer: Buffer) -> Expr:
        if isinstance(value, Cell):
            value = value.value
        if not expressions.is_scalar(value):
            raise self.error(node, f"an element of {buffer.name} is a number, got {type(value).__name__}")
        return expressions.expr(value, buffer.dtype)

    # --- expressions ---

    def eval(self, node: ast.expr) -> Any:
        handler = getattr(self, f"on_{type(node).__name__}", None)
        if handler is None:
            raise self.error(node, f"`{ast.unparse(node)}` is not part of the kernel language")
        try:
            return handler(node)
        except TilewrightError as e:
            raise e.located(self.source.place(node)) from e.__cause__

    def plain(self, value: Any) -> Any:
        return value.value if isinstance(value, Cell) else value

    def number(self, node: ast.expr) -> Any:
        """The value of an expression that is a number."""
        value = self.plain(self.eval(node))
        if not expressions.is_scalar(value):
            raise self.error(node, f"a number expected, got {type(value).__name__}")
        return value

    def on_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def on_Name(self, node: ast.Name) -> Any:
        return self.look_up(node)

    def on_Attribute(self, node: ast.Attribute) -> Any:
        value = self.eval(node.value)
        if isinstance(value, Buffer) and node.attr == "dtype":
            return value.dtype
        try:
            return getattr(value, node.attr)
        except AttributeError as e:
            raise self.error(node, str(e), _suggest(value, node.attr)) from None

    def on_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.several(node.elts))

    def on_List(self, node: ast.List) -> Any:
        return self.several(node.elts)

    def on_Set(self, node: ast.Set) -> Any:
        return set(self.several(node.elts))

    def on_Dict(self, node: ast.Dict) -> Any:
        made: dict[Any, Any] = {}
        for k, v in zip(node.keys, node.values, strict=True):
            if k is None:
                made.update(self.eval(v))
            else:
                made[self.eval(k)] = self.eval(v)
        return made

    def several(self, nodes: Sequence[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for n in nodes:
            if isinstance(n, ast.Starred):
                found += self.eval(n.value)
            else:
                found.append(self.eval(n))
        return found

    def on_BinOp(self, node: ast.BinOp) -> Any:
        return self.operate(node, node.op, self.eval(node.left), self.eval(node.right))

    def operate(self, node: ast.AST, op: ast.operator, x: Any, y: Any) -> Any:
        x, y = self.plain(x), self.plain(y)
        name, python = _BINARY[type(op)]
        if isinstance(x, Expr) or isinstance(y, Expr):
            for v in (x, y):
                if not expressions.is_scalar(v):
                    raise self.error(
                        node,
                        f"`{python.__name__}` of a scalar and {_what(v)}",
                        "name elements: x[i, j], in a loop over T.Parallel",
                    )
            if not name:
                raise self.error(node, f"`{python.__name__}` is not part of the kernel language")
            return expressions.arithmetic(name, x, y)
        if isinstance(x, (Buffer, Region, View)) or isinstance(y, (Buffer, Region, View)):
            raise self.error(node, "arithmetic on whole tiles", "name elements: x[i, j], in a loop over T.Parallel")
        return python(x, y)

    def on_UnaryOp(self, node: ast.UnaryOp) -> Any:
        x = self.plain(self.eval(node.operand))
        match node.op:
            case ast.Not():
                return expressions.inverted(expressions.truth(x)) if isinstance(x, Expr) else not x
            case ast.USub():
                return expressions.negated(x)
            case ast.Invert():
                return expressions.inverted(x)
        return x

    def on_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` and `or`: at trace time as far as possible."""
        conjunction = isinstance(node.op, ast.And)
        result: Any = None
        for n in node.values:
            value = self.plain(self.eval(n))
            if result is None or not isinstance(result, Expr):
                if result is not None and bool(result) is not conjunction:
                    return result
                result = value
            elif isinstance(value, Expr):
                op = "and" if conjunction else "or"
                result = expressions.arithmetic(op, expressions.truth(result), expressions.truth(value))
            elif bool(value) is not conjunction:
                return value
        return result

    def on_Compare(self, node: ast.Compare) -> Any:
        x = self.plain(self.eval(node.left))
        result: Any = True
        for op, right in zip(node.ops, node.comparators, strict=True):
            y = self.plain(self.eval(right))
            one = self.compare(node, op, x, y)
            result = (
                one if result is True else expressions.arithmetic("and", result, one) if isinstance(one, Expr) else result and one
            )
            x = y
        return result

    def compare(self, node: ast.AST, op: ast.cmpop, x: Any, y: Any) -> Any:
        name, python = _COMPARISONS[type(op)]
        if name and (isinstance(x, Expr) or isinstance(y, Expr)):
            if not (expressions.is_scalar(x) and expressions.is_scalar(y)):
                return python(x, y) if name in ("eq", "ne") else self.operate(node, ast.Add(), x, y)
            return expressions.arithmetic(name, x, y)
        return python(x, y)

    def on_IfExp(self, node: ast.IfExp) -> Any:
        test = self.plain(self.eval(node.test))
        if not isinstance(test, Expr):
            return self.eval(node.body if test else node.orelse)
        from .mathematics import if_then_else

        return if_then_else(test, self.number(node.body), self.number(node.orelse))

    def on_Subscript(self, node: ast.Subscript) -> Any:
        value = self.eval(node.value)
        index = self.index(node)
        if isinstance(value, Cell):
            return value.value
        if isinstance(value, (Buffer, View)):
            return element(value, index if isinstance(index, tuple) else (index,))
        if isinstance(value, (Region, Load)):
            raise self.error(node, "an element or a region is indexed again", "put all indices into one pair of brackets")
        if isinstance(index, Expr):
            raise self.error(
                node,
                f"a {type(value).__name__} of Python is indexed by a run-time value",
                "loop with T.unroll, or over the list itself",
            )
        return value[index]

    def index(self, node: ast.Subscript) -> Any:
        return self.plain(self.eval(node.slice))

    def on_Slice(self, node: ast.Slice) -> Any:
        return slice(*[None if n is None else self.plain(self.eval(n)) for n in (node.lower, node.upper, node.step)])

    def on_JoinedStr(self, node: ast.JoinedStr) -> str:
        return "".join([str(self.eval(v)) for v in node.values])

    def on_FormattedValue(self, node: ast.FormattedValue) -> str:
        spec = self.eval(node.format_spec) if node.format_spec is not None else ""
        return format(self.eval(node.value), spec)

    def on_Lambda(self, node: ast.Lambda) -> Any:
        return self.local(node)

    def on_ListComp(self, node: ast.ListComp) -> Any:
        return list(self.comprehended(node.generators, lambda: self.eval(node.elt)))

    def on_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        return self.comprehended(node.generators, lambda: self.eval(node.elt))

    def on_SetComp(self, node: ast.SetComp) -> Any:
        return set(self.comprehended(node.generators, lambda: self.eval(node.elt)))

    def on_DictComp(self, node: ast.DictComp) -> Any:
        return dict(self.comprehended(node.generators, lambda: (self.eval(node.key), self.eval(node.value))))

    def comprehended(self, generators: Sequence[ast.comprehension], value: Callable[[], Any]) -> Iterator[Any]:
        found: list[Any] = []

        def go(rest: Sequence[ast.comprehension]) -> None:
            if not rest:
                found.append(value())
                return
            over = self.eval(rest[0].iter)
            if isinstance(over, Loop):
                raise self.error(rest[0].iter, "a comprehension goes over what Python knows at trace time")
            for v in over:
                self.scopes.append({})
                self.assign(rest[0].target, v)
                if all(self.eval(c) for c in rest[0].ifs):
                    go(rest[1:])
                self.scopes.pop()

        go(generators)
        return iter(found)

    def on_Call(self, node: ast.Call) -> Any:
        function = self.eval(node.func)
        args = self.several(node.args)
        kwargs: dict[str, Any] = {}
        for k in node.keywords:
            if k.arg is None:
                kwargs.update(self.eval(k.value))
            else:
                kwargs[k.arg] = self.eval(k.value)
        return self.called(node, function, args, kwargs)

    def called(self, node: ast.Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        replaced = _builtins().get(function) if isinstance(function, (type, types.BuiltinFunctionType)) else None
        values = [*args, *kwargs.values()]
        if replaced is not None and any(isinstance(self.plain(v), Expr) for v in values):
            return replaced(*map(self.plain, args), **kwargs)
        if isinstance(function, types.FunctionType) and _is_helper(function) and any(map(_is_of_the_program, values)):
            return self.call(function, args, kwargs)
        if not _is_vocabulary(function):
            args, kwargs = [self.plain(a) for a in args], {k: self.plain(v) for k, v in kwargs.items()}
        try:
            return function(*args, **kwargs)
        except TilewrightError:
            raise
        except Exception as e:
            raise self.error(node, f"{type(e).__name__}: {e}") from e


_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floordiv", operator.floordiv), ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow), ast.BitAnd: ("and", operator.and_), ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor), ast.LShift: ("shl", operator.lshift), ast.RShift: ("shr", operator.rshift),
    ast.MatMult: ("", operator.matmul),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt), ast.GtE: ("ge", operator.ge), ast.Is: ("", operator.is_), ast.IsNot: ("", operator.is_not),
    ast.In: ("", lambda a, b: a in b), ast.NotIn: ("", lambda a, b: a not in b),
}  # fmt: skip


def _what(v: Any) -> str:
    if isinstance(v, (Buffer, View, Region)):
        return "a whole tile"
    return f"a {type(v).__name__}"


def _suggest(value: Any, name: str) -> str:

    return did_you_mean(name, [n for n in dir(value) if not n.startswith("_")]).removeprefix("; ")


def _is_of_the_program(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_of_the_program, value))
    return isinstance(value, (Expr, Buffer, Region, Cell, View))


def _is_helper(function: types.FunctionType) -> bool:
    """Whether a function is the user's own, to be evaluated as part of the kernel."""
    return (not (function.__module__ or "").startswith("tilewright.") and function.__code__.co_filename.endswith(".py")) or (
        function.__code__.co_filename.startswith("<")
    )


def _is_vocabulary(function: Any) -> bool:
    return (getattr(function, "__module__", "") or "").startswith("tilewright.")


@functools.cache
def _builtins() -> dict[Any, Callable[..., Any]]:
    """What Python's own functions are on expressions."""
    from . import mathematics as t

    return {
        min: t.min, max: t.max, abs: t.abs, round: t.round, pow: t.pow,
        int: lambda x: t.cast(x, "int64"), float: lambda x: t.cast(x, "float32"), bool: lambda x: t.cast(x, "bool"),
    }  # fmt: skip


def counted(start: Any, stop: Any, step: int = 1) -> Loop:
    """The loop over `range(start, stop, step)`."""
    length = expressions.arithmetic("sub", stop, start)
    if isinstance(length, Expr):
        from .values import difference

        length = difference(expressions.expr(stop), expressions.expr(start))
    if step != 1:
        length = expressions.arithmetic("floordiv", expressions.arithmetic("add", length, step - 1), step)
    return Loop("serial", (const(max(length, 0)) if isinstance(length, int) else expressions.expr(length),), start, step)
