"""Tilewright: one compiler for PyTorch programs, from the Python function down to the tile kernel.

The public API, loaded on first use (PEP 562): importing this package loads neither torch nor llvmlite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import jit
    from .driver import compile, compile_, repack, trace
    from .program.control import disable, is_compiling, reset, set_stance
    from .program.sizes import mark_dynamic, mark_static, maybe_mark_dynamic
    from .tools.explain import explain
    from .tools.sanitize import sanitize
    from .tune import autotune

__version__ = "0.1.0"

_HOME = {
    "compile": "driver", "compile_": "driver", "repack": "driver", "trace": "driver",
    "mark_dynamic": "program.sizes", "mark_static": "program.sizes", "maybe_mark_dynamic": "program.sizes",
    "explain": "tools.explain", "errors": "errors", "jit": "dispatch", "autotune": "tune", "sanitize": "tools.sanitize",
    "disable": "program.control", "is_compiling": "program.control", "reset": "program.control",
    "set_stance": "program.control",
}  # fmt: skip
__all__ = [
    "autotune", "compile", "compile_", "disable", "errors", "explain", "is_compiling", "jit", "mark_dynamic", "mark_static",
    "maybe_mark_dynamic", "repack", "reset", "sanitize", "set_stance", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = module if name == _HOME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
