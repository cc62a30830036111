"""What a hostile user does: state that changes between calls, modes around calls, odd arguments. Eager is always right."""

import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw


@pytest.fixture(autouse=True)
def _quiet():
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def follows(fn, *changes, args=None):
    """The compiled function's values stay eager's over the changes, each made between two calls."""
    fast = tw.compile(fn)
    args = (torch.arange(1.0, 5.0),) if args is None else args
    for change in (lambda: None, lambda: None, *changes):
        change()
        same(fast(*args), fn(*args))
    return fast


# --- modes and transforms around a call -------------------------------------------------------------------------------


def score(x):
    return (x.sin() * 2).sum(-1)


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if getattr(func, "__name__", "") == "sin" else result


class Counts(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counts.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "transform",
    [
        torch.vmap,
        lambda f: lambda x: torch.func.grad(f)(x[0]),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
        torch.func.jacrev,
    ],
)
def test_function_transforms_see_the_function(transform):
    fast, x = tw.compile(score), torch.randn(3, 4)
    for _ in range(2):
        same(transform(fast)(x), transform(score)(x))
        same(fast(x), score(x))
        same(fast(x[0]), score(x[0]))
    assert fast.stats.compiles == 2


def test_modes_and_tracers_see_the_function():
    fast, x = tw.compile(score), torch.randn(4)
    same(fast(x), score(x))
    with Doubles():
        same(fast(x), score(x))
    with Counts():
        fast(x)
    assert Counts.calls > 0
    same(make_fx(fast)(torch.randn(4))(x), score(x))
    same(torch.jit.trace(fast, (torch.randn(4),))(x), score(x))
    with torch.enable_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.clone())
        same(forward_ad.unpack_dual(fast(dual)).tangent, forward_ad.unpack_dual(score(dual)).tangent)
    same(fast(x), score(x))
    assert fast.stats.compiles == 1


def test_the_default_device():
    fast, x = tw.compile(lambda x: torch.ones(3)), torch.randn(3)
    with torch.device("cpu"):
        same(fast(x), torch.ones(3))
    same(fast(x), torch.ones(3))
    with torch.device("meta"):
        assert fast(x).is_meta
    assert fast.stats.compiles == 2


def test_compiled_within_compiled():
    w = torch.ones(4)
    inner, layer = tw.compile(lambda: w * 2), nn.Linear(4, 4).eval()
    fast_layer = tw.compile(layer)
    inner()
    outer = follows(lambda x: fast_layer(x) + inner(), lambda: w.mul_(3), lambda: layer.weight.mul_(2))
    assert outer.stats.eager_calls == 0
    again = tw.compile(fast_layer)
    assert type(again) is not type(layer)
    same(again(w), layer(w))
