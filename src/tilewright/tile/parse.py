"""Reads the text that `text.py` prints. In: text of one or several kernels. Out: `Kernel`s, or a `ParseError` with the place.

Expressions are rebuilt exactly as written: nothing is folded. Must not know targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from ..base import dtypes, scalar
from ..base.dtypes import DType
from ..base.errors import Location, ParseError
from . import ir
from .ir import Buffer, Const, Expr, Kernel, Layout, Load, Region, Scope, Stmt, Var
from .text import INFIX, PREFIX

_FLOATS = "|".join(d.short for d in dtypes.ALL if d.is_float)
_TYPES = "|".join(d.short for d in dtypes.ALL)
_TOKEN = re.compile(
    rf"""\s*(?:
    (?P<number>(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:{_TYPES})?|(?:inf|nan)(?:{_FLOATS})?)(?![\w.]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*) |(?P<string>"(?:[^"\\]|\\.)*") |(?P<shared>%\d+)
    |(?P<symbol>\+:|//|<<|>>|<=|>=|==|!=|[-+*/%&|^~<>()\[\],:=])
    )""",
    re.VERBOSE,
)
_NUMBER = re.compile(rf"(inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?)({_TYPES})?")
_OPERATIONS = {symbol: (op, level) for op, (symbol, level) in INFIX.items()}
_LOOPS = frozenset(("unrolled", "vectorized", "pipelined", "persistent"))

_SCOPES = frozenset(s.value for s in Scope)

T = TypeVar("T")


def parse_kernels(text: str) -> list[Kernel]:
    """Every kernel of a text; blank lines and lines that start with `#` are skipped."""
    lines = [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")]
    reader = _Reader(lines)
    kernels = []
    while reader.at < len(lines):
        kernels.append(reader.kernel())
    return kernels


def parse_kernel(text: str) -> Kernel:
    """The one kernel of a text. Raises ParseError, with the place, for what cannot be read."""
    kernels = parse_kernels(text)
    if len(kernels) != 1:
        raise ParseError(what="the kernel", reason=f"one kernel expected, got {len(kernels)}")
    return kernels[0]


class _Line:
    """The tokens of one line."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text.rstrip()
        self.tokens: list[tuple[str, str]] = []  # kind, text
        self.ends: list[int] = []  # the column behind each token
        self.at = 0
        where = 0
        while where < len(self.text):
            found = _TOKEN.match(self.text, where)
            if found is None:
                self.ends.append(len(self.text) - len(self.text[where:].lstrip()) + 2)
                self.at = len(self.tokens) + 1
                raise self.error(f"unexpected {self.text[where:].strip()[:1]!r}")
            self.tokens.append((str(found.lastgroup), found.group(str(found.lastgroup))))
            where = found.end()
            self.ends.append(where + 1)

    def error(self, problem: str) -> ParseError:
        """The error, at the token last taken."""
        last = min(self.at, len(self.ends)) - 1
        width = len(self.tokens[last][1]) if 0 <= last < len(self.tokens) else 1
        end = self.ends[last] if last >= 0 else 2
        return ParseError(what="the kernel", reason=problem, at=Location("<kernel>", self.number, end - width, end, self.text))

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, kind: str = "") -> str:
        """The next token, of this kind."""
        if self.at >= len(self.tokens) or (kind and self.tokens[self.at][0] != kind):
            raise self.error(f"a {kind or 'token'} expected, got {self.peek() or 'the end of the line'!r}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, text: str) -> bool:
        """Take the next token if it is this one; "" is the end of the line."""
        if self.peek() != text or (text and self.tokens[self.at][0] == "string"):
            return False
        if not text:
            return True
        self.at += 1
        return True

    def expect(self, *texts: str) -> None:
        for text in texts:
            if not self.accept(text):
                raise self.error(f"{text!r} expected, got {self.peek() or 'the end of the line'!r}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"unexpected {self.peek()!r}")

    def list(self, item: Callable[[], T], close: str) -> list[T]:
        """Items up to `close`, which is taken."""
        items: list[T] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items


class _Reader:
    """Lines to kernels; holds the names in scope."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        self.lines = lines
        self.at = 0
        self.vars: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}
        self.shared: dict[str, _Line | Expr] = {}  # abbreviations before the statement at hand, read when first used

    # lines

    def line(self) -> _Line:
        number, text = self.lines[self.at]
        self.at += 1
        return _Line(number, text)

    def indent(self) -> int:
        """Of the next line; -1 behind the last one."""
        if self.at >= len(self.lines):
            return -1
        text = self.lines[self.at][1]
        return len(text) - len(text.lstrip(" "))

    def starts(self, word: str) -> bool:
        return bool(re.match(rf"\s*{word}\b(?!\[)", self.lines[self.at][1])) if self.at < len(self.lines) else False

    # kernels

    def kernel(self) -> Kernel:
        self.vars, self.buffers = {}, {}
        head = self.line()
        head.expect("kernel")
        name = head.take("name")
        head.expect(":")
        head.end()
        indent = self.indent()
        if indent <= 0:
            raise head.error("a body expected")
        self.foresee_scalars()
        params: list[Buffer] = []
        outputs: list[str] = []
        while (out := self.starts("out")) or self.starts("in"):
            line = self.line()
            line.take()
            params.append(self.buffer(line, Scope.GLOBAL))
            line.end()
            outputs += [params[-1].name] if out else []
        if self.starts("outputs"):
            line = self.line()
            line.take()
            outputs = line.list(lambda: line.take("name"), "")
        scalars: list[Var] = []
        while self.starts("scalar"):
            line = self.line()
            line.take()
            scalars.append(self.variable(line))
        bounded = self.starts("bounded")
        if bounded:
            self.line().take()
        cost = 0.0
        if self.starts("cost"):
            line = self.line()
            line.take()
            cost = float(line.take("number"))
        grid: list[tuple[Var, Expr]] = []
        if self.starts("grid"):
            line = self.line()
            line.take()
            grid = self.ranges(line, "")
        body = self.body(indent)
        return Kernel(name, tuple(params), tuple(grid), body, tuple(outputs), tuple(scalars), cost, bounded)

    def foresee_scalars(self) -> None:
        """Scalars are written behind the parameters, whose shapes name them: put them into scope, and stay."""
        for number, text in self.lines[self.at :]:
            if re.match(r"\s*scalar\b(?!\[)", text):
                line = _Line(number, text)
                line.take()
                self.variable(line)
            elif not re.match(r"\s*(in|out|outputs)\b(?!\[)", text):
                return

    def variable(self, line: _Line) -> Var:
        """`name` or `name: type`, put into scope."""
        name = line.take("name")
        v = Var(name, self.dtype(line) if line.accept(":") else dtypes.i64)
        self.vars[name] = v
        return v

    def ranges(self, line: _Line, close: str) -> list[tuple[Var, Expr]]:
        """`i in 4, j in n` up to `close`; an extent does not see the variables."""
        pairs: list[tuple[Var, Expr]] = []
        while not line.accept(close):
            if pairs:
                line.expect(",")
            name = line.take("name")
            dtype = self.dtype(line) if line.accept(":") else dtypes.i64
            line.expect("in")
            pairs.append((Var(name, dtype), self.expr(line)))
        self.vars |= {v.name: v for v, _ in pairs}
        return pairs

    def dtype(self, line: _Line) -> DType:
        name = line.take("name")
        if name not in dtypes.BY_NAME:
            raise line.error(f"unknown type {name!r}")
        return dtypes.named(name)

    def buffer(self, line: _Line, scope: Scope) -> Buffer:
        name = line.take("name")
        line.expect(":")
        dtype = self.dtype(line)
        line.expect("[")
        shape = tuple(line.list(lambda: self.expr(line), "]"))
        strides: tuple[Expr, ...] | None = None
        if line.accept("strides"):
            line.expect("[")
            strides = tuple(line.list(lambda: self.expr(line), "]"))
        layout = self.layout(line) if line.accept("layout") else None
        self.buffers[name] = Buffer(name, dtype, shape, scope, strides, layout)
        return self.buffers[name]

    def layout(self, line: _Line) -> Layout:
        name = line.take("name")
        outer = dict(self.vars)
        line.expect("(")
        variables = tuple(line.list(lambda: self.variable(line), ")"))
        line.expect("=")
        address = self.expr(line)
        self.vars = outer
        line.expect("size")
        return Layout(name, variables, address, self.expr(line))

    # statements

    def body(self, indent: int) -> Stmt:
        """The statements at this indentation, with the scope that they open closed again."""
        saved = dict(self.vars), dict(self.buffers)
        if self.indent() != indent:
            raise _Line(*self.lines[min(self.at, len(self.lines) - 1)]).error("an indented statement expected")
        items: list[Stmt | Callable[[Stmt], Stmt]] = []
        while self.indent() == indent:
            self.shared = {}
            while self.lines[self.at][1].lstrip().startswith("%"):
                line = self.line()
                number = line.take("shared")
                line.expect("=")
                self.shared[number] = line
            items.append(self.statement(self.line(), indent))
        if self.indent() > indent:
            raise self.line().error("unexpected indentation")
        self.vars, self.buffers = saved
        return _nested(items)

    def inner(self, indent: int, line: _Line) -> Stmt:
        line.expect(":")
        line.end()
        if self.indent() <= indent:
            raise line.error("a body expected")
        return self.body(self.indent())

    def statement(self, line: _Line, indent: int) -> Stmt | Callable[[Stmt], Stmt]:
        if line.peek(1) == "[":
            buffer, index = self.element(line)
            line.expect("=")
            return self.ended(line, ir.Store(buffer, index, self.expr(line)))
        word = line.take("name")
        match word:
            case "for":
                return self.loop(line, indent)
            case "if":
                cond = self.expr(line)
                then = self.inner(indent, line)
                orelse = None
                if self.indent() == indent and self.starts("else"):
                    other = self.line()
                    other.take()
                    orelse = self.inner(indent, other)
                return ir.If(cond, then, orelse)
            case "while":
                cond = self.expr(line)
                return ir.While(cond, self.inner(indent, line))
            case "scope":
                return self.inner(indent, line)
            case "alloc":
                where = line.take("name")
                if where not in _SCOPES:
                    raise line.error(f"unknown scope {where!r}")
                made = self.buffer(line, Scope(where))
                line.end()
                return lambda rest: ir.Alloc(made, rest)
            case "let":
                name = line.take("name")
                line.expect("=")
                value = self.expr(line)
                line.end()
                v = self.vars[name] = Var(name, value.dtype)
                return lambda rest: ir.Let(v, value, rest)
            case "reduce" | "accumulate":
                return self.reduction(line, word == "reduce")
            case "atomic":
                op = line.take("name")
                buffer, index = self.element(line)
                line.expect("=")
                return self.ended(line, ir.Atomic(op, buffer, index, self.expr(line)))
            case "pass":
                return self.ended(line, ir.Block(()))
            case "break":
                return self.ended(line, ir.Break())
            case "continue":
                return self.ended(line, ir.Continue())
            case "assert":
                cond = self.expr(line)
                line.expect(",")
                return self.ended(line, ir.Assert(cond, json.loads(line.take("string"))))
        return self.call(word, line)

    def ended(self, line: _Line, s: Stmt) -> Stmt:
        line.end()
        return s

    def loop(self, line: _Line, indent: int) -> Stmt:
        outer = dict(self.vars)
        names: list[tuple[str, DType]] = []
        while not line.accept("in"):
            if names:
                line.expect(",")
            name = line.take("name")
            names.append((name, self.dtype(line) if line.accept(":") else dtypes.i64))
        kind = line.take("name")
        line.expect("(")
        stages = 0
        extents: list[Expr] = []
        while not line.accept(")"):
            if extents:
                line.expect(",")
            if line.peek() == "stages":
                line.expect("stages", "=")
                stages = int(line.take("number"))
            else:
                extents.append(self.expr(line))
        made = tuple(Var(*n) for n in names)
        if len(extents) != len(made):
            raise line.error(f"{len(made)} extents expected, got {len(extents)}")
        self.vars |= {v.name: v for v in made}
        body = self.inner(indent, line)
        self.vars = outer
        if kind == "parallel":
            return ir.Parallel(made, tuple(extents), body)
        if kind != "range" and kind not in _LOOPS:
            raise line.error(f"unknown loop {kind!r}")
        return ir.For(made[0], extents[0], body, "serial" if kind == "range" else kind, stages)

    def reduction(self, line: _Line, clear: bool) -> Stmt:
        buffer, index = self.element(line)
        line.expect("=")
        op = line.take("name")
        outer = dict(self.vars)
        line.accept("over")
        over = self.ranges(line, ":")
        value = self.expr(line)
        self.vars = outer
        variables, extents = tuple(v for v, _ in over), tuple(e for _, e in over)
        return self.ended(line, ir.Reduce(op, buffer, index, variables, extents, value, clear))

    def call(self, word: str, line: _Line) -> Stmt:
        """The statements written as calls."""
        line.expect("(")
        if word == "copy":
            src, dst, flags = self.region(line), self.next_region(line), self.flags(line)
            return self.ended(line, ir.Copy(src, dst, "transpose" in flags))
        if word == "fill":
            dst = self.region(line)
            line.expect(",")
            value = self.expr(line)
            line.expect(")")
            return self.ended(line, ir.Fill(dst, value))
        if word == "gemm":
            a, b, acc, flags = self.region(line), self.next_region(line), self.next_region(line), self.flags(line)
            which = ("transpose_a" in flags, "transpose_b" in flags, "clear" in flags)
            return self.ended(line, ir.Gemm(a, b, acc, *which, json.loads(flags.get("policy", '"square"'))))
        if word == "scan":
            op = line.take("name")
            src, dst, flags = self.next_region(line), self.next_region(line), self.flags(line)
            return self.ended(line, ir.Scan(op, src, dst, int(flags["axis"]), "reverse" in flags))
        if word == "print":
            message = json.loads(line.take("string"))
            line.accept(",")
            args = line.list(lambda: self.expr(line), ")")
            return self.ended(line, ir.Print(message, tuple(args)))
        if word == "sync":
            scope = json.loads(line.take("string"))
            line.expect(")")
            return self.ended(line, ir.Sync(scope))
        raise line.error(f"unknown statement {word!r}")

    def flags(self, line: _Line) -> dict[str, str]:
        """`, name=value` ... up to the closing parenthesis."""
        found: dict[str, str] = {}
        while not line.accept(")"):
            line.expect(",")
            name = line.take("name")
            line.expect("=")
            found[name] = line.take()
        return found

    # expressions

    def named_buffer(self, line: _Line) -> Buffer:
        name = line.take("name")
        if name not in self.buffers:
            raise line.error(f"no buffer {name!r} here")
        return self.buffers[name]

    def element(self, line: _Line) -> tuple[Buffer, tuple[Expr, ...]]:
        buffer = self.named_buffer(line)
        line.expect("[")
        return buffer, tuple(line.list(lambda: self.expr(line), "]"))

    def next_region(self, line: _Line) -> Region:
        line.expect(",")
        return self.region(line)

    def region(self, line: _Line) -> Region:
        buffer = self.named_buffer(line)
        line.expect("[")

        def span() -> tuple[Expr, Expr | None]:
            offset = self.expr(line)
            return offset, self.expr(line) if line.accept("+:") else None

        spans = line.list(span, "]")
        return Region(buffer, tuple(o for o, _ in spans), tuple(e for _, e in spans))

    def expr(self, line: _Line, tightness: int = 1) -> Expr:
        """Operators that bind at least as tightly as `tightness`."""
        x = self.operand(line)
        while (known := _OPERATIONS.get(line.peek())) is not None and known[1] >= tightness:
            line.take("symbol")
            y = self.expr(line, known[1] + 1)
            if x.dtype is not y.dtype:
                raise line.error(f"{known[0]} of {x.dtype} and {y.dtype}")
            x = scalar.Binary(known[0], x, y)
        return x

    def operand(self, line: _Line) -> Expr:
        kind = line.tokens[line.at][0] if line.at < len(line.tokens) else ""
        if line.accept("-"):
            if line.at < len(line.tokens) and line.tokens[line.at][0] == "number":
                return _number(line.take(), -1)
            return scalar.Unary("neg", self.expr(line, PREFIX))
        if line.accept("~"):
            return scalar.Unary("not", self.expr(line, PREFIX))
        if line.accept("("):
            inner = self.expr(line)
            line.expect(")")
            return inner
        if kind == "number":
            return _number(line.take(), 1)
        if kind == "shared":
            return self.abbreviation(line)
        if line.peek(1) == "[":
            return Load(*self.element(line))
        name = line.take("name")
        if line.accept("("):
            return self.function(name, line.list(lambda: self.expr(line), ")"), line)
        if name in ("True", "False"):
            return Const(name == "True", dtypes.b1)
        if name not in self.vars:
            raise line.error(f"no variable {name!r} here")
        return self.vars[name]

    def abbreviation(self, line: _Line) -> Expr:
        number = line.take()
        known = self.shared.get(number)
        if known is None:
            raise line.error(f"{number} is not defined before this statement")
        if isinstance(known, _Line):
            written = known
            known = self.shared[number] = self.expr(written)
            written.end()
        return known

    def function(self, name: str, args: list[Expr], line: _Line) -> Expr:
        if name in dtypes.BY_NAME and len(args) == 1:
            return scalar.Cast(args[0], dtypes.named(name))
        if name == "select" and len(args) == 3:
            return scalar.Select(*args)
        if name in scalar.UNARY and len(args) == 1:
            return scalar.Unary(name, *args)
        if name in scalar.BINARY and len(args) == 2:
            return scalar.Binary(name, *args)
        raise line.error(f"unknown function {name!r} of {len(args)} operands")


def _number(text: str, sign: int) -> Const:
    found = _NUMBER.fullmatch(text)
    digits, suffix = found.groups() if found else (text, None)  # a number token always matches
    whole = digits.isdigit()
    dtype = dtypes.named(suffix) if suffix else dtypes.i64 if whole else dtypes.f32
    return Const(sign * (float(digits) if dtype.is_float else int(digits)), dtype)


def _nested(items: list[Stmt | Callable[[Stmt], Stmt]]) -> Stmt:
    """The items of a block; each function (an alloc or a let) takes in what follows it."""
    rest: list[Stmt] = []
    for item in reversed(items):
        rest = [item, *rest] if isinstance(item, Stmt) else [item(_block(rest))]
    return _block(rest)


def _block(body: list[Stmt]) -> Stmt:
    return body[0] if len(body) == 1 else ir.Block(tuple(body))
