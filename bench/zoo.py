"""Models with random weights, no download. `build(name)` gives an eval-mode module and its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Model = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _tokens(length: int, vocabulary: int = 1000) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, vocabulary, (1, length)),)


def _bert(length: int, **config: int) -> Model:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**config)), _tokens(length)


def _gpt2(length: int, layers: int) -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False)), _tokens(length)


def _llama(length: int) -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8000,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _tokens(length)


def _t5(length: int) -> Model:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=8000)), _tokens(length)


def _vit() -> Model:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig()), (torch.randn(1, 3, 224, 224),)


def _mlp() -> Model:
    layers = [m for _ in range(6) for m in (nn.Linear(256, 256), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(8, 256),)


MODELS: dict[str, Callable[[], Model]] = {
    "bert-base": lambda: _bert(128),
    "bert-tiny-12": lambda: _bert(128, hidden_size=128, num_hidden_layers=12, num_attention_heads=2, intermediate_size=512),
    "gpt2-small": lambda: _gpt2(128, 6),
    "llama-small": lambda: _llama(128),
    "t5-small": lambda: _t5(128),
    "vit-base": _vit,
    "mlp": _mlp,
}


def build(name: str) -> Model:
    """The named model in eval mode and its inputs, from a fixed seed. Raises KeyError, listing the names, for another."""
    if name not in MODELS:
        raise KeyError(f"no model {name!r}; there are {', '.join(MODELS)}")
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module.eval(), inputs
