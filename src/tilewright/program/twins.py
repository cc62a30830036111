"""A second module object that is a given one in every respect but its calls.

In: a module and a mixin class that defines `__call__`. Out: a module of the same type and name, sharing `__dict__`, so that
state, attributes, hooks and submodules are one. Must not know what the mixin does.
"""

from __future__ import annotations

import weakref

from torch import nn

# (class, mixin) -> the class made of both; it holds the first, so it is kept only as long as an object of it lives
_CLASSES: weakref.WeakKeyDictionary[type, dict[type, weakref.ref[type]]] = weakref.WeakKeyDictionary()


def twin(module: nn.Module, mixin: type) -> nn.Module:
    new = object.__new__(_derived(type(module), mixin))
    object.__setattr__(new, "__dict__", module.__dict__)
    return new


def plain(module: nn.Module) -> nn.Module:
    """The module of which a twin was made."""
    new = object.__new__(type(module).__mro__[2])
    object.__setattr__(new, "__dict__", module.__dict__)
    return new


def _derived(cls: type, mixin: type) -> type:
    made = _CLASSES.setdefault(cls, {})
    found = made[mixin]() if mixin in made else None
    if found is None:
        body = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        found = type(cls)(cls.__name__, (mixin, cls), body)
        made[mixin] = weakref.ref(found)
    return found
