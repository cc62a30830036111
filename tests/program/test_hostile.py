"""What a hostile user does: state that changes between calls, modes around calls, odd arguments. Eager is always right."""

import collections
import copy
import functools
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw


@pytest.fixture(autouse=True)
def _quiet():
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def same(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def follows(fn, *changes, args=None):
    """The compiled function's values stay eager's over the changes, each made between two calls."""
    fast = tw.compile(fn)
    args = (torch.arange(1.0, 5.0),) if args is None else args
    for change in (lambda: None, lambda: None, *changes):
        change()
        same(fast(*args), fn(*args))
    return fast


# --- modes and transforms around a call -------------------------------------------------------------------------------


def score(x):
    return (x.sin() * 2).sum(-1)


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if getattr(func, "__name__", "") == "sin" else result


class Counts(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counts.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "transform",
    [
        torch.vmap,
        lambda f: lambda x: torch.func.grad(f)(x[0]),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
        torch.func.jacrev,
    ],
)
def test_function_transforms_see_the_function(transform):
    fast, x = tw.compile(score), torch.randn(3, 4)
    for _ in range(2):
        same(transform(fast)(x), transform(score)(x))
        same(fast(x), score(x))
        same(fast(x[0]), score(x[0]))
    assert fast.stats.compiles == 2


def test_modes_and_tracers_see_the_function():
    fast, x = tw.compile(score), torch.randn(4)
    same(fast(x), score(x))
    with Doubles():
        same(fast(x), score(x))
    with Counts():
        fast(x)
    assert Counts.calls > 0
    same(make_fx(fast)(torch.randn(4))(x), score(x))
    same(torch.jit.trace(fast, (torch.randn(4),))(x), score(x))
    with torch.enable_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.clone())
        same(forward_ad.unpack_dual(fast(dual)).tangent, forward_ad.unpack_dual(score(dual)).tangent)
    same(fast(x), score(x))
    assert fast.stats.compiles == 1


def test_the_default_device():
    fast, x = tw.compile(lambda x: torch.ones(3)), torch.randn(3)
    with torch.device("cpu"):
        same(fast(x), torch.ones(3))
    same(fast(x), torch.ones(3))
    with torch.device("meta"):
        assert fast(x).is_meta
    assert fast.stats.compiles == 2


def test_compiled_within_compiled():
    w = torch.ones(4)
    inner, layer = tw.compile(lambda: w * 2), nn.Linear(4, 4).eval()
    fast_layer = tw.compile(layer)
    inner()
    outer = follows(lambda x: fast_layer(x) + inner(), lambda: w.mul_(3), lambda: layer.weight.mul_(2))
    assert outer.stats.eager_calls == 0
    again = tw.compile(fast_layer)
    assert type(again) is not type(layer)
    same(again(w), layer(w))


# --- Python state that changes between calls --------------------------------------------------------------------------


class Settings:
    scale = 2.0

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


FACTOR = 2.0
TABLE = {"a": 1.0, "b": [1.0, 2.0]}
SETTINGS = Settings(gain=3.0)


@pytest.fixture
def module_globals():
    before = dict(globals())
    yield lambda **values: globals().update(values)
    globals().update(before)
    TABLE.clear()
    TABLE.update(a=1.0, b=[1.0, 2.0])
    SETTINGS.__dict__.update(gain=3.0)
    Settings.scale = 2.0


def helper(x):
    return x * FACTOR


def test_globals_that_helpers_and_inner_functions_read(module_globals):
    def outer(x):
        def inner(y):
            return y * FACTOR

        return inner(x) + sum([FACTOR for _ in range(2)]) + helper(x)

    follows(outer, lambda: module_globals(FACTOR=5.0), lambda: module_globals(FACTOR=5))
    follows(lambda x: helper(x) + 1, lambda: module_globals(FACTOR=7.0))
    inner = tw.compile(helper)
    follows(lambda x: inner(x), lambda: module_globals(FACTOR=8.0))


