"""tw.compile as a user meets it: values, guards, fallbacks, state, threads, forks."""

import copy
import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.base.log import TilewrightWarning, forget_warnings


@pytest.fixture(autouse=True)
def _quiet():
    forget_warnings()
    with torch.no_grad():
        yield


def mlp(width=32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width), nn.LayerNorm(width)).eval()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-5)


def test_a_function_gives_eager_s_values():
    def f(x, y):
        return torch.sin(x) + torch.cos(y) * 2

    fast = tw.compile(f)
    for shape in [(64,), (3, 5), (0, 4), (1,), ()]:
        x, y = torch.randn(shape), torch.randn(shape)
        close(fast(x, y), f(x, y))
    assert fast.stats.compiles == 5
    assert fast.stats.eager_calls == 0
    assert fast.stats.kernels <= 1
    assert fast.__name__ == "f"


def test_a_module_stays_the_module():
    m = mlp()
    fast = tw.compile(m)
    x = torch.randn(5, 32)
    close(fast(x), m(x))
    assert isinstance(fast, nn.Sequential)
    assert list(fast.state_dict()) == list(m.state_dict())
    assert fast[0] is m[0]
    assert fast.stats.opaque_calls == 0
    fast.train()
    assert m.training
    m.eval()
    assert not fast.training
    assert next(iter(fast.parameters())) is m[0].weight


def test_decorators_with_and_without_options():
    @tw.compile
    def f(x):
        return x + 1

    @tw.compile(options={"library": False})
    def g(x):
        return x + 2

    x = torch.randn(3)
    close(f(x), x + 1)
    close(g(x), x + 2)


def test_methods_compile():
    class Thing:
        def __init__(self, k):
            self.k = k

        @tw.compile
        def scale(self, x):
            return x * self.k

    x = torch.randn(4)
    close(Thing(3.0).scale(x), x * 3)
    close(Thing(4.0).scale(x), x * 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[0].weight.add_(0.5),
        lambda m: m[0].weight.data.mul_(2),
        lambda m: setattr(m[0], "weight", nn.Parameter(torch.randn(64, 32))),
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: setattr(m[2].bias, "data", torch.randn(32)),
        lambda m: m[0].weight.detach().numpy().__imul__(3),
        lambda m: m.__setitem__(1, nn.ReLU()),
        lambda m: m[0].register_forward_hook(lambda mod, args, out: out * 2),
        lambda m: setattr(m[3], "eps", 0.5),
        lambda m: m.append(nn.Tanh()),
        lambda m: setattr(m[0], "bias", None),
    ],
    ids=["in place", "data", "swap", "load", "bias data", "numpy", "child", "hook", "attribute", "append", "bias gone"],
)
def test_changes_of_a_module_are_seen_at_the_next_call(change):
    m = mlp()
    fast = tw.compile(m)
    x = torch.randn(5, 32)
    close(fast(x), m(x))
    fast(x)
    change(m)
    close(fast(x), m(x))
    close(fast(x), m(x))
    assert fast.stats.eager_calls == 0


def test_an_optimiser_step_is_seen():
    m = mlp()
    fast = tw.compile(m)
    optimiser = torch.optim.SGD(m.parameters(), lr=0.1)
    x = torch.randn(5, 32)
    fast(x)
    for _ in range(3):
        with torch.enable_grad():
            m(x).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        close(fast(x), m(x))
    assert fast.stats.compiles == 1


def test_training_flag_and_dropout():
    m = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    fast = tw.compile(m)
    x = torch.randn(4, 8)
    close(fast(x), m(x))
    m.train()
    torch.manual_seed(3)
    want = m(x)
    torch.manual_seed(3)
    close(fast(x), want)
    torch.manual_seed(4)
    want = m(x)
    torch.manual_seed(4)
    close(fast(x), want)


def test_batch_norm_updates_its_statistics():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).train()
    b = copy.deepcopy(a)
    fast = tw.compile(b)
    for _ in range(3):
        x = torch.randn(7, 4)
        close(fast(x), a(x))
        for p, q in zip(a.buffers(), b.buffers(), strict=True):
            close(p, q)


