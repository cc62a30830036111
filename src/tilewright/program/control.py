"""What a user says about compilation as a whole: stances, functions that are kept out of it, forgetting all that was compiled.

In: calls of `tw.set_stance`, `tw.disable`, `tw.is_compiling`, `tw.reset`. Out: `stance()`, which compiled functions ask where
no entry serves a call. Must not know how anything is compiled.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from .. import native
from ..base import log
from ..base.errors import NotCallable, OptionError
from ..graph.recorder import is_recording
from . import twins

STANCES = {
    "default": "compile where no entry serves a call",
    "force_eager": "run everything in eager, as if nothing were compiled",
    "eager_on_recompile": "use what is compiled, run other calls in eager",
    "fail_on_recompile": "use what is compiled, raise RecompileError for other calls",
}
_STANCE = "default"


def stance() -> str:
    """The stance in force, in all threads."""
    return _STANCE


def _set(name: str) -> str:
    """Set the stance; the one before."""
    global _STANCE
    before, _STANCE = _STANCE, name
    native.set_bypass(name == "force_eager")
    return before


class Stance:
    """A stance that is set: as a context manager it holds for the block, as a decorator within the function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before = _set(name)

    def __enter__(self) -> Stance:
        _set(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        _set(self._before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        _set(self._before)

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Stance(self.name):
                return fn(*args, **kwargs)

        wrapper._tilewright_disable = True  # type: ignore[attr-defined]
        return wrapper


def set_stance(stance: str = "default") -> Stance:
    """Say what compiled functions do with calls for which nothing is compiled; see `STANCES`.

    Holds from now on, in all threads; as a context manager (`with tw.set_stance("force_eager"):`) or a decorator, within.
    Raises OptionError for an unknown stance.
    """
    if stance not in STANCES:
        raise OptionError(option="stance", choices=" or ".join(map(repr, STANCES)), value=stance)
    return Stance(stance)


set_stance._tilewright_disable = True  # type: ignore[attr-defined]


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """`fn`, never compiled: where a compiled function calls it, the graph breaks. Usable as a decorator.

    `recursive` is for programs written for torch: functions that `fn` calls are compiled only where they were on their own,
    whatever it says. Of a class the constructor is meant, of a module its calls. Raises NotCallable.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    if not callable(fn):
        raise NotCallable(function="tilewright.disable", got=f"{type(fn).__name__} {fn!r}"[:100])
    if isinstance(fn, type):
        fn.__init__ = disable(fn.__init__, recursive)  # type: ignore[misc]
        return fn
    if isinstance(fn, nn.Module):
        return twins.twin(fn, _DisabledModule)

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    disabled._tilewright_disable = True  # type: ignore[attr-defined]
    return disabled


class _DisabledModule:
    """Mixed into a module's own class: the module itself, whose calls are never compiled."""

    __slots__ = ()
    _tilewright_disable = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    __call__._tilewright_disable = True  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return disable, (twins.plain(self),)  # type: ignore[arg-type]


def is_disabled(fn: Any) -> bool:
    """Whether `disable`, or torch's own `torch.compiler.disable`, marked it."""
    return getattr(fn, "_tilewright_disable", False) or getattr(fn, "_torchdynamo_disable", False)


def is_compiling() -> bool:
    """Whether Tilewright is capturing: true where a compiled function asks, false in eager."""
    return is_recording()


class Resettable(Protocol):
    def reset(self) -> None: ...


_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()


def register(compiled: Resettable) -> None:
    """Have `reset` forget what it compiled."""
    _LIVE.add(compiled)


def reset() -> None:
    """Forget everything compiled, learnt and warned of, in every compiled function: each starts anew at its next call."""
    for compiled in list(_LIVE):
        compiled.reset()
    log.forget_warnings()


reset._tilewright_disable = True  # type: ignore[attr-defined]