def test_attributes_of_objects_and_classes(module_globals):
    follows(
        lambda x: x * SETTINGS.gain + SETTINGS.scale,
        lambda: setattr(SETTINGS, "gain", 8.0),
        lambda: setattr(Settings, "scale", 8.0),
        lambda: setattr(SETTINGS, "scale", 9.0),
    )
    del SETTINGS.scale
    nested = Settings(d=Settings(k=2.0), t=torch.ones(4), zero=None)
    follows(
        lambda x: x * nested.d.k * nested.t + (0 if nested.zero is None else nested.zero),
        lambda: setattr(nested.d, "k", 5.0),
        lambda: setattr(nested, "d", Settings(k=6.0)),
        lambda: setattr(nested, "t", torch.full((4,), 3.0)),
        lambda: setattr(nested, "zero", torch.ones(4)),
    )
    follows(lambda x: x * next(iter(vars(nested.d).values())), lambda: setattr(nested.d, "k", 7.0))


def test_what_nobody_reads_is_not_guarded():
    class Trainer:
        def __init__(self):
            self.step, self.k = 0, 2.0

        def loss(self, x):
            return x * self.k

    t = Trainer()
    fast = follows(t.loss, lambda: setattr(t, "step", 1), lambda: setattr(t, "step", 2))
    assert fast.stats.compiles == 1
    follows(t.loss, lambda: setattr(t, "k", 3.0))


def test_containers(module_globals):
    follows(
        lambda x: x * TABLE["a"] + TABLE["b"][1],
        lambda: TABLE.update(a=4.0),
        lambda: TABLE["b"].append(1),
        lambda: TABLE["b"].reverse(),
    )
    ordered, chosen = collections.OrderedDict(a=1.0, b=2.0), {1, 2}
    pair = collections.namedtuple("pair", "a b")
    held = [pair(1.0, [2.0])]
    follows(
        lambda x: x * next(iter(ordered.values())) * len(chosen) * held[0].b[0],
        lambda: ordered.move_to_end("a"),
        lambda: chosen.add(9),
        lambda: held[0].b.append(1),
        lambda: held[0].b.reverse(),
    )
    circular = [2.0]
    circular.append(circular)
    follows(lambda x: x * circular[1][1][0], lambda: circular.__setitem__(0, 3.0))


def test_functions_themselves():
    def f(x, k=2.0, *, z=1.0, many=[1.0]):  # noqa: B006
        return x * k + z + many[0]

    def g(x, k=2.0, *, z=1.0, many=[1.0]):  # noqa: B006
        return x * k - z

    follows(
        f,
        lambda: setattr(f, "__defaults__", (5.0,)),
        lambda: f.__kwdefaults__.update(z=3.0),
        lambda: f.__kwdefaults__["many"].__setitem__(0, 9.0),
        lambda: setattr(f, "__code__", g.__code__),
    )
    options = {"k": 2.0}
    partial = functools.partial(lambda x, o, t: x * o["k"] * t, o=options, t=torch.ones(4))
    follows(partial, lambda: options.update(k=3.0), lambda: partial.keywords.update(t=torch.zeros(4)))


def test_methods_and_callable_objects():
    class Thing:
        rate = 2.0

        def __init__(self):
            self.k, self.m = 2.0, nn.Linear(4, 4)

        def __call__(self, x):
            return self.m(x) * self.k

        @classmethod
        def of_class(cls, x):
            return x * cls.rate

        @staticmethod
        def of_nothing(x):
            return x * Thing.rate

        @property
        def twice(self):
            return self.k * 2

        def method(self, x):
            return x * self.twice

    t = Thing()
    new = {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}
    follows(
        t, lambda: setattr(t, "k", 3.0), lambda: t.m.load_state_dict(new, assign=True), lambda: setattr(t, "m", nn.Linear(4, 4))
    )
    follows(t.method, lambda: setattr(t, "k", 4.0), lambda: setattr(Thing, "twice", 7.0))
    follows(Thing.of_class, lambda: setattr(Thing, "rate", 3.0))
    follows(Thing.of_nothing, lambda: setattr(Thing, "rate", 4.0))


