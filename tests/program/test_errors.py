"""Errors of the user's code are eager's own: type, message, context, and a traceback that reads as in eager."""

import traceback

import pytest
import torch
from torch import nn

import tilewright as tw


def value(x):
    y = x + 1
    raise ValueError(f"no {y.shape}")


def shapes(x):
    return x + torch.ones(4)


def behind_a_break(x):
    y = x.sin()
    if y.sum() > -99:
        y = y + 1
    return y.reshape(7)


def inner(x):
    z = x * 2
    {}["k"]
    return z


def nested(x):
    a = x + 1
    return inner(a)


def nested_behind_a_break(x):
    y = x.sin()
    if y.sum() > -99:
        y = y * 2
    return inner(y)


def at_a_break(x):
    y = x.sin()
    n = int(str(y.tolist()))
    return y * n


def index(x):
    return x[torch.tensor([9])] + 1


def chained(x):
    try:
        return inner(x)
    except KeyError as e:
        raise RuntimeError("outer") from e


def during(x):
    try:
        return inner(x)
    except KeyError:
        return x + torch.ones(5)


def comprehension(x):
    return [x / (1 // (i - 1)) for i in range(3)]


def attribute(x):
    return x.nothing


def signature(x):
    return torch.add(x)


def arguments(x, y):
    return x


class Own(Exception):
    def __init__(self, a, b):
        self.a = a


def own_class(x):
    raise Own(1, 2)


def through_compiled(x):
    return COMPILED(x + 1)


COMPILED = tw.compile(nested)

CASES = [
    value, shapes, behind_a_break, nested, nested_behind_a_break, at_a_break, index, chained, during, comprehension, attribute,
    signature, arguments, own_class, through_compiled,
]  # fmt: skip


def raised(f, x):
    try:
        f(x)
    except Exception as e:
        return e
    raise AssertionError("nothing was raised")


def told(e):
    """All that a reader sees of an exception, apart from frames of torch's."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(e.__traceback__) if "site-packages" not in f.filename]
    chain = [None if c is None else told(c)[:2] for c in (e.__cause__, e.__context__)]
    return type(e), str(e), frames[1:], chain, e.__suppress_context__


@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_errors_are_eagers(f, grad):
    fast = tw.compile(f)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            x = torch.ones(3, requires_grad=grad)
            assert told(raised(fast, x)) == told(raised(f, x))


def test_errors_in_modules_end_at_the_user_s_line():
    class M(nn.Module):
        def forward(self, x):
            return inner(x) + self.missing

    m, x = M(), torch.ones(3)
    eager, got = told(raised(m, x)), told(raised(tw.compile(m), x))
    assert got[:2] == eager[:2] and got[2][-2:] == eager[2][-2:]


def test_a_fault_behind_our_frames_keeps_them():
    """What ends in our own code is not made to look like the user's."""

    def backend(module, inputs):
        return lambda *args: 3

    fast = tw.compile(lambda x: x + 1, backend=backend)
    e = raised(fast, torch.ones(3))
    assert isinstance(e, tw.errors.CompileError)
    assert traceback.extract_tb(e.__traceback__)[-1].filename.endswith("foreign.py")


def test_fullgraph_raises_one_error_with_line_reason_and_hint():
    e = raised(tw.compile(nested_behind_a_break, fullgraph=True), torch.ones(3))
    line = nested_behind_a_break.__code__.co_firstlineno + 2
    assert isinstance(e, tw.errors.GraphBreak) and e.__cause__ is None and (e.__context__ is None or e.__suppress_context__)
    assert str(e).splitlines()[0] == "the graph breaks: Python branches on a tensor's data"
    assert f"test_errors.py:{line}:" in str(e) and "if y.sum() > -99:" in str(e) and "^^^" in str(e)
    assert str(e).splitlines()[-1].startswith("hint: keep the decision on the tensor")
