"""Every instruction of this CPython has a meaning in the interpreter, or ends the graph for a reason the break table names."""

import contextlib
import dis
import functools
import itertools
import operator
import pathlib
import sys
import types

import pytest
import torch

import tilewright as tw
from tilewright.base.log import TilewrightWarning
from tilewright.program import instructions_flow, opcodes
from tilewright.program.breaks import REASONS
from tilewright.program.capture import HANDLERS


def real_instructions() -> list[str]:
    """What the compiler emits: no instrumented forms, no pseudo instructions (numbers that a byte cannot hold)."""
    return [name for name, number in dis.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")]


def as_decoded(name: str) -> list[str]:
    return list(opcodes._PAIRS.get(name, (name,)))


@pytest.mark.parametrize("name", real_instructions())
def test_every_instruction_has_a_meaning(name):
    if name in opcodes.NEVER_MET:
        assert name not in HANDLERS or name == "CACHE"
        return
    for decoded in as_decoded(name):
        assert decoded in HANDLERS, f"{decoded} of Python {sys.version}"


@pytest.mark.parametrize("number", [1, 2])
def test_every_intrinsic_has_a_meaning(number):
    table = instructions_flow.INTRINSICS_1 if number == 1 else instructions_flow.INTRINSICS_2
    names = getattr(dis, f"_intrinsic_{number}_descs", [])
    assert bool(names) == (sys.version_info >= (3, 12))
    for name in names:
        assert (name in table) != (name in instructions_flow.REFUSED), name


def test_what_is_refused_has_a_row():
    assert set(instructions_flow.REFUSED.values()) <= set(REASONS)


def every_code(source: str) -> list[types.CodeType]:
    found = [compile(source, "<every>", "exec")]
    for code in found:
        found += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def test_decoding_agrees_with_dis():
    """Names, operands and jump targets of the standard library's code."""
    for module in (dis, itertools, types, opcodes):
        if not getattr(module, "__file__", None):
            continue
        for code in every_code(pathlib.Path(module.__file__).read_text()):
            decoded = opcodes.decode(code)
            want = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
            expanded = [(n, i) for i in want for n in as_decoded(i.opname)]
            assert len(expanded) == len(decoded.instructions)
            for (name, i), mine in zip(expanded, decoded.instructions):
                assert mine.offset == i.offset
                assert mine.op in (name, "LOAD_METHOD")
                if i.opcode in dis.hasjrel:
                    at = decoded.instructions[mine.target].offset
                    assert opcodes_prefix(code, at) == i.argval or at == i.argval
                if i.opcode in dis.hasconst and i.opname != "KW_NAMES":
                    assert mine.value is i.argval
                if i.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "STORE_ATTR", "LOAD_FAST", "STORE_FAST", "IMPORT_NAME"):
                    assert mine.value == i.argval
            entries = [(e.start, e.end, e.target, e.depth, e.lasti) for e in dis.Bytecode(code).exception_entries]
            assert opcodes.exception_table(code) == entries
            assert opcodes.encode_exceptions(entries) == code.co_exceptiontable


def opcodes_prefix(code: types.CodeType, offset: int) -> int:
    """Where the EXTENDED_ARG prefixes of the instruction begin."""
    while offset >= 2 and code.co_code[offset - 2] == dis.opmap["EXTENDED_ARG"]:
        offset -= 2
    return offset


def test_native_instructions_compute_what_cpython_does():
    if sys.version_info < (3, 12):
        group = ExceptionGroup("g", [ValueError(1), TypeError(2)])
        assert opcodes.run_native("PREP_RERAISE_STAR", 0, (group, []), {}) is None
        return
    t = opcodes.run_native("CALL_INTRINSIC_1", 7, ("T",), {"__name__": "here"})
    assert (type(t).__name__, t.__name__) == ("TypeVar", "T")


def test_an_unknown_python_runs_in_eager_with_one_warning(monkeypatch):
    monkeypatch.setattr(opcodes, "VERSION", (3, 99))
    x = torch.ones(3)
    f, module = tw.compile(lambda x: x + 1), tw.compile(torch.nn.ReLU())
    with pytest.warns(TilewrightWarning, match=r"run in eager: the bytecode of Python 3\.99 is not known") as told:
        results = [f(x), module(x), f(x)]
    assert len(told) == 1
    assert (f.stats.eager_calls, module.stats.eager_calls) == (2, 1)
    assert [r.tolist() for r in results] == [[2.0] * 3, [1.0] * 3, [2.0] * 3]
    with pytest.raises(tw.errors.RecordError, match=r"Python 3\.99 is not known"):
        tw.compile(lambda x: x + 1, fullgraph=True)(x)


TRACED = """
def f(x, log):
    seen = []
    for i in range(3):
        try:
            x = x * i + len([v for v in range(i)])
            if i == 1:
                print("break")
                raise KeyError(i)
        except KeyError as e:
            seen.append(str(e))
        finally:
            log.append(i)
    return x, seen, sorted(locals())
"""


def traced_program():
    namespace: dict = {"__name__": __name__}
    exec(compile(TRACED, "<traced>", "exec"), namespace)
    return namespace["f"]


@contextlib.contextmanager
def tracing():
    seen = []

    def trace(frame, event, arg):
        frame.f_trace_opcodes = True
        seen.append((event, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def monitoring():
    m, seen = sys.monitoring, []
    tool = next(n for n in range(6) if m.get_tool(n) is None)
    m.use_tool_id(tool, "test")
    every = ("CALL", "LINE", "INSTRUCTION", "JUMP", "BRANCH", "PY_START", "PY_RETURN", "RAISE", "EXCEPTION_HANDLED", "PY_UNWIND")
    events = [getattr(m.events, name) for name in every]
    for e in events:
        m.register_callback(tool, e, lambda code, *rest: seen.append((code.co_name, rest)) and None)
    m.set_events(tool, functools.reduce(operator.or_, events))
    try:
        yield seen
    finally:
        m.set_events(tool, 0)
        m.free_tool_id(tool)


@pytest.mark.parametrize("watching", [tracing] + [monitoring] * (sys.version_info >= (3, 12)))
@pytest.mark.parametrize("already", [False, True])
def test_under_a_tracer(watching, already, capsys):
    """Debuggers and coverage tools rewrite running code; captures and the rests of functions after breaks do not mind."""
    eager, fast = traced_program(), tw.compile(traced_program())
    want_log, log = [], []
    want = eager(torch.ones(2), want_log)
    if already:
        fast(torch.ones(2), [])
    with watching() as seen:
        for code in (fast.fn.__code__, eager.__code__):
            assert opcodes.decode(code.replace()).instructions
        eager(torch.ones(2), [])
        got = fast(torch.ones(2), log)
    assert seen
    assert (got[1:], log) == (want[1:], want_log)
    assert torch.equal(got[0], want[0])
