"""Stances, functions kept out of compilation, is_compiling, reset, and what happens at the recompile limit."""

import copy
import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.base import config
from tilewright.base.log import TilewrightWarning, forget_warnings


@pytest.fixture(autouse=True)
def _fresh():
    forget_warnings()
    with torch.no_grad():
        yield
    tw.set_stance("default")


def counted():
    """A compiled function, and the calls of its Python code in eager."""
    calls = []

    def f(x):
        if not tw.is_compiling():
            calls.append(1)
        return x + 1

    return tw.compile(f), calls


def test_stances_as_function_context_and_decorator():
    fast, calls = counted()
    x, y = torch.ones(3), torch.ones(4)
    fast(x)
    assert not calls and fast.stats.compiles == 1
    with tw.set_stance("force_eager"):
        assert torch.equal(fast(x), x + 1)
    assert len(calls) == 1
    fast(x)
    assert len(calls) == 1

    @tw.set_stance("eager_on_recompile")
    def run(v):
        return fast(v)

    run(x)
    assert len(calls) == 1
    run(y)
    assert len(calls) == 2 and fast.stats.compiles == 1
    tw.set_stance("fail_on_recompile")
    fast(x)
    with pytest.raises(tw.errors.RecompileError, match="argument 0"):
        fast(y)
    tw.set_stance("default")
    fast(y)
    assert fast.stats.compiles == 2 and len(calls) == 2
    with pytest.raises(tw.errors.OptionError, match="'force_eager'"):
        tw.set_stance("lazy")


def test_the_stance_holds_for_pieces_and_callees():
    def inner(x):
        print(end="")
        return x * 2

    def f(x):
        y = inner(x + 1)
        if y.sum() > 0:
            return y + 1
        return y - 1

    fast = tw.compile(f)
    x = torch.ones(3)
    fast(x)
    before = fast.stats.compiles
    with tw.set_stance("eager_on_recompile"):
        assert torch.equal(fast(-3 * x), f(-3 * x))
    assert fast.stats.compiles == before
    with tw.set_stance("fail_on_recompile"):
        fast(x)
        with pytest.raises(tw.errors.RecompileError):
            fast(torch.ones(5))
    assert torch.equal(fast(-3 * x), f(-3 * x))
    assert fast.stats.compiles > before


def test_a_stance_set_in_a_compiled_function_breaks_the_graph():
    def f(x):
        y = x + 1
        with tw.set_stance("force_eager"):
            z = y * 2
        return z - 1

    fast = tw.compile(f)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(3)), f(torch.ones(3)))
    assert fast.stats.graph_breaks >= 1


def test_disabled_functions_break_the_graph():
    seen = []

    @tw.disable
    def plain(x):
        seen.append(tw.is_compiling())
        return x * 2

    @tw.disable(recursive=False)
    def other(x):
        return x - 1

    def f(x):
        y = plain(x + 1)
        return other(y) + 1

    fast = tw.compile(f)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 4.0))
    assert fast.stats.graph_breaks == 2 and seen == [False, False]
    with pytest.raises(tw.errors.GraphBreak, match=r"stay uncompiled.*plain"):
        tw.compile(f, fullgraph=True)(torch.ones(3))
    alone = tw.compile(plain)
    alone(torch.ones(3))
    assert seen[-1] is False and alone is plain
    with pytest.raises(tw.errors.NotCallable):
        tw.disable(3)


def test_disabled_modules_and_classes():
    seen = []

    class Child(nn.Linear):
        def forward(self, x):
            seen.append(tw.is_compiling())
            return super().forward(x)

    child = tw.disable(Child(3, 3))
    assert type(child).__name__ == "Child" and list(child.state_dict()) == ["weight", "bias"]
    net = nn.Sequential(nn.Linear(3, 3), child, nn.ReLU())
    fast, x = tw.compile(net), torch.ones(2, 3)
    for _ in range(2):
        torch.testing.assert_close(fast(x), net(x))
    assert fast.stats.graph_breaks == 1 and seen == [False] * 4
    other = copy.deepcopy(child)
    torch.testing.assert_close(tw.compile(other)(x), child(x))
    assert not any(seen)

    @tw.disable
    class Box:
        def __init__(self, x):
            seen.append(tw.is_compiling())
            self.x = x

    boxed = tw.compile(lambda x: Box(x + 1).x * 2)
    assert torch.equal(boxed(x), (x + 1) * 2)
    assert seen[-1] is False


def test_torchs_own_disable_is_heeded():
    @torch.compiler.disable
    def plain(x):
        return x * 2

    fast = tw.compile(lambda x: plain(x + 1) + 1)
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 5.0))
    assert fast.stats.graph_breaks == 1


def test_is_compiling_while_capturing_only():
    def f(x):
        return x + (10 if tw.is_compiling() else 1) + (100 if torch.compiler.is_compiling() else 2)

    assert not tw.is_compiling()
    assert torch.equal(f(torch.zeros(2)), torch.full((2,), 3.0))
    assert torch.equal(tw.compile(f)(torch.zeros(2)), torch.full((2,), 110.0))
    assert not tw.is_compiling() and not torch.compiler.is_compiling()


