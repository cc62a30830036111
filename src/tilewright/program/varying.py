"""Python numbers and texts that change from call to call: unknown as long as arithmetic is done with them.

In: a number or text in a slot whose guard failed before. Out: `Varying`, which stands for it: arithmetic gives another, beside a
tensor it becomes a tensor of the graph. Anything else asks for its value: an int's is then guarded; at a float's or text's the
graph ends, since the next call has another one. Must not know bytecode.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..base import dims
from ..base.dims import Dim, Size
from ..graph import torch_private as private
from ..graph.fake import Fake
from ..graph.recorder import ArgSource
from ..graph.symbolic import hint_of, plain, size_of, to_symint
from .breaks import Break

if TYPE_CHECKING:
    from .outside import Outside

_LARGEST = 2**62
_EXACT = (torch.float32, torch.float64, torch.int64)  # dtypes in which an int and a tensor of it mean the same
_EXACT_FLOATS = (torch.float32, torch.float64)  # and a float


class Varying:
    """No number or text itself, so that nothing reads its value unseen. `text` computes it from the slots, named P<slot>, with
    functions of `math`. `sizes`: the open sizes that it depends on; `positive`: whether it is above zero for all of them;
    `ratio`: the sizes, not negative, whose quotient it is."""

    __slots__ = ("outside", "positive", "ratio", "sizes", "slots", "tensor", "text", "value")

    def __init__(
        self, outside: Outside, value: int | float | str, text: str, slots: frozenset[int],
        sizes: frozenset[Dim] = frozenset(), positive: bool = False,
    ) -> None:  # fmt: skip
        self.outside = outside
        self.value = value
        self.text = text
        self.slots = slots
        self.sizes = sizes
        self.positive = positive
        self.ratio: tuple[Size, Size] | None = None
        self.tensor: Fake | None = None

    def known(self) -> Any:
        """Its value, guarded. Raises Break for a float or text that depends on no size."""
        if type(self.value) is not int and not self.sizes:
            raise Break("varying", f"a {type(self.value).__name__}")
        for size in self.sizes:
            self.outside.sizes.symbols.settle(size)
        self.outside.settle(self.slots)
        return self.value

    def fake(self) -> Fake:
        """The tensor of the graph that holds it."""
        if self.tensor is None:
            self.tensor = self.outside.recorder.input(_scalar(self.value), ArgSource((self.text,)))
            index = self.tensor.memory.source
            assert index is not None
            self.outside.computed[index] = self
        return self.tensor

    def operand(self, other: Fake) -> Fake | int:
        """What stands for it beside a tensor."""
        exact = _EXACT if type(self.value) is int else _EXACT_FLOATS
        return self.fake() if other.dtype in exact and other.dim() > 0 else self.known()

    def __index__(self) -> int:
        return self.known()

    def __int__(self) -> int:
        return int(self.known())

    def __hash__(self) -> int:
        return hash(self.known())

    def __float__(self) -> float:
        return float(self.known())

    def __bool__(self) -> bool:
        return bool(self.known())

    def __repr__(self) -> str:
        return repr(self.known())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.known(), spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.known(), name)


def of_size(outside: Outside, size: torch.SymInt) -> Varying:
    """A size as a number that varies."""
    own = size_of(size)
    text, slots = outside.sizes.text(own)
    made = Varying(outside, hint_of(size), text, slots, frozenset((own,)), dims.provably_gt(own, 0))
    made.ratio = (own, 1) if dims.provably_ge(own, 0) else None
    return made


def of_function(outside: Outside, function: Callable[..., Any], args: list[Any]) -> Any:
    """What a function of `math` gives for numbers of which some vary."""
    ratio = args[0].ratio if type(args[0]) is Varying else None
    if ratio is not None and function in (math.floor, math.trunc, math.ceil):  # what a float rounds off does not reach an integer
        above, below = ratio
        return plain(to_symint((above + below - 1 if function is math.ceil else above) // below))
    numbers = [of_size(outside, a) if type(a) is torch.SymInt else a for a in args]
    value = _attempt(function, numbers)
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) >= _LARGEST:
        return function(*map(_plain, numbers))
    texts = [_text(n) for n in numbers]
    positive = function is math.sqrt and _positive(numbers[0])
    return _made(outside, value, f"math.{function.__name__}({', '.join(texts)})", numbers, positive)


def _attempt(function: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    """The function of the values, None where it raises."""
    try:
        return function(*[n.value if type(n) is Varying else n for n in numbers])
    except (ArithmeticError, TypeError, ValueError):
        return None


def _made(outside: Outside, value: int | float, text: str, numbers: Sequence[Any], positive: bool) -> Varying:
    """A number that is computed of others."""
    varying = [n for n in numbers if type(n) is Varying]
    slots = frozenset[int]().union(*[n.slots for n in varying])
    return Varying(outside, value, text, slots, frozenset[Dim]().union(*[n.sizes for n in varying]), positive)


def _text(n: Any) -> str:
    return n.text if type(n) is Varying else repr(n)


def _positive(n: Any) -> bool:
    return n.positive if type(n) is Varying else bool(n > 0)


def _scalar(value: int | float) -> torch.Tensor:
    with private.without_modes():
        return scalar(value)


def scalar(value: int | float) -> torch.Tensor:
    """A tensor that keeps the number exactly."""
    return torch.tensor(value, dtype=torch.int64 if type(value) is int else torch.float64)


def _plain(v: Any) -> Any:
    return v.known() if type(v) is Varying else v


def settled(v: Any) -> Any:
    """An argument of code that is not interpreted: ints by their values."""
    if type(v) is Varying:
        return v.known()
    if type(v) in (list, tuple) and any(type(x) is Varying for x in v):
        return type(v)([settled(x) for x in v])
    return v


def _arithmetic(symbol: str, function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Varying, Any], Any]:
    def method(self: Varying, other: Any) -> Any:
        a, b = (other, self) if reflected else (self, other)
        if type(other) is Fake:
            own = self.operand(other)
            return function(other, own) if reflected else function(own, other)
        text = type(self.value) is str or (type(other) is Varying and type(other.value) is str)
        if not text and type(other) in (int, float, Varying) and _stays_open(symbol, a, b):
            value = _attempt(function, (a, b))
            if type(value) in (int, float) and abs(value) < _LARGEST and (type(other) is Varying or abs(other) < _LARGEST):
                positive = symbol == "**" or (symbol in ("+", "*", "/") and _positive(a) and _positive(b))
                made = _made(self.outside, value, f"({_text(a)} {symbol} {_text(b)})", (a, b), positive)
                made.ratio = _ratio(symbol, a, b)
                return made
        return function(_plain(a), _plain(b))

    return method


def _stays_open(symbol: str, a: Any, b: Any) -> bool:
    """Whether `a symbol b` is a number for all values of what varies in it."""
    if symbol in ("/", "//", "%"):
        return b.positive if type(b) is Varying else bool(b)
    return symbol != "**" or (type(b) is not Varying and abs(b) <= 4 and _positive(a))


def _ratio(symbol: str, a: Any, b: Any) -> tuple[Size, Size] | None:
    """Of `a / b`, or of a size times a fraction that a float keeps exactly."""
    x, y = _as_ratio(a), _as_ratio(b)
    if x is None or y is None:
        return None
    if symbol == "/" and x[1] == y[1] == 1 and _positive(b):
        return x[0], y[0]
    return (x[0] * y[0], x[1] * y[1]) if symbol == "*" and x[1] in _BINARY and y[1] in _BINARY else None


def _as_ratio(n: Any) -> tuple[Size, Size] | None:
    if type(n) is Varying:
        return n.ratio
    if not 0 <= n <= 64:
        return None
    above, below = n.as_integer_ratio()
    return (above, below) if above <= 64 and below in _BINARY else None


_BINARY = (1, 2, 4, 8, 16, 32, 64)  # a float divides by them exactly


OF_SIZES: dict[Any, Callable[..., Any]] = {
    abs: lambda n: abs(n), round: lambda n: n, operator.index: lambda n: n, math.floor: lambda n: n, math.ceil: lambda n: n,
    math.trunc: lambda n: n, divmod: lambda n, d: (n // d, n % d),
}  # fmt: skip
"""Functions of Python that give sizes for sizes."""


def _settled(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def method(self: Varying, *others: Any) -> Any:
        operands = [_plain(o) for o in others]
        return function(*operands, self.known()) if reflected else function(self.known(), *operands)

    return method


for _name, _symbol, _function in (
    ("add", "+", operator.add), ("sub", "-", operator.sub), ("mul", "*", operator.mul), ("truediv", "/", operator.truediv),
    ("floordiv", "//", operator.floordiv), ("mod", "%", operator.mod), ("pow", "**", operator.pow),
):  # fmt: skip
    setattr(Varying, f"__{_name}__", _arithmetic(_symbol, _function, False))
    setattr(Varying, f"__r{_name}__", _arithmetic(_symbol, _function, True))
for _name in ("lshift", "rshift"):
    setattr(Varying, f"__{_name}__", _settled(getattr(operator, _name)))
    setattr(Varying, f"__r{_name}__", _settled(getattr(operator, _name), True))
for _name in ("and_", "or_", "xor"):
    setattr(Varying, f"__{_name.rstrip('_')}__", _settled(getattr(operator, _name)))
    setattr(Varying, f"__r{_name.rstrip('_')}__", _settled(getattr(operator, _name), True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Varying, f"__{_name}__", _settled(getattr(operator, _name)))
Varying.__round__ = _settled(round)  # type: ignore[attr-defined]
Varying.__divmod__ = _settled(divmod)  # type: ignore[attr-defined]
