"""LLVM text to machine code, and machine code into this process.

In: a module's text and an `Isa`. Out: an object file's bytes, assembly, or addresses. Must not know what the code does.
No optimisation pipeline runs, only code generation. llvmlite is imported on first use; LLVM itself runs one compile at a
time, so compiling in parallel takes processes.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...base import config, errors
from .isa import Isa

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_LOCK = threading.Lock()
_NUMBERS = itertools.count()


class Image(dict[str, int]):
    """The addresses of loaded symbols by name. The code stays loaded until `close`, whether or not the image is kept."""

    def close(self) -> None:
        """Unload the code. Nobody may be running it, nor call it again.

        Never waits: a finaliser calls it, which the garbage collector may run in a thread that holds the lock. Then the next
        `load` or `close` unloads.
        """
        _CLOSING.append(id(self))
        self.clear()
        if _LOCK.acquire(blocking=False):
            try:
                _unload()
            finally:
                _LOCK.release()


_CLOSING: collections.deque[int] = collections.deque()


def _unload() -> None:
    while _CLOSING:
        kept = _KEPT.pop(_CLOSING.popleft(), None)
        if kept is not None:
            kept.tracker.close()
            kept.linker.images -= 1
            kept.linker.close_if_done()


@dataclass
class _Linker:
    """LLVM's linker, which keeps some memory of every library that it ever linked: it makes way for a new one now and then,
    and is freed with the last of its images."""

    jit: Any
    linked: int = 0
    images: int = 0

    def close_if_done(self) -> None:
        if self.linked >= LIBRARIES and not self.images:
            self.jit.close()


@dataclass(frozen=True)
class _Kept:
    image: Image
    tracker: Any
    linker: _Linker


LIBRARIES = 64
"""Linked by one linker."""
_KEPT: dict[int, _Kept] = {}


def compile_module(text: str, isa: Isa) -> bytes:
    """The object file (position independent ELF) of an LLVM module. Raises `errors.CompileError`, LLVM's words in it."""
    with _LOCK:
        machine = _machine(isa)
        return bytes(machine.emit_object(_parsed(text, isa)))


def assembly(text: str, isa: Isa) -> str:
    """The module's assembly, as `compile_module` would encode it."""
    with _LOCK:
        machine = _machine(isa)
        return str(machine.emit_assembly(_parsed(text, isa)))


def check(text: str, isa: Isa) -> None:
    """Run LLVM's verifier over a module. Raises `errors.CompileError`; for tests and debugging, compiling skips it."""
    with _LOCK:
        _verify(_parsed(text, isa))


def load(objects: Sequence[bytes], symbols: Sequence[str], imports: Mapping[str, int] | None = None) -> Image:
    """Link objects for this machine into the process, and find `symbols`.

    What they leave undefined is taken from `imports` (name -> address), then from the process (libc, libm). Raises
    `errors.CompileError` where a symbol stays undefined or an object is malformed.
    """
    from llvmlite import binding

    with _LOCK:
        _unload()
        linker = _linker()
        builder = binding.JITLibraryBuilder()
        for data in objects:
            builder.add_object_img(data)
        builder.add_current_process()
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        for name in symbols:
            builder.export_symbol(name)
        linker.linked += 1
        try:
            tracker = builder.link(linker.jit, f"tilewright{next(_NUMBERS)}")
        except RuntimeError as e:
            linker.close_if_done()
            raise errors.CompileError(reason=str(e)) from e
        linker.images += 1
        image = Image({name: tracker[name] for name in symbols})
        _KEPT[id(image)] = _Kept(image, tracker, linker)
        return image


def llvm_version() -> str:
    """LLVM's version, such as "22.1.0", for cache keys."""
    from llvmlite import binding

    return ".".join(map(str, binding.llvm_version_info))


def _parsed(text: str, isa: Isa) -> Any:
    from llvmlite import binding

    try:
        module = binding.parse_assembly(text, binding.create_context())
    except RuntimeError as e:
        raise errors.CompileError(reason=str(e)) from e
    module.triple = isa.triple
    if config.get().verify:
        _verify(module)
    return module


def _verify(module: Any) -> None:
    try:
        module.verify()
    except RuntimeError as e:
        raise errors.CompileError(reason=str(e)) from e


_MACHINES: dict[tuple[str, str, str], llvm.TargetMachine] = {}


def _machine(isa: Isa) -> llvm.TargetMachine:
    from llvmlite import binding

    key = (isa.triple, isa.cpu, isa.features)
    if key not in _MACHINES:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        target = binding.Target.from_triple(isa.triple)
        _MACHINES[key] = target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="small")
    return _MACHINES[key]


_LINKERS: list[_Linker] = []


def _linker() -> _Linker:
    """The linker in use. JITLink puts an object's sections side by side, as the small code model wants."""
    from llvmlite import binding

    if not _LINKERS:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    if not _LINKERS or _LINKERS[0].linked >= LIBRARIES:
        _LINKERS[:] = [_Linker(binding.create_lljit_compiler(use_jit_link=True))]
    return _LINKERS[0]
