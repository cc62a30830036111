"""Small models of real architectures through tw.compile: as accurate as eager, the same bits twice, nothing left to eager."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.targets.cpu import isa as isas

hf = pytest.importorskip("transformers")

VOCABULARY = 100
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SMALL = {**SIZES, "vocab_size": VOCABULARY}

Make = Callable[[], nn.Module]
SPINE: dict[str, Make] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SMALL)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=VOCABULARY, use_cache=False)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2, use_cache=False)),
    "t5": lambda: hf.T5EncoderModel(hf.T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**SIZES, image_size=32, patch_size=8)),
}
BREADTH: dict[str, Make] = {
    "resnet": lambda: hf.ResNetModel(
        hf.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2], layer_type="bottleneck")
    ),
    "convnext": lambda: hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 2], num_stages=2)),
    "lstm": lambda: nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True),
    "mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4, use_cache=False)
    ),
}
TEXT = ("bert", "gpt2", "llama", "t5")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    threads = torch.get_num_threads()
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (SPINE | BREADTH)[name]().eval()


def inputs(name: str, batch: int = 1, length: int = 12) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    if name in ("vit", "resnet", "convnext"):
        return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=g)}
    if name == "lstm":
        return {"input": torch.randn(batch, length, 16, generator=g)}
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, length), generator=g)}


def leaves(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    if dataclasses.is_dataclass(x) and not isinstance(x, type | dict):
        x = vars(x)
    values = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for v in values for t in leaves(v)]


def wide(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x
    return {k: wide(v) for k, v in x.items()}


def exact(m: nn.Module, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return leaves(copy.deepcopy(m).double()(**wide(given)))


def as_accurate(got: Any, eager: Any, true: list[torch.Tensor], slack: float = 2.0, floor: float = 1e-6) -> None:
    """The error's norm relative to the float64 result's is at most `slack` times eager's."""
    assert type(got) is type(eager)
    assert [(t.shape, t.dtype, t.stride()) for t in leaves(got)] == [(t.shape, t.dtype, t.stride()) for t in leaves(eager)]
    assert leaves(got)
    for g, e, x in zip(leaves(got), leaves(eager), true, strict=True):
        if not g.is_floating_point():
            assert torch.equal(g, e)
            continue
        assert torch.equal(g.isnan(), x.isnan())
        scale = x.norm().item() + 1e-30
        ours, eagers = ((t.double() - x).norm().item() / scale for t in (g, e))
        assert ours <= max(slack * eagers, floor), f"{ours:.3g} for eager's {eagers:.3g}"


def check(m: nn.Module, given: dict[str, torch.Tensor], opaque: bool = False, **options: Any) -> Any:
    """Compile, run twice, compare; the compiled module."""
    eager, true = m(**given), exact(m, given)
    fast = tw.compile(m, **options)
    got, again = fast(**given), fast(**given)
    as_accurate(got, eager, true)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(leaves(got), leaves(again), strict=True))
    stats = fast.stats
    assert stats.compiles == 1 and stats.eager_calls == 0 and stats.kernels >= 1, stats
    assert opaque or stats.opaque_calls == 0, stats
    return fast


@pytest.mark.parametrize("name", SPINE)
def test_spine_models(name: str) -> None:
    check(model(name), inputs(name))


@pytest.mark.parametrize("name", SPINE)
def test_spine_models_without_library_calls(name: str) -> None:
    fast = check(model(name), inputs(name, batch=2, length=9), options={"library": False})
    assert fast.stats.library_calls == 0


@pytest.mark.skipif(not isas.host_isa().is_x86, reason="needs an x86 processor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_models_with_avx2(name: str, dtype: torch.dtype) -> None:
    check(model(name).to(dtype), inputs(name, batch=2), options={"cpu": "x86-64-v3"})


@pytest.mark.parametrize("name", BREADTH)
def test_models_with_opaque_calls(name: str) -> None:
    m = model(name)
    if name == "mixtral":  # its experts' product knows no float64
        got, eager = (leaves(f(**inputs(name))) for f in (tw.compile(m), m))
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-5)
    else:
        check(m, inputs(name), opaque=True)