def test_results_keep_type_strides_and_containers():
    def f(x):
        y = x * 2
        return {"t": y.t(), "pair": (y, y[1:, ::2]), "list": [y.sum(), 3, None, "s"], "same": x}

    fast = tw.compile(f)
    x = torch.randn(4, 6)
    for _ in range(2):
        got, want = fast(x), f(x)
        assert got["same"] is x
        assert got["list"][1:] == [3, None, "s"]
        for a, b in [
            (got["t"], want["t"]),
            (got["pair"][0], want["pair"][0]),
            (got["pair"][1], want["pair"][1]),
            (got["list"][0], want["list"][0]),
        ]:
            close(a, b)
            assert a.stride() == b.stride()
        assert got["t"].data_ptr() == got["pair"][0].data_ptr()
        assert type(got["pair"]) is tuple


def test_inputs_are_written_as_eager_writes_them():
    def f(x, y):
        x.add_(1)
        x[1:3].mul_(2)
        return x.sum() + y

    fast = tw.compile(f)
    for _ in range(2):
        a, b, y = torch.arange(4.0), torch.arange(4.0), torch.randn(4)
        version = b._version
        close(fast(b, y), f(a, y))
        assert torch.equal(a, b)
        assert b._version > version


def test_inputs_that_start_to_overlap():
    def f(x, y):
        x.mul_(2)
        return x + y

    fast = tw.compile(f)
    fast(torch.arange(4.0), torch.arange(4.0))
    base = torch.arange(8.0)
    twin = base.clone()
    close(fast(base[:4], base[2:6]), f(twin[:4], twin[2:6]))
    assert torch.equal(base, twin)


def test_a_view_of_an_input_is_its_memory():
    def f(x):
        return x[1:], x + 1

    fast = tw.compile(f)
    x = torch.arange(5.0)
    for _ in range(2):
        view, y = fast(x)
        assert view.data_ptr() == x.data_ptr() + 4
        close(y, x + 1)


def test_python_arguments_are_guarded():
    def f(x, k, flag=False, name="a"):
        return x * k + (1 if flag else 0) + len(name)

    fast = tw.compile(f)
    x = torch.randn(3)
    for args, kwargs in [((2,), {}), ((3,), {}), ((2.0,), {}), ((2,), {"flag": True}), ((2,), {"flag": True, "name": "bcd"})]:
        close(fast(x, *args, **kwargs), f(x, *args, **kwargs))
    assert fast.stats.compiles == 5


def test_tensors_in_containers():
    def f(pair, table):
        return pair[0] + pair[1] * table["k"]["w"]

    fast = tw.compile(f)
    for n in (3, 4):
        a, b, c = torch.randn(n), torch.randn(n), torch.randn(n)
        for _ in range(2):
            close(fast([a, b], {"k": {"w": c}}), a + b * c)
    assert fast.stats.compiles == 2


def test_globals_and_closures_are_guarded():
    k = 2.0

    def f(x):
        return x * k

    fast = tw.compile(f)
    x = torch.randn(3)
    close(fast(x), x * 2)
    k = 5.0
    close(fast(x), x * 5)


def test_a_branch_on_data_cuts_the_graph_without_a_warning():
    def f(x):
        return x + 1 if x.sum().item() > 0 else x - 1

    fast = tw.compile(f)
    x = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(fast(x), x + 1)
        close(fast(-x), -x - 1)
    assert (fast.stats.eager_calls, fast.stats.graph_breaks) == (0, 1)
    with pytest.raises(tw.errors.TilewrightError, match="data is needed as a Python value"):
        tw.compile(f, fullgraph=True)(x)


def test_what_cannot_be_captured_runs_in_eager_with_one_warning():
    async def f(x):
        return x + 1

    fast = tw.compile(f)
    x = torch.ones(3)
    with pytest.warns(TilewrightWarning, match="runs in eager.*coroutines are not captured"):
        fast(x).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(-x).close()
    assert (fast.stats.eager_calls, fast.stats.compiles) == (2, 0)


def test_an_exception_of_the_user_s_code_is_the_user_s():
    def f(x):
        if x.shape[0] == 3:
            raise LookupError("three")
        return x + 1

    fast = tw.compile(f)
    with pytest.raises(LookupError, match="three"):
        fast(torch.ones(3))
    close(fast(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="must match"):
        tw.compile(lambda x, y: x + y)(torch.ones(2), torch.ones(3))


def test_operators_without_a_row_run_opaquely():
    def f(x):
        y = x * 2
        q, r = torch.linalg.qr(y @ y.t() + torch.eye(4))
        return (q @ r).relu() + 1

    fast = tw.compile(f)
    x = torch.randn(4, 4)
    for _ in range(2):
        close(fast(x), f(x))
    assert fast.stats.opaque_calls >= 1
    assert fast.stats.eager_calls == 0
    assert fast.stats.kernels >= 1


@pytest.mark.parametrize(
    "make",
    [lambda: torch.randn(4, 4).to_sparse(), lambda: torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)],
    ids=["sparse", "quantised"],
)
def test_tensors_that_are_not_compiled_run_in_eager(make):
    fast = tw.compile(lambda x: x.dequantize() if x.is_quantized else x.to_dense() + 1)
    with pytest.warns(TilewrightWarning):
        fast(make())
    assert fast.stats.eager_calls == 1


