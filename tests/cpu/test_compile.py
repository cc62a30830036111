from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from tilewright.base import errors
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import isa

TEXT = """
declare double @cos(double)
declare i64 @elsewhere(i64)
@table = private constant <4 x double> <double 1.0, double 2.0, double 3.0, double 4.0>
define double @f(double %x) #0 {
  %c = call double @cos(double %x)
  %v = load <4 x double>, ptr @table
  %e = extractelement <4 x double> %v, i64 2
  %r = fadd double %c, %e
  ret double %r
}
define i64 @g(i64 %x) #0 {
  %y = call i64 @elsewhere(i64 %x)
  ret i64 %y
}
"""


def text(level: isa.Isa) -> str:
    return TEXT + f"attributes #0 = {{ {level.attributes} }}\n"


@pytest.fixture(scope="module")
def code() -> bytes:
    host = isa.host_isa()
    return cpu.compile_module(text(host), host)


def double_it(x: int) -> int:
    return 2 * x


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(double_it)
ELSEWHERE = {"elsewhere": ctypes.cast(CALLBACK, ctypes.c_void_p).value}


def test_run(code):
    image = cpu.load([code], ["f", "g"], ELSEWHERE)
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(image["f"])(0.0) == 4.0
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image["g"])(21) == 42
    image.close()
    assert not image


def test_images_are_independent(code):
    first, second = (cpu.load([code], ["f"], ELSEWHERE) for _ in range(2))
    assert first["f"] != second["f"]
    first.close()
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(second["f"])(0.0) == 4.0


def test_closing_within_the_lock_waits_for_the_next_load(code):
    """The garbage collector may finalise a compiled function in the middle of a link, in the same thread."""
    image = cpu.load([code], ["f"], ELSEWHERE)
    key = id(image)
    with cpu._LOCK:
        image.close()
        assert key in cpu._KEPT
    second = cpu.load([code], ["f"], ELSEWHERE)
    assert key == id(second) or key not in cpu._KEPT
    second.close()


def test_several_objects_link_with_each_other():
    host = isa.host_isa()
    one = cpu.compile_module("declare i64 @two()\ndefine i64 @one() {\n %x = call i64 @two()\n ret i64 %x\n}", host)
    two = cpu.compile_module("define i64 @two() {\n ret i64 2\n}", host)
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(cpu.load([one, two], ["one"])["one"])() == 2


def test_compiling_is_repeatable(code):
    host = isa.host_isa()
    assert cpu.compile_module(text(host), host) == code


def test_bad_text_bad_object_missing_symbol(code):
    host = isa.host_isa()
    with pytest.raises(errors.CompileError, match="expected type"):
        cpu.compile_module("define void @f( {", host)
    with pytest.raises(errors.CompileError):
        cpu.load([b"no object"], ["f"])
    with pytest.raises(errors.CompileError, match="nowhere"):
        cpu.load([code], ["nowhere"], ELSEWHERE)
    with pytest.raises(errors.CompileError, match="materialize"):  # LLVM names the missing one on stderr only
        cpu.load([code], ["g"])
    with pytest.raises(errors.CompileError, match="dominate"):
        cpu.check("define i64 @f() {\n %x = add i64 %y, 1\n %y = add i64 1, 1\n ret i64 %x\n}", host)


@pytest.mark.parametrize("level", isa.LEVELS.values(), ids=lambda level: level.name)
def test_every_level_compiles(level):
    assert cpu.compile_module(text(level), level).startswith(b"\x7fELF")
    assert ("ymm" in cpu.assembly(text(level), level)) or "f:" in cpu.assembly(text(level), level)


def test_threads(code):
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            host = isa.host_isa()
            data = cpu.compile_module(f"define i64 @f() {{\n ret i64 {number}\n}}", host)
            assert ctypes.CFUNCTYPE(ctypes.c_int64)(cpu.load([data], ["f"])["f"])() == number
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_importing_loads_no_llvm():
    source = "import sys, tilewright.targets.cpu.compile, tilewright.targets.target; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source]).returncode == 0
