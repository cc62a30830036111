"""Sizes that one recording leaves open: what torch and the user's program see of them, and what was assumed of them.

In: an example value. Out: a symbol (a `Dim`); `torch.SymInt`s over Dims, made of a node of our own; the `Assumption`s under which
the program takes the course that it takes for the example. Must not know where a size comes from, or what a guard is.

torch asks a node for arithmetic and for decisions: the protocol is that of `torch.fx.experimental.sym_node.SymNode`, duck-typed.
"""

from __future__ import annotations

import contextlib
import math
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..base import dims
from ..base.dims import Dim, Size
from . import torch_private as private

LARGEST = 1 << 48
"""No size in memory reaches it: a comparison with a larger number needs no assumption."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """`left op right` is `holds` for the example, and was taken to be so; op: ==, < or <=."""

    op: str
    left: Size
    right: Size
    holds: bool

    def __str__(self) -> str:
        negated = {"==": "!=", "<": ">=", "<=": ">"}
        return f"{self.left} {self.op if self.holds else negated[self.op]} {self.right}"


_COMPARES: dict[str, Callable[[int, int], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}
_KNOWN: dict[str, Callable[[Size, Size], bool | None]] = {
    "==": lambda a, b: True if dims.provably_eq(a, b) else False if dims.provably_ne(a, b) else None,
    "<": lambda a, b: True if dims.provably_lt(a, b) else False if dims.provably_le(b, a) else None,
    "<=": lambda a, b: True if dims.provably_le(a, b) else False if dims.provably_lt(b, a) else None,
}


def known(op: str, a: Size, b: Size) -> bool | None:
    """The answer, if it is the same for all values of the symbols."""
    found = _KNOWN[op](a, b)
    if found is not None:
        return found
    difference = b - a
    scale = dims.common(difference)
    if isinstance(scale, int) or not dims.provably_gt(scale, 0):
        return None
    left = dims.quotient(difference, scale)  # of the same sign
    return None if left is None else _KNOWN[op](0, left)


class Symbols:
    """The open sizes of one recording. `hints`, `sizes`: of each name the example's value, and the size, in order. `assumed`:
    what was, and where."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.sizes: dict[str, Dim] = {}
        self.assumed: dict[Assumption, Any] = {}
        self.where: Callable[[], Any] = lambda: None
        self._answers: dict[tuple[str, Size, Size], bool] = {}

    def new(self, hint: int, lo: int | None = 2, hi: int | None = None, divisor: int = 1) -> Dim:
        """A symbol of its own, named s0, s1, ..."""
        name = f"s{len(self.hints)}"
        self.hints[name] = hint
        made = self.sizes[name] = dims.symbol(name, lo, hi, divisor)
        return made

    def hint(self, size: Size) -> int:
        """The size in the example."""
        return dims.evaluate(size, self.hints)

    def decide(self, op: str, a: Size, b: Size) -> bool:
        """Whether `a op b`: known for all values of the symbols, or assumed as the example has it."""
        key = (op, a, b)
        with dims.deciding(None):
            found = self._answers.get(key)
            if found is None:
                found = self._answers[key] = self._decided(op, a, b)
        return found

    def _decided(self, op: str, a: Size, b: Size) -> bool:
        if op != "==" and (isinstance(a, int) and abs(a) >= LARGEST):
            return a < 0
        if op != "==" and (isinstance(b, int) and abs(b) >= LARGEST):
            return b > 0
        answer = known(op, a, b)
        if answer is not None:
            return answer
        holds = _COMPARES[op](self.hint(a), self.hint(b))
        self.assumed.setdefault(Assumption(op, a, b, holds), self.where())
        return holds

    def settle(self, size: Size) -> int:
        """The size as a number; where it is open, its value in the example is assumed."""
        if isinstance(size, int):
            return size
        value = self.hint(size)
        self.decide("==", size, value)
        return value

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within, in this thread, these symbols answer for all sizes."""
        before, _ACTIVE.symbols = getattr(_ACTIVE, "symbols", None), self
        try:
            with dims.deciding(self.decide):
                yield
        finally:
            _ACTIVE.symbols = before


_ACTIVE = threading.local()


def active() -> Symbols:
    """The symbols of this thread's recording. Raises RuntimeError outside of one."""
    found: Symbols | None = getattr(_ACTIVE, "symbols", None)
    if found is None:
        raise RuntimeError("a symbolic size is used after the recording that it belongs to")
    return found


