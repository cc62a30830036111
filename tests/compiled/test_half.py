"""Products and attention of 16-bit floats: as accurate as eager's, at each level of instructions, and the same when simulated."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import tilewright as tw
from compiled.stages import Build, memory_of, tensor_of
from tile.lower_cases import PARAMETER, USER, Builder
from tilewright.base import dtypes
from tilewright.base.config import Options
from tilewright.graph.ir import Graph, Node
from tilewright.graph.ops.contract import ATTENTION, MATMUL
from tilewright.graph.ops.pointwise import ADD
from tilewright.graph.ops.torch_dtypes import from_torch
from tilewright.graph.ops.view import PERMUTE
from tilewright.targets.cpu import amx, llvm
from tilewright.targets.cpu.gemm import GemmOperand, emit_gemm
from tilewright.targets.cpu.isa import host_isa, named
from tilewright.tile.ir import Kernel
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Call, Program
from tilewright.tile.schedule import Machine
from tilewright.tile.simulate import run_program
from tilewright.tile.text import kernel_text
from tilewright.tile.verify import verify

HALF = (torch.bfloat16, torch.float16)
SHAPES = [  # rows, columns, K
    (1, 33, 64), (1, 96, 65), (2, 32, 32), (7, 40, 1), (16, 64, 31), (31, 100, 96), (33, 77, 101), (64, 96, 128),
    (129, 35, 160), (40, 64, 2100),
]  # fmt: skip


def levels() -> list[str]:
    """This machine as it is, and what it can do of the levels below."""
    features = set(host_isa().features.split(","))
    found = ["cpu"]
    for name, needs in (("x86-64-v4+avx512bf16", "+avx512bf16"), ("x86-64-v4", "+avx512bw"), ("x86-64-v3", "+avx2")):
        if needs in features:
            found.append(f"cpu:{name}")
    return found


LEVELS = levels()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.no_grad():
        yield


def far(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, relative to the largest element."""
    assert not found.isnan().any()
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def is_as_good(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """No more than twice as far off as eager; the rounding of the result itself is always granted."""
    assert found.dtype is eager.dtype and found.shape == eager.shape
    assert far(found, exact) <= 2 * max(far(eager, exact), torch.finfo(found.dtype).eps / 4)


def product(m: int, n: int, k: int, dtype: torch.dtype, kind: str) -> tuple[Graph, list[torch.Tensor]]:
    """x @ w + b and its operands; in kind "linear" w is a parameter of shape [n, k], in "weight" one of [k, n], in "turned" a
    user's [n, k] seen as [k, n], in "user" a user's [k, n], and in "left" x is a user's [k, m] seen as [m, k]."""
    b, t = Builder(), from_torch(dtype)
    across = kind in ("linear", "turned")
    fixed = PARAMETER if kind in ("linear", "weight", "left") else USER
    x = b.input(*((k, m) if kind == "left" else (m, k)), dtype=t)
    w = b.input(*((n, k) if across else (k, n)), dtype=t, kind=fixed)
    bias = b.input(n, dtype=t, kind=fixed)
    left = PERMUTE(x, dims=(1, 0)) if kind == "left" else x
    right = PERMUTE(w, dims=(1, 0)) if across else w
    graph = b.graph(ADD(MATMUL(left, right), bias))
    torch.manual_seed(m + n + k)
    return graph, [torch.randn(*i.shape).to(dtype) for i in graph.inputs]  # type: ignore[arg-type]


def meaning(kind: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    x, w, b = tensors
    return (x.mT if kind == "left" else x) @ (w.mT if kind in ("linear", "turned") else w) + b


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", HALF)
def test_products(dtype: torch.dtype, level: str) -> None:
    kinds = itertools.cycle(("linear", "weight", "turned", "user", "left"))
    for (m, n, k), kind in zip(SHAPES * 2, kinds, strict=False):
        graph, tensors = product(m, n, k, dtype, kind)
        build = Build(graph, level, checked=True)
        (found,) = build.run(tensors)
        exact, eager = meaning(kind, [t.double() for t in tensors]), meaning(kind, tensors)
        is_as_good(found, eager, exact)
        if m * n * k < 100_000:
            simulated = build.simulate(tensors)[0]
            assert simulated is not None
            is_as_good(simulated, eager, exact)


def attention(
    q: tuple[int, ...], kv: tuple[int, ...], dtype: torch.dtype, causal: bool = False, mask: bool = False
) -> tuple[Graph, list[torch.Tensor]]:
    b, t = Builder(), from_torch(dtype)
    nodes: list[Node] = [b.input(*q, dtype=t), b.input(*kv, dtype=t), b.input(*kv, dtype=t)]
    if mask:
        nodes.append(b.input(*q[:-3], 1, q[-2], kv[-2], dtype=dtypes.b1))
    graph = b.graph(ATTENTION(*nodes, scale=q[-1] ** -0.5, causal=causal))
    torch.manual_seed(q[-2])
    tensors = [torch.randn(*i.shape).to(dtype) for i in graph.inputs[:3]]  # type: ignore[arg-type]
    if mask:
        tensors.append(torch.rand(*q[:-3], 1, q[-2], kv[-2]) > 0.3)
    return graph, tensors


ATTENTIONS = {
    "plain": ((1, 2, 40, 64), (1, 2, 40, 64), False, False),
    "odd": ((1, 2, 33, 37), (1, 2, 47, 37), False, True),
    "causal": ((1, 2, 77, 32), (1, 2, 77, 32), True, False),
    "grouped": ((1, 4, 20, 64), (1, 2, 20, 64), True, False),
    "one row": ((2, 2, 1, 64), (2, 2, 50, 64), False, False),
    "blocks": ((1, 1, 65, 32), (1, 1, 1065, 32), False, False),
    "causal blocks": ((1, 1, 600, 32), (1, 1, 600, 32), True, False),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", HALF)
def test_attention(dtype: torch.dtype, level: str) -> None:
    for name, (q, kv, causal, mask) in ATTENTIONS.items():
        graph, tensors = attention(q, kv, dtype, causal, mask)
        build = Build(graph, level, checked=True)

        def eager(t: Sequence[torch.Tensor], causal: bool = causal, grouped: bool = q[-3] != kv[-3]) -> torch.Tensor:
            chosen = t[3] if len(t) > 3 else None
            return scaled_dot_product_attention(*t[:3], chosen, is_causal=causal, enable_gqa=grouped)

        exact = eager([t.double() if t.is_floating_point() else t for t in tensors])
        is_as_good(build.run(tensors)[0], eager(tensors), exact)
        if q[-2] * kv[-2] < 5000 and name != "grouped":
            simulated = build.simulate(tensors)[0]
            assert simulated is not None
            is_as_good(simulated, eager(tensors), exact)


PAIRING = Machine(dot_pairs=True, pair_depth=32, tile=32, threads=2)


def simulated(program: Program, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    for kernel in program.kernels():
        verify(kernel)
    found = run_program(program, [memory_of(t) for t in tensors])[0]
    assert found is not None
    return tensor_of(found, from_torch(dtype))


def test_pairs_are_packed_on_any_machine() -> None:
    """Lowered for a machine with tile registers, whatever this one has: the simulator knows layouts only."""
    for (m, n, k), kind in (((5, 40, 33), "linear"), ((33, 35, 64), "weight"), ((6, 33, 35), "user"), ((9, 32, 37), "left")):
        graph, tensors = product(m, n, k, torch.bfloat16, kind)
        program = lower(graph, PAIRING)
        assert "paired2" in "".join(map(kernel_text, program.kernels()))
        exact = meaning(kind, [t.double() for t in tensors])
        is_as_good(simulated(program, tensors, torch.bfloat16), meaning(kind, tensors), exact)


def test_pairs_are_for_bf16_and_long_rows_only() -> None:
    def texts(k: int, dtype: torch.dtype, machine: Machine) -> str:
        return "".join(kernel_text(x) for x in _kernels(lower(product(8, 32, k, dtype, "linear")[0], machine)))

    assert "paired2" in texts(64, torch.bfloat16, PAIRING)
    assert "paired2" not in texts(16, torch.bfloat16, PAIRING)
    assert "paired2" not in texts(64, torch.float16, PAIRING)
    assert "paired2" not in texts(64, torch.bfloat16, Machine())


def _kernels(program: Program) -> list[Kernel]:
    return program.kernels()


def test_two_products_of_one_input_share_a_weight_in_pairs() -> None:
    """Siblings are packed side by side; the second weight's columns begin within a panel or not."""
    for n in (32, 40):
        b, t = Builder(), dtypes.bf16
        x = b.input(12, 64, dtype=t)
        weights = [b.input(n, 64, dtype=t, kind=PARAMETER) for _ in range(2)]
        graph = b.graph(*(MATMUL(x, PERMUTE(w, dims=(1, 0))) for w in weights))
        tensors = [torch.randn(*i.shape).bfloat16() for i in graph.inputs]  # type: ignore[arg-type]
        for found, w in zip(Build(graph, checked=True).run(tensors), tensors[1:], strict=True):
            is_as_good(found, tensors[0] @ w.mT, tensors[0].double() @ w.double().mT)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("cpu", [None, "x86-64-v3"])
def test_small_bert(dtype: torch.dtype, cpu: str | None) -> None:
    hf = pytest.importorskip("transformers")
    config = hf.BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, vocab_size=100)
    torch.manual_seed(0)
    model = hf.BertModel(config).eval().to(dtype)
    ids = torch.randint(0, 100, (2, 37))
    compiled = tw.compile(model, options={"cpu": cpu} if cpu else None)
    found = compiled(ids)
    eager, exact = model(ids), copy.deepcopy(model).double()(ids)
    is_as_good(found.last_hidden_state, eager.last_hidden_state, exact.last_hidden_state)
    assert compiled.stats.opaque_calls == compiled.stats.library_calls == 0


def test_weights_of_a_linear_change() -> None:
    """What was packed in pairs is packed again."""
    layer, x = nn.Linear(70, 50).bfloat16(), torch.randn(40, 70).bfloat16()
    compiled = tw.compile(layer)
    compiled(x)
    layer.weight.mul_(-2)
    is_as_good(compiled(x), layer(x), copy.deepcopy(layer).double()(x.double()))


def test_operands_in_pairs_must_suit_the_instructions() -> None:
    isa = named("x86-64-v4+avx512bf16")

    def emit(a: GemmOperand, k: int | str = 64) -> None:
        f = llvm.Function(llvm.Module(), "f", ["ptr %a", "ptr %b", "ptr %c", "i64 %k"])
        right = GemmOperand("%b", 64, 1, dtypes.bf16, pairs=True)
        emit_gemm(f, isa, a, right, GemmOperand("%c", 32, 1, dtypes.f32), 4, 32, k, True)

    emit(GemmOperand("%a", 64, 1, dtypes.bf16))
    for wrong in (GemmOperand("%a", 64, 1, dtypes.f32), GemmOperand("%a", 1, 64, dtypes.bf16)):
        with pytest.raises(ValueError, match="contiguous along k"):
            emit(wrong)
    with pytest.raises(ValueError, match="constant or an even k"):
        emit(GemmOperand("%a", 64, 1, dtypes.bf16), "%k")


def test_tile_registers_are_asked_for_before_any_code() -> None:
    """Finding code in the disk cache needs its key, which holds whether the process may use tile registers."""
    if not host_isa().has_amx:
        pytest.skip("no tile registers here")
    assert amx.permitted.cache_info().currsize == 1
    assert "amx=True" in host_isa().text


def test_the_library_multiplies_where_it_is_faster() -> None:
    """Two large bf16 matrices that both change, where tile registers are; own code where the option says so."""
    graph, _ = product(512, 768, 768, torch.bfloat16, "user")
    bare = Graph(graph.inputs[:2], (replace(graph.outputs[0], node=MATMUL(*graph.inputs[:2])),), graph.strides[:2])
    constant = product(512, 768, 768, torch.bfloat16, "linear")[0]

    def calls(g: Graph, machine: Machine, library: bool = True) -> list[bool]:
        return [s.library for s in lower(g, machine, Options(library=library)).steps if isinstance(s, Call)]

    assert calls(bare, PAIRING) == [True]
    assert calls(bare, PAIRING, library=False) == calls(bare, Machine()) == []
    assert calls(graph, PAIRING) == calls(constant, PAIRING) == []  # a bias is added on the way out; a weight is packed once


def test_a_library_call_counts_and_keeps_gradients() -> None:
    if not host_isa().has_amx:
        pytest.skip("the library is faster only where tile registers are")
    a, b = (torch.randn(512, 512, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    own, compiled = (tw.compile(lambda x, y: x @ y.mT, options={"library": library}) for library in (False, True))
    exact = a.double() @ b.double().mT
    for f, count in ((own, 0), (compiled, 1)):
        is_as_good(f(a, b), a @ b.mT, exact)
        assert f.stats.library_calls == count
    with torch.enable_grad():
        compiled(a, b).sum().backward()
        found = a.grad
        a.grad = None
        (a @ b.mT).sum().backward()
    assert found is not None and a.grad is not None
    is_as_good(found, a.grad, torch.ones(512, 512).double() @ b.detach().double())
