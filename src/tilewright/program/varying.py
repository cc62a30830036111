"""Python numbers and texts that change from call to call: unknown as long as only sums, differences and products are made.

In: a number or text in a slot whose guard failed before. Out: `Varying`, which stands for it: arithmetic gives another, beside a
tensor it becomes a tensor of the graph. Anything else asks for its value: an int's is then guarded; at a float's or text's the
graph ends, since the next call has another one. Must not know bytecode.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..base.dims import Size
from ..graph import torch_private as private
from ..graph.fake import Fake
from ..graph.recorder import ArgSource
from ..graph.symbolic import hint_of, size_of
from .breaks import Break

if TYPE_CHECKING:
    from .outside import Outside

_LARGEST = 2**62
_EXACT = (torch.float32, torch.float64, torch.int64)  # dtypes in which an int and a tensor of it mean the same
_EXACT_FLOATS = (torch.float32, torch.float64)  # and a float


class Varying:
    """No number or text itself, so that nothing reads its value unseen. `text` computes it from the slots, named P<slot>, with
    functions of `math`."""

    __slots__ = ("outside", "sizes", "slots", "tensor", "text", "value")

    def __init__(
        self, outside: Outside, value: int | float | str, text: str, slots: frozenset[int], sizes: frozenset[Size] = frozenset()
    ) -> None:
        """`sizes`: those among what it is computed from."""
        self.outside = outside
        self.sizes = sizes
        self.value = value
        self.text = text
        self.slots = slots
        self.tensor: Fake | None = None

    def known(self) -> Any:
        """Its value, guarded. Raises Break for a float or text."""
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
    text, slots = outside.sizes.text(size_of(size))
    return Varying(outside, hint_of(size), text, slots, frozenset((size_of(size),)))


def of_function(outside: Outside, function: Callable[..., Any], args: list[Any]) -> Any:
    """What a function of `math` gives for numbers of which some vary."""
    numbers = [of_size(outside, a) if type(a) is torch.SymInt else a for a in args]
    value = function(*[n.value if type(n) is Varying else n for n in numbers])
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) >= _LARGEST:
        return function(*map(_plain, numbers))
    texts = [n.text if type(n) is Varying else repr(n) for n in numbers]
    varying = [n for n in numbers if type(n) is Varying]
    slots, sizes = (frozenset().union(*[getattr(n, part) for n in varying]) for part in ("slots", "sizes"))
    return Varying(outside, value, f"math.{function.__name__}({', '.join(texts)})", slots, sizes)


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
        if not text and type(other) in (int, float, Varying) and (symbol != "/" or (type(b) is not Varying and b)):
            value = function(*(v.value if type(v) is Varying else v for v in (a, b)))
            if abs(value) < _LARGEST and (type(other) is Varying or abs(other) < _LARGEST):  # neither infinite nor NaN
                texts = [v.text if type(v) is Varying else repr(v) for v in (a, b)]
                slots, sizes = self.slots, self.sizes
                if type(other) is Varying:
                    slots, sizes = slots | other.slots, sizes | other.sizes
                return Varying(self.outside, value, f"({texts[0]} {symbol} {texts[1]})", slots, sizes)
        return function(_plain(a), _plain(b))

    return method


def _settled(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def method(self: Varying, *others: Any) -> Any:
        operands = [_plain(o) for o in others]
        return function(*operands, self.known()) if reflected else function(self.known(), *operands)

    return method


for _name, _symbol, _function in (
    ("add", "+", operator.add), ("sub", "-", operator.sub), ("mul", "*", operator.mul), ("truediv", "/", operator.truediv),
):  # fmt: skip
    setattr(Varying, f"__{_name}__", _arithmetic(_symbol, _function, False))
    setattr(Varying, f"__r{_name}__", _arithmetic(_symbol, _function, True))
for _name in ("floordiv", "mod", "pow", "lshift", "rshift"):
    setattr(Varying, f"__{_name}__", _settled(getattr(operator, _name)))
    setattr(Varying, f"__r{_name}__", _settled(getattr(operator, _name), True))
for _name in ("and_", "or_", "xor"):
    setattr(Varying, f"__{_name.rstrip('_')}__", _settled(getattr(operator, _name)))
    setattr(Varying, f"__r{_name.rstrip('_')}__", _settled(getattr(operator, _name), True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(Varying, f"__{_name}__", _settled(getattr(operator, _name)))
Varying.__round__ = _settled(round)  # type: ignore[attr-defined]
Varying.__divmod__ = _settled(divmod)  # type: ignore[attr-defined]
