"""Memory of a compiled forward: temporaries and outputs no larger than eager's peak; what is kept is counted; nothing leaks."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tilewright as tw


class _Peak(TorchDispatchMode):
    """The most bytes alive at once in storages made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.seen = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in known | self.seen:
                self._watch(t.untyped_storage())
        return out

    def _watch(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone() -> None:
            self.seen.discard(key)
            self.live -= size

        weakref.finalize(storage, gone)


def _models():
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    bert = BertConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=256, vocab_size=100)
    gpt = GPT2Config(n_layer=3, n_embd=64, n_head=2, vocab_size=100, use_cache=False)
    ids = (torch.randint(0, 100, (4, 64)),)
    yield "mlp", nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (torch.randn(128, 64),)
    yield "bert", BertModel(bert), ids
    yield "gpt2", GPT2LMHeadModel(gpt), ids


@pytest.mark.parametrize(("name", "module", "inputs"), list(_models()), ids=lambda v: v if isinstance(v, str) else "")
def test_a_forward_needs_no_more_than_eager(name, module, inputs):
    module.eval()
    with torch.no_grad():
        with _Peak() as eager:
            module(*inputs)
        fast = tw.compile(module)
        result = fast(*inputs)
    outputs = sum(t.untyped_storage().nbytes() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
    assert fast.stats.arena_bytes + outputs <= 1.05 * eager.peak
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    assert 0 < fast.stats.packed_bytes <= 1.3 * weights


def test_packed_weights_are_freed_with_the_model():
    def resident() -> int:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    def once() -> None:
        m = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).eval()
        with torch.no_grad():
            fast = tw.compile(m)
            fast(torch.randn(4, 1024))
        assert fast.stats.packed_bytes >= 8 * 4 * 1024 * 1024

    once()
    gc.collect()
    before = resident()
    for _ in range(6):
        once()
        gc.collect()
    assert resident() - before < 64 * 2**20