def is_open() -> bool:
    """Whether this thread is in a recording that has symbols."""
    found: Symbols | None = getattr(_ACTIVE, "symbols", None)
    return found is not None and bool(found.hints)


def hint_of(value: Any) -> Any:
    """A size, or torch's, as the number that it is in the example; any other value as it is."""
    if value.__class__ is torch.SymInt:
        return active().hint(value.node.size)
    return active().hint(value) if value.__class__ is Dim else value


def settled(size: Size) -> int:
    """The size as a number, which is assumed where it is open."""
    return active().settle(size) if size.__class__ is Dim else size  # type: ignore[return-value]


# --- between torch's integers and ours --------------------------------------------------------------------------------


def size_of(value: Any) -> Any:
    """A `torch.SymInt` as a Size; any other value as it is."""
    return value.node.size if type(value) is torch.SymInt else value


def plain(value: Any) -> Any:
    """The value, of torch's symbolic numbers only ints whose value is open."""
    cls = type(value)
    if cls is torch.SymBool:
        return bool(value)
    if cls is torch.SymFloat:
        return float(value)
    return value.node.size if cls is torch.SymInt and isinstance(value.node.size, int) else value


def settle_floats(values: Sequence[Any]) -> list[Any]:
    """An operator's arguments, without torch's symbolic floats: a size beside tensors of floats alone, else the value."""
    floats = [v.is_floating_point() for v in values if isinstance(v, torch.Tensor)]
    if not floats or not all(floats):
        return [float(v) if type(v) is torch.SymFloat else v for v in values]
    return [
        to_symint(v.node.size) if type(v) is torch.SymFloat and v.node.size is not None else float(v) if type(v) is torch.SymFloat
        else v for v in values
    ]  # fmt: skip


def sizes_of(values: Sequence[Any]) -> tuple[Size, ...]:
    """What torch gives as a shape or strides."""
    return tuple([v.node.size if type(v) is torch.SymInt else v for v in values])


def sizes_in(value: Any) -> Any:
    """The value with Sizes for the SymInts in it, within lists and tuples too."""
    cls = type(value)
    if cls is torch.SymInt:
        return value.node.size
    if cls is list or cls is tuple or cls is torch.Size:
        return [sizes_in(v) for v in value] if cls is list else tuple([sizes_in(v) for v in value])
    return value


def to_symint(size: Size) -> Any:
    """What stands for a size in torch and in the user's program: an int, or a `torch.SymInt`."""
    return size if size.__class__ is int else torch.SymInt(SizeNode(size))


def to_symints(sizes: Sequence[Size]) -> tuple[Any, ...]:
    return tuple([s if s.__class__ is int else torch.SymInt(SizeNode(s)) for s in sizes])


class _Node:
    """What torch asks of every node."""

    __slots__ = ()

    def is_int(self) -> bool:
        return False

    is_bool = is_float = is_nested_int = is_constant = is_int

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def clone(self) -> Any:
        return self

    def nested_int(self) -> Any:
        return None

    maybe_as_float = constant_bool = constant_int = nested_int

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(value)

    def wrap_bool(self, value: bool) -> TruthNode:
        return TruthNode("==", int(value), 1)

    def wrap_float(self, value: float) -> NumberNode:
        return NumberNode(value)

    def str(self) -> Any:
        return repr(self)

    _graph_repr = str


