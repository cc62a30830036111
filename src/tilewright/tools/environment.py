"""What `tilewright env` prints: versions, the target, the disk cache, the settings. In: this process. Out: text."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata

import torch

import tilewright

from ..base import config
from ..targets.cpu.compile import llvm_version
from ..targets.target import target_named


def lines() -> Iterator[str]:
    """A section each, its lines indented."""
    yield from _section("versions", _versions())
    yield from _section("target", _target())
    yield from _section("cache", _cache())
    settings = config.get()
    rows = [
        (f.metadata["variable"], shown(getattr(settings, f.name)), f.metadata["meaning"]) for f in dataclasses.fields(settings)
    ]
    yield from _section("settings", rows)
    yield from _section("TW_DEBUG", [(str(level), meaning) for level, meaning in config.DEBUG_LEVELS.items()])


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield title
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def shown(value: object) -> str:
    """A setting's value as one would write it into the environment."""
    if value is None:
        return "not set"
    if isinstance(value, int) and value and value % 2**30 == 0:
        return f"{value >> 30}G"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _versions() -> list[tuple[str, ...]]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [
        ("tilewright", tilewright.__version__), ("python", python), ("torch", torch.__version__),
        ("llvmlite", metadata.version("llvmlite")), ("llvm", llvm_version()), ("numpy", metadata.version("numpy")),
    ]  # fmt: skip


def _target() -> list[tuple[str, ...]]:
    isa = target_named().isa
    extra = [name for name in ("masks", "bf16_dot", "f16_arithmetic", "vnni", "amx") if getattr(isa, f"has_{name}")]
    return [
        ("cpu", f"{isa.cpu} ({isa.name})"),
        ("vectors", f"{32 * isa.lanes} bits; matrix tile {isa.mr} x {isa.nr}"),
        ("also has", ", ".join(extra) or "nothing that is used"),
        ("data caches", f"{isa.l1_bytes >> 10} KiB, {isa.l2_bytes >> 10} KiB"),
        ("threads", str(torch.get_num_threads())),
    ]


def _cache() -> list[tuple[str, ...]]:
    settings = config.get()
    folder = settings.cache_folder()
    sizes = [p.stat().st_size for p in folder.glob("*/*") if p.is_file()]
    return [
        ("folder", str(folder)),
        ("used", f"{sum(sizes) / 2**20:.1f} MiB in {len(sizes)} entries, of at most {settings.cache_size / 2**20:.0f} MiB"),
        ("in use", "yes" if settings.cache and settings.dump is None else "no"),
    ]
