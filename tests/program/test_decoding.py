"""Greedy decoding by `generate` with a cache of keys and values: token for token as in eager, few graphs."""

import pytest
import torch
import transformers

import tilewright as tw

TOKENS = 12
SMALL = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2}


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, **SMALL,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **SMALL))


def generate(model, cache, prompt):
    return model.generate(
        prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, cache_implementation=cache,
        disable_compile=True,
    )  # fmt: skip


@pytest.mark.parametrize("whole", [False, True], ids=["forward", "module"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_static_cache(make, whole):
    model = make().eval()
    prompts = [torch.randint(3, 96, (1, n)) for n in (5, 5)]
    with torch.no_grad():
        want = [generate(model, "static", p) for p in prompts]
        if whole:
            model = fast = tw.compile(model)
        else:
            model.forward = fast = tw.compile(model.forward)
        got = [generate(model, "static", p) for p in prompts]
    assert all(map(torch.equal, got, want))
    assert fast.stats.compiles <= 2
    assert fast.stats.graph_breaks == fast.stats.eager_calls == fast.stats.opaque_calls == 0


def test_write_at_one_place_of_a_tensor():
    def f(cache, at, new):
        cache.index_copy_(2, at, new)
        return cache * 2

    fast = tw.compile(f)
    for at in (0, 3, 7, -1, 8):
        a, new = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
        b = a.clone()
        if 0 <= at < 8:
            assert torch.equal(fast(b, torch.tensor([at]), new), f(a, torch.tensor([at]), new))
        else:
            with pytest.raises(IndexError, match=f"index {at} is out of bounds"):
                fast(b, torch.tensor([at]), new)
        assert torch.equal(a, b)
    assert fast.stats.compiles == 1
