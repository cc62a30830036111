"""The launcher: guard rows, launches, folded values, outputs, written inputs."""

import ctypes
import gc

import pytest
import torch

from tilewright import native
from tilewright.program import torch_link
from tilewright.program.torch_link import dlpack_dtype

torch_link.connect()


class Call(ctypes.Structure):
    """native/tw_call.h, up to `threads`."""

    _fields_ = [
        ("size", ctypes.c_uint32), ("abi", ctypes.c_uint32), ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)), ("folded", ctypes.c_void_p), ("arena", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p), ("scratch_bytes", ctypes.c_int64), ("sizes", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p), ("pool", ctypes.c_void_p), ("threads", ctypes.c_int64),
    ]  # fmt: skip


RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Call))
F32 = ctypes.POINTER(ctypes.c_float)


def address(f):
    return ctypes.cast(f, ctypes.c_void_p).value


def floats(pointer, n):
    return (ctypes.c_float * n).from_address(pointer)


def meta(t, index, grad=None):
    return (type(t), index, *dlpack_dtype(t.dtype), 1, 0, grad, tuple(t.shape), t.stride())


def entry(
    rows,
    *,
    nargs=1,
    kwnames=(),
    inputs=1,
    outputs=(),
    rebuild=None,
    runner=None,
    run=0,
    fold=0,
    watch=(),
    written=(),
    folded=0,
    arena=0,
    cost=0,
):
    return native.Entry(
        nargs, kwnames, rows, inputs, list(outputs), rebuild, runner, "data",
        run, fold, folded, arena, 0, cost, list(watch), list(written),
    )  # fmt: skip


@RUN
def double(call):
    c = call.contents
    x, y = floats(c.inputs[0], 4), floats(c.outputs[0], 4)
    for i in range(4):
        y[i] = 2 * x[i]
    return 0


NEW4 = (0, 0, (4,), (1,), torch.float32)


def test_a_call_runs_and_wraps_its_output():
    x = torch.arange(4.0)
    e = entry([("tensor", 0, meta(x, 0))], outputs=[NEW4], run=address(double), arena=100)
    assert torch.equal(e.run(x), 2 * x)
    assert e.data == "data"


def test_the_layout_of_a_call_is_the_header_s():
    seen = {}

    @RUN
    def look(call):
        c = call.contents
        seen.update(size=c.size, abi=c.abi, threads=c.threads, arena=c.arena % 64)
        return 0

    x = torch.arange(4.0)
    entry([("tensor", 0, meta(x, 0))], outputs=[NEW4], run=address(look), arena=100).run(x)
    assert seen == {"size": Call.threads.offset + 8 + 8 + 256, "abi": 1, "threads": torch.get_num_threads(), "arena": 0}


@pytest.mark.parametrize(
    "other",
    [
        torch.arange(5.0),
        torch.arange(4),
        torch.arange(4.0).double(),
        torch.arange(8.0)[::2],
        torch.zeros(2, 2),
        torch.nn.Parameter(torch.zeros(4)),
        torch.zeros(4).to_sparse(),
        3,
        None,
    ],
)
def test_a_tensor_of_other_metadata_fails_the_guard(other):
    x = torch.arange(4.0)
    assert entry([("tensor", 0, meta(x, 0))]).check(other) == 0


def test_requires_grad_is_checked_where_asked():
    x = torch.zeros(4)
    e = entry([("tensor", 0, meta(x, 0, grad=False))])
    assert e.check(x) is None
    assert e.check(torch.zeros(4, requires_grad=True)) == 0


@pytest.mark.parametrize(("good", "bad"), [(1, 1.0), (1, True), (0.0, -0.0), ("a", "b"), (None, 0), (2.5, 2.25)])
def test_values_compare_by_type_and_value(good, bad):
    e = entry([("eq", 0, good)], inputs=0)
    assert e.check(good) is None
    assert e.check(bad) == 0


def test_nan_equals_itself():
    assert entry([("eq", 0, float("nan"))], inputs=0).check(float("nan")) is None


def test_derived_slots_and_containers():
    rows = [("type", 0, dict), ("len", 0, 1), ("get", 0, "x"), ("item", 1, 1), ("eq", 2, 7)]
    e = entry(rows, inputs=0)
    assert e.check({"x": [0, 7]}) is None
    assert e.check({"x": [0, 8]}) == 4
    assert e.check({"x": [0]}) == 3
    assert e.check({"y": [0, 7]}) == 2
    assert e.check([1]) == 0


def test_cells_and_states():
    def outer(v):
        return lambda: v

    cell = outer(5).__closure__[0]
    e = entry([("const", cell), ("cell", 0), ("eq", 1, 5), ("state", torch.is_grad_enabled, None, True)], nargs=0, inputs=0)
    assert e.check() is None
    with torch.no_grad():
        assert e.check() == 3
    cell.cell_contents = 6
    assert e.check() == 2


