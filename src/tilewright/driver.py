"""The driver: from a Python function to a callable, as one list of stages.

In: what a user gives `tw.compile`. Out: the compiled function or module. This is the one place that sees every layer.

    capture   program/                    the function's tensor operations as a graph, and what was assumed (guards)
    optimise  graph/pipeline.py           passes over whole tensors
    lower     tile/pipeline.py            fusion, and kernels in the tile IR
    plan      targets/plan.py             launch order and memory
    generate  targets/cpu/generate.py     LLVM IR
    assemble  targets/cpu/compile.py      machine code
    load      executable.py               into this process, behind the native launcher
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .base import config, errors, log
from .base.store import Store, content_key
from .executable import Executable
from .graph.ir import Graph
from .graph.pipeline import optimise
from .graph.text import print_graph
from .program import control, torch_link
from .program.compiled import CompiledFunction, compiled_module
from .program.trace import Traced
from .program.trace import trace as record_trace
from .stages import Captured, Compiled, Dump, Lowered
from .targets.cpu import compile as code
from .targets.cpu.generate import generate
from .targets.plan import make_plan
from .targets.recipe import Recipe, make_recipe
from .targets.target import Target, target_named
from .tile.pipeline import lower

BACKENDS = ("tilewright", "eager")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "tilewright",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method or module: at its first call, and again whenever a guard fails.

    A module comes back as a module of the same type that shares its state. What cannot be captured or compiled runs in
    eager, with one warning that says why; with `fullgraph` it raises instead. Without `model` this is a decorator.

    `dynamic`: whether sizes are symbols from the start (True), once they were seen to vary (None), or never (False). `backend`:
    "tilewright", "eager" (graphs are captured, and run by eager torch), or a function as torch.compile takes it, which is
    given each captured graph as FX with example inputs and returns a callable. `mode` is torch.compile's: "max-autotune" and
    "max-autotune-no-cudagraphs" admit a search; "reduce-overhead" changes nothing on a CPU, where launches cost little.

    Raises NotCallable, UnknownBackend, UnknownOption or OptionError, naming what was expected.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options, "disable": disable,
    }  # fmt: skip
    asked, builder = _asked(dynamic, backend, mode, options)
    if model is None:
        return functools.partial(compile, **arguments)
    if isinstance(model, classmethod | staticmethod):  # a decorator above torch's or Python's
        return type(model)(compile(model.__func__, **arguments))
    if not callable(model):
        raise errors.NotCallable(function="tilewright.compile", got=f"{type(model).__name__} {model!r}"[:100])
    if disable or control.is_disabled(model):
        return model
    model = _inner(model)
    torch_link.connect()
    function = CompiledFunction(model, builder, asked, fullgraph)
    return compiled_module(model, function) if isinstance(model, nn.Module) else function


def compile_(module: nn.Module, **arguments: Any) -> nn.Module:
    """Compile a module in place, as `nn.Module.compile` does: its own calls are compiled from now on. Gives the module.

    The arguments are those of `compile`. Copies and pickles of the module are not compiled. Raises what `compile` raises.
    """
    if not isinstance(module, nn.Module):
        raise errors.NotCallable(function="tilewright.compile_", got=f"{type(module).__name__} {module!r}"[:100])
    module._compiled_call_impl = compile(module._call_impl, **arguments)
    return module


def _asked(dynamic: Any, backend: Any, mode: Any, options: Any) -> tuple[config.Options, Callable[..., Any]]:
    """The options, and what builds graphs. Raises what `compile` raises."""
    if dynamic not in (None, False, True):
        raise errors.OptionError(option="dynamic", choices="True, False or None", value=dynamic)
    if not callable(backend) and backend not in BACKENDS:
        raise errors.UnknownBackend(backend=backend, choices=BACKENDS)
    foreign = backend != "tilewright"
    asked = config.Options.parse(options, dynamic=False if foreign else dynamic, mode=checked_mode(mode))
    if not foreign:
        return asked, build
    from .interop import foreign as others

    return asked, functools.partial(others.build, backend if callable(backend) else None)


def checked_mode(mode: str | None) -> str:
    """The mode's name. Raises OptionError for an unknown one."""
    if mode is not None and mode not in MODES:
        raise errors.OptionError(option="mode", choices=" or ".join(map(repr, (None, *MODES))), value=mode)
    return mode or "default"


