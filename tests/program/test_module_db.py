"""The modules that torch lists for its own tests (`module_db`), compiled: results, state afterwards and errors are eager's."""

import copy

import pytest
import torch
from torch.testing._internal.common_modules import module_db

import tilewright as tw

SAMPLES = 2
INFOS = {info.name.removeprefix("nn."): info for info in module_db}
# Python that looks at a tensor's data (checks of arguments, a sparse attention mask), or makes parameters at the first call.
BREAKS = {"CTCLoss", "GaussianNLLLoss", "TransformerEncoder", "Transformer", *(n for n in INFOS if n.startswith("Lazy"))}
EAGER = {
    "FractionalMaxPool2d", "FractionalMaxPool3d",  # the samples are wrong, and eager's error is raised
    "MultiLabelMarginLoss",  # torch tells another shape of its result than it has
}  # fmt: skip


def samples(info, training):
    """(module, positional, keyword arguments), spread over those that torch lists."""
    torch.manual_seed(0)
    found = list(info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=training))
    found = [s for s in found if s.forward_input is not None]
    for s in found[:: max(1, -(-len(found) // SAMPLES))]:
        torch.manual_seed(1)
        module = info.module_cls(*s.constructor_input.args, **s.constructor_input.kwargs).train(training)
        yield module, s.forward_input.args, s.forward_input.kwargs


def outcome(call, args, kwargs):
    args, kwargs = copy.deepcopy((args, kwargs))
    torch.manual_seed(2)
    try:
        return call(*args, **kwargs), args, kwargs
    except Exception as e:
        return type(e).__name__, str(e)


@pytest.mark.parametrize("name", sorted(INFOS))
def test_module(name):
    info = INFOS[name]
    for training in (False, True) if info.train_and_eval_differ else (False,):
        for module, args, kwargs in samples(info, training):
            twin = copy.deepcopy(module)
            fast = tw.compile(twin)
            with torch.no_grad():
                for _ in range(2):
                    want, got = outcome(module, args, kwargs), outcome(fast, args, kwargs)
                    if isinstance(want[0], str):
                        assert got == want
                        continue
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
                    torch.testing.assert_close(twin.state_dict(), module.state_dict(), rtol=1e-4, atol=1e-5)
            stats = fast.stats
            assert stats.graph_breaks == 0 or name in BREAKS, stats
            assert stats.eager_calls == 0 or name in EAGER, stats