class SizeNode(_Node):
    """An integer: a Size."""

    __slots__ = ("size",)

    def __init__(self, size: Size) -> None:
        self.size = size

    def is_int(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return isinstance(self.size, int)

    def maybe_as_int(self) -> int | None:
        return self.size if isinstance(self.size, int) else None

    constant_int = maybe_as_int

    def __repr__(self) -> str:
        """Code that is not ours has the number, which is assumed from then on."""
        return repr(active().settle(self.size)) if is_open() else str(self.size)

    @property
    def hint(self) -> int:
        return active().hint(self.size)

    _hint = hint

    def guard_int(self, file: str, line: int) -> int:
        return active().settle(self.size)

    def int_(self) -> int:
        return active().settle(self.size)

    def guard_float(self, file: str, line: int) -> float:
        return float(active().settle(self.size))

    def sym_float(self) -> NumberNode:
        return NumberNode(float(self.hint), self.size)

    def neg(self) -> SizeNode:
        return SizeNode(-self.size)

    def pos(self) -> SizeNode:
        return self

    def abs(self) -> SizeNode:
        return SizeNode(self.size if active().decide("<=", 0, self.size) else -self.size)

    def expect_size(self, file: str, line: int) -> bool:
        return active().decide("<=", 0, self.size)

    def sym_sum(self, args: Sequence[SizeNode]) -> SizeNode:
        total: Size = 0
        for a in args:
            total = total + a.size
        return SizeNode(total)

    # Questions about a tensor's strides, of which sizes and strides are given.

    def is_contiguous(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import is_contiguous

        return self.wrap_bool(is_contiguous(*_lists(sizes, strides)))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import is_channels_last

        return self.wrap_bool(len(sizes) == 4 and is_channels_last(*_lists(sizes, strides)))

    def is_channels_last_contiguous_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import is_channels_last

        return self.wrap_bool(len(sizes) == 5 and is_channels_last(*_lists(sizes, strides)))

    def is_channels_last_strides_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import suggests_channels_last

        return self.wrap_bool(len(sizes) == 4 and suggests_channels_last(*_lists(sizes, strides)))

    def is_channels_last_strides_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import suggests_channels_last

        return self.wrap_bool(len(sizes) == 5 and suggests_channels_last(*_lists(sizes, strides)))

    def is_non_overlapping_and_dense(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TruthNode:
        from .strides import is_dense

        return self.wrap_bool(is_dense(*_lists(sizes, strides)))

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


def _lists(sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    plain = [tuple([v.size if isinstance(v, SizeNode) else size_of(v) for v in values]) for values in (sizes, strides)]
    return plain[0], plain[1]


def _minimum(a: Size, b: Size) -> Size:
    return a if active().decide("<=", a, b) else b


def _maximum(a: Size, b: Size) -> Size:
    return b if active().decide("<=", a, b) else a


def _power(self: SizeNode, other: Any) -> Any:
    """A small natural power is a product."""
    if isinstance(other, SizeNode) and isinstance(other.size, int) and 0 <= other.size <= 4:
        result: Size = 1
        for _ in range(other.size):
            result = result * self.size
        return SizeNode(result)
    return _node(_settled(self) ** _settled(other))


def _shift(by: Callable[[Size, int], Size], function: Callable[[int, int], int]) -> Callable[[SizeNode, Any], Any]:
    """A shift by a number is a product or a quotient."""

    def result(self: SizeNode, other: Any) -> Any:
        if isinstance(other, SizeNode) and isinstance(other.size, int) and 0 <= other.size < 16:
            return SizeNode(by(self.size, other.size))
        return _node(function(_settled(self), _settled(other)))

    return result


def _divided(function: Callable[[Size, Size], Size]) -> Callable[[Size, Size], Size]:
    """Division, by what is not zero."""

    def result(a: Size, b: Size) -> Size:
        if not isinstance(b, int) and active().decide("==", b, 0):
            raise ZeroDivisionError("integer division or modulo by zero")
        return function(a, b)

    return result


_ARITHMETIC: Mapping[str, Callable[[Size, Size], Size]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": _divided(operator.floordiv),
    "int_floordiv": _divided(operator.floordiv), "mod": _divided(operator.mod), "sym_min": _minimum, "sym_max": _maximum,
}  # fmt: skip
_ON_VALUES: Mapping[str, Callable[[int, int], int | float]] = {
    "float_pow": lambda a, b: float(a) ** float(b),
    "bitwise_and": operator.and_, "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor, "and_": operator.and_, "or_": operator.or_,
}  # fmt: skip
_COMPARISONS: Mapping[str, tuple[str, bool, bool]] = {  # op, whether turned round, whether denied
    "eq": ("==", False, False), "ne": ("==", False, True), "lt": ("<", False, False), "le": ("<=", False, False),
    "gt": ("<", True, False), "ge": ("<=", True, False),
}  # fmt: skip


def _node(value: int | float | Size) -> SizeNode | NumberNode:
    return NumberNode(value) if isinstance(value, float) else SizeNode(value)


def _settled(node: Any) -> Any:
    return active().settle(node.size) if isinstance(node, SizeNode) else node.value


def _arithmetic(function: Callable[[Size, Size], Size]) -> Callable[[SizeNode, Any], Any]:
    def method(self: SizeNode, other: Any) -> Any:
        if isinstance(other, SizeNode):
            return SizeNode(function(self.size, other.size))
        return _node(function(_settled(self), _settled(other)))

    return method


def _true_quotient(self: SizeNode | NumberNode, other: Any) -> NumberNode:
    """Of sizes of which one is a multiple of the other, the same for all."""
    a, b = self.size, other.size
    if a is not None and b is not None:
        for above, below, turned in ((a, b, False), (b, a, True)):
            times = dims.quotient(above, below) if dims.provably_gt(below, 0) else None
            if isinstance(times, int) and times > 0:
                return NumberNode(1 / times if turned else times)
    return NumberNode(_settled(self) / _settled(other))


def _float_product(self: NumberNode, other: Any) -> NumberNode:
    """A size times a whole number is a size."""
    both = isinstance(self, NumberNode) and isinstance(other, NumberNode)
    for a, b in ((self, other), (other, self)) if both else ():
        if a.size is not None and b.size is None and 0 < b.value < 1 << 16 and b.value.is_integer():
            return NumberNode(a.open * b.open, a.size * int(b.value))
    return NumberNode(_settled(self) * _settled(other))


def _on_values(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: _node(function(_settled(self), _settled(other)))


def _comparison(op: str, turned: bool, denied: bool) -> Callable[[SizeNode, Any], TruthNode]:
    def method(self: SizeNode, other: Any) -> TruthNode:
        if not isinstance(other, SizeNode):
            a, b = _settled(self), _settled(other)
            return self.wrap_bool(_COMPARES[op](*((b, a) if turned else (a, b))) is not denied)
        a, b = (other.size, self.size) if turned else (self.size, other.size)
        return TruthNode(op, a, b, denied)

    return method


for _name, _function in _ARITHMETIC.items():
    setattr(SizeNode, _name, _arithmetic(_function))
for _name, _on_ints in _ON_VALUES.items():
    setattr(SizeNode, _name, _on_values(_on_ints))
SizeNode.lshift = _shift(lambda a, b: a * (1 << b), operator.lshift)  # type: ignore[attr-defined]
SizeNode.rshift = _shift(lambda a, b: a // (1 << b), operator.rshift)  # type: ignore[attr-defined]
SizeNode.pow = SizeNode.pow_by_natural = _power  # type: ignore[attr-defined]
SizeNode.truediv = SizeNode.int_truediv = SizeNode.float_truediv = _true_quotient  # type: ignore[attr-defined]
for _name, (_op, _turned, _denied) in _COMPARISONS.items():
    setattr(SizeNode, _name, _comparison(_op, _turned, _denied))


class TruthNode(private.AskedThroughEnvironment, _Node):
    """`left op right`, or its negation where `denied`: not decided before someone asks."""

    __slots__ = ("denied", "left", "op", "right")

    @property
    def hint(self) -> bool:
        a, b = hint_of(self.left), hint_of(self.right)
        return _COMPARES[self.op](a, b) is not self.denied

    _hint = hint

    def __init__(self, op: str, left: Size, right: Size, denied: bool = False) -> None:
        self.op, self.left, self.right, self.denied = op, left, right, denied

    def is_bool(self) -> bool:
        return True

    def __repr__(self) -> str:
        return str(Assumption(self.op, self.left, self.right, not self.denied))

    def _answer(self) -> bool:
        if isinstance(self.left, int) and isinstance(self.right, int):
            return _COMPARES[self.op](self.left, self.right) is not self.denied
        return active().decide(self.op, self.left, self.right) is not self.denied

    def is_constant(self) -> bool:
        return self.statically()[0]

    def statically(self) -> tuple[bool, bool]:
        """(whether the answer is known for all sizes, the answer if so)"""
        found = known(self.op, self.left, self.right)
        return found is not None, bool(found) is not self.denied

    def constant_bool(self) -> bool | None:
        sure, answer = self.statically()
        return answer if sure else None

    maybe_as_bool = constant_bool

    def bool_(self) -> bool:
        return self._answer()

    def guard_bool(self, file: str, line: int) -> bool:
        return self._answer()

    expect_true = guard_or_false = guard_or_true = guard_size_oblivious = guard_bool

    def statically_known_true(self, file: str, line: int) -> bool:
        sure, answer = self.statically()
        return sure and answer

    def sym_not(self) -> TruthNode:
        return TruthNode(self.op, self.left, self.right, not self.denied)

    def sym_and(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self._answer() and other._answer())

    def sym_or(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self._answer() or other._answer())

    and_, or_ = sym_and, sym_or

    def eq(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self._answer() == other._answer())

    def ne(self, other: TruthNode) -> TruthNode:
        return self.wrap_bool(self._answer() != other._answer())

    def sym_ite(self, then: Any, orelse: Any) -> Any:
        return then if self._answer() else orelse


def _number_comparison(function: Callable[[float, float], bool]) -> Callable[[NumberNode, Any], TruthNode]:
    return lambda self, other: self.wrap_bool(function(self.value, _settled(other)))


class NumberNode(_Node):
    """A float: its value, which was assumed; or a `size`, in the example `open`, as long as no one asks for the value."""

    __slots__ = ("open", "size")

    def __init__(self, value: float, size: Size | None = None) -> None:
        self.open = float(value)
        self.size = size

    @property
    def value(self) -> float:
        if self.size is not None:
            active().settle(self.size)
        return self.open

    def is_float(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self.value)

    def maybe_as_float(self) -> float:
        return self.value

    def guard_float(self, file: str, line: int) -> float:
        return self.value

    def sym_float(self) -> NumberNode:
        return self

    def neg(self) -> NumberNode:
        return NumberNode(-self.value)

    def float_pow(self, other: Any) -> NumberNode:
        return NumberNode(self.value ** float(_settled(other)))

    def trunc(self) -> SizeNode:
        return SizeNode(math.trunc(self.value))

    def ceil(self) -> SizeNode:
        return SizeNode(math.ceil(self.value))

    def floor(self) -> SizeNode:
        return SizeNode(math.floor(self.value))

    def round(self, digits: int | None = None) -> Any:
        return _node(round(self.value, digits))


for _name in ("add", "sub", "mod", "pow"):
    setattr(NumberNode, _name, _on_values(getattr(operator, _name)))
NumberNode.truediv = NumberNode.float_truediv = _true_quotient  # type: ignore[attr-defined]
NumberNode.mul = _float_product  # type: ignore[attr-defined]
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(NumberNode, _name, _number_comparison(getattr(operator, _name)))
