"""Greedy decoding of 64 tokens by `generate` with a cache of keys and values: milliseconds a token, one system after the other.

    python -m bench.decode [--only llama-dynamic ...] [--rivals] [--turns N]

Models have random weights. Eager and Tilewright take turns; with `--rivals` torch.compile does as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from .timing import machine

TOKENS = 64
PROMPT = 16


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=8000,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=6, n_head=8, vocab_size=8000, bos_token_id=1, eos_token_id=2))


CASES = {f"{make.__name__}-{cache}": (make, cache) for make in (llama, gpt2) for cache in ("dynamic", "static")}


def generation(model: Any, cache: str, prompt: torch.Tensor) -> torch.Tensor:
    return model.generate(
        prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, disable_compile=True,
        cache_implementation="static" if cache == "static" else None,
    )  # fmt: skip


def measure(name: str, rivals: bool, turns: int) -> dict[str, Any]:
    """One case's row: median milliseconds a token of each system, and what Tilewright compiled."""
    import tilewright as tw

    make, cache = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    prompt = torch.randint(3, 8000, (1, PROMPT))
    eager = model.forward
    systems: dict[str, Callable[..., Any]] = {"eager": eager, "tilewright": tw.compile(eager)}
    if rivals:
        systems["torch.compile"] = torch.compile(eager)
    times: dict[str, list[float]] = {system: [] for system in systems}
    tokens = {}
    for turn in range(turns + 2):  # the first two compile
        for system, forward in systems.items():
            model.forward = forward
            start = time.perf_counter()
            tokens[system] = generation(model, cache, prompt)
            if turn >= 2:
                times[system].append(1e3 * (time.perf_counter() - start) / TOKENS)
    stats = systems["tilewright"].stats  # type: ignore[attr-defined]
    row: dict[str, Any] = {f"{s} ms": statistics.median(t) for s, t in times.items()}
    row["eager/tilewright"] = row["eager ms"] / row["tilewright ms"]
    if rivals:
        row["torch.compile/tilewright"] = row["torch.compile ms"] / row["tilewright ms"]
    return row | {"graphs": stats.compiles, "same tokens": torch.equal(tokens["eager"], tokens["tilewright"])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    print(", ".join(f"{k} {v}" for k, v in machine().items()))
    with torch.no_grad():
        for name in args.only:
            row = measure(name, args.rivals, args.turns)
            cells = [f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()]
            print(f"{name:15}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
