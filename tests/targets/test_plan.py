"""The plan: no two values alive at once overlap, outputs are new, segments end at calls, bad programs are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import DType, f32, i64
from tilewright.base.errors import VerifyError
from tilewright.targets.arena import ALIGNMENT, Block, arrange, live_bytes
from tilewright.targets.plan import Plan, Segment, blocks, make_plan
from tilewright.tile import ir
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel
from tilewright.tile.program import Arg, Launch, Program, Storage, Value


def value(id: int, storage: Storage, n: int = 8, index: int = -1, dtype: DType = f32) -> Value:
    return Value(id, dtype, (n,), (1,), storage, index)


def kernel(reads: int, writes: int, n: int = 8, cost: float = 10.0) -> Kernel:
    """Adds up `reads` vectors into `writes` vectors."""
    b = KernelBuilder(f"sum{reads}to{writes}")
    inputs = [b.param("x", f32, (n,)) for _ in range(reads)]
    outputs = [b.param("y", f32, (n,), out=True) for _ in range(writes)]
    with b.parallel(n) as (i,):
        total: ir.Expr = ir.const(1.0, f32)
        for x in inputs:
            total = total + x[i]
        for y in outputs:
            b.store(y, i, total)
    return b.build(cost)


def launch(reads: list[Value], writes: list[Value], n: int = 8) -> Launch:
    return Launch(kernel(len(reads), len(writes), n), tuple(Arg(v) for v in (*reads, *writes)))


IN, OUT, T1, T2, T3 = (
    value(0, Storage.INPUT, index=0),
    value(1, Storage.OUTPUT, index=0),
    *(value(k, Storage.TEMP) for k in (2, 3, 4)),
)


def chain() -> Program:
    steps = (launch([IN], [T1]), launch([T1], [T2]), launch([T2], [T3]), launch([T3, IN], [OUT]))
    return Program((IN, OUT, T1, T2, T3), steps)


def test_temporaries_are_reused() -> None:
    plan = make_plan(chain())
    assert plan.arena_bytes == plan.live_bytes == 2 * ALIGNMENT
    assert plan.place(T1) == plan.place(T3) != plan.place(T2)
    assert str(plan.place(OUT)) == "outputs[0]" and str(plan.place(IN)) == "inputs[0]"


def test_one_segment_without_calls() -> None:
    plan = make_plan(chain())
    (segment,) = plan.run
    assert isinstance(segment, Segment)
    assert segment.symbol == "tw_run" and segment.cost == 40 and len(segment.launches) == 4
    assert plan.fold == () and plan.launches == 4


def test_pointers_add_the_offset_of_the_argument() -> None:
    big = value(5, Storage.TEMP, 20)
    program = Program(
        (IN, OUT, big), (Launch(kernel(1, 1), (Arg(IN), Arg(big, 12))), Launch(kernel(1, 1), (Arg(big, 12), Arg(OUT))))
    )
    plan = make_plan(program)
    assert plan.pointer(program.steps[0].args[1]).offset == 48  # type: ignore[union-attr]


def test_folded_values_are_kept_and_what_only_leads_to_them_is_not() -> None:
    weight = value(2, Storage.INPUT, index=1)
    passing, packed = value(3, Storage.FOLDED), value(4, Storage.FOLDED)
    fold = (launch([weight], [passing]), launch([passing], [packed]))
    plan = make_plan(Program((IN, OUT, weight, passing, packed), (launch([IN, packed], [OUT]),), fold))
    assert plan.place(packed).base == "folded" and plan.place(passing).base == "arena"
    assert plan.folded_bytes == ALIGNMENT == plan.arena_bytes
    assert plan.folded_inputs == (1,) and plan.written_inputs == ()
    assert [s.symbol for s in plan.segments()] == ["tw_fold", "tw_run"]


def test_written_inputs() -> None:
    plan = make_plan(Program((IN, OUT), (launch([IN], [OUT]), launch([OUT], [IN]))))
    assert plan.written_inputs == (0,)


def test_text() -> None:
    assert (
        make_plan(chain()).text()
        == """\
plan: 4 launches, 0 library calls, 0 opaque calls; arena 128 bytes (128 alive at once), folded 0 bytes
  %0: f32[8] strides[1] at inputs[0]  # steps 0..3
  %1: f32[8] strides[1] at outputs[0]  # steps 3..3
  %2: f32[8] strides[1] at arena+0  # steps 0..1
  %3: f32[8] strides[1] at arena+64  # steps 1..2
  %4: f32[8] strides[1] at arena+0  # steps 2..3
run:
  tw_run:  # 40 ns
    sum1to1[](x=%0, out y=%2)
    sum1to1[](x=%2, out y=%3)
    sum1to1[](x=%3, out y=%4)
    sum2to1[](x=%4, x_1=%0, out y=%1)
