"""The shape of the package: which layer may import which, what `import tilewright` loads, which names are taken.

Imports are read from the sources, those inside functions too, so a cycle between layers cannot hide.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
EVERYTHING = {"*"}

# layer (a folder, or a module directly under the package) -> the layers it may import, its own aside
LAYERS: dict[str, set[str]] = {
    "native": set(),  # the C extension
    "base": set(),
    "graph": {"base"},
    "program": {"base", "graph", "native"},
    "tile": {"base", "graph"},
    "kernels": {"base", "tile"},
    "targets": {"base", "graph", "tile", "native"},
    "stages": {"base", "graph", "tile", "targets"},
    "artifact": {"base", "graph", "tile", "targets", "stages"},
    "dispatch": {"base", "graph", "tile", "targets", "stages", "program", "native", "executable", "driver"},
    "tune": {"base", "graph", "targets", "dispatch"},
    "executable": {"base", "graph", "native", "program", "targets"},
    "driver": EVERYTHING,
    "interop": EVERYTHING,
    "tools": EVERYTHING,
    # thin re-exports
    "__init__": EVERYTHING,
    "errors": EVERYTHING,
    "language": EVERYTHING,
    "runtime": EVERYTHING,
    "triton": EVERYTHING,
}

# layer -> packages that it must not know
UNKNOWN: dict[str, set[str]] = {
    "base": {"torch", "numpy", "llvmlite", "cuda"},
    "graph": {"llvmlite", "cuda", "numpy"},
    "tile": {"torch", "llvmlite", "cuda"},
    "targets": {"torch"},
}

# The compilers of the host, which capture and compile nothing here.
RIVALS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.jit")


def sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def module_name(path: Path, root: Path = PACKAGE) -> str:
    parts = list(path.relative_to(root.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool) -> Iterator[str]:
    """The absolute names that a module's text imports; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            up = len(parts) - node.level + is_package
            base = ".".join([*parts[:up], *([node.module] if node.module else [])]) if node.level else node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def violations(source: str, module: str, is_package: bool) -> list[str]:
    own = layer_of(module)
    allowed = LAYERS[own] | {own}
    found = []
    for name in imports(source, module, is_package):
        top = name.split(".")[0]
        if top != "tilewright":
            if top in UNKNOWN.get(own, ()):
                found.append(f"{module} imports {name}: {own} must not know {top}")
            continue
        target = layer_of(name)
        if "*" not in allowed and target not in allowed:
            found.append(f"{module} imports {name}: {own} is not above {target}")
    return found


def test_imports_go_down() -> None:
    found = [v for p in sources() for v in violations(p.read_text(), module_name(p), p.name == "__init__.py")]
    assert not found, "\n".join(found)


def test_every_layer_is_in_the_table() -> None:
    unknown = {layer_of(module_name(p)) for p in sources()} - set(LAYERS)
    assert not unknown, f"{unknown} is in no row of LAYERS"


def test_the_table_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(LAYERS):
        free = {n for n, below in LAYERS.items() if n not in done and (below == EVERYTHING or below <= done)}
        assert free, f"a cycle among {sorted(set(LAYERS) - done)}"
        done |= free


@pytest.mark.parametrize(
    ("source", "module", "is_package", "count"),
    [
        ("from ..base import dims", "tilewright.graph.ir", False, 0),
        ("from ..tile import ir", "tilewright.graph.ir", False, 1),
        ("from ...tile.ir import Kernel", "tilewright.graph.ops.pw", False, 1),
        ("from .. import driver", "tilewright.tile.ir", False, 1),
        ("def f():\n    import tilewright.targets.plan", "tilewright.tile.ir", False, 1),
        ("import torch", "tilewright.tile.ir", False, 1),
        ("import torch", "tilewright.program.guards", False, 0),
        ("from ..program import guards", "tilewright.targets.plan", False, 1),
        ("from .tile import ir", "tilewright.driver", False, 0),
    ],
)
def test_violations_are_seen(source: str, module: str, is_package: bool, count: int) -> None:
    assert len(violations(source, module, is_package)) == count


def test_rivals_are_not_used() -> None:
    """Interop may know them, and a comment or an attribute asked for is no import."""
    found = []
    for path in sources():
        module = module_name(path)
        if layer_of(module) == "interop":
            continue
        for name in imports(path.read_text(), module, path.name == "__init__.py"):
            if any(name == r or name.startswith(r + ".") for r in RIVALS):
                found.append(f"{module} imports {name}")
    assert not found, "\n".join(found)


def test_import_loads_neither_torch_nor_llvmlite() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['llvmlite'] = sys.modules['numpy'] = None\n"
        "import tilewright\n"
        "print(tilewright.__version__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def submodules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages([str(PACKAGE)], "tilewright.") if not m.name.endswith("__main__")]


def test_every_submodule_imports_and_shadows_nothing() -> None:
    """Importing a submodule sets an attribute of the package: no public function may bear its name."""
    public = {n: getattr(tilewright, n) for n in tilewright.__all__}
    functions = {n for n, value in public.items() if inspect.isroutine(value) or inspect.isclass(value)}
    assert functions, "tilewright.__all__ names no function"
    for name in submodules():
        importlib.import_module(name)
    direct = {name.split(".")[1] for name in submodules()}
    assert not functions & direct
    changed = [n for n in functions if getattr(tilewright, n) is not public[n]]
    assert not changed, f"importing submodules rebound {changed}"


def test_files_and_functions_are_short() -> None:
    """Files under 600 lines, functions under 60: one that outgrows it usually holds two ideas."""
    found = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") >= 600:
            found.append(f"{module_name(path)} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines >= 60:
                    found.append(f"{module_name(path)}.{node.name} has {lines} lines")
    assert not found, "\n".join(found)


def test_modules_open_with_a_docstring() -> None:
    missing = [module_name(p) for p in sources() if p.stat().st_size and not ast.get_docstring(ast.parse(p.read_text()))]
    assert not missing, f"no docstring: {missing}"
