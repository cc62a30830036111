"""The objects behind `tw.jit`: kernels that are compiled when they are made, and called like functions.

In: a user's kernel. Out: `JitKernel`, a callable on tensors. A kernel is compiled as a graph of one node, so it has the same
passes, launcher and cache as a compiled function. Must not know how source becomes a tile program.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import native
from .base import config, dims, log
from .base.dims import Size
from .base.errors import ArgumentError, OptionError, TilewrightError
from .base.scalar import Binary, Const, Expr, Var
from .driver import build
from .executable import Executable, direct_rows
from .graph.ir import INPUT, Effect, Graph, InputAttrs, InputKind, Node, Output, TensorType, TupleType, Type, make
from .graph.ops import kernel as kernels
from .graph.ops.kernel import KERNEL, KernelAttrs, run_by
from .graph.ops.opaque import GETITEM
from .graph.ops.torch_dtypes import from_torch, to_torch
from .program import torch_link
from .program.guards import GuardTable
from .tile.frontend.functions import PrimFunc
from .tile.frontend.trace import Traced
from .tile.ir import Buffer, Kernel
from .tile.text import kernel_text

TARGETS = ("auto", "cpu")


class KernelArgumentError(TilewrightError, TypeError, ValueError):
    """A kernel is called with what its parameters do not admit."""

    template = "{kernel}: {argument}: expected {expected}, got {got}"


@dataclass(frozen=True)
class Signature:
    """A kernel with what its parameters are: `roles` as of a graph's `kernel` node; `results`: those that the call returns."""

    kernel: Kernel
    results: tuple[int, ...]
    scalars: tuple[bool, ...]  # whether a parameter is a number, passed as a tensor of one element

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        k = self.kernel
        written = [p.name in k.outputs for p in k.params]
        return tuple(["in" if not w else "out" if i in self.results else "inout" for i, w in enumerate(written)])

    @functools.cached_property
    def given(self) -> tuple[int, ...]:
        """The parameters that a call passes."""
        return tuple([i for i in range(len(self.kernel.params)) if i not in self.results])

    def node(self, operands: Sequence[Node], sizes: Mapping[str, Size]) -> tuple[Node, list[Node]]:
        """The kernel on these operands: its node, and the nodes of its results, by parameter in order."""
        k = self.kernel
        made = [TensorType(p.dtype, shape_of(p, sizes)) for p, r in zip(k.params, self.roles, strict=True) if r != "in"]
        kind: Type = made[0] if len(made) == 1 else TupleType(tuple(made))
        attrs = KernelAttrs(kernel_text(k), self.roles, tuple([sizes[v.name] for v in k.scalars]), kind)
        node = make(KERNEL, tuple(operands), attrs)
        return node, [node] if len(made) == 1 else [GETITEM(node, index=i) for i in range(len(made))]

    def graph(self, values: Mapping[str, int]) -> Graph:
        """A graph of the kernel alone, its sizes symbols, planned for these values."""
        k = self.kernel
        symbols = {v.name: dims.symbol(f"s{i}", lo=0) for i, v in enumerate(k.scalars)}
        inputs: list[Node] = []
        for i in self.given:
            p = k.params[i]
            t = TensorType(p.dtype, shape_of(p, symbols))
            inputs.append(make(INPUT, (), InputAttrs(len(inputs), p.name, InputKind.USER, t)))
        operands = [inputs[self.given.index(i)] for i, r in enumerate(self.roles) if r != "out"]
        _, made = self.node(operands, symbols)
        written = [i for i, r in enumerate(self.roles) if r != "in"]
        by_param = dict(zip(written, made, strict=True))
        outputs = tuple([Output(by_param[i], steps_of(k.params[i], symbols)) for i in self.results])
        effects = tuple([Effect(self.given.index(i), by_param[i]) for i in written if i not in self.results])
        strides = tuple([steps_of(k.params[i], symbols) for i in self.given])
        return Graph(
            tuple(inputs), outputs, strides, effects, (), tuple([(f"s{i}", values[v.name]) for i, v in enumerate(k.scalars)])
        )