def test_reset_forgets_entries_limits_and_warnings():
    fast = tw.compile(lambda x, n: x * len(n), options={"recompile_limit": 2})
    x = torch.ones(3)
    for n in ("a", "b"):
        fast(x, n)
    with pytest.warns(TilewrightWarning, match="recompile_limit"):
        fast(x, "abc")
    assert fast.stats.eager_calls == 1
    tw.reset()
    assert fast.stats.compiles == 0 and fast.entries == ()
    assert torch.equal(fast(x, "abc"), x * 3)
    assert fast.stats.compiles == 1 and fast.stats.eager_calls == 0


def test_the_limit_names_the_guard_once():
    fast = tw.compile(lambda x, n: x * len(n), options={"recompile_limit": 3})
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(8):
            assert torch.equal(fast(x, str(n)), x)
    (message,) = [str(w.message) for w in caught]
    assert "compiled 3 times" in message and "argument 1 is no longer '2'" in message and "hint: pass a number" in message
    assert fast.stats.compiles == 3 and fast.stats.eager_calls == 5
    strict = tw.compile(lambda x, scale: x * scale, fullgraph=True, options={"recompile_limit": 1})
    strict(x, 0.5)
    with pytest.raises(tw.errors.RecompileError, match=r"argument 1 is no longer 0\.5"):
        strict(x, 1.5)


def test_the_limit_is_a_setting_with_eight_as_default():
    assert tw.compile(lambda x: x).options.recompile_limit == 8
    with config.override(recompile_limit=2):
        assert tw.compile(lambda x: x).options.recompile_limit == 2
        assert tw.compile(lambda x: x, options={"recompile_limit": 5}).options.recompile_limit == 5


def test_the_limit_counts_a_receiver_each():
    class M(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        @tw.compile
        def scaled(self, x):
            return x * self.k

    x, all_of_them = torch.ones(3), [M(k + 0.5) for k in range(12)]
    for m in all_of_them * 2:
        assert torch.equal(m.scaled(x), x * m.k)
    assert all((m.scaled.stats.compiles, m.scaled.stats.eager_calls) == (1, 0) for m in all_of_them)
    whole = tw.compile(lambda x: all_of_them[0].scaled(x) + all_of_them[1].scaled(x), fullgraph=True)
    assert torch.equal(whole(x), x * 2)
    for copied in (copy.copy, copy.deepcopy):
        other = copied(all_of_them[0])
        other.k = 7.5
        assert torch.equal(other.scaled(x), x * 7.5) and torch.equal(all_of_them[0].scaled(x), x * 0.5)
    assert list(other.state_dict()) == [] and other.scaled.__name__ == "scaled"
    gone = [weakref.ref(m) for m in all_of_them[2:]]
    del all_of_them[2:], m
    gc.collect()
    assert not any(r() for r in gone)


def test_the_entry_that_served_last_is_tried_first():
    fast, _ = counted()
    shapes = [torch.ones(n, 2 * n) for n in (2, 3)]
    for x in shapes:
        fast(x)
    for x in (shapes[0], shapes[1], shapes[0]):
        fast(x)
        assert fast.last is fast.entries[0]
        assert fast.entries[0].check(x) is None
    assert len(fast.entries) == fast.stats.compiles


def test_entries_move_while_others_call():
    fast, _ = counted()
    inputs = [torch.ones(*([2] * n)) for n in range(1, 6)]
    for x in inputs:
        fast(x)
    wrong = []

    def work(k):
        with torch.no_grad():
            for i in range(400):
                x = inputs[(i * k) % 5]
                if fast(x).shape != x.shape:
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(set(map(id, fast.entries))) == 5


def test_specialised_helpers_add_up_and_do_not_multiply():
    """Helpers that each break the graph and are specialised on an argument: compiles grow as their sum."""

    def leaf(x, flag):
        print(end="")
        return x + 1 if flag == "a" else x - 1

    def middle(x, flag, k):
        print(end="")
        return leaf(x * k, flag)

    def top(x, flag, k):
        print(end="")
        return middle(x, flag, k) + 1

    counts = []
    for flags, ks in (("ab", (0.5, 1.5)), ("abcd", (0.5, 1.5, 2.5, 3.5))):
        fast = tw.compile(top)
        for flag in flags:
            for k in ks:
                x = torch.ones(3)
                assert torch.equal(fast(x, flag, k), top(x, flag, k))
        counts.append(fast.stats.compiles)
    assert counts[1] <= 4 * counts[0] + 8, counts


def test_a_disabled_module_can_be_pickled():
    m = pickle.loads(pickle.dumps(tw.disable(nn.Linear(2, 2))))
    assert type(m).__name__ == "Linear" and m._tilewright_disable
