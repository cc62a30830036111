"""A compiled module is the module: state, movement, attributes, hooks, copies, pickles; compiled in place too."""

import copy
import pickle

import pytest
import torch
from torch import nn

import tilewright as tw


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.scale = nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 4)), 2.0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        return self.b(self.a(x)) * self.scale


def twins():
    return Net().eval(), Net().eval()


def agree(fast, eager, x):
    torch.testing.assert_close(fast(x.clone()), eager(x.clone()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [tw.compile, tw.compile_], ids=["wrapped", "in place"])
def test_everything_of_a_module_goes_on(make):
    m, eager = twins()
    fast, x = make(m), torch.randn(3, 4)
    stats = (lambda: fast.stats) if make is tw.compile else (lambda: fast._compiled_call_impl.stats)
    with torch.no_grad():
        agree(fast, eager, x)
        assert type(fast).__name__ == "Net" and isinstance(fast, Net)
        assert list(fast.state_dict()) == list(eager.state_dict()) == list(m.state_dict())
        assert [n for n, _ in fast.named_modules()] == [n for n, _ in eager.named_modules()]
        assert all(p is q for p, q in zip(fast.parameters(), m.parameters()))
        fast.scale = eager.scale = 3.0
        assert m.scale == 3.0
        agree(fast, eager, x)
        fast.load_state_dict({k: v + 1 for k, v in eager.state_dict().items()})
        eager.load_state_dict({k: v + 1 for k, v in eager.state_dict().items()})
        agree(fast, eager, x)
        handles = [n.a.register_forward_hook(lambda m, i, o: o * 2) for n in (fast, eager)]
        handles += [n.register_forward_pre_hook(lambda m, i: (i[0] + 1,)) for n in (fast, eager)]
        agree(fast, eager, x)
        for h in handles:
            h.remove()
        agree(fast, eager, x)
        fast.b[1] = eager.b[1] = nn.Linear(8, 4)
        agree(fast, eager, x)
        for n in (fast, eager):
            n.to(torch.float64)
        assert m.a.weight.dtype is torch.float64
        agree(fast, eager, x.double())
        del fast.seen
        fast.seen = torch.zeros((), dtype=torch.float64)
        assert "seen" not in fast.state_dict()
        assert m.seen is fast.seen
        fast.register_buffer("later", torch.ones(2))
        assert "later" in m.state_dict()
    assert stats().eager_calls == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_compiled_and_their_own(copied):
    m, eager = twins()
    fast, x = tw.compile(m, options={"library": False}), torch.randn(3, 4)
    with torch.no_grad():
        agree(fast, eager, x)
        other = copied(fast)
        agree(other, eager, x)
        assert other.stats.compiles == 1 and type(other).__name__ == "Net"
        other.a.weight.zero_()
        eager.seen.sub_(1)
        agree(fast, eager, x)
        assert not torch.equal(other.a.weight, fast.a.weight)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_of_one_compiled_in_place_are_plain(copied):
    m, eager = twins()
    x = torch.randn(3, 4)
    assert tw.compile_(m) is m
    with torch.no_grad():
        agree(m, eager, x)
        other = copied(m)
        agree(other, eager, x)
    assert type(other) is Net and getattr(other, "_compiled_call_impl", None) is None
    with pytest.raises(tw.errors.NotCallable):
        tw.compile_(lambda x: x)


def test_a_module_compiled_in_place_within_another():
    m, eager = twins()
    tw.compile_(m.b)
    x = torch.randn(3, 4)
    with torch.no_grad():
        agree(m, eager, x)
        assert m.b._compiled_call_impl.stats.compiles == 1
        whole = tw.compile(m, fullgraph=True)
        agree(whole, eager, x)
        m.b.__dict__.pop("_compiled_call_impl")
        agree(whole, eager, x)


def test_a_module_s_own_call_and_custom_getattr():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def __getattr__(self, name):
            return 7 if name == "seven" else super().__getattr__(name)

        def __call__(self, x, *, k=1):
            return super().__call__(x) * k

        def forward(self, x):
            return self.inner(x) * self.seven

    m = Odd()
    fast, x = tw.compile(m), torch.randn(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, k=2), m(x, k=2))
    assert fast.seven == 7
    with pytest.raises(AttributeError, match="nothing"):
        _ = fast.nothing


def test_a_bound_method_of_a_module_sees_its_edits():
    m, eager = twins()
    fast, x = tw.compile(m.forward), torch.randn(3, 4)
    with torch.no_grad():
        agree(fast, eager, x)
        m.scale = eager.scale = 3.0
        agree(fast, eager, x)
        for n in (m, eager):
            n.a.register_forward_hook(lambda m, i, o: o * 2)
        agree(fast, eager, x)
    assert fast.stats.graph_breaks == 0 and fast.stats.eager_calls == 0
