"""What all tests share: an own disk cache, repeatable random numbers, and the option of golden cases."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

import golden

_CACHE = tempfile.mkdtemp(prefix="tilewright-tests-")
os.environ["TW_CACHE_DIR"] = _CACHE  # before anything reads the settings
os.environ["TW_VERIFY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the passes make into tests/cases")


def pytest_configure(config: pytest.Config) -> None:
    golden.update = bool(config.getoption("--update-golden"))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """The same random numbers and the same warnings in each test, whichever ran before."""
    from tilewright.base import log

    log.forget_warnings()
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    grad = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(grad)
