"""Channels, warnings said once, stage times."""

from __future__ import annotations

import logging
import warnings

import pytest

from tilewright.base import config, log


def test_levels_turn_channels_on() -> None:
    with config.override(debug=0):
        assert not any(c.on for c in log.CHANNELS.values())
    with config.override(debug=3):
        assert [n for n, c in log.CHANNELS.items() if c.on] == ["breaks", "guards", "timing", "graph"]
    assert {c.level for c in log.CHANNELS.values()} == set(config.DEBUG_LEVELS)


def test_text_reaches_logging(caplog: pytest.LogCaptureFixture) -> None:
    with config.override(debug=1):
        log.guards.write("x.shape changed")
        log.graph.write("not shown")
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("tilewright.guards", "x.shape changed")]


def test_loggers_turn_channels_on(caplog: pytest.LogCaptureFixture) -> None:
    with config.override(debug=0), caplog.at_level(logging.DEBUG, "tilewright.tile"):
        log.tile.write("%s is no format")
    assert caplog.messages == ["%s is no format"]


def test_without_handlers_text_goes_to_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log.graph.logger, "hasHandlers", lambda: False)
    with config.override(debug=3):
        log.graph.write(lambda: "lazily")
    assert capsys.readouterr().err == "[tilewright.graph] lazily\n"


def test_lazy_text_is_not_made_for_nothing() -> None:
    def fail() -> str:
        raise AssertionError("made")

    with config.override(debug=2):
        log.graph.write(fail)


def test_warn_once() -> None:
    def compiled() -> bool:
        return log.warn_once(("f", 1), "f stays in eager: sparse")

    log.forget_warnings()
    with pytest.warns(log.TilewrightWarning, match="stays in eager") as caught:
        assert compiled()
    assert caught[0].filename == __file__  # its caller's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not log.warn_once(("f", 1), "f stays in eager: sparse")
    log.forget_warnings()
    with pytest.warns(log.TilewrightWarning):
        assert log.warn_once(("f", 1), "again")


def test_stages() -> None:
    stages = log.Stages()
    with stages.stage("outer"):
        for _ in range(2):
            with pytest.raises(ValueError, match="stop"), stages.stage("inner"):
                raise ValueError("stop")
    assert list(stages.seconds) == ["outer", "inner"]
    assert stages.seconds["outer"] >= stages.seconds["inner"] > 0