class Block(nn.Module):
    gain = 2.0

    def __init__(self):
        super().__init__()
        self.l, self.settings, self.none, self.fn, self.dtype = nn.Linear(4, 4), Settings(k=1.0), None, torch.relu, torch.float32

    def helper(self, x):
        return self.l(x) * self.gain * FACTOR + self.settings.k

    def forward(self, x):
        y = self.fn(self.helper(x))
        return (y if self.none is None else y + self.none).to(self.dtype)


class Derived(Block):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize("make", [Block, Derived])
def test_modules(module_globals, make):
    m, forward = make().eval(), Block.forward
    try:
        follows(
            m,
            lambda: setattr(m.settings, "k", 4.0),
            lambda: setattr(m, "settings", Settings(k=5.0)),
            lambda: setattr(m, "none", 3.0),
            lambda: setattr(m, "none", torch.full((4,), 2.0)),
            lambda: setattr(m, "fn", torch.tanh),
            lambda: setattr(m, "dtype", torch.float64),
            lambda: module_globals(FACTOR=9.0),
            lambda: setattr(Block, "gain", 3.0),
            lambda: setattr(Block, "forward", lambda self, x: self.l(x) * 3),
        )
    finally:
        Block.gain, Block.forward = 2.0, forward


def test_hooks_order_and_tied_weights():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    m[2].weight = m[0].weight
    strength, handles = {"k": 1.0}, []
    everywhere = nn.modules.module.register_module_forward_hook

    def reorder():
        first = m._modules.pop("0")
        m._modules["0"] = first

    follows(
        m,
        lambda: setattr(m[2], "weight", nn.Parameter(torch.ones(4, 4))),
        lambda: m[0].weight.mul_(2),
        lambda: setattr(m[2], "weight", m[0].weight),
        lambda: m[0].register_forward_hook(lambda module, args, out: out * strength["k"]),
        lambda: strength.update(k=4.0),
        reorder,
        lambda: handles.append(everywhere(lambda module, args, out: out * 2)),
        lambda: handles[0].remove(),
    )


def test_modules_in_containers():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    follows(
        lambda x: layers[1](layers[0](x)),
        lambda: setattr(layers[0], "weight", nn.Parameter(torch.ones(4, 4))),
        lambda: layers.reverse(),
        lambda: layers.__setitem__(1, nn.Linear(4, 4)),
    )


# --- arguments --------------------------------------------------------------------------------------------------------


def test_one_tensor_or_two():
    def f(x, y):
        return x + 1 if x is y else x + 2

    fast, x, y = tw.compile(f), torch.ones(4), torch.ones(4)
    for args in ((x, y), (x, x), (x, y), (y, y)):
        same(fast(*args), f(*args))


def test_the_order_of_keys():
    def f(d, **names):
        return [v * i for i, v in enumerate(d.values())], list(names)

    fast, a, b = tw.compile(f), torch.ones(2), torch.full((2,), 2.0)
    for d in ({"a": a, "b": b}, {"b": b, "a": a}, collections.OrderedDict(a=a, b=b), collections.OrderedDict(b=b, a=a)):
        assert str(fast(d, u=1, v=2)) == str(f(d, u=1, v=2))
        assert str(fast(d, v=1, u=2)) == str(f(d, v=1, u=2))