def test_the_signature_is_part_of_the_guard():
    e = entry([], nargs=1, kwnames=("mask",), inputs=0)
    assert e.check(1, mask=2) is None
    assert e.check(1) == -1
    assert e.check(1, other=2) == -1
    assert e.check(1, 2) == -1


@pytest.mark.parametrize("row", [("nonsense", 0, 1), ("eq", 5, 1), ("eq", 0), (), "eq", ("tensor", 0, (1, 2))])
def test_a_malformed_row_is_an_error(row):
    with pytest.raises((ValueError, TypeError)):
        entry([row])


def test_dispatcher_tries_entries_then_misses():
    x, y = torch.arange(4.0), torch.arange(4)
    d = native.Dispatcher()
    d.miss = lambda args, kwargs: ("missed", args, kwargs)
    d.entries = (entry([("tensor", 0, meta(x, 0))], outputs=[NEW4], run=address(double)),)
    assert torch.equal(d(x), 2 * x)
    assert d.last is d.entries[0]
    assert d(y, k=1) == ("missed", (y,), {"k": 1})
    with pytest.raises(TypeError):
        d.entries = [1]


def folding():
    """fold copies input 0, doubled, into the folded area; run copies that area to the output."""

    @RUN
    def fold(call):
        c = call.contents
        for i in range(4):
            floats(c.folded, 4)[i] = 2 * floats(c.inputs[0], 4)[i]
        return 0

    @RUN
    def run(call):
        c = call.contents
        for i in range(4):
            floats(c.outputs[0], 4)[i] = floats(c.folded, 4)[i]
        return 0

    return fold, run


def update_step(w):
    with torch.no_grad():
        w.add_(1)


@pytest.mark.parametrize(
    "change",
    [
        update_step,
        lambda w: w.data.mul_(3),
        lambda w: w.detach().numpy().__setitem__(2, 40.0),
        lambda w: setattr(w, "data", torch.full((4,), 9.0)),
    ],
    ids=["in place", "through data", "through numpy", "new storage"],
)
def test_folded_values_follow_their_parameter(change):
    fold, run = folding()
    holder = {"w": torch.nn.Parameter(torch.arange(4.0))}
    rows = [("const", holder), ("get", 0, "w"), ("tensor", 1, meta(holder["w"], 0))]
    e = entry(rows, nargs=0, outputs=[NEW4], run=address(run), fold=address(fold), watch=[(0, 16)], folded=16)
    assert torch.equal(e.run(), 2 * holder["w"].detach())
    e.run()
    assert e.folds == 1
    change(holder["w"])
    assert torch.equal(e.run(), 2 * holder["w"].detach())
    assert e.folds == 2
    holder["w"] = torch.nn.Parameter(torch.ones(4))
    assert torch.equal(e.run(), torch.full((4,), 2.0))


def test_outputs_that_alias():
    x = torch.arange(4.0)
    view = (1, 0, (2,), (1,), 1)
    e = entry(
        [("tensor", 0, meta(x, 0))],
        outputs=[NEW4, view, (2, 0, (2,), (2,), 0), (3, 0, None, None, None)],
        rebuild=tuple,
        run=address(double),
    )
    new, of_input, of_output, same = e.run(x)
    assert same is x
    assert of_input.data_ptr() == x.data_ptr() + 4
    assert torch.equal(of_output, new[::2])


def test_written_inputs_bump_their_version_and_must_not_overlap():
    base = torch.arange(8.0)
    x, y = base[:4], torch.arange(4.0)
    rows = [("tensor", 0, meta(x, 0)), ("tensor", 1, meta(y, 1))]
    e = entry(rows, nargs=2, inputs=2, outputs=[NEW4], run=address(double), written=[0])
    before = x._version
    e.run(x, y)
    assert x._version == before + 1
    assert e.check(x, base[2:6]) == len(rows)
    assert e.check(x, base[4:]) is None


def test_a_failing_run_raises_its_message():
    @RUN
    def fail(call):
        ctypes.memmove(ctypes.addressof(call.contents) + Call.threads.offset + 16, b"no luck\0", 8)
        return 1

    x = torch.arange(4.0)
    with pytest.raises(RuntimeError, match="no luck"):
        entry([("tensor", 0, meta(x, 0))], outputs=[NEW4], run=address(fail)).run(x)


def test_a_runner_replaces_the_native_run():
    x = torch.arange(4.0)
    e = entry(
        [("tensor", 0, meta(x, 0))],
        outputs=[],
        rebuild=lambda made: made[0],
        runner=lambda inputs, folded: [inputs[0] + 1, folded],
    )
    assert torch.equal(e.run(x), x + 1)


def test_nothing_leaks():
    x = torch.arange(4.0)
    e = entry([("tensor", 0, meta(x, 0))], outputs=[NEW4], run=address(double), arena=1000)
    e.run(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        e.run(x)
        e.check(1)
    gc.collect()
    assert len(gc.get_objects()) - before < 20