def trace(fn: Callable[..., Any], example_inputs: Any, example_kwargs: dict[str, Any] | None = None) -> Traced:
    """Record `fn` on example inputs (a tensor, or a tuple of arguments) once, and compile what was recorded, without guards.

    Python's control flow is frozen as the examples take it, with a `TracerWarning` where it depended on a tensor's data.
    Raises NotCallable, RecordError or CompileError.
    """
    torch_link.connect()
    options = config.Options()
    return record_trace(
        fn, example_inputs, example_kwargs, executable=lambda r: build(r.graph, options, log.Stages()).execute
    )


def _inner(model: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled function or module was made of; anything else as it is."""
    function = getattr(model, "_tilewright", model)
    return function.fn if isinstance(function, CompiledFunction) else model


def repack(module: nn.Module) -> None:
    """Fold and pack a compiled module's weights anew at its next call.

    Needed only after an edit that moves no version counter and touches few elements of a large weight. Raises NotCallable
    for what `compile` did not make.
    """
    function = getattr(module, "_tilewright", module)
    if not isinstance(function, CompiledFunction):
        raise errors.NotCallable(function="tilewright.repack", got=type(module).__name__)
    for entry in function.entries:
        entry.data.executable.forget()


def build(graph: Graph, options: config.Options, stages: log.Stages) -> Executable:
    """Compile a recorded graph, or find it in the disk cache. Raises TilewrightError where that is impossible."""
    target = target_named(f"cpu:{options.cpu}" if options.cpu else "cpu")
    captured = Captured(graph)
    store = _store()
    with stages.stage("cache"):
        key = content_key(captured.text(), target.key, options.key(), str(torch.get_num_threads()), _versions())
        found = store.get(key) if store is not None else None
    if found is not None:
        compiled = Compiled(Recipe.from_json(found["recipe"].decode()), found["object"])
    else:
        dump = Dump.next()
        compiled = assemble(lowered(captured, target, options, stages, dump), target, stages, dump)
        if store is not None:
            store.put(key, {"recipe": compiled.recipe.to_json().encode(), "object": compiled.object_file})
    with stages.stage("load"):
        text = functools.partial(_text, captured, target, options)
        return Executable(compiled.recipe, compiled.object_file, text, options.freeze)


def lowered(captured: Captured, target: Target, options: config.Options, stages: log.Stages, dump: Dump) -> Lowered:
    """The graph optimised, lowered to kernels, and planned."""
    dump("graph recorded", captured.text)
    debug = config.get().verify
    with stages.stage("optimise"):
        graph = optimise(captured.graph, debug=debug, watch=lambda name, g: dump(f"graph {name}", lambda: print_graph(g)))
    log.graph.write(lambda: print_graph(graph))
    with stages.stage("lower"):
        program = lower(graph, target.machine(torch.get_num_threads()), options)
    with stages.stage("plan"):
        result = Lowered(graph, make_plan(program, graph))
    dump("tile", result.text)
    log.tile.write(result.text)
    return result


def assemble(low: Lowered, target: Target, stages: log.Stages, dump: Dump) -> Compiled:
    """LLVM IR, then machine code."""
    with stages.stage("generate"):
        generated = generate(low.plan, target.isa)
    dump("llvm", lambda: generated.text)
    log.source.write(lambda: generated.text)
    with stages.stage("assemble"):
        object_file = code.compile_module(generated.text, target.isa)
    dump("asm", lambda: code.assembly(generated.text, target.isa))
    log.assembly.write(lambda: code.assembly(generated.text, target.isa))
    return Compiled(make_recipe(low.plan, generated.scratch_bytes), object_file)


def _text(captured: Captured, target: Target, options: config.Options, level: str) -> str:
    """The program at a level, made anew: a cached program keeps none."""
    low = lowered(captured, target, options, log.Stages(), Dump(None))
    if level == "graph":
        return print_graph(low.graph)
    if level == "tile":
        return low.text()
    if level in ("llvm", "asm"):
        text = generate(low.plan, target.isa).text
        return text if level == "llvm" else code.assembly(text, target.isa)
    raise ValueError(f"level: one of 'graph', 'tile', 'llvm', 'asm' expected, got {level!r}")


def _store() -> Store | None:
    """The disk cache; none where it is off, or where every stage is wanted as text."""
    settings = config.get()
    if not settings.cache or settings.dump is not None or log.graph.on:
        return None
    return Store(settings.cache_folder(), settings.cache_size)


@functools.cache
def _versions() -> str:
    """Everything beside the graph and the target that decides the code: versions, and the package's own sources."""
    root = Path(__file__).parent
    sources = sorted(p for p in root.rglob("*") if p.suffix in (".py", ".c", ".h"))
    own = content_key(*(part for p in sources for part in (str(p.relative_to(root)), p.read_bytes())))
    return f"{own} torch {torch.__version__} llvm {code.llvm_version()}"
