"""Plans, code and launches of programs whose sizes are known at run time only."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import native
from tilewright.base import dims
from tilewright.base.dims import Dim, Size
from tilewright.base.dtypes import f32
from tilewright.base.postfix import postfix
from tilewright.executable import Executable
from tilewright.graph.ir import INPUT, Alias, Graph, InputAttrs, InputKind, Node, Output, TensorType
from tilewright.graph.ops.opaque import CALL, TensorArg
from tilewright.program import torch_link
from tilewright.targets.arena import Block, arrange, directly_below, live_bytes
from tilewright.targets.cpu import compile as code
from tilewright.targets.cpu import llvm, main
from tilewright.targets.cpu.generate import generate
from tilewright.targets.cpu.isa import host_isa
from tilewright.targets.plan import Slot, blocks, make_plan
from tilewright.targets.recipe import Recipe, make_recipe
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel
from tilewright.tile.program import Arg, Call, Launch, Program, Storage, Value, View

torch_link.connect()

S, T = dims.symbol("s0"), dims.symbol("s1", lo=0, hi=4096)


def an_input(index: int, *shape: Size, kind: InputKind = InputKind.USER) -> Node:
    t = TensorType(f32, shape)
    return Node(INPUT, (), InputAttrs(index, f"x{index}", kind, t), t)


def contiguous(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step = step * n
    return tuple(strides)


def value(id: int, storage: Storage, *shape: Size, index: int = -1) -> Value:
    return Value(id, f32, shape, contiguous(shape), storage, index)


def scaled(factor: float, tile: int = 4) -> Kernel:
    """y = factor * x of any length, `tile` elements a block."""
    b = KernelBuilder("scaled")
    n = b.scalar("n")
    x, y = b.param("x", f32, (n,)), b.param("y", f32, (n,), out=True)
    (i,) = b.grid((n + (tile - 1)) // tile)
    with b.parallel(tile) as (j,), b.if_(i * tile + j < n):
        b.store(y, i * tile + j, x[i * tile + j] * factor)
    return b.build(cost=100)


def executable(program: Program, graph: Graph) -> Executable:
    plan = make_plan(program, graph)
    generated = generate(plan, host_isa())
    code.check(generated.text, host_isa())
    recipe = Recipe.from_json(make_recipe(plan, generated.scratch_bytes).to_json())
    return Executable(recipe, code.compile_module(generated.text, host_isa()), lambda level: "")


def chain(length: int = 4) -> tuple[Program, Graph]:
    """x of s0 * 3 elements, doubled again and again, then once more."""
    n = 3 * S
    values = [value(0, Storage.INPUT, n, index=0)]
    values += [value(k, Storage.TEMP, n) for k in range(1, length)]
    values += [value(length, Storage.OUTPUT, n, index=0)]
    double = scaled(2.0)
    steps = tuple(Launch(double, (Arg(a), Arg(b)), (n,)) for a, b in zip(values, values[1:]))
    x = an_input(0, n)
    shape = an_input(1, S)
    return Program(tuple(values), steps), Graph((x, shape), (Output(x, (1,)),), ((1,), (1,)), hints=(("s0", 16),))


SIZES = (2, 3, 16, 17, 100, 5000, 4, 70_000)


def test_one_entry_serves_all_sizes() -> None:
    e = executable(*chain())
    for n in SIZES:
        x = torch.arange(3.0 * n)
        (y,) = e.execute([x, torch.empty(n)])
        assert torch.equal(y, 16 * x)


def test_sizes_outside_the_bounds_and_sizes_that_do_not_fit_fail_the_guards() -> None:
    entry = executable(*chain()).forward()
    assert entry.check(torch.zeros(12), torch.zeros(4)) is None
    for x, s in ((13, 4), (3, 1), (0, 0)):
        assert entry.check(torch.zeros(x), torch.zeros(s)) is not None


def test_the_text_of_a_plan_shows_sizes_and_slots() -> None:
    text = make_plan(*chain()).text()
    assert "size s0, planned for 16" in text
    assert "arena[2]: 12*s0 bytes behind 0, 1" in text
    assert text.count("bytes behind") == 1 and text.count("arena[") == 3 + 3  # three temporaries, two of them alive at a time
    assert "scaled[(3*s0 + 3)//4](x=%0, out y=%1, n=3*s0)" in text


def test_blocks_of_a_symbolic_grid() -> None:
    n = 3 * S
    found = blocks(Launch(scaled(1.0), (), (n,)))
    assert isinstance(found, Dim)
    assert [dims.evaluate(found, {"s0": k}) for k in (1, 4, 5)] == [1, 3, 4]


def test_a_size_that_no_input_has_is_given_by_the_caller() -> None:
    x = an_input(0, S)
    values = value(0, Storage.INPUT, S, index=0), value(1, Storage.OUTPUT, T, index=0)
    b = KernelBuilder("first")
    n, m = b.scalar("n"), b.scalar("m")
    a, y = b.param("a", f32, (n,)), b.param("y", f32, (m,), out=True)
    (i,) = b.grid(m)
    b.store(y, i, a[i % n])
    program = Program(values, (Launch(b.build(1), tuple(map(Arg, values)), (S, T)),))
    out = an_input(1, T)
    e = executable(program, Graph((x,), (Output(out, (1,)),), ((1,),), hints=(("s1", 8), ("s0", 4))))
    assert [s.input for s in e.recipe.symbols] == [-1, 0]
    for n_, m_ in ((4, 8), (5, 0), (3, 30)):
        t = torch.randn(n_)
        (y_,) = e.execute([t], (m_,))
        assert torch.equal(y_, t.repeat(12)[:m_])
    assert e.forward().check(t, 4097) is not None
    assert e.forward().check(t, True) is not None


def test_views_of_outputs_and_inputs_follow_the_sizes() -> None:
    program, graph = chain(1)
    x = graph.inputs[0]
    flat = Output(x, (1,))
    rows = an_input(2, S - 1, 3)
    of_output = Output(rows, (3, 1), Alias("output", 0, 3))
    of_input = Output(an_input(3, S), (3,), Alias("input", 0, 2 * S - 2 * S + 1))
    last = Output(an_input(4, 2), (1,), Alias("input", 0, 3 * S - 2))
    e = executable(program, Graph(graph.inputs, (flat, of_output, of_input, last), graph.strides, hints=graph.hints))
    for n in SIZES:
        t = torch.randn(3 * n)
        y, tail, thirds, end = e.execute([t, torch.empty(n)])
        assert torch.equal(y, 2 * t) and torch.equal(tail, y.view(n, 3)[1:]) and tail.stride() == (3, 1)
        assert torch.equal(thirds, t[1::3]) and thirds.data_ptr() == t.data_ptr() + 4 and thirds.stride() == (3,)
        assert torch.equal(end, t[-2:]) and end._is_view()


def test_eager_calls_among_symbolic_steps() -> None:
    """x -> doubled -> sorted (eager) -> doubled"""
    x = an_input(0, S, 4)
    shape = (S, 4)
    vx, out = value(0, Storage.INPUT, *shape, index=0), value(3, Storage.OUTPUT, *shape, index=0)
    doubled, ordered = value(1, Storage.TEMP, *shape), value(2, Storage.TEMP, *shape)
    sort = CALL(x, overload="aten.flip.default", args=(TensorArg(0), (0,)), kwargs=(), type=TensorType(f32, shape))
    double = scaled(2.0)
    steps = (
        Launch(double, (Arg(vx), Arg(doubled)), (4 * S,)),
        Call(sort, (View(doubled, shape, (4, 1)),), (ordered,), library=False),
        Launch(double, (Arg(ordered), Arg(out)), (4 * S,)),
    )
    graph = Graph((x,), (Output(x, (4, 1)),), ((4, 1),), hints=(("s0", 8),))
    e = executable(Program((vx, doubled, ordered, out), steps), graph)
    assert e.recipe.at((5,)).arena_bytes == 2 * 128
    for n in SIZES:
        t = torch.randn(n, 4)
        (y,) = e.execute([t])
        assert torch.equal(y, 4 * t.flip(0))


def test_inputs_in_other_strides_are_laid_out() -> None:
    program, graph = chain(1)
    e = executable(program, graph)
    t = torch.randn(30, 2)[:, 0]
    assert torch.equal(e.execute([t, torch.empty(10)])[0], 2 * t)


def test_recipes_with_sizes_round_trip_and_become_static() -> None:
    plan = make_plan(*chain())
    recipe = make_recipe(plan, 64 + 4 * S)
    assert Recipe.from_json(recipe.to_json()) == recipe
    fixed = recipe.at((5,))
    assert (fixed.inputs[0].shape, fixed.scratch_bytes, fixed.arena_bytes, fixed.symbols) == ((15,), 84, 128, ())
    assert recipe.sizes([(15,), (5,)]) == (5,)


def test_sizes_without_a_hint_are_refused() -> None:
    program, graph = chain()
    with pytest.raises(TypeError, match="s0"):
        make_plan(program, Graph(graph.inputs, graph.outputs, graph.strides))


def test_folded_values_must_not_depend_on_sizes() -> None:
    program, graph = chain()
    folded = value(9, Storage.FOLDED, S)
    with pytest.raises(TypeError, match="constant size"):
        make_plan(Program((*program.values, folded), program.steps), graph)


def test_the_guards_must_read_every_size() -> None:
    e = executable(*chain())
    t = e.recipe.inputs
    rows = [("tensor", i, (None, i, 2, 32, 1, 0, None, (None,), (1,))) for i in range(len(t))]
    with pytest.raises(ValueError, match="read 0 sizes of 1"):
        e._entry(2, (), rows, None, None, frozenset())


# arithmetic


def random_size(r: random.Random, depth: int = 3) -> Size:
    if depth == 0 or r.random() < 0.2:
        return r.choice([S, T, S, T, r.randint(-9, 9)])
    a, b = random_size(r, depth - 1), random_size(r, depth - 1)
    match r.randrange(7):
        case 0:
            return a + b
        case 1:
            return a - b
        case 2:
            return a * b
        case 3:
            return a // r.choice([2, 3, 8, -5])
        case 4:
            return a % r.choice([2, 3, 8, -5])
        case 5:
            return dims.maximum(a, b)
    return dims.minimum(a, b)


def planned(shapes: list[Size], slots: list[Slot], scratch: list[Size], values: tuple[int, ...]) -> list[int]:
    module = llvm.Module()
    main.emit_plan(module, ("s0", "s1"), slots, shapes, scratch)
    text = module.text(host_isa().attributes)
    code.check(text, host_isa())
    image = code.load([code.compile_module(text, host_isa())], [main.PLAN])
    out, sizes = (ctypes.c_int64 * (len(shapes) + 2))(), (ctypes.c_int64 * len(values))(*values)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(image[main.PLAN])(sizes, out)
    image.close()
    return list(out)


def test_native_arithmetic_means_what_sizes_mean() -> None:
    r = random.Random(1)
    sizes = [random_size(r) for _ in range(150)]
    sizes += [S // (T + 1), S % (T + 1), (S - 9) // (T + 1), (S - 9) % (T + 1), (S - 9) // (3 - T), (S - 9) % (3 - T)]
    for values in ((2, 0), (7, 5), (16, 4096), (100, 3 + 1), (12345, 77)):
        known = dict(zip(("s0", "s1"), values, strict=True))
        if values[1] == 3:
            continue
        assert planned(sizes, [], [], values)[: len(sizes)] == [dims.evaluate(s, known) for s in sizes]


def test_guards_compute_what_sizes_mean() -> None:
    r = random.Random(2)
    bind = [("int_symbol", 0, 0), ("int_symbol", 1, 1)]
    for _ in range(150):
        size, values = random_size(r), (r.randint(2, 99), r.randint(0, 4096))
        program = postfix(size, {"s0": 0, "s1": 1})
        expected = dims.evaluate(size, dict(zip(("s0", "s1"), values, strict=True)))
        rows = [*bind, ("holds", (*program, expected, "=="))]
        entry = native.Entry(2, (), rows, 0, [], None, None, None, 0, 0, 0, 0, 0, 0, [], [])
        assert entry.check(*values) is None


def test_a_division_by_a_size_that_is_zero_does_not_trap() -> None:
    assert len(planned([S // T, S % T], [], [], (5, 0))) == 4


block = st.tuples(st.integers(1, 40), st.integers(0, 9), st.integers(0, 12), st.integers(0, 5))


@settings(max_examples=60, deadline=None)
@given(st.lists(block, max_size=20), st.integers(2, 500), st.integers(0, 500))
def test_the_order_of_the_hints_keeps_blocks_of_any_size_apart(drawn: list[tuple[int, ...]], s: int, t: int) -> None:
    sizes: list[Size] = [4 * a * S if b % 3 else 4 * a * T + 4 * b for a, b, _, _ in drawn]
    at = lambda values: [Block(max(dims.evaluate(x, values), 1), f, f + n) for x, (_, _, f, n) in zip(sizes, drawn)]  # noqa: E731
    hinted, now = at({"s0": 16, "s1": 16}), at({"s0": s, "s1": t})
    offsets, _ = arrange(hinted)
    below = directly_below(hinted, offsets)
    starts: dict[int, int] = {}
    for i in sorted(range(len(drawn)), key=lambda i: offsets[i]):
        starts[i] = max((starts[j] + -(-now[j].size // 64) * 64 for j in below[i]), default=0)
    for i, a in enumerate(now):
        for j, b in enumerate(now[:i]):
            if a.first <= b.last and b.first <= a.last:
                assert starts[i] + a.size <= starts[j] or starts[j] + b.size <= starts[i]
    assert sum(map(len, below)) <= 3 * len(drawn) + 10
    same = {i: max((offsets[j] + -(-hinted[j].size // 64) * 64 for j in below[i]), default=0) for i in range(len(drawn))}
    assert all(same[i] <= offsets[i] for i in same)
    assert live_bytes(hinted) <= max((same[i] + hinted[i].size for i in same), default=0) + 64


def test_the_arena_is_the_sum_of_what_is_alive() -> None:
    slots = [Slot(4 * S, ()), Slot(4 * T, (0,)), Slot(100, (0,)), Slot(4 * S - 8, (1, 2))]
    assert planned([], slots, [16, 4 * S], (20, 7))[-2:] == [128 + 128 + 128, 80]
    assert planned([], slots, [16, 4 * S], (2, 1000))[-2:] == [64 + 4032 + 0, 16]
