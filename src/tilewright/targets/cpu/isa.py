"""What code generation must know of a CPU: its vectors, its registers and the few instructions worth naming.

In: the host, or a level's name. Out: a frozen `Isa`; its `text` is part of every cache key of generated code. Must not
know tile programs. LLVM is asked only about the host, and only when that is wanted.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base import config, errors
from ...base.dtypes import DType
from . import amx


@dataclass(frozen=True)
class Isa:
    """An instruction set. `lanes` is the number of fp32 elements of a vector; `mr` x `nr` the fp32 tile of a matrix product.

    `nr` is the width of a packed panel of B in every element type of 32 bits or less, so that a layout depends on nothing else.
    """

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int
    nr: int
    mr: int
    has_masks: bool = False
    has_bf16_dot: bool = False
    has_f16_arithmetic: bool = False
    has_vnni: bool = False
    has_amx: bool = False
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024

    @property
    def text(self) -> str:
        """Everything that decides what code comes out, in one line, for cache keys and reports."""
        sizes = f"nr={self.nr} mr={self.mr} l1={self.l1_bytes} l2={self.l2_bytes}"
        return f"{self.name} {self.triple} {self.cpu} {self.features} {sizes} amx={self.has_amx}"

    @property
    def attributes(self) -> str:
        """The attribute group of every generated function."""
        width = f' "prefer-vector-width"="{32 * self.lanes}"' if self.is_x86 else ""
        return f"nounwind{width}"

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def multiplies_pairs(self) -> bool:
        """Whether bf16 pairs are the fast way: Intel's dot instruction alone runs at half the rate that would match its work."""
        return self.has_amx or (self.has_bf16_dot and self.cpu not in _SLOW_DOTS)

    def lanes_of(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector; 16- and 8-bit floats are counted as the fp32 they are computed in."""
        return self.lanes * 4 // dtype.compute.bytes


_V3 = Isa("x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "", lanes=8, registers=16, nr=16, mr=6)
_V4 = Isa("x86-64-v4", "x86_64-unknown-linux-gnu", "x86-64-v4", "", lanes=16, registers=32, nr=32, mr=14, has_masks=True)
_A64 = Isa("aarch64", "aarch64-unknown-linux-gnu", "generic", "+neon", lanes=4, registers=32, nr=8, mr=8)
LEVELS = {isa.name: isa for isa in (_V4, _V3, _A64)}

_SLOW_DOTS = {"cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"}
_FLAGS = {"avx512bf16": "has_bf16_dot", "avx512fp16": "has_f16_arithmetic", "avx512vnni": "has_vnni", "amx-bf16": "has_amx"}
_V4_NEEDS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_V3_NEEDS = ("avx2", "fma", "bmi2", "f16c")


def selected_isa() -> Isa:
    """What code is generated for: `TW_CPU` if set, else this machine. Raises as `named` and `host_isa` do."""
    return named(config.get().cpu or "host")


def named(name: str) -> Isa:
    """A level of `LEVELS`, with LLVM features that go beyond it appended as in "x86-64-v4+avx512bf16", or "host".

    Raises `errors.OptionError` for an unknown level or feature.
    """
    if name == "host":
        return host_isa()
    level, *extra = name.split("+")
    if level not in LEVELS or not all(re.fullmatch(r"[a-z0-9.-]+", e) for e in extra):
        raise errors.OptionError(option="cpu level", value=name, choices=", ".join(sorted(LEVELS)))
    isa = LEVELS[level]
    flags: dict[str, Any] = {_FLAGS[e]: True for e in extra if e in _FLAGS}
    if "has_amx" in flags:
        amx.permitted()  # the code may well run here
    features = ",".join(filter(None, (isa.features, *(f"+{e}" for e in extra))))
    return replace(isa, name=name, features=features, **flags)


@functools.cache
def host_isa() -> Isa:
    """This machine's, from LLVM's view of it. Raises `errors.CompileError` on a CPU below AVX2 or NEON."""
    import llvmlite.binding as llvm

    cpu, triple = llvm.get_host_cpu_name(), llvm.get_process_triple()
    features = llvm.get_host_cpu_features()
    on = {name for name, present in features.items() if present}
    text = ",".join(f"{'+' if features[name] else '-'}{name}" for name in sorted(features))
    flags: dict[str, Any] = {flag: feature in on for feature, flag in _FLAGS.items()}
    flags["has_amx"] = flags["has_amx"] and amx.permitted()
    flags |= {field: size for level, field in ((1, "l1_bytes"), (2, "l2_bytes")) if (size := _data_cache(level))}
    if triple.startswith("aarch64") or triple.startswith("arm64"):
        return replace(_A64, name="host", triple=triple, cpu=cpu, features=text, **flags)
    for level, needs in ((_V4, _V4_NEEDS), (_V3, _V3_NEEDS)):
        if all(f in on for f in needs):
            return replace(level, name="host", triple=triple, cpu=cpu, features=text, **flags)
    raise errors.CompileError(reason=f"the CPU {cpu} has neither AVX2 with FMA nor NEON")


def _data_cache(level: int) -> int:
    """Bytes of this machine's data cache of a level, as Linux tells it; 0 if it does not."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if found == str(level) and kind in ("Data", "Unified") and size[-1:] == "K":
            return int(size[:-1]) * 1024
    return 0