def shape_of(p: Buffer, sizes: Mapping[str, Size]) -> tuple[Size, ...]:
    return tuple([dims.substitute(dims.of_expr(e), sizes) for e in p.shape])


def steps_of(p: Buffer, sizes: Mapping[str, Size]) -> tuple[Size, ...]:
    return tuple([dims.substitute(dims.of_expr(e), sizes) for e in p.steps()])


_CALL = native.Dispatcher.__call__


class JitKernel(native.Dispatcher):
    """A compiled kernel: call it with its tensors; it returns those that `out_idx` names, new at each call."""

    def __init__(
        self, source: PrimFunc, traced: Traced, results: Sequence[int], options: config.Options, configured: Any
    ) -> None:
        k = traced.kernel
        self.source_function, self.traced, self.options = source, traced, options
        self.config: Mapping[str, Any] = configured
        numbers = tuple([_is_number(a) for a in source.annotations.values()])
        self.signature = Signature(k, tuple(results), numbers)
        self.seconds: dict[str, float] = {}
        self._executable: Executable | None = None
        self.miss = self._miss
        self.failed = self._failed
        functools.update_wrapper(self, source.function)
        if not k.scalars:
            self._compiled({})
        self.operator = torch_operator(self)
        self.fn = self.operator  # what a compiled function calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.operator(*args, **kwargs)
        return _CALL(self, *args, **kwargs)

    @property
    def name(self) -> str:
        return self.traced.kernel.name

    def _compiled(self, values: Mapping[str, int]) -> None:
        torch_link.connect()
        stages = log.Stages()
        self._executable = executable = build(self.signature.graph(values), self.options, stages)
        self.seconds = dict(stages.seconds)
        rows, count = direct_rows(executable.recipe), len(self.signature.given)
        table = GuardTable(count, (), rows, [""] * len(rows), count)
        many = len(self.signature.results)
        rebuild = None if many == 1 else (tuple if many else _nothing)
        self.entries = (executable.entry(table, rebuild, executable),)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for the first time, or with arguments that are not the tensors the entry takes."""
        tensors, sizes = self.admitted(args, kwargs)
        if self._executable is None:
            self._compiled(sizes)
        result = self.entries[0].run(*map(_canonical, tensors))
        return _as_given(result, [*args, *kwargs.values()])

    def admitted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, int]]:
        """A call's arguments as tensors, in the order of the parameters, and the sizes. Raises KernelArgumentError."""
        given = self._bound(args, kwargs)
        tensors = [self._tensor(i, v) for i, v in zip(self.signature.given, given, strict=True)]
        sizes = self.sizes(tensors)
        self.check(tensors, sizes)
        return tensors, sizes

    def _failed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise AssertionError(f"{self.name}: an assertion of the kernel does not hold")

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        names = [self.signature.kernel.params[i].name for i in self.signature.given]
        if len(args) > len(names):
            raise KernelArgumentError(
                kernel=self.name, argument="the call", expected=f"{len(names)} arguments ({', '.join(names)})", got=str(len(args))
            )
        given = dict(zip(names, args))  # the rest by keyword
        for name, value in kwargs.items():
            if name not in names or name in given:
                known = f"one of {', '.join(n for n in names if n not in given)}"
                raise KernelArgumentError(kernel=self.name, argument=f"keyword {name}", expected=known, got=repr(name))
            given[name] = value
        for name in names:
            if name not in given:
                raise KernelArgumentError(kernel=self.name, argument=name, expected="an argument", got="none")
        return [given[n] for n in names]

    def _tensor(self, i: int, value: Any) -> torch.Tensor:
        """An argument as a tensor that shares its memory. Raises KernelArgumentError."""
        p = self.signature.kernel.params[i]
        if self.signature.scalars[i] and isinstance(value, (int, float)):
            return torch.tensor([value], dtype=to_torch(p.dtype))
        if isinstance(value, torch.Tensor):
            return value
        if hasattr(value, "__dlpack__"):
            return torch.from_dlpack(value)
        raise self._wrong(p, "a tensor", type(value).__name__)

    def _wrong(self, p: Buffer, expected: str, got: str) -> KernelArgumentError:
        return KernelArgumentError(kernel=self.name, argument=p.name, expected=expected, got=got)

    def sizes(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """The value of each size, read where a dimension is that size alone."""
        k = self.signature.kernel
        found: dict[str, int] = {}
        for i, t in zip(self.signature.given, tensors, strict=True):
            p = k.params[i]
            if t.dim() != p.rank:
                raise self._wrong(p, f"{p.rank} dimensions", f"{t.dim()}: {list(t.shape)}")
            for e, n in zip(p.shape, t.shape, strict=True):
                if e in k.scalars:
                    found.setdefault(e.name, n)  # type: ignore[attr-defined]
        if missing := [v.name for v in k.scalars if v.name not in found]:
            raise KernelArgumentError(
                kernel=self.name, argument=missing[0], expected="a parameter with a dimension of that size alone", got="none"
            )
        return found

    def check(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Raise KernelArgumentError for tensors that the kernel does not take."""
        known = {v: sizes[v.name] for v in self.signature.kernel.scalars}
        for i, t in zip(self.signature.given, tensors, strict=True):
            p = self.signature.kernel.params[i]
            if t.device.type != "cpu":
                raise self._wrong(p, "a tensor on the cpu", f"one on {t.device}")
            if t.layout is not torch.strided:
                raise self._wrong(p, "a dense tensor", str(t.layout))
            if t.dtype is not to_torch(p.dtype):
                raise self._wrong(p, str(to_torch(p.dtype)), str(t.dtype))
            wanted = tuple([_number(e, known) for e in p.shape])
            if tuple(t.shape) != wanted:
                text = ", ".join([str(dims.of_expr(e)) for e in p.shape])
                said = f" ({text})" if self.signature.kernel.scalars else ""
                raise self._wrong(p, f"the shape {list(wanted)}{said}", str(list(t.shape)))
            steps = [_number(e, known) for e in p.steps()]
            if any(n > 1 and a != b for n, a, b in zip(t.shape, t.stride(), steps, strict=True)):
                hint = " (row-major; pass x.contiguous())" if p.strides is None else ""
                raise self._wrong(p, f"the strides {steps}{hint}", str(list(t.stride())))

    # --- inspection ---

    def text(self, level: str = "tile") -> str:
        """The kernel as "source" (of Python), "tile" (as written), "graph", "llvm" or "asm".

        Raises ValueError for another level, or for a kernel with open sizes that was not called yet.
        """
        if level == "source":
            return inspect.getsource(self.source_function.function)
        if level == "tile":
            return kernel_text(self.traced.kernel)
        if self._executable is None:
            raise ValueError(f"{self.name} is compiled at its first call, when its sizes are known")
        return self._executable.text(level)

    def source(self) -> str:
        """The machine-level program: LLVM's text on a CPU."""
        return self.text("llvm")

    get_kernel_source = source

    def __repr__(self) -> str:
        names = [f"{p.name}: {p.dtype}{[str(dims.of_expr(e)) for e in p.shape]}" for p in self.traced.kernel.params]
        return f"<kernel {self.name}({', '.join(names)})>"


# --- kernels as torch operators ---------------------------------------------------------------------------------------


def torch_operator(kernel: JitKernel) -> Any:
    """A kernel as an operator of torch: torch's compiler and exporter, and functions compiled here, record calls of it."""
    k, signature = kernel.signature.kernel, kernel.signature
    digest = hashlib.sha256((kernel_text(k) + repr(signature.results)).encode()).hexdigest()[:8]
    name = f"{k.name}_{digest}_{next(_NUMBERS)}"
    library = torch.library.Library("tilewright", "FRAGMENT")
    arguments = []
    for n, i in enumerate(signature.given):
        mark = f"({chr(97 + n)}!)" if signature.roles[i] == "inout" else ""
        arguments.append(f"Tensor{mark} {k.params[i].name}")
    count = len(signature.results)
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    library.define(f"{name}({', '.join(arguments)}) -> {result}")
    held = weakref.ref(kernel)

    def run(*tensors: torch.Tensor) -> Any:
        found = held()
        assert found is not None
        return _CALL(found, *tensors)

    def fake(*tensors: torch.Tensor) -> Any:
        made = [torch.empty(s, dtype=to_torch(k.params[i].dtype)) for i, s in zip(signature.results, _shapes(signature, tensors))]
        return made[0] if count == 1 else tuple(made) if made else None

    library.impl(name, run, "CPU")
    torch.library.register_fake(f"tilewright::{name}", fake, lib=library)
    kernels.OPERATORS[f"tilewright.{name}.default"] = kernels.Operator(
        functools.partial(_nodes, signature), tuple([n for n, i in enumerate(signature.given) if signature.roles[i] == "inout"]),
        functools.partial(_check_fakes, held),
    )  # fmt: skip
    weakref.finalize(kernel, _forget, library, f"tilewright.{name}.default")
    return getattr(torch.ops.tilewright, name).default


_NUMBERS = itertools.count()


def _forget(library: Any, name: str) -> None:
    kernels.OPERATORS.pop(name, None)
    library._destroy()


def _shapes(signature: Signature, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    """The shapes of the results, of tensors whose sizes may be torch's symbols."""
    known: dict[Expr, Any] = {}
    for i, t in zip(signature.given, tensors, strict=True):
        for e, n in zip(signature.kernel.params[i].shape, t.shape, strict=True):
            if isinstance(e, Var):
                known.setdefault(e, n)
    return [tuple([_number(e, known) for e in signature.kernel.params[i].shape]) for i in signature.results]


def _number(e: Expr, known: Mapping[Expr, Any]) -> Any:
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Binary):
        return _OPERATIONS[e.op](_number(e.x, known), _number(e.y, known))
    return known[e]


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "min": min, "max": max,
}  # fmt: skip


def _nodes(signature: Signature, operands: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The results of a kernel on graph nodes, and the values after of what it updates."""
    k = signature.kernel
    by_param = dict(zip(signature.given, operands, strict=True))
    sizes: dict[str, Size] = {}
    for i, n in by_param.items():
        for e, s in zip(k.params[i].shape, n.shape, strict=True):
            if isinstance(e, Var):
                sizes.setdefault(e.name, s)
    _, made = signature.node([by_param[i] for i, r in enumerate(signature.roles) if r != "out"], sizes)
    found = dict(zip([i for i, r in enumerate(signature.roles) if r != "in"], made, strict=True))
    return [found[i] for i in signature.results], [found[i] for i in signature.given if signature.roles[i] == "inout"]


def _check_fakes(held: Any, tensors: Sequence[torch.Tensor]) -> None:
    kernel = held()
    kernel.check(tensors, kernel.sizes(tensors))


def _nothing(outputs: Any) -> None:
    return None


def _canonical(t: torch.Tensor) -> torch.Tensor:
    """The tensor with the strides that row-major memory has, where a dimension of size 1 has others."""
    t = t.detach() if t.requires_grad else t
    if t.is_contiguous() and t.stride() != (steps := _row_major(t.shape)):
        return t.as_strided(t.shape, steps)
    return t


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


def _as_given(result: Any, given: Sequence[Any]) -> Any:
    """The result in the kind of array that the caller passed."""
    first = next((v for v in given if not isinstance(v, (torch.Tensor, int, float))), None)
    if first is None or any(isinstance(v, torch.Tensor) for v in given):
        return result
    if isinstance(result, tuple):
        return tuple([_as_given(r, given) for r in result])
    if result is None or type(first).__module__.partition(".")[0] == "numpy":
        return result if result is None else result.numpy()
    convert = getattr(inspect.getmodule(type(first)), "from_dlpack", None)
    return result if convert is None else convert(result)


def _is_number(annotation: Any) -> bool:
    from .tile.frontend.values import TensorAnnotation

    return not isinstance(annotation, TensorAnnotation)


# --- tw.jit -----------------------------------------------------------------------------------------------------------


def jit(
    func: Callable[..., Any] | PrimFunc | None = None, *, out_idx: int | Sequence[int] | None = None, target: str = "auto",
    pass_configs: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, **_: Any,
) -> Any:  # fmt: skip
    """Compile the kernels that a factory makes: a function that returns a `@T.prim_func`.

    The factory's arguments configure the kernel; each configuration is compiled once. `out_idx`: the parameters that the kernel
    returns, made anew at each call, instead of taking them. `target`: "auto" or "cpu". Raises LanguageError where the source is
    not in the language, OptionError for a bad option.
    """
    if target.partition(":")[0] not in TARGETS:
        raise OptionError(option="target", choices=" or ".join(map(repr, TARGETS)), value=target)
    asked = config.Options.parse(options)
    if func is None:
        return functools.partial(jit, out_idx=out_idx, target=target, pass_configs=pass_configs, options=options)
    if isinstance(func, PrimFunc):
        return compiled(func, out_idx, asked, {})
    if not callable(func):
        raise ArgumentError(
            function="tw.jit", argument="func", expected="a function that returns a @T.prim_func", got=repr(func)[:80]
        )
    return Factory(func, out_idx, asked)


class Factory:
    """What `@tw.jit` makes of a factory: called with a configuration it gives the compiled kernel."""

    def __init__(self, func: Callable[..., Any], out_idx: Any, options: config.Options) -> None:
        self.func, self.out_idx, self.options = func, out_idx, options
        self._made: dict[Any, JitKernel] = {}
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> JitKernel:
        bound = inspect.signature(self.func).bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            key = tuple(bound.arguments.items())
            found = self._made.get(key)
        except TypeError:  # an argument that cannot be hashed
            key = found = None
        if found is None:
            made = self.func(*args, **kwargs)
            if not isinstance(made, PrimFunc):
                raise ArgumentError(
                    function=f"@tw.jit {self.func.__name__}",
                    argument="the result",
                    expected="a @T.prim_func",
                    got=type(made).__name__,
                )
            found = compiled(made, self.out_idx, self.options, dict(bound.arguments))
            if key is not None:
                self._made[key] = found
        return found


def compiled(source: PrimFunc, out_idx: Any, options: config.Options, configured: Mapping[str, Any]) -> JitKernel:
    """The kernel of a source. Raises LanguageError, OptionError."""
    traced = source.trace()
    count = len(traced.kernel.params)
    wanted = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
    for i in wanted:
        if not -count <= i < count:
            raise OptionError(option="out_idx", choices=f"numbers of the {count} parameters", value=out_idx)
    return JitKernel(source, traced, [i % count for i in wanted], options, configured)


def _run(attrs: KernelAttrs, tensors: Sequence[torch.Tensor]) -> Any:
    """A kernel's node by itself."""
    inputs = [
        make(INPUT, (), InputAttrs(i, f"x{i}", InputKind.USER, TensorType(from_torch(t.dtype), tuple(t.shape))))
        for i, t in enumerate(tensors)
    ]
    node = make(KERNEL, tuple(inputs), attrs)
    many = isinstance(node.type, TupleType)
    results = [GETITEM(node, index=i) for i in range(len(node.type.items))] if isinstance(node.type, TupleType) else [node]
    outputs = tuple([Output(n, _row_major(dims.as_ints(n.shape))) for n in results])
    strides = tuple([_row_major(t.shape) for t in tensors])
    found = build(Graph(tuple(inputs), outputs, strides), config.Options(), log.Stages()).execute(tensors)
    return tuple(found) if many else found[0]


run_by(_run)
