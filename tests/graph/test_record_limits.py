"""What cannot be recorded, said clearly at the user's line; and that recording leaves no trace."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from graph.recording import check, run
from tilewright.base.errors import RecordError, UnsupportedTensor
from tilewright.graph.ir import InputKind
from tilewright.graph.record import record

F = torch.nn.functional

X = torch.arange(6.0).reshape(2, 3)


def line_of(fn):
    return fn.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.sum().item(), "data of a tensor"),
        (lambda x: x if x.sum() > 0 else -x, "data of a tensor"),
        (lambda x: float(x[0, 0]), "data of a tensor"),
        (lambda x: [0, 1][x[0, 0].long()], "data of a tensor"),
        (lambda x: x.tolist(), "data of a tensor"),
        (lambda x: x.numpy(), "data of a tensor"),
        (lambda x: np.asarray(x), "data of a tensor"),
        (lambda x: f"{x}", "data of a tensor"),
        (lambda x: print(x), "data of a tensor"),
        (lambda x: torch.equal(x, x + 1), "data of a tensor"),
        (lambda x: 3.0 in x, "data of a tensor"),
        (lambda x: x * torch.rand(()).item(), "random numbers"),
        (lambda x: x[x > 1], "depends on the data|without running"),
        (lambda x: torch.nonzero(x), "depends on the data"),
        (lambda x: x.unique(), "depends on the data"),
        (lambda x: torch.masked_select(x, x > 0), "depends on the data"),
        (lambda x: x.data_ptr(), "memory"),
        (lambda x: x.untyped_storage(), "memory"),
        (lambda x: x.requires_grad_(), "autograd"),
        (lambda x: (x * W).sum().backward(), "autograd"),
        (lambda x: x.grad, "gradient"),
        (lambda x: setattr(x, "data", x + 1), "existing tensor"),
        (lambda x: x.resize_(3), "size or the memory"),
        (lambda x: x.set_(x + 1), "memory"),
        (lambda x: x.t_(), "shape of an input"),
        (lambda x: torch.add(x, 1, out=torch.empty(0)), "resizes"),
        (lambda x: torch.empty(0, device="meta"), "meta"),
        (lambda x: x.to("meta"), "meta"),
        (lambda x: torch.randn(2, generator=torch.Generator()), "generator"),
        (lambda x: x + S.to_dense(), "sparse"),
        (lambda x: object(), "holds a object"),
        (lambda x: x.view(torch.int32), "dtype or form"),
    ],
)
def test_refusals_name_the_users_line(fn, reason, capsys):
    with pytest.raises((RecordError, UnsupportedTensor), match=reason) as found:
        record(fn, (X.clone(),))
    at = found.value.at
    if reason not in ("holds a object", "dtype or form"):
        assert at is not None
        assert at.file == __file__
        assert at.line == line_of(fn)
    assert not torch.compiler.is_compiling()
    assert capsys.readouterr().out == ""


W = nn.Parameter(torch.ones(3))
S = torch.eye(3).to_sparse()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), torch.empty(2, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
    ],
    ids=["sparse", "quantized", "meta", "conjugated", "subclass"],
)  # fmt: skip
def test_unsupported_tensors(tensor):
    with pytest.raises(UnsupportedTensor, match="argument 0"):
        record(lambda x: x, (tensor,))


def test_a_refusal_that_the_program_catches_still_counts():
    def fn(x):
        try:
            return x * x.sum().item()
        except Exception:
            return x

    with pytest.raises(RecordError, match="data of a tensor"):
        record(fn, (X,))


def test_reads_of_what_depends_on_nothing():
    def fn(x):
        n = torch.arange(5)
        if (n >= 0).all() and torch.tensor([1, 2]).sum().item() == 3 and n.max() == 4:
            return x * int(n.sum()) + len(n.tolist()) + torch.tensor(0.5).item()
        return x

    recorded = check(fn, X)
    assert len(recorded.graph.inputs) <= 2


def test_the_programs_own_errors_come_as_they_are():
    class Mine(Exception):
        pass

    def fn(x):
        y = x + 1
        if y.shape[0] == 2:
            raise Mine("two")
        return y

    with pytest.raises(Mine, match="two") as found:
        record(fn, (X,))
    assert found.traceback[-1].lineno + 1 == line_of(fn) + 3
    assert not torch.compiler.is_compiling()
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0 if False else True
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))

    def caught(x):
        try:
            x @ x
        except RuntimeError:
            return x + 1
        return x

    check(caught, X)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.count = 0
        self.log = []
        self.cache = {}
        self.last = None

    def forward(self, x, how):
        if how == "attribute":
            self.count += 1
        elif how == "list":
            self.log.append(1)
        elif how == "dict":
            self.cache["x"] = 1
        elif how == "tensor":
            self.last = self.lin(x)
        elif how == "parameter":
            self.lin.weight = nn.Parameter(torch.zeros(3, 3))
        elif how == "delete":
            del self.last
        elif how == "train":
            self.train()
        elif how == "raise":
            self.count += 1
            self.log.append(x)
            raise ValueError("on the way")
        return self.lin(x)


@pytest.mark.parametrize("how", ["attribute", "list", "dict", "tensor", "parameter", "delete", "train"])
def test_changed_modules_are_refused_and_put_back(how):
    module = Stateful().eval()
    before = {k: v for k, v in module.__dict__.items() if not k.startswith("_")}
    weight = module.lin.weight
    with pytest.raises(RecordError, match="changes"):
        record(module, (X, how))
    assert {k: v for k, v in module.__dict__.items() if not k.startswith("_")} == before
    assert module.lin.weight is weight
    assert module.log == []
    assert module.cache == {}


def test_nothing_is_left_by_an_exception():
    module = Stateful().eval()
    with pytest.raises(ValueError, match="on the way"):
        record(module, (X, "raise"))
    assert module.count == 0
    assert module.log == []


KEPT = []
NUMBER = 0


def test_changed_python_state_is_refused_and_put_back():
    state, items, n = {"n": 0}, [1], 0

    def cell(x):
        nonlocal n
        n += 1
        return x * n

    def dictionary(x):
        state["n"] += 1
        return x * state["n"]

    def global_list(x):
        KEPT.append(1)
        return x

    def global_name(x):
        global NUMBER
        NUMBER += 1
        return x * NUMBER

    def argument(x, items):
        items.append(2)
        return x

    def global_tensor(x):
        KEPT.append(x + 1)
        return x

    for fn, args in ((cell, ()), (dictionary, ()), (global_list, ()), (global_name, ()), (global_tensor, ())):
        with pytest.raises(RecordError, match="changes"):
            record(fn, (X, *args))
    with pytest.raises(RecordError, match="changes"):
        record(argument, (X, items))
    assert (state, items, n, KEPT, NUMBER) == ({"n": 0}, [1], 0, [], 0)


class Holder:
    pass


def test_a_tensor_kept_out_of_sight_is_found():
    holder = Holder()

    def deep(x):
        holder.inner = Holder()
        holder.inner.x = x + 1
        return x

    outer = {"list": [[]]}

    def hidden(x):
        outer["list"][0].append(x * 2)
        return x

    for fn in (deep, hidden, lambda x: (x, (lambda: x))):
        with pytest.raises(RecordError, match=r"changes|keeps a tensor"):
            record(fn, (X,))


def test_modes_and_random_states():
    def grad(x):
        torch.set_grad_enabled(False)
        return x

    def seed(x):
        torch.manual_seed(1)
        return x * 2

    def python(x):
        return x * random.random()

    def numpy(x):
        return x * float(np.random.rand())

    def dtype(x):
        torch.set_default_dtype(torch.float64)
        return x + torch.ones(3)

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for fn in (grad, seed, python, numpy, dtype):
        with pytest.raises(RecordError, match="changes"):
            record(fn, (X,))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    check(lambda x: (torch.is_grad_enabled(), x), X)


def test_compiling_is_seen_within_and_only_there():
    seen = []

    def fn(x):
        return x + 1 if torch.compiler.is_compiling() else x

    def other():
        seen.append(torch.equal(torch.ones(2) * 2, torch.full((2,), 2.0)))

    recorded = record(fn, (X,))
    assert torch.equal(run(recorded, (X,)), X + 1)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [True]


def test_two_threads_record_at_once():
    module, results, errors = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 2)), [], []

    def work():
        try:
            for _ in range(5):
                results.append(run(record(module, (X,)), (X,)))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert all(torch.allclose(r, module(X)) for r in results)
    assert not torch.compiler.is_compiling()


def test_inputs_and_where_they_come_from():
    closed = torch.ones(3)
    module = nn.Linear(3, 3)

    def fn(d, *, scale):
        return module(d["a"][1]) * scale + closed + torch.tensor([1.0, 2.0, 3.0]) + d["n"]

    recorded = check(fn, {"a": [0, X], "n": 2}, scale=torch.ones(()))
    kinds = [(n.attrs.kind, n.attrs.name) for n in recorded.graph.inputs]
    assert kinds[:2] == [(InputKind.USER, "0_a_1"), (InputKind.USER, "scale")]
    assert kinds[2:4] == [(InputKind.PARAMETER, "module.weight"), (InputKind.PARAMETER, "module.bias")]
    assert [k for k, _ in kinds[4:]] == [InputKind.CONSTANT] * 2
    assert recorded.graph.strides[0] == (3, 1)

    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    recorded = record(tied, (X,))
    assert [s.name for s in recorded.inputs[1:]] == ["0.weight", "0.bias", "1.bias"]
    assert [n.attrs.kind for n in recorded.graph.inputs[1:]] == [InputKind.PARAMETER] * 3


def test_results_rebuild():
    class Pair(tuple):
        __slots__ = ()

    def fn(x):
        return {"a": [x, (x + 1, None)], "b": 3, "c": torch.float32, "d": "text", "e": x.shape, "f": {1, 2}}

    result = run(record(fn, (X,)), (X,))
    assert list(result) == ["a", "b", "c", "d", "e", "f"]
    assert result["a"][0] is X
    assert result["a"][1][1] is None
    assert result["e"] == (2, 3)
    assert type(result["e"]) is torch.Size
    assert result["f"] == {1, 2}
    assert record(lambda x: x + 1, (X,)).rebuild is None
    assert run(record(lambda x: None, (X,)), (X,)) is None
    assert run(record(lambda x: W, (X,)), (X,)) is W


def test_data_in_python_is_a_constant_of_its_own():
    def fn(x):
        t = torch.tensor([1.0, 2.0, 3.0])
        t += x[0]
        return t

    recorded = check(fn, X)
    assert recorded.graph.effects == ()
    for _ in range(2):
        assert torch.equal(run(recorded, (X,)), fn(X))


def test_a_custom_operator_is_an_opaque_call_in_order():
    with torch.library._scoped_library("tw_record_test", "FRAGMENT") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        recorded = check(lambda x: torch.ops.tw_record_test.twice(x) + 1, X, opaque=("tw_record_test.twice.default",))
        assert [n.attrs.seq >= 0 for n in recorded.graph.nodes() if n.op.name == "call"] == [True]


def test_under_transforms_and_checkpoints():
    check(lambda x: torch.utils.checkpoint.checkpoint(lambda y: F.relu(y) * 2, x, use_reentrant=False), X)
    check(lambda x: torch.func.functional_call(nn.Identity(), {}, (x,)) + 1, X)
    check(lambda x: torch.func.grad(lambda y: (y * y).sum())(x), X)


@torch.jit.script
def scripted(x):
    if x.size(0) > 1:
        return torch.relu(x) + 1
    return x


def test_scripted_functions():
    check(scripted, X)
    check(lambda x: scripted(x * 2).sum(0), X)
