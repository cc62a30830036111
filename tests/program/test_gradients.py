"""Gradients recorded through compiled calls: values, gradients, views, writes and buffers are eager's."""

import copy

import pytest
import torch
from torch import nn

import tilewright as tw

CASES = {}


def case(eager=0):
    def keep(f):
        CASES[f.__name__] = f, eager
        return f

    return keep


def leaf():
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), torch.zeros(())


@case()
def a_view_of_an_input(x, b):
    return x.view(4)


@case()
def a_view_beside_a_value(x, b):
    return x * 2, x[0]


@case()
def a_detached_view(x, b):
    return x * 2, x.detach()[0]


@case()
def the_input_itself(x, b):
    return x, x * 3


@case()
def chunks_and_expanded(x, b):
    return *x.chunk(2), x.expand(3, 2, 2)


@case()
def a_view_of_a_result(x, b):
    y = x.sin()
    return y, y[0], y.detach()[1]


@case()
def writes_into_results(x, b):
    y = x * 2
    y.add_(1)
    y[0] = 0
    return y * y


@case()
def a_write_into_a_buffer(x, b):
    b.add_(x.detach().sum())
    return x * b, b * 2


@case(eager=2)
def a_gradient_into_a_buffer(x, b):
    b.copy_(x.sum())
    return b * 2


@case(eager=2)
def a_leaf_written_without_gradients(x, b):
    with torch.no_grad():
        x.add_(1)
    return x * 2


@case()
def a_break(x, b):
    y = x.sin()
    if y.sum() > 0:
        y = y * 2
    return y.cos()


@case()
def a_write_after_a_break(x, b):
    y = x.sin()
    k = y.sum().item()
    y.mul_(2)
    return y * k


@case()
def a_write_into_a_view_after_a_break(x, b):
    y = x * 2
    v = y[0]
    if y.sum() > 0:
        v.mul_(3)
    return y + 1


def results(f, args):
    """Values and whether they require grad, are leaves and views; the arguments afterwards; their gradients."""
    found = f(*args)
    tensors = found if isinstance(found, tuple) else (found,)
    loss = sum((t * torch.arange(1.0, t.numel() + 1).reshape(t.shape)).sum() for t in tensors if t.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    facts = [(t.requires_grad, t.is_leaf) for t in tensors]
    return [*tensors, *args, *(a.grad for a in args if a.grad is not None)], facts


@pytest.mark.filterwarnings("ignore::tilewright.base.log.TilewrightWarning")
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name):
    f, eager = CASES[name]
    fast = tw.compile(f)
    for _ in range(2):
        (want, facts), (got, ours) = results(f, leaf()), results(fast, leaf())
        assert ours == facts
        torch.testing.assert_close([t.detach() for t in got], [t.detach() for t in want])
    assert fast.stats.eager_calls == eager


def test_a_view_of_an_input_is_its_memory():
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    v, w = tw.compile(lambda y: (y[:2], y * 2))(y)
    (v.sum() + w.sum()).backward()
    assert x.grad.tolist() == [3, 3, 2]
    v.mul_(3)
    assert y.tolist() == [3, 3, 1]


def test_batch_norm_trains():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    inner = copy.deepcopy(plain)
    fast = tw.compile(inner)
    for k in range(3):
        x = torch.arange(6.0).reshape(3, 2) * (k + 1)
        a, b = plain(x), fast(x)
        torch.testing.assert_close(a, b)
        a.pow(3).sum().backward()
        b.pow(3).sum().backward()
    assert fast.stats.eager_calls == 0
    for (name, p), q in zip(plain.named_parameters(), inner.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(buffer, inner.get_buffer(name))