@pytest.mark.parametrize("name", SPINE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_16_bit_models(name: str, dtype: torch.dtype) -> None:
    m = model(name).to(dtype)
    given = {k: t.to(dtype) if t.is_floating_point() else t for k, t in inputs(name, batch=2).items()}
    check(m, given)


@pytest.mark.parametrize("name", SPINE)
def test_float64_models(name: str) -> None:
    m, given = model(name).double(), wide(inputs(name, batch=2))
    fast = tw.compile(m)
    error = 1e-5 if name in ("llama", "t5") else 1e-11  # whose norms are in float32 whatever the model is in
    for got, eager in zip(leaves(fast(**given)), leaves(m(**given)), strict=True):
        torch.testing.assert_close(got, eager, rtol=error, atol=error)
    assert fast.stats.eager_calls == 0 and fast.stats.opaque_calls == 0


@pytest.mark.parametrize("name", TEXT)
def test_batches_and_odd_lengths_compile_each_once(name: str) -> None:
    m = model(name)
    fast = tw.compile(m)
    sizes = [(1, 1), (1, 7), (3, 33)]
    for _ in range(2):
        for batch, length in sizes:
            given = inputs(name, batch, length)
            as_accurate(fast(**given), m(**given), exact(m, given))
    assert fast.stats.compiles == len(sizes) and fast.stats.eager_calls == 0 and fast.stats.opaque_calls == 0


@pytest.mark.parametrize("name", TEXT)
def test_padding_masks(name: str) -> None:
    m = model(name)
    given = inputs(name, batch=3, length=10)
    mask = torch.ones_like(given["input_ids"])
    mask[1, 6:] = 0
    mask[2, 1:] = 0
    fast = check(m, {**given, "attention_mask": mask})
    other = mask.flip(1)  # the values of a mask are no part of the guards
    as_accurate(
        fast(**given, attention_mask=other), m(**given, attention_mask=other), exact(m, {**given, "attention_mask": other})
    )


def test_encoder_and_decoder() -> None:
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False, decoder_start_token_id=0
    )
    m = hf.T5ForConditionalGeneration(config).eval()
    ids = inputs("t5", 2, 9)["input_ids"]
    check(m, {"input_ids": ids, "decoder_input_ids": ids[:, :5].contiguous()})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_numbers_of_threads(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    check(model(name), inputs(name, batch=4, length=64))


def test_a_change_of_threads_keeps_the_bits() -> None:
    m, given = model("bert"), inputs("bert", batch=4, length=64)
    fast = tw.compile(m)
    found = []
    for threads in (2, 1, 2):
        torch.set_num_threads(threads)
        found.append(leaves(fast(**given))[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_weights_that_change_are_seen() -> None:
    m, given = model("gpt2"), inputs("gpt2")
    fast = tw.compile(m)
    for step in range(3):
        as_accurate(fast(**given), m(**given), exact(m, given))
        for p in m.parameters():
            (p.data if step else p).mul_(1.1)
    assert fast.stats.compiles == 1 and fast.stats.eager_calls == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("factor", [-1.0, 2.0])
def test_weights_that_change_behind_torch_are_seen(dtype: torch.dtype, factor: float) -> None:
    """A sign or a power of two, which few bits of an element hold, and no version counter moves."""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)).to(dtype)
    fast = tw.compile(m)
    x = torch.randn(40, 64).to(dtype)
    for p in (None, *m.parameters()):
        if p is not None:
            p.data.mul_(factor)
        error = 0.02 if dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(fast(x), m(x), rtol=error, atol=error)
    assert fast.stats.compiles == 1 and (fast.stats.packed_bytes > 0 or dtype.itemsize == 2)
