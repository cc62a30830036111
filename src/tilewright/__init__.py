"""Tilewright: one compiler for PyTorch programs, from the Python function down to the tile kernel.

The public API, loaded on first use (PEP 562): importing this package loads neither torch nor llvmlite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .driver import compile, repack
    from .tools.explain import explain

__version__ = "0.1.0"
__all__ = ["compile", "errors", "explain", "repack", "trace"]

_HOME = {"compile": "driver", "repack": "driver", "trace": "driver", "explain": "tools.explain", "errors": "errors"}


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
