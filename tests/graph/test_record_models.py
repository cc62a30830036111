"""Whole models: small ones of the five Hugging Face families record without an opaque call and mean what eager means."""

import time

import pytest
import torch
from torch import nn

from graph.recording import assert_same, calls, leaves, ops, run
from tilewright.graph.record import ArgSource, ParameterSource, record
from tilewright.graph.verify import verify

transformers = pytest.importorskip("transformers")


def ids(b=2, s=9, vocab=50):
    return torch.randint(0, vocab, (b, s), generator=torch.Generator().manual_seed(1))


def bert():
    c = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    return transformers.BertModel(c), (ids(),), {}


def bert_with_mask():
    module, args, _ = bert()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    return module, args, {"attention_mask": mask}


def gpt2():
    c = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, use_cache=False)
    return transformers.GPT2LMHeadModel(c), (ids(),), {}


def llama():
    c = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(c), (ids(),), {}


def llama_with_mask():
    module, args, _ = llama()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    return module, args, {"attention_mask": mask}


def t5():
    c = transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return transformers.T5EncoderModel(c), (ids(),), {}


def vit():
    c = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    return transformers.ViTModel(c), (torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),), {}


MODELS = [bert, bert_with_mask, gpt2, llama, llama_with_mask, t5, vit]


@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models(build, dtype):
    torch.manual_seed(0)
    module, args, kwargs = build()
    module = module.eval().to(dtype)
    args = tuple(x.to(dtype) if x.is_floating_point() else x for x in args)
    with torch.no_grad():
        want = module(*args, **kwargs)
        recorded = record(module, args, kwargs)
        verify(recorded.graph)
        got = run(recorded, args, kwargs)
    assert calls(recorded) == []
    assert type(got) is type(want)
    assert_same(leaves(got), leaves(want), 1e-5 if dtype is torch.float32 else 5e-2)
    names = {s.name for s in recorded.inputs if isinstance(s, ParameterSource)}
    assert names <= {n for n, _ in (*module.named_parameters(), *module.named_buffers())}
    assert {s for s in recorded.inputs if isinstance(s, ArgSource)} == {ArgSource((0,)), *(ArgSource((k,)) for k in kwargs)}
    assert recorded.graph.effects == ()
    assert "attention" in ops(recorded)


def test_a_causal_model_attends_causally():
    module, args, kwargs = gpt2()
    recorded = record(module.eval(), args, kwargs)
    found = [n for n in recorded.graph.nodes() if n.op.name == "attention"]
    assert len(found) == 2
    assert all(n.attrs.causal and len(n.args) == 3 for n in found)


def test_recording_is_fast():
    """Twelve layers; the best of three, since the machine is shared. Half a second is what a first call can spare."""
    c = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=12, num_attention_heads=2, intermediate_size=64)
    module, args = transformers.BertModel(c).eval(), (ids(),)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        record(module, args)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


def test_a_model_in_training_draws_as_eager():
    module, args, kwargs = bert()
    module.train()
    torch.manual_seed(3)
    want = module(*args, **kwargs)
    torch.manual_seed(5)
    recorded = record(module, args, kwargs)
    torch.manual_seed(3)
    got = run(recorded, args, kwargs)
    assert set(calls(recorded)) <= {
        "aten.bernoulli.p",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten.native_dropout.default",
    }
    assert_same([t.detach() for t in leaves(got)], [t.detach() for t in leaves(want)], 1e-5)
    assert all(recorded.requires_grad[i] for i in range(2))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


def test_torchs_own_layers():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    for module in (
        Encoder(), nn.MultiheadAttention(16, 2, batch_first=True),
        nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 4), nn.Softmax(-1)),
        nn.Sequential(nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
    ):  # fmt: skip
        module.eval()
        args = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
        # without gradients, eager's own MultiheadAttention takes a fused path whose result has other strides
        for mode in (torch.enable_grad,) if isinstance(module, nn.MultiheadAttention) else (torch.no_grad, torch.enable_grad):
            with mode():
                want = module(*args)
                recorded = record(module, args)
                assert_same(leaves(run(recorded, args)), leaves(want), 1e-5)
