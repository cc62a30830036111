"""The command `tilewright`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from tilewright.base import config
from tilewright.tools import cli


def test_the_script_is_installed() -> None:
    (found,) = entry_points(group="console_scripts", name="tilewright")
    assert found.load() is cli.main


@pytest.mark.parametrize("module", ["tilewright.tools", "tilewright.tools.opt", "tilewright.tools.dump"])
def test_modules_run(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "tilewright" in done.stdout


def test_help_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"tilewright {name}" in shown for name in cli.COMMANDS)
    assert cli.main(["explian"]) == 2
    assert "did you mean 'explain'" in capsys.readouterr().err


def test_env(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cdef").write_bytes(b"0" * (3 << 20))
    with config.override(cache_dir=tmp_path, dump=None, cpu="x86-64-v3"):
        assert cli.main(["env"]) == 0
    shown = capsys.readouterr().out
    assert torch.__version__ in shown
    assert str(tmp_path) in shown
    assert "3.0 MiB in 1 entries" in shown
    assert "256 bits; matrix tile 6 x 16" in shown
    for variable, _, meaning in config.table():
        assert variable in shown
        assert meaning in shown


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.lin = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.lin(x).relu()\n"
        "def pick(table, index):\n    return table[index]\n"
    )
    assert cli.main(["explain", f"{path}:Net", "f32[2, 4]"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Net: 1 kernel launch, 0 eager calls")
    assert "backward" not in shown
    assert cli.main(["explain", "--grad", f"{path}:Net", "f32[2,4]"]) == 0
    assert "backward" in capsys.readouterr().out
    assert cli.main(["explain", f"{path}:pick", "f32[2, 4]", "i64[3]"]) == 0
    assert "argument 1: i64[3]" in capsys.readouterr().out
    for wrong, said in ((["nowhere"], "FILE.py:NAME"), ([f"{path}:gone"], "gone"), ([f"{path}:pick", "f99[2]"], "f32[8, 256]")):
        assert cli.main(["explain", *wrong]) == 1
        assert said in capsys.readouterr().err
    assert cli.main(["explain", "no_such_module:f"]) == 1
    assert "no_such_module" in capsys.readouterr().err