def test_a_tensor_subclass_runs_in_eager():
    class Tagged(torch.Tensor):
        pass

    fast = tw.compile(lambda x: x + 1)
    fast(torch.ones(3))
    with pytest.warns(TilewrightWarning):
        got = fast(torch.ones(3).as_subclass(Tagged))
    assert type(got) is Tagged


def test_bad_calls_of_compile():
    with pytest.raises(tw.errors.NotCallable):
        tw.compile(3)
    with pytest.raises(tw.errors.UnknownOption, match="library"):
        tw.compile(lambda x: x, options={"libary": True})
    with pytest.raises(tw.errors.OptionError):
        tw.compile(lambda x: x, options={"library": 3})
    with pytest.raises(tw.errors.UnknownBackend, match="tilewright"):
        tw.compile(lambda x: x, backend="tilewrigth")
    with pytest.raises(tw.errors.OptionError):
        tw.compile(lambda x: x, mode="fastest")


def test_gradients_are_eager_s():
    m = mlp()
    twin = copy.deepcopy(m)
    fast = tw.compile(twin)
    x = torch.randn(5, 32)
    with torch.enable_grad():
        for _ in range(2):
            a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
            m(a).square().sum().backward()
            out = fast(b)
            assert out.requires_grad
            out.square().sum().backward()
            close(a.grad, b.grad)
    for p, q in zip(m.parameters(), twin.parameters(), strict=True):
        close(p.grad, q.grad)
    assert fast.stats.eager_backwards == 2
    assert fast.stats.eager_calls == 0
    assert not fast(x).requires_grad


def test_only_what_depends_on_a_gradient_requires_one():
    def f(x, w):
        return x * 2, x * w, (x * w).detach(), x.argmax()

    fast = tw.compile(f)
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    with torch.enable_grad():
        for _ in range(2):
            assert [t.requires_grad for t in fast(x, w)] == [False, True, False, False]


