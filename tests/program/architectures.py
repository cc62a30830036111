"""Tiny models of the architectures that `transformers` knows: configurations shrunk by general rules, random weights, inputs."""

import inspect
import re

import torch
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PretrainedConfig

VOCABULARY, WIDTH, LENGTH, IMAGE, PATCH = 96, 32, 12, 32, 8

# The first pattern that matches an attribute's name says what becomes of a larger int (or of each int of a list).
_RULES = [
    (r"token_(id|index)$", None),
    (r"vocab", VOCABULARY),
    (r"max_.*positions?|max_.*position_embeddings|n_positions|seq_len|context_length|max_seq|n_ctx|max_length", 64),
    (r"(key_value|kv)_heads|num_.*groups|n_groups|n_head_kv", 2),
    (r"num_experts_per_tok|top_?k|num_selected|moe_k$", 2),
    (r"experts", 4),
    (r"layers|n_layer|num_blocks|n_blocks|num_hidden_groups|depths?$", 2),
    (r"heads|n_head$|num_attention_head", 4),
    (r"head_dim|d_kv|kv_channels|head_size|qk_.*dim|v_head_dim", 8),
    (r"lora_rank|rank$", 8),
    (r"image_size|img_size", IMAGE),
    (r"patch_size|patch_stride", PATCH),
    (r"intermediate|ffn|d_ff|n_inner|mlp_dim|feed_forward|d_inner", 2 * WIDTH),
    (r"hidden|d_model|n_embd|embed|dim$|channels?$|width|units|size$", WIDTH),
    (r"num_queries|num_.*tokens|state_size|conv_kernel|n_mels|mel_bins", 16),
]  # fmt: skip


def shrink(config):
    """Make all sizes small, in the configuration and those within."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value)
        elif type(value) is int or (isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value)):
            setattr(config, name, _smaller(name, value))
    return config


def _smaller(name, value):
    for pattern, size in _RULES:
        if re.search(pattern, name):
            if size is None:
                return value if type(value) is not int or value < VOCABULARY else value % VOCABULARY
            return min(value, size) if type(value) is int else type(value)([min(v, size) for v in value])
    return value


def build(name, config_changes=None):
    config = shrink(CONFIG_MAPPING[name]())
    for key, value in (config_changes or {}).items():
        setattr(config, key, value)
    torch.manual_seed(0)
    cls = MODEL_MAPPING[type(config)]
    cls = cls[0] if isinstance(cls, tuple) else cls
    return cls(config).eval()


def inputs(model):
    """Keyword arguments of the forward."""
    parameters = inspect.signature(model.forward).parameters
    config, main = model.config, model.main_input_name
    torch.manual_seed(1)
    ids = lambda: torch.randint(3, VOCABULARY - 1, (2, LENGTH))  # noqa: E731
    given = {}
    if main == "input_ids" or "input_ids" in parameters:
        given["input_ids"] = ids()
    if main == "pixel_values" or "pixel_values" in parameters:
        c = getattr(config, "num_channels", None) or getattr(getattr(config, "vision_config", None), "num_channels", 3)
        size = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", IMAGE)
        size = (size, size) if isinstance(size, int) else tuple(size)
        given["pixel_values"] = torch.randn(1 if "input_ids" not in given else 2, c, *size)
    if main == "input_features":
        given["input_features"] = torch.randn(2, getattr(config, "num_mel_bins", 80), 64)
    if main == "input_values":
        given["input_values"] = torch.randn(2, 1000)
    if "decoder_input_ids" in parameters:
        given["decoder_input_ids"] = ids()
    return given


def leaves(value, path="", seen=None):
    """(path, value) of each tensor and plain value in a result, whatever objects hold it."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor | int | float | str | None):
        yield path, value if isinstance(value, torch.Tensor | int | float) else torch.zeros(0)
        return
    if id(value) in seen or isinstance(value, PretrainedConfig | torch.nn.Module):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        items = getattr(value, "__dict__", {}).items()
    for key, v in items:
        yield from leaves(v, f"{path}.{key}:{type(v).__name__}", seen)
