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
    (r"num_frames", 4),
    (r"image_size|img_size", IMAGE),
    (r"patch_size|patch_stride", PATCH),
    (r"intermediate|ffn|d_ff|n_inner|mlp_dim|feed_forward|d_inner", 2 * WIDTH),
    (r"hidden|d_model|n_embd|embed|dim$|channels?$|width|units|size$", WIDTH),
    (r"num_queries|num_.*tokens|state_size|conv_kernel|n_mels|mel_bins", 16),
]  # fmt: skip


_CHANGES = {
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32, "patch_size": 8},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8, "mamba_d_state": 16},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8, "state_size": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "num_key_value_heads": 4},
    "swin": {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "num_layers": 2, "hidden_size": 32,
             "patch_size": 4},
    "swinv2": {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "num_layers": 2, "hidden_size": 32,
               "patch_size": 4},
    "maskformer-swin": {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "num_layers": 2,
                        "hidden_size": 32, "patch_size": 4},
    "donut-swin": {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4, "num_layers": 2, "hidden_size": 32,
                   "patch_size": 4},
    "codegen": {"rotary_dim": 8}, "gptj": {"rotary_dim": 8}, "efficientnet": {"hidden_dim": 1280},
    "cvt": {"embed_dim": [16, 32, 32], "depth": [1, 1, 1], "num_heads": [1, 2, 2]},
    "longformer": {"attention_window": [4, 4]}, "led": {"attention_window": [4, 4], "max_encoder_position_embeddings": 64},
    "esm": {"vocab_size": 96, "pad_token_id": 1, "mask_token_id": 2}, "xmod": {"languages": ["en"], "default_language": "en"},
    "reformer": {"axial_pos_shape": [4, 3], "axial_pos_embds_dim": [16, 16], "lsh_attn_chunk_length": 4,
                 "local_attn_chunk_length": 4},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 64, "attention_head_dim": 16,
              "mamba_dt_rank": 4, "n_mamba_heads": 2},
    "whisper": {"max_source_positions": 32, "num_mel_bins": 16}, "wav2vec2-bert": {"feature_projection_input_dim": 16},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12}, "lilt": {"hidden_size": 48},
}  # fmt: skip


def shrink(config):
    """Make all sizes small, in the configuration and those within."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            shrink(value)
        elif type(value) is int or (isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value)):
            setattr(config, name, _smaller(name, value))
        elif isinstance(value, list) and name in ("layer_types", "layers_block_type", "mlp_layer_types") and value:
            kinds = list(dict.fromkeys(value))
            setattr(config, name, (kinds * 2)[: max(2, len(kinds))])
            config.num_hidden_layers = max(2, len(kinds))
        elif isinstance(value, dict) and "mrope_section" in value:
            value["mrope_section"] = [2, 1, 1]
            if getattr(config, "head_dim", None) is None:
                config.head_dim = 8
    if getattr(config, "kv_lora_rank", None):
        config.num_key_value_heads = config.num_attention_heads
    return config


def _smaller(name, value):
    for pattern, size in _RULES:
        if re.search(pattern, name):
            if size is None:
                return value if type(value) is not int or value < VOCABULARY else value % VOCABULARY
            return min(value, size) if type(value) is int else type(value)([min(v, size) for v in value])
    return value


def build(name):
    config = shrink(CONFIG_MAPPING[name]())
    for key, value in _CHANGES.get(name, {}).items():
        setattr(config, key, value)
    torch.manual_seed(0)
    cls = MODEL_MAPPING[type(config)]
    cls = cls[0] if isinstance(cls, tuple) else cls
    return cls(config).eval()


_IMAGES_OF_FRAMES = ("git", "vivit_image")


def name_of(config):
    return config.model_type


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
        frames = getattr(config, "num_frames", None)
        frames = (frames,) if frames and "num_frames" not in parameters and name_of(config) not in _IMAGES_OF_FRAMES else ()
        given["pixel_values"] = torch.randn(1 if "input_ids" not in given else 2, *frames, c, *size)
    if main == "input_features":
        given["input_features"] = torch.randn(2, getattr(config, "num_mel_bins", 80), 64)
        if name_of(config) == "wav2vec2-bert":
            given["input_features"] = torch.randn(2, 12, 16)
    if main == "input_values":
        given["input_values"] = torch.randn(2, 1000)
        if name_of(config) == "audio-spectrogram-transformer":
            given["input_values"] = torch.randn(2, config.max_length, config.num_mel_bins)
        elif name_of(config) in ("encodec", "dac", "mimi"):
            given["input_values"] = torch.randn(2, 1, 1000)
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
