"""Functionalisation: writes, views, aliasing, identity of results; and eager's own errors."""

import pytest
import torch
from torch import nn

from graph.recording import check, run
from tilewright.base.errors import RecordError
from tilewright.graph import strides as st
from tilewright.graph.record import record

F = torch.nn.functional


def a(*shape):
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) / 3


def case(fn):
    CASES.append(fn)
    return fn


CASES = []


@case
def write_input_and_view(x):
    x.add_(1)
    v = x[1:3]
    v.mul_(2)
    return x.clone(), v.sum()


@case
def write_through_chain(x):
    x.t()[1:, :2].unsqueeze(0).add_(10)
    return x * 2


@case
def view_sees_later_write(x):
    v, w = x[0], x.reshape(-1)[3:6]
    x.mul_(3)
    return v.clone(), w + 1, v


@case
def temporary_views_see_each_other(x):
    y = x * 2
    p, q = y[:2], y.view(-1)
    p.zero_()
    q[-1] = 7
    y[0, 0].fill_(5)
    return y, p.sum(), q.sum()


@case
def slices_with_steps(x):
    y = x.clone()
    y[::2, 1::2] += 100
    y[:, -1] = x[:, 0]
    y[1] = 4
    return y


@case
def expand_of_size_one_written(x):
    y = x[:1].clone()
    y.expand(1, 4).add_(1)
    y[:, None].expand(-1, 1, -1).mul_(2)
    return y


@case
def diagonal_and_unfold_written(x):
    y = x.clone()
    y.diagonal().fill_(9)
    y.view(-1).unfold(0, 3, 3).add_(1)
    return y


@case
def as_strided_written(x):
    y = x + 0
    y.as_strided((2, 2), (5, 2), 1).mul_(10)
    z = (x + 0).t()
    z.as_strided((3,), (1,), 2).zero_()
    return y, z


@case
def as_strided_in_place(x):
    y = x * 2
    z = y[1:]
    z.as_strided_((2, 2), (3, 1), 2)
    z.mul_(5)
    return y, z, F.adaptive_avg_pool1d(x[None].transpose(1, 2), 1)


@case
def chunks_written(x):
    y = x.clone()
    p, q = y.chunk(2, 1)
    p.copy_(q)
    for row in y.unbind(0):
        row.add_(1)
    return y, p, q


@case
def aliasing_results(x):
    y = x * 2
    return y, y.t(), y[1:], y.view(-1), x, x[1], x.t(), y


@case
def overlapping_results_without_their_base(x):
    y = x.reshape(-1) + 1
    return y[:6], y[3:9]


@case
def disjoint_results(x):
    y = x + 1
    return y[:1], y[2:]


@case
def interleaved_results(x):
    y = x.reshape(-1) + 1
    return y[::2], y[1::2]


@case
def expanded_results(x):
    return (x[0] + 1).expand(3, 4), x[0].expand(2, 4), (x[0] * 2).unfold(0, 2, 1)


@case
def same_result_twice(x):
    y = x + 1
    return [y, {"again": y}, (y, x, x)]


@case
def out_variants(x):
    y = torch.empty(3, 4)
    torch.add(x, 1, out=y)
    z = torch.empty(3, 4)
    torch.mul(x, y, out=z[:, :])
    torch.sum(x, 1, out=z[:, 0].squeeze())
    torch.matmul(x, x.t(), out=(w := torch.empty(3, 3)))
    return y, z, w


@case
def in_place_functions(x):
    y = x.clone()
    F.relu(y, inplace=True)
    y.clamp_(max=2).sqrt_().sub_(0.5).div_(2).pow_(2).neg_().exp_()
    y.masked_fill_(y > 0.99, 0.0)
    y.addcmul_(x, x, value=0.1).lerp_(x, 0.5)
    return y


@case
def in_place_of_other_dtypes(x):
    y = torch.zeros(3, 4, dtype=torch.float64)
    y += x
    i = torch.arange(4)
    i *= 2
    i.add_(True)
    half = x.bfloat16()
    half += x
    return y, i, half


@case
def copies(x):
    y = torch.zeros(3, 4, dtype=torch.int64)
    y.copy_(x)
    y[0].copy_(x[1])
    z = torch.zeros(3, 4)
    z.copy_(x[0])
    z[:, 0] = 3
    z[1] = x[2, 0]
    return y, z


@case
def masked_writes(x):
    y = x.clone()
    y[y > 2] = 0.0
    y[x[:, 0] > 1] = -1.0
    return y


@case
def metadata_in_place(x):
    y = x + 1
    y.unsqueeze_(0)
    y.squeeze_(0).t_()
    y[0] += 1
    y.transpose_(0, 1)
    return y


