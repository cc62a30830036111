"""Expressions of sizes, over many sizes: eager's values, types, shapes, strides and errors, of at most two compiles where one
entry can serve."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import tilewright as tw
from program.test_dynamic import facts, values
from tilewright.base.log import TilewrightWarning

SIZES = (8, 13, 5, 16, 31, 67)

OPEN = """
x * (1 / x.shape[0]), x / (x.shape[0] - 1), x * (2.0 / (x.shape[0] + 1)), x * (1 / (x.shape[0] // 2))
x * x.shape[0] ** -0.5, x * x.shape[0] ** 2, x.sum() / x.shape[0], x * (x.shape[0] // 2.0), x * (x.shape[0] % 2.5)
x[0] * (x.shape[0] / 2), x[0] + x.shape[0] / 3 // 1
-x.shape[0], +x.shape[0], ~x.shape[0], abs(x.shape[0] - 70), round(x.shape[0]), x.shape[0] >> 1, x.shape[0] << 2
divmod(x.shape[0], 3), len(x), x.shape.numel(), -x.shape[0] // 2, math.floor(x.shape[0]), math.ceil(x.shape[0])
torch.zeros(int(x.shape[0] / 2)), torch.zeros(math.ceil(x.shape[0] / 4)), torch.zeros(int(x.shape[0] * 1.5))
x[: -(-x.shape[0] // 2)] * 2, torch.zeros(math.floor(x.shape[0] / 2)), torch.zeros(int(x.shape[0] * 1.0))
x.shape[0] / 2, x.shape[0] * 0.5, 1 / x.shape[0], float(x.shape[0])
x[x.shape[0] // 2], x[x.shape[0] - 1] * 2, x[:, 2], x[None, x.shape[0] - 1, ..., 1], x[x.shape[0] - 2, 1:3], x[-(x.shape[0] - 1)]
torch.tensor(x.shape[0]) * 2, torch.tensor([x.shape[0], 2]), x * torch.tensor(x.shape[0])
F.mse_loss(x, x * 2), F.binary_cross_entropy_with_logits(x, (x > 0).float()), F.l1_loss(x, x * 2), F.smooth_l1_loss(x, x * 2)
x.clamp(max=x.shape[0] - 7), x.clamp(-x.shape[0], x.shape[0])
F.max_pool1d(x.t()[None], 2), F.max_pool1d(x.t(), 3, 2, 1), F.avg_pool1d(x.t()[None], 3, 1, 1)
F.interpolate(x[None, None], scale_factor=2), F.interpolate(x[None, None], size=(x.shape[0] * 2, 8), mode="bilinear")
F.interpolate(x[None, None], scale_factor=0.5, mode="bilinear"), F.interpolate(x.t()[None], scale_factor=2, mode="linear")
x.as_strided((x.shape[0],), (4,)), x.as_strided((x.shape[0],), (4,)) * 2
"""


@pytest.mark.parametrize("text", OPEN.strip().splitlines())
def test_expressions_of_sizes_stay_open(text):
    f = eval(f"lambda x: ({text})", {"torch": torch, "F": F, "math": math})
    fast = tw.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TilewrightWarning)
        for n in SIZES:
            x = torch.randn(n, 4)
            got, want = fast(x), f(x)
            assert facts(got) == facts(want), n
            torch.testing.assert_close(values(got), values(want))
    assert fast.stats.compiles in ((2,) if torch.__version__ >= (2, 13) else (2, 3))  # older ones ask more about pooled sizes
    assert (fast.stats.graph_breaks, fast.stats.eager_calls) == (0, 0)


SETTLED = """
torch.zeros(int(x.shape[0] / 3 * 3.0)), int(x.shape[0] * 0.3), math.ceil(x.shape[0] * 0.7)
math.isqrt(x.shape[0]), torch.zeros(int(math.sqrt(x.shape[0]))), math.gcd(x.shape[0], 4) * x
x + 1 if x.shape[0] / 2 > 5.2 else x - 1
[1, 2][x.shape[0] / 2 > 5], bool(x.shape[0] / 2), max(x.shape[0] / 2, 5.0), round(x.shape[0] / 3)
torch.arange(4) * (x.shape[0] / 2), torch.arange(4) // x.shape[0], x.half() * (1 / x.shape[0])
3 ** x.shape[0], x.shape[0] ** -1, x.shape[0] & 7, x.shape[0] | 1, x.abs() ** x.shape[0]
torch.linspace(0, 1, x.shape[0]), torch.tril_indices(x.shape[0], x.shape[0])
F.interpolate(x[None, None], size=x.shape[0] + 3, mode="bilinear")
"""


@pytest.mark.parametrize("text", SETTLED.strip().splitlines())
def test_expressions_that_need_the_size_are_guarded(text):
    """Whatever they assume of a size, another size has its own values."""
    f = eval(f"lambda x: ({text})", {"torch": torch, "F": F, "math": math})
    fast = tw.compile(f)
    for n in SIZES:
        x = torch.randn(n, 4)
        got, want = fast(x), f(x)
        assert facts(got) == facts(want), n
        torch.testing.assert_close(values(got), values(want))


RAISING = """
x[6]
x[-7]
x.narrow(0, 2, 4)
x.select(0, 6)
x[torch.tensor([0, 6])]
x.as_strided((6,), (4,)) * 1
x.as_strided((2, 3), (12, 4)) * 1
x.as_strided((4,), (1,), 20) * 1
x.as_strided((4,), (1,), x.shape[0] * 4 - 4) * 1
x.unfold(0, 6, 1)
x.view(-1)[:24].view(6, 4)
F.max_pool1d(x.t()[None], 6)
F.pad(x[None, None], (1, 1, 5, 5), mode="reflect")
F.embedding(torch.tensor([6]), x)
x.topk(6, 0).values
x.gather(0, torch.full((1, 4), 6))
x[x.shape[0] - 13 - 6]
x * (1 / (x.shape[0] - 5))
x * (7 % (x.shape[0] - 5))
x * math.sqrt(x.shape[0] - 6)
x * math.log(x.shape[0] - 5)
x[:6] + torch.ones(6, 4)
x.repeat(x.shape[0] - 6, 1)
"""


@pytest.mark.parametrize("text", RAISING.strip().splitlines())
def test_errors_at_some_sizes(text):
    """An entry that serves many sizes does not hide an error of eager at some of them, nor read what is not the tensor's."""

    def outcome(function, x):
        try:
            return function(x).clone()
        except Exception as e:
            return type(e), str(e)

    f = eval(f"lambda x: {text}", {"torch": torch, "F": F, "math": math})
    fast = tw.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (8, 13, 5, 16, 7, 6, 2, 1, 31, 4):
            x = torch.randn(n, 4)
            want, got = outcome(f, x), outcome(fast, x)
            if isinstance(want, tuple):
                assert got == want, n
            else:
                torch.testing.assert_close(got, want, equal_nan=True)


def test_an_index_of_open_size_in_an_assignment():
    def f(x, v):
        x[x.shape[0] // 2] = v
        x[x.shape[0] - 1, 1:3] += 1
        return x.sum()

    fast = tw.compile(f)
    for n in SIZES:
        a = torch.randn(n, 4)
        b = a.clone()
        torch.testing.assert_close(fast(a, torch.ones(4)), f(b, torch.ones(4)))
        torch.testing.assert_close(a, b)
    assert fast.stats.compiles == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_a_number_that_varies_is_assigned(dtype):
    """Also within a `try`: no error of a capture is the program's."""
    numbers = [5]

    def f(x):
        try:
            x[0] = numbers[0]
            x[1:, 1] = numbers[0] * 2
        except TypeError:
            x[0] = 99
        return x + 1

    fast = tw.compile(f)
    for n in (5, -1, -2, -3, 7, 8, 0.5, 0.25, 2.5):
        numbers[0] = n
        torch.testing.assert_close(fast(torch.ones(3, 4, dtype=dtype)), f(torch.ones(3, 4, dtype=dtype)), rtol=0, atol=0)
    assert fast.stats.eager_calls == 0


def several(f, *shapes):
    fast = tw.compile(f)
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape)
            got, want = fast(x), f(x)
            assert facts(got) == facts(want), shape
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert fast.stats.eager_calls == 0
    return fast.stats.compiles


def test_halves_that_meet_say_that_a_size_is_even():
    def f(x):
        a, b = x.chunk(2)
        return a * b + x[: x.shape[0] // 2] * x[x.shape[0] // 2 :]

    assert several(f, *[(n, 4) for n in (16, 26, 10, 64)]) == 2


def test_patches_say_what_divides_the_sides():
    def f(x):
        b, c, h, w = x.shape
        return x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(b, (h // 4) * (w // 4), -1) * 2

    assert several(f, (2, 3, 8, 8), (2, 3, 16, 12), (2, 3, 12, 20), (2, 3, 20, 32)) <= 3


def test_down_and_up_again():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)

        def forward(self, x):
            a = F.relu(self.a(x))
            return torch.cat([a, F.interpolate(F.relu(self.b(a)), scale_factor=2)], 1)

    assert several(Net(), *[(2, 3, n, n) for n in (16, 32, 24, 40)]) == 2
