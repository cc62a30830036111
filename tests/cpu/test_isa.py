from __future__ import annotations

import pytest

from tilewright.base import config, dtypes, errors
from tilewright.targets.cpu import isa
from tilewright.targets.target import target_named


def test_levels_differ_in_cache_key():
    names = ["x86-64-v4", "x86-64-v3", "aarch64", "x86-64-v4+avx512bf16"]
    assert len({isa.named(name).text for name in names}) == len(names)


def test_features_beyond_a_level():
    plain, dots = isa.named("x86-64-v4"), isa.named("x86-64-v4+avx512bf16")
    assert not plain.has_bf16_dot
    assert dots.has_bf16_dot
    assert "+avx512bf16" in dots.features


@pytest.mark.parametrize("name", ["x86-64-v9", "", "x86-64-v3+Bad Feature", "arm"])
def test_unknown_level(name):
    with pytest.raises(errors.OptionError, match="x86-64-v3"):
        isa.named(name)


def test_panel_is_two_vectors():
    for level in isa.LEVELS.values():
        assert level.nr == 2 * level.lanes
        assert level.mr * 2 + 3 <= level.registers  # accumulators, a row of b, an element of a


def test_lanes_count_computing_types():
    level = isa.named("x86-64-v4")
    assert [level.lanes_of(d) for d in (dtypes.f32, dtypes.bf16, dtypes.f64, dtypes.i32, dtypes.i64)] == [16, 16, 8, 16, 8]


def test_settings_choose_the_level():
    with config.override(cpu="x86-64-v3"):
        assert isa.selected_isa().name == "x86-64-v3"
        assert target_named("cpu").isa.lanes == 8
    with config.override(cpu=None):
        assert isa.selected_isa() == isa.host_isa()


def test_target_describes_itself_to_the_lowering():
    machine = target_named("cpu:x86-64-v3").machine(threads=3)
    assert (machine.lanes, machine.nr, machine.mr, machine.threads) == (8, 16, 6, 3)
    assert target_named("cpu:x86-64-v3").key != target_named("cpu:x86-64-v4").key


def test_unknown_target():
    with pytest.raises(errors.UnknownBackend, match="cpu"):
        target_named("gpu")
