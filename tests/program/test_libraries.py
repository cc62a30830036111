"""What programs of libraries do beside tensors: functions that keep their results, NumPy's numbers, complex tensors."""

import collections
import copy
import functools
import importlib.metadata
import logging
import threading

import numpy as np
import pytest
import torch

import tilewright as tw
from program.agreement import agree


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


LOCK = threading.RLock()
LOGGER = logging.getLogger("test")


@functools.lru_cache
def is_new(name, least):
    with LOCK:  # of which nothing is known
        return tuple(map(int, importlib.metadata.version(name).split("+")[0].split("."))) >= least


def test_function_that_keeps_its_results_and_cannot_be_interpreted():
    agree(lambda: lambda x: x * 2 if is_new("numpy", (1, 0)) else x, *[lambda: (torch.ones(3),)] * 2, breaks=0, compiles=1)


class Numbers:
    scale = np.float64(3.5)
    steps = np.int64(4)
    on = np.bool_(True)


def test_numbers_of_numpy():
    def f(x, h, s):
        y = x * np.sqrt(16) + np.float32(2) * x + h.scale * x + x * h.steps
        if h.on:
            y = y + np.log(5) + float(np.prod((2, 3)))
        return y * s, np.float64(3), s * 2, np.sqrt(s)

    held, numbers = Numbers(), (np.float64(2.0), np.float64(2.0), np.int32(3), 2.0)
    agree(lambda: f, *[lambda s=s: (torch.arange(3.0), held, s) for s in numbers], breaks=0, compiles=3)


def test_arrays_and_random_numbers_of_numpy_break_the_graph():
    agree(lambda: lambda x: x + float(np.random.RandomState(0).rand()), lambda: (torch.ones(3),), breaks=None, natives=None)
    agree(lambda: lambda x: x + np.linspace(0, 1, 3)[1], lambda: (torch.ones(3),), breaks=None, natives=None)


def test_complex_tensors():
    def f(x):
        z = torch.complex(x, x * 2).reshape(5, 1).to(torch.complex128) * 1j
        w = torch.zeros(5, 2, dtype=torch.complex128)
        w.copy_(z)
        return torch.view_as_real(w.unsqueeze(0)).float(), w.abs(), (w.real + 1).to(torch.complex64), torch.fft.fft(w).real.sum()

    x = torch.randn(5)
    fast = tw.compile(f)
    for got, want in zip(fast(x), f(x), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert fast.stats.graph_breaks == fast.stats.eager_calls == 0


def test_result_that_shows_a_complex_input_in_another_way_shares_its_memory():
    z = torch.randn(4, dtype=torch.complex64)
    with pytest.warns(UserWarning, match="shares memory"):
        shown = tw.compile(lambda x: torch.view_as_real(x))(z)
    z.mul_(2)
    assert torch.equal(shown, torch.view_as_real(z))


def test_marks_of_autograd_that_change_nothing():
    agree(lambda: lambda x: torch.zeros_like(x).requires_grad_(False) + x.detach_(), lambda: (torch.ones(3),), breaks=0)
    agree(lambda: lambda x: torch.zeros_like(x).requires_grad_() + x, lambda: (torch.ones(3),), breaks=0)


def test_operator_whose_result_has_another_shape_than_torch_says():
    x, y = torch.randn(4), torch.tensor([3, 0, -1, 1])  # torch's meta kernel says [1]
    loss = torch.nn.MultiLabelMarginLoss(reduction="none")
    assert tw.compile(loss)(x, y).shape == loss(x, y).shape == ()


@functools.lru_cache
def say_once(logger, text, level=0):
    logger.warning("%s at %s", text, level)


def test_what_a_function_that_keeps_its_results_does_is_done_once(caplog):
    def f(x):
        say_once(LOGGER, "hello", level=3)
        LOGGER.warning("%d", x.shape[0])
        return x + 1

    fast = tw.compile(f)
    for _ in range(3):
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))
    assert [r.getMessage() for r in caplog.records] == ["hello at 3", "2", "2", "2"]
    assert fast.stats.graph_breaks == 0


def test_program_whose_way_for_compilers_raises():
    def f(x):
        if torch.compiler.is_compiling():
            raise NotImplementedError
        return x + 1

    agree(lambda: f, *[lambda: (torch.ones(2),)] * 2, breaks=0, compiles=1)


KNOWN = {Numbers, agree}


def test_set_of_classes():
    agree(lambda: lambda x, c: x + (c in KNOWN), lambda: (torch.ones(2), Numbers), lambda: (torch.ones(2), int), breaks=0)
    fast = tw.compile(lambda x: x + (int in KNOWN))
    assert fast(torch.ones(1)) == 1
    KNOWN.add(int)
    assert fast(torch.ones(1)) == 2
    KNOWN.remove(int)


class Record(collections.OrderedDict):
    def update(self, *args, **kwargs):
        raise TypeError("a record is not updated")


def test_dict_of_a_class_that_refuses_to_be_filled():
    def f(x, record):
        record["b"] = x + 1
        del record["a"]
        record.move_to_end("c", last=False)
        return x

    def given():
        record = Record()
        for k in "abc":
            record[k] = 1
        return torch.ones(2), record

    agree(lambda: f, given, given, breaks=0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        h = self.norm(x.to(self.norm.weight.dtype))
        if x.sum() > 0:
            h = h + 1
        return x + h


def test_modules_whose_iteration_a_graph_break_interrupts():
    layers = torch.nn.ModuleList([Block() for _ in range(3)])

    def f(x):
        for layer in layers:
            x = layer(x)
        return x

    agree(lambda: f, *[lambda s=s: (torch.full((2, 4), s),) for s in (1.0, -1.0)], breaks=1)


class Settings:
    def __init__(self):
        self.scale, self.names = 2, ["a"]


def test_copy_of_an_object():
    def f(x, settings):
        mine = copy.copy(settings)
        mine.scale += x.shape[0]
        return x * mine.scale, mine.names is settings.names, vars(mine), copy.copy([x, 1])

    held = Settings()
    agree(lambda: f, *[lambda: (torch.ones(2), held)] * 2, breaks=0, compiles=1)
    fast = tw.compile(lambda x: x * copy.copy(held).scale)
    assert fast(torch.ones(1)) == 2
    held.scale = 5
    assert fast(torch.ones(1)) == 5