INTS, MASK, HALVES = (
    torch.tensor([7, -3, 0]),
    torch.tensor([True, False, True]),
    torch.tensor([1.0, -2.0, 0.5], dtype=torch.float16),
)


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: x - x, MASK),
        (lambda x: x - 1.5, MASK),
        (lambda x: x - True, INTS),
        (lambda x: x.abs(), MASK),
        (lambda x: x.floor(), MASK),
        (lambda x: x // 0, INTS),
        (lambda x: x % 0, INTS),
        (lambda x: x.masked_fill(x > 0, -1e9), HALVES),
        (lambda x: x.clamp(min=-1e9), HALVES),
        (lambda x: nn.functional.one_hot(x, 4), torch.tensor([0, 1, 9])),
        (lambda x: nn.functional.one_hot(x, 4), torch.tensor([0, 1, -9])),
        (lambda x: torch.linalg.inv(x.reshape(2, 2)) + 1, torch.zeros(4)),
    ],
)
def test_what_eager_refuses_is_refused(f, x):
    fast = tw.compile(f)
    for _ in range(2):
        with pytest.raises(Exception) as want:
            f(x)
        with pytest.raises(type(want.value)) as got:
            fast(x)
        assert str(got.value) == str(want.value)


def test_what_eager_allows_is_allowed():
    fast, x = tw.compile(lambda x: nn.functional.one_hot(x, 4) + 1), torch.tensor([[0, 3], [2, 2]])
    same(fast(x), nn.functional.one_hot(x, 4) + 1)
    assert fast.stats.eager_calls == 0
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 0, 8)
    same(tw.compile(nn.functional.scaled_dot_product_attention)(q, k, k), nn.functional.scaled_dot_product_attention(q, k, k))


def test_gradients_turned_on_inside():
    def f(x):
        with torch.enable_grad():
            return x * 2

    fast = tw.compile(f)
    for grad in (False, True, False, True):
        assert fast(torch.ones(3, requires_grad=grad)).requires_grad == grad


def test_inference_tensors_are_not_written_outside_of_inference_mode():
    with torch.inference_mode():
        x = torch.ones(3)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        tw.compile(lambda x: x.add_(1))(x)


# --- random numbers ---------------------------------------------------------------------------------------------------


def test_random_draws_keep_their_order_where_kernels_move():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    fast, x = tw.compile(layer), torch.randn(2, 3, 8)
    for seed in range(2):
        torch.manual_seed(seed)
        got = fast(x)
        torch.manual_seed(seed)
        same(got, layer(x))
    assert fast.stats.eager_calls == 0


def test_slices_of_a_compiled_sequential():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast, x = tw.compile(m), torch.randn(2, 4)
    same(fast[:1](x), m[0](x))
    same(pickle.loads(pickle.dumps(fast[:1]))(x), m[0](x))
    same(copy.deepcopy(fast[:1])(x), m[0](x))


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_never_see_half_packed_weights():
    for width in range(16, 24):
        m = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 16)).eval()
        fast, wrong = tw.compile(m), []
        inputs = [torch.randn(n, width) for n in (1, 4)]
        wanted = [m(x) for x in inputs]

        def work(number, fast=fast, wrong=wrong, inputs=inputs, wanted=wanted):
            with torch.no_grad():
                for k in range(6):
                    i = (number + k) % 2
                    wrong += [(number, k)] if not torch.allclose(fast(inputs[i]), wanted[i], atol=1e-5) else []

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


def test_random_draws_of_another_thread():
    done, wrong = threading.Event(), []

    def draw():
        while not done.is_set():
            torch.rand(10)

    t = threading.Thread(target=draw)
    t.start()
    try:
        for k in range(4):
            fast, x = tw.compile(lambda x, k=k: torch.tanh(x + k)), torch.ones(4)
            same(fast(x), torch.tanh(x + k))
            wrong += [k] * fast.stats.eager_calls
    finally:
        done.set()
        t.join()
    assert not wrong


def test_seeds_set_inside():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(4)

    fast, x = tw.compile(f), torch.zeros(4)
    torch.manual_seed(3)
    for _ in range(3):
        same(fast(x), f(x))
