"""torch's operators that take functions, compiled: one graph, and what the definitions say."""

import pytest
import torch
from functorch.experimental.control_flow import map as mapped
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan

import tilewright as tw


def one_graph(f, *args):
    fast = tw.compile(f)
    result = fast(*args)
    assert (fast.stats.graph_breaks, fast.stats.eager_calls, fast.stats.compiles) == (0, 0, 1)
    return result


def step(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 13])
def test_associative_scan(length, reverse):
    a, b = torch.rand(2, length, 3), torch.randn(2, length, 3)
    order = range(length - 1, -1, -1) if reverse else range(length)
    state, states = None, [None] * length
    for i in order:
        state = (a[:, i], b[:, i]) if state is None else step(state, (a[:, i], b[:, i]))
        states[i] = state
    want = tuple(torch.stack(s, 1) for s in zip(*states))
    got = one_graph(lambda a, b: associative_scan(step, (a, b), 1, reverse=reverse, combine_mode="generic"), a, b)
    torch.testing.assert_close(got, want)


def test_associative_scan_of_what_is_not_elementwise():
    x = torch.randn(5, 3, 3)
    got = one_graph(lambda x: associative_scan(torch.matmul, x, 0, combine_mode="generic"), x)
    torch.testing.assert_close(got[4], x[0] @ x[1] @ x[2] @ x[3] @ x[4], rtol=1e-4, atol=1e-4)
    got = one_graph(lambda x: associative_scan(lambda a, b: b + a.sum(0), x, 0, combine_mode="generic"), x)
    torch.testing.assert_close(got[1], x[1] + x[0].sum(0))


def test_cond():
    fast = tw.compile(lambda p, x: torch.cond(p.sum() > 0, lambda x: {"y": x.sin()}, lambda x: {"y": x.cos()}, [x])["y"])
    x = torch.randn(3)
    assert torch.equal(fast(torch.ones(1), x), x.sin())
    assert torch.equal(fast(-torch.ones(1), x), x.cos())
    assert (fast.stats.graph_breaks, fast.stats.eager_calls, fast.stats.compiles) == (0, 0, 1)
    assert torch.equal(one_graph(lambda x: torch.cond(x.shape[0] > 2, lambda x: x + 1, lambda x: x[:1], (x,)), x), x + 1)


def test_cond_whose_branches_write_is_left_to_torch():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.add_(1), lambda x: x.sub_(1), [x])

    with pytest.raises(tw.errors.TilewrightError, match="branches have effects"):
        tw.compile(f, fullgraph=True)(torch.ones(2))


def test_map_and_scan():
    x, y = torch.randn(3, 2), torch.randn(2)
    a, b = one_graph(lambda x, y: mapped(lambda x, y: (x + y, x.sum()), x, y), x, y)
    assert torch.equal(a, x + y)
    torch.testing.assert_close(b, x.sum(1))
    total, sums = one_graph(lambda y, x: scan(lambda c, v: (c + v, c * v), y, x), y, x)
    torch.testing.assert_close(total, y + x.sum(0))
    torch.testing.assert_close(sums[1], (y + x[0]) * x[1])