@case
def in_place_arithmetic_returns_itself(x):
    y = x.add_(1)
    return y is x, y, y.mul_(2) is x


@case
def write_then_return_view_of_input(x):
    x[0] = 0
    return x[0], x.view(-1)[2:5]


@case
def written_back_unchanged(x):
    x.add_(0)
    return x.sum()


@case
def random_in_place(x):
    y = torch.empty(3, 4).uniform_(-1, 1)
    y[1].normal_()
    return y + x


@case
def detach_shares_memory(x):
    y = x * 2
    y.detach().add_(1)
    x.data.mul_(2)
    return y, x.detach()


def test_eager_is_not_run():
    assert len({f.__name__ for f in CASES}) == len(CASES)


OPAQUE = {"random_in_place": ("aten.normal_functional.default", "aten.uniform.default")}


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_writes(fn):
    check(fn, a(3, 4), opaque=OPAQUE.get(fn.__name__, ()))


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_writes_into_strided_inputs(fn):
    for x in (a(4, 3).t(), a(6, 8)[::2, ::2], a(3, 4).flip(0), a(9)[2:].as_strided((3, 4), (0, 1))):
        try:
            fn(_copy(x))
        except RuntimeError as e:  # no such view of it, or it overlaps itself: the same error
            assert_raises(e, fn, x)
        else:
            check(fn, x, opaque=OPAQUE.get(fn.__name__, ()))


def assert_raises(error, fn, x):
    """Recording raises an error of the same type and text."""
    with pytest.raises(type(error)) as found:
        record(fn, (x,))
    assert str(found.value) == str(error)


def _copy(x):
    """With the same strides in memory of its own."""
    flat = x.as_strided((x.untyped_storage().size() // 4,), (1,), 0).clone()
    return flat.as_strided(x.shape, x.stride(), x.storage_offset())


def test_an_effect_is_only_what_changed():
    recorded = record(lambda x, y: (x.add_(1), y + 1)[1], (a(3), a(3)))
    assert [e.index for e in recorded.graph.effects] == [0]
    assert record(lambda x: x[1:] + 1, (a(3),)).graph.effects == ()


def test_shared_memory_of_results_is_held_by_one_output():
    recorded = record(overlapping_results_without_their_base, (a(3, 4),))
    outputs = recorded.graph.outputs
    assert len(outputs) == 3
    assert [o.alias.index if o.alias else None for o in outputs] == [None, 0, 0]
    assert [o.alias.offset for o in outputs[1:]] == [0, 3]


def test_offsets_count_from_the_input():
    base = a(10)
    recorded = record(lambda x: x[2:], (base[3:],))
    assert recorded.graph.outputs[0].alias.offset == 2
    assert run(recorded, (base[3:],)).storage_offset() == 5


def test_the_same_object_twice_is_one_input():
    x = a(3)
    recorded = check(lambda p, q: (p.add_(1), p is q, q * 2), x, x)
    assert len(recorded.inputs) == 1


def test_inputs_that_overlap_may_be_read_but_not_written():
    base = a(8)
    check(lambda x, y: x + y, base[:4], base[2:6])
    with pytest.raises(RecordError, match="argument 0 and argument 1 share"):
        record(lambda x, y: (x.mul_(2), x + y)[1], (base[:4], base[2:6]))
    check(lambda x, y: (x.mul_(2), x + y)[1], base[:4], base[4:])
    closed = base[1:3]
    with pytest.raises(RecordError, match="share"):
        record(lambda x: (x.mul_(2), closed + 1)[1], (base[:4],))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.expand(3, 4).add_(1),
        lambda x: x.expand(3, 4).copy_(torch.zeros(3, 4)),
        lambda x: x.expand(3, 4).zero_(),
        lambda x: x[0].add_(torch.zeros(2, 4)),
        lambda x: x.long().add_(0.5),
        lambda x: x.view(-1)[1:].add_(x.view(-1)[:-1]),
        lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]) and None,
        lambda x: x + torch.zeros(3),
        lambda x: x @ torch.zeros(3, 2),
        lambda x: x.view(3),
        lambda x: x[5],
        lambda x: x.sum(3),
        lambda x: torch.cat([x, torch.zeros(1, 2)]),
        lambda x: F.linear(x, torch.zeros(2, 3)),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: F.embedding(x, x),
        lambda x: x.reshape(3, -1),
        lambda x: x.unflatten(1, (3, 2)),
        lambda x: ~x,
        lambda x: x.masked_fill(x, 0),
        lambda x: torch.where(x, x, x),
        lambda x: x.long().mean(),
        lambda x: x.double() @ x.t(),
        lambda x: torch.tensor([1, 2]) ** -1,
        lambda x: x.bool() - x.bool(),
        lambda x: F.softmax(x.long(), 0),
        lambda x: torch.full((2,), 300, dtype=torch.int8).fill_(1000),
    ],
)
def test_eagers_own_errors(fn):
    """The same type and text as eager's, at the user's line; or no error in either."""
    x = a(1, 4)
    try:
        want = fn(x.clone())
    except Exception as e:
        assert_raises(e, fn, x)
    else:
        got = run(record(fn, (x,)), (x.clone(),))
        if want is not None:
            assert torch.equal(got, want)


