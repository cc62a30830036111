"""Guards on sizes: symbols read from tensors and ints, and what must hold for them."""

import ctypes

import pytest
import torch
from tests.native.test_launch import RUN, address, entry, meta

INT64 = 2**63


def sized(*programs):
    """An entry on one int, sizes[0], for which the programs hold."""
    return entry([("int_symbol", 0, 0), *(("holds", p) for p in programs)], inputs=0)


def any_meta(t, shape, strides):
    return (*meta(t, 0)[:-2], shape, strides)


def test_entries_of_a_tensor_row_that_are_none_are_not_checked():
    x = torch.zeros(4, 3)
    e = entry([("tensor", 0, any_meta(x, (None, 3), (None, 1)))])
    assert e.check(torch.zeros(7, 3)) is None
    assert e.check(torch.zeros(7, 9)[:, :3]) is None
    assert e.check(torch.zeros(7, 4)) == 0
    assert e.check(torch.zeros(3, 7).T) == 0
    assert e.check(torch.zeros(7)) == 0


def test_sizes_reach_the_compiled_code():
    seen = []

    @RUN
    def look(call):
        seen.append(tuple((ctypes.c_int64 * 3).from_address(call.contents.sizes)))
        return 0

    x = torch.zeros(4, 3)
    rows = [("tensor", 0, any_meta(x, (None, None), (None, 1))), ("symbol", 0, 0, 1), ("symbol", 0, 1, 0), ("int_symbol", 1, 2)]
    e = entry(rows, nargs=2, outputs=[(3, 0, None, None, None)], run=address(look))
    e.run(x, 11)
    e.run(torch.zeros(70, 30), -(2**62) + 1)
    assert seen == [(3, 4, 11), (30, 70, -(2**62) + 1)]


def test_a_runner_is_given_the_sizes():
    x = torch.zeros(4)
    rows = [("tensor", 0, any_meta(x, (None,), (1,))), ("symbol", 0, 0, 0)]
    e = entry(rows, rebuild=lambda made: made[0], runner=lambda inputs, folded, sizes: [sizes])
    assert e.run(torch.zeros(9)) == (9,)


def test_only_exact_ints_of_62_bits_are_sizes():
    class Mine(int):
        pass

    e = sized()
    assert e.check(2**62 - 1) is None
    for other in (True, 1.0, Mine(3), 2**62, -(2**62), 2**80, None, torch.tensor(3)):
        assert e.check(other) == 0


def test_sizes_and_strides_follow_programs():
    x = torch.zeros(4, 8)
    rows = [
        ("tensor", 0, any_meta(x, (None, None), (None, 1))),
        ("symbol", 0, 0, 0),
        ("size", 0, 1, ("$0", 2, "*")),
        ("stride", 0, 0, ("$0", 2, "*")),
    ]
    e = entry(rows)
    assert e.check(torch.zeros(5, 10)) is None
    assert e.check(torch.zeros(5, 11)) == 2
    assert e.check(torch.zeros(5, 20)[:, :10]) == 3
    assert e.check(torch.zeros(1, 9)[:, :2]) is None


def test_the_tensor_that_a_size_row_names_is_read_though_another_was_checked_last():
    x, y = torch.zeros(4), torch.zeros(6)
    rows = [("tensor", i, (*meta(x, i)[:-2], (None,), (1,))) for i in (0, 1)]
    rows += [("symbol", 0, 0, 0), ("size", 1, 0, ("$0", 2, "+")), ("size", 0, 0, (4,)), ("eq", 2, 1), ("symbol", 0, 0, 1)]
    e = entry(rows, nargs=3, inputs=2)
    assert e.check(x, y, 1) is None
    assert e.check(x, x, 1) == 3
    assert e.check(torch.zeros(5), torch.zeros(7), 1) == 4
    assert e.check(x, y, 2) == 5


def test_a_dimension_that_is_not_there_fails():
    e = entry([("symbol", 0, 1, 0)])
    assert e.check(torch.zeros(4)) == 0
    assert e.check(torch.zeros(4, 2)) is None
    assert e.check(7) == 0


@pytest.mark.parametrize(
    ("program", "meaning"),
    [
        (("$0", 3, "//"), lambda n: n // 3),
        (("$0", -3, "//"), lambda n: n // -3),
        (("$0", 3, "%"), lambda n: n % 3),
        (("$0", -3, "%"), lambda n: n % -3),
        (("$0", 2, "*", 7, "-"), lambda n: n * 2 - 7),
        (("$0", 5, "min", 2, "max"), lambda n: max(min(n, 5), 2)),
        ((10, "$0", 4, "+", "-"), lambda n: 10 - (n + 4)),
    ],
)
def test_programs_mean_what_python_means(program, meaning):
    for n in range(-9, 10):
        e = sized((*program, meaning(n), "=="))
        assert e.check(n) is None
        assert sized((*program, meaning(n) + 1, "==")).check(n) == 1


@pytest.mark.parametrize(("op", "truth"), [("==", (0, 1, 0)), ("!=", (1, 0, 1)), ("<", (1, 0, 0)), ("<=", (1, 1, 0))])
def test_comparisons(op, truth):
    e = sized(("$0", 5, op))
    assert [e.check(n) is None for n in (4, 5, 6)] == list(map(bool, truth))


@pytest.mark.parametrize(
    "program",
    [
        ("$0", 4, "*", 0, "!="),  # would wrap to 0 or to a number
        ("$0", "$0", "*", "$0", "*", 1, "!="),
        ("$0", "$0", "+", "$0", "+", 1, "!="),
        ("$0", -1, "*", INT64 - 1, "-", "$0", "-", 1, "!="),
        (1, "$0", "$0", "-", "//", 1, "!="),
        (1, "$0", "$0", "-", "%", 1, "!="),
        (-INT64, -1, "//", 1, "!="),
        (-INT64, -1, "%", 1, "!="),
    ],
)
def test_what_leaves_64_bits_or_divides_by_zero_fails(program):
    e = sized(program)
    assert e.check(2**62 - 1) == 1


@pytest.mark.parametrize(
    "row",
    [
        ("holds", ("$1",)),
        ("holds", ("$",)),
        ("holds", ("$0x",)),
        ("holds", ("$-1",)),
        ("holds", ()),
        ("holds", (1, 2)),
        ("holds", (1, "+")),
        ("holds", (1, "+", 2)),
        ("holds", (1, 2, "**")),
        ("holds", (1.0,)),
        ("holds", (True,)),
        ("holds", (INT64,)),
        ("holds", tuple([1] * 40 + ["+"] * 39)),
        ("holds", 1),
        ("holds", (1,), (1,)),
        ("int_symbol", 0, 0),
        ("int_symbol", 0, 2),
        ("int_symbol", 0, -1),
        ("symbol", 0, -1, 1),
        ("size", 0, 0),
        ("stride", 0, 2**40, (1,)),
    ],
)
def test_a_malformed_row_is_an_error(row):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        entry([("int_symbol", 0, 0), row], inputs=0)


def test_a_size_is_read_only_after_its_row():
    with pytest.raises(ValueError, match="no row has read"):
        entry([("holds", ("$0",)), ("int_symbol", 0, 0)], inputs=0)
