"""Which code and which objects a capture knows: what runs as it is, what is interpreted, what ends a graph.

In: functions, types, module names. Out: answers. Must not know how they are used.
"""

from __future__ import annotations

import _random
import enum
import functools
import os
import sys
import sysconfig
import types
from typing import Any

import numpy as np
import torch

from ..base.weak import remembered

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep

# Parts of torch in Python that read attributes of modules or call user code: they are interpreted.
_INTERPRETED = tuple(
    _TORCH + p.replace("/", os.sep)
    for p in ("nn/modules/", "nn/utils/parametrize.py", "nn/utils/parametrizations.py", "utils/_contextlib.py")
)
_INTERPRETED_FUNCTIONS = (
    "autocast_decorator.<locals>.decorate_autocast", "GraphModule.recompile.<locals>.call_wrapped", "_WrappedCall.__call__",
)  # fmt: skip

# Modules without Python code, or whose Python code is as good as that, that do nothing but compute on their arguments.
_PURE_ROOTS = frozenset(
    ("builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "collections", "_collections",
     "_collections_abc", "types", "typing", "enum", "abc", "_abc", "re", "_sre", "string", "numbers", "fractions", "decimal",
     "torch",
     "contextlib", "dataclasses", "copyreg", "_struct", "struct", "bisect", "_bisect", "heapq", "_heapq", "inspect",
     "weakref", "_weakref")
)  # fmt: skip
_RUN_AS_IS = frozenset(
    ("enum", "typing", "re", "abc", "inspect", "copyreg", "numbers", "_sre", "sre_compile", "sre_parse", "weakref")
)
_NEVER = frozenset(("input", "open", "eval", "exec", "compile", "breakpoint", "__import__", "locals", "globals", "id"))
_TORCH_STATE = frozenset(
    ("manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "fork_rng", "set_default_dtype",
    "set_default_device",
     "set_num_threads", "set_num_interop_threads", "save", "load", "compile", "use_deterministic_algorithms",
     "set_printoptions",
     "set_default_tensor_type", "set_float32_matmul_precision", "backward", "from_numpy", "from_dlpack",
     "set_deterministic_debug_mode",
     "vmap", "grad", "jvp", "vjp", "jacrev", "jacfwd", "hessian", "functional_call", "checkpoint", "frombuffer")
)  # fmt: skip


@functools.cache
def is_trusted_module(name: str) -> bool:
    """torch's own and the standard library's modules: their functions and classes are taken not to change."""
    root = name.partition(".")[0]
    return root == "torch" or root in sys.stdlib_module_names


def skips_guard(value: Any) -> bool:
    """Of a trusted module, what is not guarded."""
    return isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type)


@remembered
def runs_as_is(code: types.CodeType, module: str) -> bool:
    """Whether a Python function is called, not interpreted: torch's own, and some of the standard library."""
    name = code.co_filename
    if name.startswith(_TORCH):
        return not name.startswith(_INTERPRETED) and code.co_qualname not in _INTERPRETED_FUNCTIONS
    return module in _RUN_AS_IS


def is_torch_code(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_TORCH)


def is_own_code(code: types.CodeType) -> bool:
    """This package's; what it makes of other programs' graphs (`interop`) is a program like any other."""
    return code.co_filename.startswith(_OWN) and not code.co_filename.startswith(_OWN + "interop" + os.sep)


def is_standard_code(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_STDLIB) and "site-packages" not in code.co_filename


def changes_torch(f: Any) -> bool:
    """Whether a function of torch changes or reads state that no guard covers, or calls what it is given."""
    return getattr(f, "__name__", "") in _TORCH_STATE


_HEAP, _IMMUTABLE = 1 << 9, 1 << 8


@remembered
def is_python_class(cls: type) -> bool:
    """A class made by a class statement."""
    return bool(cls.__flags__ & _HEAP) and not cls.__flags__ & _IMMUTABLE and "__module__" in cls.__dict__


@remembered
def _opaque_type(cls: type) -> bool:
    if issubclass(cls, _random.Random):
        return True
    if issubclass(cls, np.number | np.bool_):
        return False
    if is_python_class(cls) or issubclass(cls, torch.Tensor | enum.Enum):
        return False
    return cls.__module__.partition(".")[0] not in _PURE_ROOTS


def is_opaque(value: Any) -> bool:
    """Whether nothing is known of what the object holds and does: a NumPy array, a file, a lock."""
    return _opaque_type(type(value)) or isinstance(value, memoryview | bytearray)


def is_numpy_function(f: Any) -> bool:
    """A function or number class of NumPy that computes on plain values; random numbers are not among them."""
    if isinstance(f, type):
        return issubclass(f, np.number | np.bool_)
    return isinstance(f, np.ufunc) or (type(f) is _NUMPY_FUNCTION and f.__module__.startswith("numpy"))


_NUMPY_FUNCTION = type(np.prod)


def is_known_builtin(f: Any) -> bool:
    """Whether a function without Python code does nothing but compute on its arguments."""
    owner = getattr(f, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        return not is_opaque(owner)
    module = getattr(f, "__module__", None) or getattr(getattr(f, "__objclass__", None), "__module__", None)
    if module is None:
        module = owner.__module__ if isinstance(owner, type) else getattr(owner, "__name__", "")
    if isinstance(module, str) and module.partition(".")[0] in _PURE_ROOTS:
        return getattr(f, "__name__", "") not in _NEVER or module != "builtins"
    return False
