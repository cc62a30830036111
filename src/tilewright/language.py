"""The kernel language: `import tilewright.language as T`. See docs/language.md.

In and out: the names of `tile/frontend`. Must not hold code.
"""

from __future__ import annotations

from typing import Any

from .tile.frontend.functions import PrimFunc as PrimFunc
from .tile.frontend.functions import prim_func as prim_func
from .tile.frontend.mathematics import *  # noqa: F403
from .tile.frontend.values import CONVERSIONS as _CONVERSIONS
from .tile.frontend.values import LanguageError as LanguageError
from .tile.frontend.values import StridedTensor as StridedTensor
from .tile.frontend.values import Tensor as Tensor
from .tile.frontend.vocabulary import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The element types: `T.float32`, ..."""
    if name in _CONVERSIONS:
        return _CONVERSIONS[name]
    raise AttributeError(f"the kernel language has no {name!r}")