def test_a_write_that_reads_its_own_memory_in_another_order():
    """Eager refuses some of these, and leaves the result of others to its loops."""
    with pytest.raises(RecordError, match="another order"):
        record(lambda x: x.add_(x.t()), (a(8, 8)[::2, ::2],))
    with pytest.raises(RuntimeError, match="single memory location"):
        record(lambda x: x.add_(x.t()), (a(4, 4),))
    check(lambda x: x[:, :2].add_(x[:, 2:]), a(3, 4))
    check(lambda x: x[:, ::2].copy_(x[:, 1::2]), a(3, 4))
    check(lambda x: x.add_(x), a(3, 4))


def test_intersections_are_exact():
    """Against the sets of places, for small shapes."""

    def places(g):
        shape, strides, offset = g
        found = {offset}
        for n, s in zip(shape, strides, strict=True):
            found = {p + i * s for p in found for i in range(n)}
        return found

    shapes = [
        ((3, 2), (4, 1)),
        ((2, 2), (2, 5)),
        ((4,), (3,)),
        ((2, 3, 2), (6, 2, 1)),
        ((2, 0), (1, 1)),
        ((3, 3), (0, 2)),
        ((1,), (7,)),
    ]
    for one in shapes:
        for two in shapes:
            for offset in range(9):
                g, h = (*one, 2), (*two, offset)
                assert st.intersect(g, h) == bool(places(g) & places(h))
    for shape, strides in [
        *shapes,
        ((3, 2), (2, 3)),
        ((3, 3), (2, 3)),
        ((4, 2), (2, 3)),
        ((2, 2, 2), (3, 4, 7)),
        ((4, 4), (5, 3)),
    ]:
        assert st.may_overlap(shape, strides) == (len(places((shape, strides, 0))) < torch.Size(shape).numel())


def test_buffers_are_written_as_effects():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(2, 3))

        def forward(self, x):
            self.n.add_(1)
            self.n += x.mean()
            self.seen[1].copy_(x)
            return x * self.n

    module, twin = Counter(), Counter()
    x = a(3)
    recorded = record(module, (x,))
    assert module.n == 0
    assert {recorded.inputs[e.index].name for e in recorded.graph.effects} == {"n", "seen"}
    for _ in range(2):
        assert torch.equal(run(recorded, (x,)), twin(x))
        assert torch.equal(module.n, twin.n)
        assert torch.equal(module.seen, twin.seen)


def test_batch_norm_in_training_writes_its_statistics():
    module, twin = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    x = torch.randn(2, 3, 4, 4)
    recorded = record(module, (x,))
    assert module.num_batches_tracked == 0
    assert torch.equal(module.running_mean, torch.zeros(3))
    for _ in range(2):
        torch.testing.assert_close(run(recorded, (x,)), twin(x).detach())
    for got, want in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_that_eager_would_give():
    w = nn.Parameter(a(4))
    x = a(3, 4)

    def fn(x):
        with torch.no_grad():
            z = w * 2
        y = x * w
        return y, y.detach(), z, y > 0, x, w, x + 1, w[1:]

    recorded = record(fn, (x,))
    results = fn(x)
    assert [t.requires_grad for t in results] == [recorded.requires_grad[i] for i in recorded.out_spec.leaves]
    assert not any(record(torch.no_grad()(fn), (x,)).requires_grad[:2])
    with pytest.raises(RecordError, match="leaf"):
        record(lambda x: w.add_(x), (a(4),))
    assert record(lambda x: (x.requires_grad, (x * w).requires_grad, x.is_leaf), (x,)).out_spec([]) == (False, True, True)


def test_gradients_of_custom_functions():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x * 2).view(-1)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = a(3).requires_grad_()
    recorded = record(lambda x: (Twice.apply(x), Twice.apply(x.detach())), (x,))
    assert recorded.requires_grad == (True, False)
    with torch.no_grad():
        assert not any(record(Twice.apply, (x,)).requires_grad)