def test_autocast():
    m = mlp()
    fast = tw.compile(m)
    x = torch.randn(5, 32)
    close(fast(x), m(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fast(x), m(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    close(fast(x), m(x))


def test_inference_mode():
    m = mlp()
    fast = tw.compile(m)
    x = torch.randn(5, 32)
    with torch.inference_mode():
        got = fast(x)
        assert got.is_inference()
    close(got.clone(), m(x))
    assert not fast(x).is_inference()


def test_frozen_parameters_are_packed_once():
    m = mlp()
    fast = tw.compile(m, options={"freeze": True})
    x = torch.randn(5, 32)
    want = fast(x)
    m[0].weight.zero_()
    assert torch.equal(fast(x), want)
    tw.repack(fast)
    close(fast(x), m(x))


@pytest.mark.parametrize("freeze", [False, True])
def test_inference_tensors_are_packed_only_where_frozen(freeze):
    with torch.inference_mode():
        m = mlp()
        fast = tw.compile(m, options={"freeze": freeze})
        x = torch.randn(5, 32)
        close(fast(x), m(x))
        assert (fast.stats.packed_bytes > 0) is freeze
        if not freeze:
            m[0].weight[5, 5] = 7
            close(fast(x), m(x))


def test_two_threads_call_one_model():
    m = mlp()
    fast = tw.compile(m)
    inputs = [torch.randn(5, 32) for _ in range(4)]
    want = [fast(x) for x in inputs]
    close(want[0], m(inputs[0]))
    failures = []

    def work(k):
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(fast(inputs[k]), want[k]):
                    failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def _in_child(fast, x, queue):
    with torch.no_grad():
        queue.put(fast(x).numpy())


def test_a_forked_child_does_not_hang():
    m = mlp(256)
    fast = tw.compile(m)
    x = torch.randn(64, 256)
    want = fast(x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(fast, x, queue))
    child.start()
    got = queue.get(timeout=60)
    child.join(timeout=60)
    assert child.exitcode == 0
    close(torch.from_numpy(got), want)


def test_pickles_and_copies():
    m = mlp()
    fast = tw.compile(m)
    x = torch.randn(5, 32)
    want = fast(x)
    close(pickle.loads(pickle.dumps(fast))(x), want)
    twin = copy.deepcopy(fast)
    twin[0].weight.zero_()
    close(fast(x), want)
    close(twin(x), m[3](m[2](m[1](m[0].bias)).expand(5, -1)))
    assert list(pickle.loads(pickle.dumps(m)).state_dict()) == list(m.state_dict())


def test_texts_of_every_level():
    fast = tw.compile(lambda x: torch.softmax(x * 2, -1))
    with pytest.raises(ValueError, match="call it first"):
        fast.text()
    fast(torch.randn(4, 8))
    for level, word in [("graph", "mul"), ("tile", "reduce"), ("llvm", "define"), ("asm", "ret")]:
        assert word in fast.text(level)
    with pytest.raises(ValueError, match="graph"):
        fast.text("nonsense")


def test_dump_writes_every_stage(tmp_path):
    from tilewright.base import config

    with config.override(dump=tmp_path):
        tw.compile(lambda x: torch.tanh(x) + 1)(torch.randn(5))
    names = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert any("graph" in n for n in names)
    assert any("tile" in n for n in names)
    assert any("llvm" in n for n in names)


def test_recompiles_are_bounded():
    fast = tw.compile(lambda x: x + 1, dynamic=False, options={"recompile_limit": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(2, 8):
            close(fast(torch.ones(n)), torch.full((n,), 2.0))
    assert fast.stats.compiles == 3
    assert fast.stats.eager_calls == 3


def test_rebound_tensors_are_seen():
    w = torch.ones(3)

    def f(x):
        return x * w + HELD["w"]

    fast = tw.compile(f)
    x = torch.randn(3)
    close(fast(x), f(x))
    w = torch.full((3,), 4.0)
    close(fast(x), f(x))
    HELD["w"] = torch.full((3,), 9.0)
    close(fast(x), f(x))


HELD = {"w": torch.zeros(3)}


def test_a_fault_of_the_compiler_is_said_and_eager_runs(monkeypatch):
    from tilewright import driver

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(driver, "lower", broken)
    x = torch.randn(3)
    fast = tw.compile(lambda x: x * 3.25)
    with pytest.warns(TilewrightWarning, match="ZeroDivisionError: a bug"):
        close(fast(x), x * 3.25)
    close(fast(x), x * 3.25)
    assert fast.stats.eager_calls == 2
    with pytest.raises(tw.errors.CompileError, match="a bug"):
        tw.compile(lambda x: x * 3.25, fullgraph=True)(x)


def test_trace():
    traced = tw.trace(lambda x, y: (torch.tanh(x) @ y, x.shape[0]), (torch.randn(3, 4), torch.randn(4, 5)))
    x, y = torch.randn(3, 4), torch.randn(5, 4).t()
    got, n = traced(x, y)
    close(got, torch.tanh(x) @ y)
    assert n == 3
    with pytest.raises(tw.errors.ArgumentError):
        traced(torch.randn(2, 4), y)


@pytest.mark.parametrize(
    "f",
    [
        nn.Conv2d(8, 4, 3, padding=1),
        nn.ConvTranspose2d(8, 4, 3),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.MaxPool2d(2),
        lambda x: torch.sort(x, -1),
        lambda x: torch.cdist(x, x),
        lambda x: x.flatten().topk(3),
    ],
    ids=["convolution", "transposed", "depthwise", "pool", "sort", "cdist", "topk"],
)
def test_one_eager_operator_is_a_whole_graph(f):
    fast = tw.compile(f)
    x = torch.randn(2, 8, 6, 6)
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        for _ in range(2):
            got, want = fast(given), f(given)
            for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
                close(a, b)
                assert a.stride() == b.stride()
    assert fast.stats.eager_calls == 0
    assert fast.stats.opaque_calls >= 1


def test_after_torch_s_compiler_has_run():
    """It wraps `nn.Module.__init__` for good: modules made in a compiled function are still no graph break."""
    source = """
import torch, tilewright as tw
from torch import nn

torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))

class Made(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return x * self.k

fast = tw.compile(lambda x: Made(3)(x) + 1, fullgraph=True)
assert fast(torch.ones(2)).tolist() == [4, 4] and nn.Module.__init__.__name__ == "patched_init"
"""
    subprocess.run([sys.executable, "-c", source], check=True)
