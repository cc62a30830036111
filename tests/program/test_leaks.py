"""A compiled function that is let go of frees what was made for it; a process that compiles for ever does not grow."""

import ctypes
import gc
import types
import weakref

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.base import interned
from tilewright.base.log import forget_warnings
from tilewright.base.weak import remembered


def resident() -> int:
    """Bytes of memory in use, without what the allocator only keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


SOURCE = """
def f(x, y):
    z = torch.sin(x) * y + {k}
    if {breaks} and z.sum() > -1e9:
        z = z + big
    return z.sum(0) + 1
"""


def made(k: float, breaks: bool) -> types.FunctionType:
    """A function with a code object of its own."""
    namespace = {"torch": torch, "big": torch.full((3,), float(k))}
    exec(compile(SOURCE.format(k=k, breaks=breaks), "made.py", "exec"), namespace)
    return namespace["f"]


@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "breaks"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_a_function_let_go_frees_everything(breaks, grad):
    def once():
        f = made(0.5, breaks)
        fast = tw.compile(f)
        for n in (3, 3, 3):
            out = fast(torch.randn(2, n, requires_grad=grad), 2.5)
        if grad:
            out.sum().backward()
        assert fast.stats.graph_breaks == breaks and fast.stats.eager_calls == 0
        entry = fast.entries[0]
        held = [fast, f, f.__code__, f.__globals__["big"], fast.program, entry.data.executable]
        held += [e for r in fast.program.rests.values() for e in [r, *(e.data.executable for e in r.entries)]]
        return [weakref.ref(o) for o in held]

    alive = once()
    gc.collect()
    assert [r() for r in alive if r() is not None] == []


def test_a_module_let_go_frees_its_weights_and_its_class():
    def once():
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(64, 64)

            def forward(self, x):
                return torch.relu(self.a(x))

        m = M().eval()
        fast = tw.compile(m)
        with torch.no_grad():
            fast(torch.randn(2, 64))
        assert fast.stats.packed_bytes > 0
        inner = fast._tilewright
        return [weakref.ref(o) for o in (m, fast, inner, M, m.a.weight, type(fast), inner.entries[0].data.executable)]

    alive = once()
    gc.collect()
    assert [r() for r in alive if r() is not None] == []


def test_reset_frees_what_was_compiled():
    fast = tw.compile(made(1.5, True))
    fast(torch.randn(2, 3), 2.5)
    alive = [weakref.ref(e.data.executable) for e in fast.entries]
    alive += [weakref.ref(r) for r in fast.program.rests.values()]
    assert len(alive) == 3
    tw.reset()
    gc.collect()
    assert [r() for r in alive if r() is not None] == []


def test_two_hundred_compiles_leave_nothing_behind():
    """In steady state neither objects, interned nodes, code objects nor memory grow with compiles."""

    def some(start: int, count: int) -> None:
        forget_warnings()
        for k in range(start, start + count):
            fast = tw.compile(made(k + 0.25, breaks=k % 4 == 0))
            with torch.set_grad_enabled(k % 3 == 0):
                fast(torch.randn(2, 3, requires_grad=k % 3 == 0), 2.5)
            assert fast.stats.eager_calls == 0
        gc.collect()

    some(0, 100)
    grown = []
    for start in (100, 180, 260):
        objects, nodes, before = len(gc.get_objects()), interned_nodes(), resident()
        some(start, 80)
        grown.append(((resident() - before) / 80, len(gc.get_objects()) - objects, interned_nodes() - nodes))
    least = [min(g) for g in zip(*grown)]  # a leak shows every time
    assert least[0] < 4096 and least[1] < 40 and least[2] < 20, grown


def interned_nodes() -> int:
    return sum(len(c._table) for c in _subclasses() if hasattr(c, "_table"))


def _subclasses() -> list[type]:
    return [o for o in gc.get_objects() if type(o) is interned.Interned]


def test_answers_are_remembered_while_their_object_lives():
    asked = []

    @remembered
    def name(cls, how):
        asked.append((cls, how))
        return cls.__name__ + how

    class A:
        pass

    assert [name(A, "!"), name(A, "!"), name(A, "?")] == ["A!", "A!", "A?"] and len(asked) == 2
    asked.clear()
    gone = weakref.ref(A)
    del A
    gc.collect()
    assert gone() is None
