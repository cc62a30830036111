"""Settings of the process (from the environment, once) and options of one compilation.

In: `TW_*` variables, `override(...)`, the dict a user passes as `options=`. Out: frozen `Settings` and `Options`. No other
module reads the environment. Must not know what a setting does.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import OptionError, SettingError, UnknownOption

DEBUG_LEVELS: dict[int, str] = {
    1: "graph breaks, guards, recompiles and calls that run in eager",
    2: "time taken by each stage",
    3: "graph IR",
    4: "tile IR",
    5: "generated source (LLVM IR, CUDA C++)",
    6: "machine code",
}
"""What `TW_DEBUG=n` prints: its own line and those above."""


@dataclass(frozen=True)
class _Kind:
    """How a setting's text is read; `expected` words it in errors."""

    read: Callable[[str], Any]
    expected: str


def _read_bytes(text: str) -> int:
    scale = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(text[-1:].upper(), 1)
    size = int(float(text[:-1] if scale > 1 else text) * scale)
    if size < 0:
        raise ValueError(text)
    return size


def _read_bool(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[text.lower()]


def _read_level(text: str) -> int:
    level = int(text)
    if not 0 <= level <= max(DEBUG_LEVELS):
        raise ValueError(text)
    return level


_LEVEL = _Kind(_read_level, f"a number from 0 to {max(DEBUG_LEVELS)}")
_FOLDER = _Kind(lambda text: Path(text).expanduser(), "a folder")
_BYTES = _Kind(_read_bytes, "a number of bytes such as 500M or 2G")
_BOOL = _Kind(_read_bool, "0 or 1")
_COUNT = _Kind(lambda text: int(text.replace("_", "")), "a whole number")
_NAME = _Kind(str, "a name")


def _setting(variable: str, kind: _Kind, default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"variable": variable, "kind": kind, "meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """What the environment says. `table()` lists names, defaults and meanings."""

    debug: int = _setting("TW_DEBUG", _LEVEL, 0, "how much is printed, 0 to 6")
    dump: Path | None = _setting("TW_DUMP", _FOLDER, None, "folder that gets every stage of every compilation as numbered text")
    cache: bool = _setting("TW_CACHE", _BOOL, True, "whether compiled code is kept on disk")
    cache_dir: Path | None = _setting("TW_CACHE_DIR", _FOLDER, None, "where it is kept; the user's cache folder if not set")
    cache_size: int = _setting("TW_CACHE_SIZE", _BYTES, 2 << 30, "how much is kept, in bytes, K, M or G")
    verify: bool = _setting("TW_VERIFY", _BOOL, False, "whether the IR is verified after every pass")
    cpu: str | None = _setting("TW_CPU", _NAME, None, "instruction set to compile for instead of this machine's: x86-64-v3, ...")
    recompile_limit: int = _setting("TW_RECOMPILE_LIMIT", _COUNT, 8, "default of the option `recompile_limit`")
    step_limit: int = _setting("TW_STEP_LIMIT", _COUNT, 1_000_000, "rewrite steps after which a table of rules counts as looping")

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Settings:
        """Raises SettingError for a value that cannot be read. An empty value counts as not set."""
        values = {}
        for f in dataclasses.fields(Settings):
            text = environment.get(f.metadata["variable"], "").strip()
            if text:
                values[f.name] = _read(f.metadata["variable"], f.metadata["kind"], text)
        return Settings(**values)

    def cache_folder(self) -> Path:
        if self.cache_dir is not None:
            return self.cache_dir
        import platformdirs

        return Path(platformdirs.user_cache_dir("tilewright"))


def _read(variable: str, kind: _Kind, text: str) -> Any:
    try:
        return kind.read(text)
    except (ValueError, KeyError):
        raise SettingError(name=variable, value=text, expected=kind.expected) from None


def table() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of every setting."""
    return [(f.metadata["variable"], str(f.default), f.metadata["meaning"]) for f in dataclasses.fields(Settings)]


@functools.cache
def _process_settings() -> Settings:
    return Settings.from_environment(os.environ)


_OVERRIDE: contextvars.ContextVar[Settings | None] = contextvars.ContextVar("tilewright settings", default=None)


def get() -> Settings:
    """The settings in force here: the innermost override's, else the environment's as it was when first asked."""
    return _OVERRIDE.get() or _process_settings()


@contextlib.contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Settings changed within the `with` block, for this thread or task alone. Raises TypeError for an unknown one."""
    token = _OVERRIDE.set(dataclasses.replace(get(), **changes))
    try:
        yield get()
    finally:
        _OVERRIDE.reset(token)


def _argument(default: Any) -> Any:
    """An argument of `tw.compile` itself, which layers below read beside the options."""
    return field(default=default, metadata={"argument": True, "decides_code": False})


def _option(default: Any, meaning: str, least: int = 0, decides_code: bool = True) -> Any:
    return field(default=default, metadata={"meaning": meaning, "least": least, "decides_code": decides_code})


@dataclass(frozen=True)
class Options:
    """What `tw.compile(..., options={...})` may say."""

    library: bool = _option(True, "whether a library call (torch.mm, oneDNN) may stand where it is faster than own code")
    freeze: bool = _option(False, "whether parameters may be taken never to change")
    recompile_limit: int = _option(
        Settings.recompile_limit, "entries kept for one function or receiver; calls that fit none then run in eager",
        least=1, decides_code=False,
    )  # fmt: skip
    cpu: str | None = _option(None, "instruction set to compile for instead of this machine's: x86-64-v4, x86-64-v3, aarch64")
    dynamic: bool | None = _argument(None)
    mode: str | None = _argument(None)

    @staticmethod
    def parse(given: Mapping[str, Any] | None, **arguments: Any) -> Options:
        """`arguments`: those of `tw.compile` itself. Raises UnknownOption or OptionError, naming what the option admits."""
        defaults: dict[str, Any] = {"recompile_limit": max(get().recompile_limit, 1), **arguments}
        if given is None:
            return Options(**defaults)
        if not isinstance(given, Mapping):
            raise OptionError(option="options", choices="a dict", value=given)
        fields = {f.name: f for f in Options.table()}
        for name, value in given.items():
            if name not in fields:
                raise UnknownOption(option=name, choices=fields)
            _check(fields[name], value)
        return Options(**{**defaults, **given})

    @staticmethod
    def table() -> list[dataclasses.Field[Any]]:
        """What `options=` may name."""
        return [f for f in dataclasses.fields(Options) if "argument" not in f.metadata]

    def key(self) -> str:
        """Those options that decide what code comes about, as text."""
        fields = [f.name for f in dataclasses.fields(self) if f.metadata["decides_code"]]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in fields)


def _check(f: dataclasses.Field[Any], value: object) -> None:
    """Raise OptionError unless the value suits the option: its default's type, its least value."""
    least = f.metadata["least"]
    if isinstance(f.default, bool):
        fits, expected = isinstance(value, bool), "True or False"
    elif isinstance(f.default, int):
        fits, expected = (
            isinstance(value, int) and not isinstance(value, bool) and value >= least,
            f"a whole number from {least} up",
        )
    else:
        fits, expected = value is None or isinstance(value, str), "a string or None"
    if not fits:
        raise OptionError(option=f.name, choices=expected, value=value)
