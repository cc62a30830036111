"""Settings from an environment, scoped overrides, and the options of a compilation."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from tilewright.base import config, errors
from tilewright.base.config import Options, Settings


def test_settings_are_read() -> None:
    s = Settings.from_environment(
        {"TW_DEBUG": " 3", "TW_DUMP": "/tmp/d", "TW_CACHE_SIZE": "1.5M", "TW_CACHE": "off", "TW_CPU": "", "OTHER": "x"}
    )
    assert s == Settings(debug=3, dump=Path("/tmp/d"), cache_size=3 * 2**19, cache=False)
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TW_DEBUG", "7"),
        ("TW_DEBUG", "-1"),
        ("TW_DEBUG", "all"),
        ("TW_CACHE_SIZE", "2X"),
        ("TW_CACHE_SIZE", "-1"),
        ("TW_CACHE", "maybe"),
    ],
)
def test_bad_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(errors.SettingError, match=f"{name}: expected .*{value!r}"):
        Settings.from_environment({name: value})


def test_cache_folder() -> None:
    assert Settings(cache_dir=Path("/c")).cache_folder() == Path("/c")
    assert Settings().cache_folder().name == "tilewright"


def test_every_setting_is_in_the_table() -> None:
    names = [row[0] for row in config.table()]
    assert len(names) == len(dataclasses.fields(Settings)) == len(set(names)) and all(n.startswith("TW_") for n in names)
    assert sorted(config.DEBUG_LEVELS) == [1, 2, 3, 4, 5, 6]


def test_override_is_scoped() -> None:
    before = config.get()
    with config.override(debug=2) as s:
        assert s.debug == config.get().debug == 2
        with config.override(verify=True):
            assert config.get().verify and config.get().debug == 2
        assert config.get().verify == before.verify
    assert config.get() == before
    with pytest.raises(KeyError), config.override(debug=5):
        raise KeyError
    assert config.get() == before
    with pytest.raises(TypeError), config.override(debugging=1):
        pass


def test_override_stays_in_its_thread() -> None:
    seen = []
    with config.override(debug=6):
        thread = threading.Thread(target=lambda: seen.append(config.get().debug))
        thread.start()
        thread.join()
    assert seen == [config.get().debug]


def test_options() -> None:
    assert Options.parse(None) == Options.parse({}) == Options()
    assert Options.parse({"library": False, "freeze": True, "recompile_limit": 64}) == Options(False, True, recompile_limit=64)
    assert hash(Options()) == hash(Options.parse({"freeze": False}))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"libary": False}, errors.UnknownOption, "did you mean 'library'"),
        ({3: False}, errors.UnknownOption, "unknown option 3"),
        ({"library": 1}, errors.OptionError, "option library: expected True or False, got 1"),
        ({"recompile_limit": 0}, errors.OptionError, "from 1 up"),
        ({"recompile_limit": True}, errors.OptionError, "from 1 up"),
        ({"recompile_limit": 2.0}, errors.OptionError, "from 1 up"),
        ({"cpu": 4}, errors.OptionError, "a string or None"),
        ("library", errors.OptionError, "expected a dict"),
    ],
)
def test_bad_options(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Options.parse(given)
