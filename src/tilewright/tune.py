"""Autotuning: which configuration of a kernel is the fastest here.

In: a factory under `@tw.jit`, configurations to try. Out: a factory whose kernels have the best one. What was found is kept on
disk. Must not know how a kernel is compiled.
"""

from __future__ import annotations

import functools
import inspect
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from .base import config, log
from .base.errors import ArgumentError, TilewrightError
from .base.store import Store, content_key
from .dispatch import Factory, JitKernel
from .graph.ops.torch_dtypes import to_torch
from .targets.target import target_named

Configs: TypeAlias = "Sequence[Mapping[str, Any]] | Callable[..., Iterable[Mapping[str, Any]]]"


class TuneError(TilewrightError, RuntimeError):
    template = "{kernel}: no configuration works; the first error: {reason}"


@dataclass(frozen=True)
class Trial:
    """One configuration: its median time of a call in seconds, or why it is out."""

    config: Mapping[str, Any]
    seconds: float | None
    error: str = ""

    def __str__(self) -> str:
        return f"{dict(self.config)}: {self.error or f'{self.seconds * 1e6:.1f} µs'}"  # type: ignore[operator]


class Tuner:
    """A factory of kernels with the configuration that was the fastest for their arguments."""

    def __init__(
        self, factory: Factory, configs: Configs, warmup: int, rep: int, timeout: float,
        ref_prog: Callable[..., Any] | None, supply_prog: Callable[..., Any] | None, cache: bool,
    ) -> None:  # fmt: skip
        self.factory, self.configs, self.warmup, self.rep, self.timeout = factory, configs, warmup, rep, timeout
        self.ref_prog, self.supply_prog, self.cache = ref_prog, supply_prog, cache
        self._best: dict[Any, Mapping[str, Any]] = {}
        self._trials: list[Trial] = []
        functools.update_wrapper(self, factory.func)

    def __call__(self, *args: Any, **kwargs: Any) -> JitKernel:
        """The kernel for these arguments of the factory. A call that gives a parameter which is tuned takes it as it is."""
        choices = self._choices(args, kwargs)
        if not choices or kwargs.keys() & choices[0].keys():
            return self.factory(*args, **kwargs)
        key = (args, tuple(sorted(kwargs.items())))
        if key not in self._best:
            self._best[key] = self._stored(args, kwargs, choices)
        return self.factory(*args, **kwargs, **self._best[key])

    def table(self) -> list[Trial]:
        """What the last search measured, the fastest first, what failed at the end."""
        return sorted(self._trials, key=lambda t: (t.seconds is None, t.seconds or 0.0))

    def _choices(self, args: Any, kwargs: Any) -> list[Mapping[str, Any]]:
        return list(self.configs(*args, **kwargs) if callable(self.configs) else self.configs)

    def _stored(self, args: Any, kwargs: Any, choices: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        settings = config.get()
        store = Store(settings.cache_folder(), settings.cache_size) if settings.cache and self.cache else None
        source = inspect.getsource(self.factory.func)
        key = content_key("tuned", source, repr((args, kwargs, choices)), target_named().key, str(torch.get_num_threads()))
        found = store.get(key) if store is not None else None
        if found is not None:
            kept: Mapping[str, Any] = choices[json.loads(found["choice"])]
            return kept
        best = self._search(args, kwargs, choices)
        if store is not None:
            store.put(key, {"choice": json.dumps(choices.index(best)).encode()})
        return best

    def _search(self, args: Any, kwargs: Any, choices: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Measure every configuration on the same inputs, one after another in turns. Raises TuneError where none works."""
        from rich.progress import track

        self._trials = []
        kernels: list[tuple[Mapping[str, Any], JitKernel]] = []
        inputs: list[Any] = []
        name, until = self.factory.func.__name__, time.monotonic() + self.timeout * len(choices)
        for choice in track(choices, f"tuning {name}", transient=True):
            try:
                kernel = self.factory(*args, **kwargs, **choice)
                inputs = inputs or list(self.supply_prog(kernel) if self.supply_prog else random_inputs(kernel))
                self._check(kernel, inputs)
                kernels.append((choice, kernel))
            except Exception as e:
                self._trials.append(Trial(choice, None, f"{type(e).__name__}: {e}".splitlines()[0]))
            if time.monotonic() > until:
                break
        if not kernels:
            raise TuneError(kernel=name, reason=self._trials[0].error if self._trials else "there are no configurations")
        samples: list[list[float]] = [[] for _ in kernels]
        for turn in range(self.warmup + self.rep):
            for n, (_, kernel) in enumerate(kernels):
                start = time.perf_counter()
                kernel(*inputs)
                if turn >= self.warmup:
                    samples[n].append(time.perf_counter() - start)
        self._trials += [Trial(c, statistics.median(s)) for (c, _), s in zip(kernels, samples, strict=True)]
        for t in self._trials:
            if t.error:
                log.warn_once(("tune", name, str(t.config)), f"{name}: a configuration is skipped: {t}")
        return self.table()[0].config

    def _check(self, kernel: JitKernel, inputs: Sequence[Any]) -> None:
        """Raises AssertionError where the result is not the reference's."""
        got = kernel(*inputs)
        if self.ref_prog is not None:
            torch.testing.assert_close(got, self.ref_prog(*inputs), rtol=1e-2, atol=1e-2, check_dtype=False)


def random_inputs(kernel: JitKernel) -> list[torch.Tensor]:
    """Random arguments of a kernel without open sizes. Raises ArgumentError for one that has some."""
    k, made = kernel.signature.kernel, []
    if k.scalars:
        raise ArgumentError(
            function="tw.autotune", argument="supply_prog", expected="a function that makes inputs: sizes are open", got="none"
        )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for i in kernel.signature.given:
        p = k.params[i]
        shape = [int(e.value) for e in p.shape]  # type: ignore[attr-defined]
        dtype = to_torch(p.dtype)
        if p.dtype.is_float:
            made.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            made.append(torch.randint(0, 2 if p.dtype.kind == "bool" else 4, shape, generator=generator).to(dtype))
    return made


def autotune(
    func: Factory | None = None, *, configs: Configs | None = None, warmup: int = 3, rep: int = 20, timeout: float = 30.0,
    ref_prog: Callable[..., Any] | None = None, supply_prog: Callable[..., Any] | None = None, cache_input_tensors: bool = True,
    cache: bool = True, **_: Any,
) -> Any:  # fmt: skip
    """Try configurations of a kernel at its first use, and keep the fastest: above `@tw.jit`.

    `configs`: keyword arguments of the factory to try, or a function that gives them for its other arguments. `warmup`, `rep`:
    calls of each, uncounted and counted. `timeout`: seconds for each on the average. `ref_prog`: what a result must agree with.
    `supply_prog(kernel)` gives the inputs, random ones otherwise. A configuration that fails is skipped, with a warning. Raises
    TuneError, at the kernel's first use, where all fail.
    """
    if func is None:
        return functools.partial(
            autotune, configs=configs, warmup=warmup, rep=rep, timeout=timeout, ref_prog=ref_prog, supply_prog=supply_prog,
            cache=cache,
        )  # fmt: skip
    if not isinstance(func, Factory):
        raise ArgumentError(function="tw.autotune", argument="func", expected="a factory under @tw.jit", got=type(func).__name__)
    if not callable(configs) and not configs:
        raise ArgumentError(function="tw.autotune", argument="configs", expected="a list of configurations", got=repr(configs))
    return Tuner(func, configs, warmup, rep, timeout, ref_prog, supply_prog, cache)  # type: ignore[arg-type]
