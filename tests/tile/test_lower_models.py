"""Small Hugging Face models recorded, lowered and simulated, against the reference interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tile.lower_cases import MACHINE, check
from tilewright.graph.pipeline import optimise
from tilewright.graph.record import ArgSource, ParameterSource, record
from tilewright.tile.pipeline import lower
from tilewright.tile.program import Call, Launch

hf = pytest.importorskip("transformers")

IDS = ((1, 11), 60)


def model(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, IDS[1], IDS[0])
    match name:
        case "bert":
            sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 72}
            return hf.BertModel(hf.BertConfig(vocab_size=60, **sizes)), ids
        case "gpt2":
            return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=60, n_embd=32, n_head=2, n_layer=2, use_cache=False)), ids
        case "llama":
            sizes = {"hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4}
            return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=60, num_key_value_heads=2, use_cache=False, **sizes)), ids
        case "t5":
            return hf.T5EncoderModel(hf.T5Config(vocab_size=60, d_model=32, d_kv=16, d_ff=72, num_layers=2, num_heads=2)), ids
        case "vit":
            sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 72}
            return hf.ViTModel(hf.ViTConfig(image_size=16, patch_size=4, **sizes)), torch.randn(1, 3, 16, 16)
    raise ValueError(name)


LAUNCHES_A_LAYER = {"bert": 7, "gpt2": 7, "llama": 10, "t5": 7, "vit": 7}


@pytest.mark.parametrize("name", LAUNCHES_A_LAYER)
def test_model(name: str) -> None:
    module, x = model(name)
    module.eval().requires_grad_(False)
    with torch.no_grad():
        recorded = record(module, (x,))
        inputs = [_tensor(source, x) for source in recorded.inputs]
        program = check(optimise(recorded.graph), inputs, error=1e-3)
    assert not [s for s in program.steps if isinstance(s, Call)]
    assert len(program.steps) <= 2 * LAUNCHES_A_LAYER[name] + 5
    assert len(program.kernels()) < len(program.steps) + len(program.folded)


def _tensor(source: Any, x: torch.Tensor) -> torch.Tensor:
    match source:
        case ArgSource():
            return x
        case ParameterSource(module=module, key=key):
            found: torch.Tensor = getattr(module, key)
            return found.detach()
    closed_over: torch.Tensor = source.tensor
    return closed_over


def test_llama_launches() -> None:
    """The whole of a layer, in kernels that one can name."""
    module, x = model("llama")
    with torch.no_grad():
        graph = optimise(record(module.eval(), (x,)).graph)
    names = [s.kernel.name for s in lower(graph, MACHINE).steps if isinstance(s, Launch)]
    assert [n for n in names if not n.startswith("check")][1:11] == [
        "matmul", "mul_neg_cat_add", "mul_neg_cat_add", "attention", "matmul_add",
        "rms_norm", "matmul_silu", "matmul_mul", "matmul_add", "rms_norm",
    ]  # fmt: skip