"""
    )


def test_blocks_of_a_grid() -> None:
    b = KernelBuilder("k")
    y = b.param("y", f32, (8,), out=True)
    n = b.scalar("n")
    i, _ = b.grid((n + 3) // 4, 3)
    b.store(y, i, 0.0)
    assert blocks(Launch(b.build(), (Arg(OUT),), (9,))) == 9
    assert blocks(launch([IN], [OUT])) == 1


@pytest.mark.parametrize(
    ("problem", "program"),
    [
        ("sum1to1 reads %2, which nothing has written", Program((IN, OUT, T1), (launch([T1], [OUT]), launch([IN], [T1])))),
        ("%2, which is not among the program's values", Program((IN, OUT), (launch([IN], [T1]), launch([T1], [OUT])))),
        ("nothing writes %1, an output", Program((IN, OUT, T1), (launch([IN], [T1]),))),
        ("writes %1, of kind output", Program((IN, OUT), (), (launch([IN], [OUT]),))),
        (
            "writes %9, of kind folded",
            Program((IN, OUT, value(9, Storage.FOLDED)), (launch([IN], [OUT, value(9, Storage.FOLDED)]),)),
        ),
        ("two values have one id", Program((IN, IN), ())),
        ("2 arguments and 0 sizes expected", Program((IN, OUT), (Launch(kernel(1, 1), (Arg(IN),)),))),
        ("covers the elements 1 to 9 of %0, which has 8", Program((IN, OUT), (Launch(kernel(1, 1), (Arg(IN, 1), Arg(OUT))),))),
        (
            "x is f32, its value %0 is i64",
            Program((value(0, Storage.INPUT, 8, 0, i64), OUT), (launch([value(0, Storage.INPUT, 8, 0, i64)], [OUT]),)),
        ),
    ],
)
def test_bad_programs(problem: str, program: Program) -> None:
    with pytest.raises(VerifyError) as caught:
        make_plan(program)
    assert problem in str(caught.value)


def test_empty_values_need_no_writer() -> None:
    empty, nothing = value(5, Storage.TEMP, 0), value(6, Storage.OUTPUT, 0, index=1)
    plan = make_plan(Program((IN, OUT, empty, nothing), (launch([IN], [OUT]), launch([empty], [nothing], 0))))
    assert plan.arena_bytes == 0


lifetimes = st.tuples(st.integers(0, 300), st.integers(0, 12), st.integers(0, 6)).map(lambda t: Block(t[0], t[1], t[1] + t[2]))


@settings(max_examples=200, deadline=None)
@given(st.lists(lifetimes, max_size=25))
def test_no_two_live_blocks_overlap(found: list[Block]) -> None:
    offsets, total = arrange(found)
    assert live_bytes(found) <= total <= sum(-(-b.size // ALIGNMENT) * ALIGNMENT for b in found)
    for i, (a, x) in enumerate(zip(found, offsets, strict=True)):
        assert x % ALIGNMENT == 0 and x + a.size <= total
        for b, y in zip(found[:i], offsets[:i], strict=True):
            together = a.first <= b.last and b.first <= a.last
            assert not (together and a.size and b.size) or x + a.size <= y or y + b.size <= x


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random straight-line programs: every step reads some earlier values and writes one or two new ones."""
    values = [IN]
    steps = []
    for _ in range(draw(st.integers(1, 10))):
        reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        n = draw(st.integers(8, 60))
        writes = [value(len(values) + 10 + k, Storage.TEMP, n) for k in range(draw(st.integers(1, 2)))]
        steps.append(launch(reads, writes))
        values += writes
    steps.append(launch([draw(st.sampled_from(values))], [OUT]))
    return Program((*values, OUT), tuple(steps))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_no_two_live_temporaries_of_a_program_overlap(program: Program) -> None:
    plan = make_plan(program)
    touched: dict[int, list[int]] = {}
    for t, s in enumerate(program.steps):
        for v in (*s.reads(), *s.writes()):
            touched.setdefault(v.id, []).append(t)
    temps = [v for v in program.values if v.storage is Storage.TEMP]
    for v in temps:
        assert plan.place(v).base == "arena" and plan.place(v).offset + int(v.bytes) <= plan.arena_bytes  # type: ignore[arg-type]
        for w in temps:
            alive = touched[v.id][0] <= touched[w.id][-1] and touched[w.id][0] <= touched[v.id][-1]
            if v is not w and alive:
                low, high = sorted((plan.place(v).offset, int(v.bytes)) for v in (v, w))  # type: ignore[arg-type]
                assert low[0] + low[1] <= high[0]
    assert isinstance(plan, Plan) and plan.place(OUT).base == "outputs"
