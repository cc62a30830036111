"""Sizes that vary: one compiled entry serves a range, and gives what eager gives at every size in it."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.base.log import TilewrightWarning

F = nn.functional
CASES = {}


def case(*shapes, compiles=2, sizes=(8, 13, 5, 16, 31), grad=False):
    """`shapes` of the arguments, with "n" for the size that varies. The function may need more compiles than two."""

    def keep(f):
        CASES[f.__name__] = f, shapes, compiles, sizes, grad
        return f

    return keep


def tensors(shapes, n, seed=0):
    g = torch.Generator().manual_seed(seed + n)
    made = [eval(s, {"n": n}) if isinstance(s, str) else s for s in shapes]
    return [torch.randn(s, generator=g) for s in made]


def facts(result):
    """Types, and of tensors shapes, strides and dtypes."""
    if isinstance(result, torch.Tensor):
        return "tensor", tuple(result.shape), result.stride(), result.dtype, result.requires_grad
    if isinstance(result, (tuple, list)):
        return type(result), [facts(r) for r in result]
    return type(result), result


def values(result):
    if isinstance(result, torch.Tensor):
        return [result.detach()]
    return [v for r in result for v in values(r)] if isinstance(result, (tuple, list)) else []


@case("(n, 4)", "(n, 4)")
def pointwise(x, y):
    return torch.relu(x * y) + 1


@case("(n, 4)")
def views(x):
    n = x.shape[0]
    return x.view(n * 4), x.reshape(-1), x.t(), x.unsqueeze(0).expand(3, n, 4), x[1:], x[: n // 2], x[::2]


@case("(n, 4)")
def computed_after_views(x):
    n = x.shape[0]
    return x.view(n * 4) + 1, x.t().contiguous(), x[1:] * 2, x[: n // 2].sum(0), x[::2] - 1, x.flip(0)


@case("(n, 4)")
def sizes_returned(x):
    return x.shape[0], x.shape, x.numel(), x.size(0) * 2 + 1, x * x.shape[0]


@case("(n, 6)")
def made_of_sizes(x):
    n = x.shape[0]
    return torch.arange(n) * 2, torch.zeros(n, 2), torch.full((n,), 3.0), x.new_ones(n), torch.arange(n, dtype=torch.float32) @ x


@case("(n, 6)")
def joined(x):
    return torch.cat([x, x * 2]), torch.stack([x, x]), torch.cat([x, x], 1), torch.cat([x[1:], x[:1]])


@case("(n, 8)")
def parted(x):
    a, b = x.chunk(2, 1)
    return a * b, x.split(4, 1)[0] + 1, F.pad(x, (1, 2)), F.pad(x, (0, 0, 1, 0))


@case("(n, 4)")
def reduced(x):
    return x.sum(), x.mean(0), x.amax(1), x.var(0), x.softmax(0), x.softmax(1), x.log_softmax(-1), x.argmax(0), x.cumsum(0)


@case("(n, 16)", "(16,)", "(16,)")
def normed(x, w, b):
    return F.layer_norm(x, (16,), w, b), F.rms_norm(x, (16,)), F.normalize(x)


@case("(n, 8)", "(8, 5)", "(5, 8)")
def products(x, w, v):
    return x @ w, F.linear(x, v), x.t() @ x, torch.einsum("nk,kj->jn", x, w)


@case("(2, n, 8)", "(2, 8, n)")
def batched(x, y):
    return x @ y, torch.bmm(y, x)


@case("(1, 2, n, 16)", "(1, 2, n, 16)", "(1, 2, n, 16)")
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case("(1, 2, n, 16)", "(n, n)")
def attention_masked(q, mask):
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@case("(1, 2, 1, 16)", "(1, 2, n, 16)")
def attention_to_a_cache(q, k):
    return F.scaled_dot_product_attention(q, k, k)


# Until torch 2.12 its kernels for tensors without data ask more of sizes than later ones: whether they are even, say.
MORE = 0 if torch.__version__ >= (2, 13) else 2


@case("(1, 3, n, n)", "(4, 3, 3, 3)", sizes=(8, 13, 9, 16), compiles=2 + MORE)
def convolved(x, w):
    return F.conv2d(x, w, padding=1), F.conv2d(x, w, stride=2), F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1)


@case("(1, 3, n)", "(4, 3, 3)", sizes=(8, 13, 9, 16))
def convolved_1d(x, w):
    return F.conv1d(x, w, padding=1)


@case("(n, 10)")
def indexed(x):
    return x[:, torch.tensor([1, 3])], x[torch.tensor([0, 2])], torch.where(x > 0, x, -x), x.masked_fill(x > 0, 0)


@case("(n, 4)")
def a_causal_mask(x):
    n = x.shape[0]
    return torch.tril(torch.ones(n, n)), torch.arange(n)[:, None] >= torch.arange(n)[None]


@case("(n, 4)")
def python_of_sizes(x):
    n = x.shape[0]
    return x * (n // 3) + n % 4 - min(n, 100) + max(n, 3), x / math.sqrt(n), x * float(n), x + n**2, x * math.log2(n + 1)


@case("(n, 4)")
def conditions_on_sizes(x):
    if x.shape[0] > 3 and x.shape[0] < 1000 and x.shape[1] == 4:
        return x + 1
    return x - 1


@case("(n, 4)")
def written(x):
    y = x.clone()
    y[1:] += 1
    y[0] = 3
    y[:, 1].mul_(2)
    return y


@case("(n, 4)", compiles=9)
def text_and_type(x):
    n = x.shape[0]
    return f"{n}", isinstance(n, int), type(n) is int, [0] * n, len(range(n)), bool(n), {n: 1}[n]


@case("(n, 4)", compiles=4)
def a_break_between(x):
    y = x * x.shape[0]
    if y.sum() > 0:
        y = y + x.shape[0]
    return y.reshape(-1) * 2


@case("(n, 4)", compiles=9)
def nonzero(x):
    i = (x[:, 0] > 0).nonzero()
    return x[i[:, 0]] * 2


@case("(n, 4)", compiles=9)
def a_boolean_mask(x):
    return x[x > 0].sum() + x.sum()


@case("(n, 4)", grad=True)
def gradients(x):
    return torch.tanh(x * 2).mean(0) * x.shape[0], x[1:] * 2


@pytest.mark.parametrize("name", CASES)
def test_one_entry_serves_all_sizes(name):
    f, shapes, compiles, sizes, grad = CASES[name]
    fast = tw.compile(f)
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("error", TilewrightWarning)
        for n in sizes:
            mine, theirs = ([t.requires_grad_(grad) for t in tensors(shapes, n)] for _ in range(2))
            got, want = fast(*mine), f(*theirs)
            assert facts(got) == facts(want), n
            torch.testing.assert_close(values(got), values(want), msg=lambda m, n=n: f"size {n}: {m}")
            if grad:
                for r in (got, want):
                    sum((v * v).mean() for v in r).backward()
                torch.testing.assert_close([t.grad for t in mine], [t.grad for t in theirs])
    assert fast.stats.compiles <= compiles, fast.stats
    assert fast.stats.eager_calls == 0


# --- the policy -------------------------------------------------------------------------------------------------------


def counted(f, *calls, **options):
    """The number of compiles after each call."""
    fast = tw.compile(f, **options)
    found = []
    with torch.no_grad():
        for args in calls:
            args = args if isinstance(args, tuple) else (args,)
            torch.testing.assert_close(fast(*args), f(*args))
            found.append(fast.stats.compiles)
    assert fast.stats.eager_calls == 0
    return found


def rows(*sizes):
    return [torch.randn(n, 3) for n in sizes]


def double(x):
    return x * 2


def test_static_first_then_symbolic():
    assert counted(double, *rows(4, 4, 7, 9, 4, 100)) == [1, 1, 2, 2, 2, 2]


def test_zero_and_one_are_apart():
    assert counted(double, *rows(4, 7, 1, 0, 9, 1, 0)) == [1, 2, 3, 4, 4, 4, 4]


def test_dynamic_from_the_start():
    assert counted(double, *rows(4, 7, 9), dynamic=True) == [1, 1, 1]


def test_never_dynamic():
    assert counted(double, *rows(4, 7, 9), dynamic=False) == [1, 2, 3]


def test_sizes_that_are_equal_share_a_symbol():
    pairs = [tuple(rows(n, n)) for n in (4, 7, 9)]
    assert counted(lambda x, y: x + y, *pairs) == [1, 2, 2]


def test_two_sizes_vary_apart():
    calls = [(torch.randn(a, 2), torch.randn(b, 2)) for a, b in ((4, 5), (6, 7), (9, 3), (3, 8))]
    found = counted(lambda x, y: (x.sum(0) + y.sum(0)), *calls)
    assert found[-1] <= 3


def marked(n, *args, **kwargs):
    x = torch.randn(n, 3)
    tw.mark_dynamic(x, *args, **kwargs)
    return x


def test_mark_dynamic():
    assert counted(double, *[marked(n, 0) for n in (4, 7, 9)]) == [1, 1, 1]
    assert counted(double, *[marked(n, [0, 1]) for n in (4, 7)]) == [1, 1]


def test_mark_dynamic_with_bounds():
    assert counted(double, *[marked(n, 0, min=4, max=16) for n in (4, 7, 16)]) == [1, 1, 1]
    assert counted(double, marked(8, 0, min=4, max=16), torch.randn(40, 3))[-1] == 2


def test_mark_dynamic_where_the_program_needs_one_size():
    def f(x):
        return x.view(4, 3)

    with pytest.warns(TilewrightWarning, match="marked as dynamic"):
        tw.compile(f)(marked(4, 0))
    with pytest.raises(tw.errors.TilewrightError, match="marked as dynamic"):
        tw.compile(f, fullgraph=True)(marked(4, 0))


def test_mark_static():
    def made(n):
        x = torch.randn(n, 3)
        tw.mark_static(x, 0)
        return x

    assert counted(double, *[made(n) for n in (4, 7, 9)]) == [1, 2, 3]


@pytest.mark.parametrize("dim", [3, -4])
def test_a_dim_that_is_not_there(dim):
    for mark in (tw.mark_dynamic, tw.mark_static):
        with pytest.raises(IndexError, match="dim"):
            mark(torch.ones(2, 2, 2), dim)


def test_ints_that_change_become_symbols():
    x = torch.randn(40, 3)
    assert counted(lambda x, n: x[:n] * n, *[(x, n) for n in (5, 7, 9, 12, 30)])[-1] == 2
    assert counted(lambda x, n: x + n, *[(x, n) for n in (5, 7, 9, 12, 30)])[-1] == 2


def test_a_counter_of_a_module():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 5

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    plain, inner = Counter(), Counter()
    fast = tw.compile(inner)
    for _ in range(12):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), plain(x))
    assert inner.steps == plain.steps and type(inner.steps) is int
    assert fast.stats.compiles <= 2 and fast.stats.eager_calls == 0


def test_strides_that_follow_the_sizes():
    def f(x):
        return x.t() * 2, x.t().reshape(-1)

    calls = [torch.randn(5, n).t() for n in (4, 7, 9, 12)]
    assert counted(f, *calls)[-1] == 2


def test_an_input_that_is_a_slice_of_another():
    base = torch.randn(64, 8)
    assert counted(double, *[base[:n, 2:5] for n in (4, 7, 9, 12)])[-1] == 2


def test_writes_into_arguments():
    def f(x):
        x[1:].add_(x.shape[0])
        return x.sum()

    fast = tw.compile(f)
    for n in (4, 7, 9, 16):
        a = torch.randn(n, 3)
        b = a.clone()
        torch.testing.assert_close(fast(a), f(b))
        torch.testing.assert_close(a, b)
    assert fast.stats.compiles == 2


def test_outputs_that_are_views_of_inputs():
    fast = tw.compile(lambda x: (x[1:], x.t()))
    for n in (4, 7, 9):
        x = torch.randn(n, 3)
        a, b = fast(x)
        a.add_(5)
        assert b.data_ptr() == x.data_ptr() and torch.equal(b.t(), x) and torch.equal(a, x[1:])


def test_loops_over_a_size_are_one_compile_a_size():
    def f(x):
        for row in range(x.shape[0]):
            x = x + row
        return x

    assert counted(f, *rows(3, 5, 7, 5))[-1] <= 3


def test_an_encoder_layer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    fast = tw.compile(layer)
    with torch.no_grad():
        for b, n in ((2, 8), (2, 11), (3, 17), (5, 6)):
            x = torch.randn(b, n, 16)
            torch.testing.assert_close(fast(x), layer(x), rtol=1e-4, atol=1e-5)
    assert fast.stats.compiles <= 3 + MORE and fast.stats.eager_calls == 0


def test_a_remainder_that_is_assumed_is_no_divisor():
    """`i % 3` picks from a list: the remainder is guarded, and other numbers with the same one are served."""
    table = [3, 1, 2]

    def f(x, i):
        return x * table[i % 3] + i

    x = torch.ones(3)
    assert counted(f, *[(x, i) for i in (5, 8, 11, 14, 7, 10)])[-1] <= 4
