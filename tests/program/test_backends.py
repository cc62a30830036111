"""The arguments of tw.compile: backends of one's own, modes, dynamic, and errors that name what is admitted."""

import functools
import pickle

import pytest
import torch
from torch import fx, nn

import tilewright as tw


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


def test_a_backend_gets_every_graph_as_fx():
    seen = []

    def backend(module, inputs):
        assert isinstance(module, fx.GraphModule)
        outputs = module(*inputs)
        assert isinstance(outputs, tuple)
        seen.append([n.target for n in module.graph.nodes if n.op == "call_function"])
        return module.forward

    def f(x):
        y = torch.relu(x) + 1
        print(end="", flush=True)
        if y.sum() > 0:
            return y * 2
        return y * 3

    fast = tw.compile(f, backend=backend)
    for x in (torch.randn(4), torch.randn(4) - 9):
        torch.testing.assert_close(fast(x), f(x))
    assert len(seen) >= 2
    assert torch.ops.aten.relu.default in seen[0] or torch.ops.aten.clamp_min.default in seen[0] or seen[0]
    assert fast.stats.graph_breaks >= 1 and fast.stats.eager_calls == 0 and fast.stats.kernels == 0


@pytest.mark.parametrize("backend", ["eager", lambda module, inputs: module], ids=["eager", "module"])
def test_backends_keep_values_gradients_and_writes(backend):
    m = net()
    fast = tw.compile(m, backend=backend)
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(fast(x), m(x))
        m[0].weight.mul_(2)
        assert torch.equal(fast(x), m(x))
    fast(x).square().sum().backward()
    got = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    m(x).square().sum().backward()
    torch.testing.assert_close(got, [p.grad for p in m.parameters()])
    assert fast.stats.eager_calls == 0

    def writes(x):
        x.add_(1)
        return x, x[1:], x * 2

    a, b = torch.ones(4), torch.ones(4)
    with torch.no_grad():
        got, want = tw.compile(writes, backend=backend)(a), writes(b)
    torch.testing.assert_close(got, want)
    assert torch.equal(a, b) and got[0] is a and got[1].data_ptr() == a[1:].data_ptr()


def test_new_sizes_are_new_graphs_for_a_backend():
    shapes = []

    def backend(module, inputs):
        shapes.append(tuple(inputs[0].shape))
        return module

    fast = tw.compile(lambda x: x.sum(0), backend=backend)
    for n in (2, 3, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(fast(x), x.sum(0))
    assert shapes == [(2, 3), (3, 3), (4, 3)]


def test_a_backend_that_fails_is_said():
    def none(module, inputs):
        return None

    def short(module, inputs):
        return lambda *args: []

    def raising(module, inputs):
        raise RuntimeError("not today")

    x = torch.ones(3)
    with pytest.raises(tw.errors.CompileError, match="short promised a sequence of 1 tensors and returned 0 results"):
        tw.compile(lambda x: x + 1, backend=short, fullgraph=True)(x)
    for backend, message in ((none, "returned a NoneType"), (raising, "not today")):
        with pytest.raises(tw.errors.CompileError, match=message):
            tw.compile(lambda x: x + 1, backend=backend, fullgraph=True)(x)
        with pytest.warns(UserWarning, match=message):
            assert torch.equal(tw.compile(lambda x: x + 1, backend=backend)(x), x + 1)


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_are_known(mode):
    fast, x = tw.compile(lambda x: x + 1, mode=mode), torch.ones(3)
    assert torch.equal(fast(x), x + 1) and fast.options.mode == (mode or "default")


def test_unknown_arguments_name_the_known_ones():
    with pytest.raises(tw.errors.OptionError, match="max-autotune-no-cudagraphs"):
        tw.compile(lambda x: x, mode="fastest")
    with pytest.raises(tw.errors.UnknownBackend, match=r"tilewright.*eager|eager.*tilewright"):
        tw.compile(lambda x: x, backend="inductor")
    with pytest.raises(tw.errors.UnknownOption, match=r"freeze.*library.*recompile_limit"):
        tw.compile(lambda x: x, options={"dynamic": True})
    with pytest.raises(tw.errors.OptionError, match="dynamic"):
        tw.compile(lambda x: x, dynamic="yes")
    with pytest.raises(tw.errors.UnknownBackend):  # at once, also where it is a decorator
        tw.compile(backend="inductor")


def _plus_one(x):
    return x + 1


def test_a_function_with_a_backend_can_be_pickled():
    fast = pickle.loads(pickle.dumps(tw.compile(_plus_one, backend="eager", mode="max-autotune")))
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0)) and fast.options.mode == "max-autotune"
    assert fast.stats.kernels == 0


class Callable:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k

    @tw.compile
    def method(self, x):
        return x + self.k

    @staticmethod
    @tw.compile
    def static(x):
        return x + 1

    @tw.compile
    @staticmethod
    def static_above(x):
        return x + 2

    @classmethod
    @tw.compile(fullgraph=True)
    def of_class(cls, x):
        return x + cls.__name__.count("a")

    @tw.compile
    @classmethod
    def class_above(cls, x):
        return x - len(cls.__name__)


def test_everything_callable_can_be_compiled():
    x, c = torch.ones(3), Callable(3)
    inner = tw.compile(lambda x: x * 2)
    cases = [
        (tw.compile(c), x * 3), (c.method, x + 3), (c.static, x + 1), (Callable.static, x + 1), (c.static_above, x + 2),
        (c.of_class, x + 2), (c.class_above, x - 8), (tw.compile(functools.partial(torch.add, alpha=2, other=x)), x + 2 * x),
        (tw.compile(functools.partial(_plus_one)), x + 1), (tw.compile(torch.sin), x.sin()), (tw.compile(c.__call__), x * 3),
        (tw.compile(lambda x: inner(x) + 1), x * 2 + 1), (tw.compile(inner), x * 2), (tw.compile(tw.compile(inner)), x * 2),
    ]  # fmt: skip
    for k, (fast, want) in enumerate(cases):
        for _ in range(2):
            torch.testing.assert_close(fast(x), want, msg=f"case {k}")
        stats = getattr(fast, "stats", None) or fast.__func__.stats
        assert stats.compiles >= 1 and stats.eager_calls == 0, (k, stats)
