"""Edits of what a compiled module reads, made after calls that found nothing changed: each is followed as by eager."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import tilewright as tw

SHIFT = 1.0


class Block(nn.Module):
    bias = 0.5

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("offset", torch.ones(4))
        self.scales = [1.0, 2.0]
        self.settings = {"power": 2, "names": ["a"]}
        self.config = types.SimpleNamespace(gain=3.0, extra=None)

    def forward(self, x):
        y = x * self.weight + self.offset * self.bias
        for s in self.scales:
            y = y * s
        y = y ** self.settings["power"] * self.config.gain + SHIFT
        return y if self.training else y + 1


class Other(Block):
    def forward(self, x):
        return x - self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return x


def parameter_of_another_shape(net):
    net.blocks[0].weight = nn.Parameter(torch.full((3, 1), 0.5))


def dict_replaced(net):
    net.blocks[0].__dict__ = {**net.blocks[0].__dict__, "scales": [3.0]}


def refilled(net):
    held = dict(net.blocks[0].__dict__)
    net.blocks[0].__dict__.clear()
    net.blocks[0].__dict__.update(held, scales=[5.0])


def hook_added(net):
    net.blocks[1].register_forward_hook(lambda module, args, result: result * 2)


def hook_added_and_removed_and_another(net):
    net.blocks[1].register_forward_hook(lambda module, args, result: result * 2).remove()
    net.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def forward_of_an_instance(net):
    net.blocks[0].forward = lambda x: x


def forward_of_an_instance_and_back(net):
    forward_of_an_instance(net)
    del net.blocks[0].forward
    net.blocks[0].scales = [7.0]


def block_appended(net):
    net.blocks.append(Block())


def blocks_swapped(net):
    net.blocks[0].config.gain = 9.0
    net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]


def table_replaced(net):
    net.blocks[0].__dict__["_parameters"] = {"weight": nn.Parameter(torch.zeros(4))}


EDITS = [
    parameter_of_another_shape,
    dict_replaced,
    refilled,
    hook_added,
    hook_added_and_removed_and_another,
    forward_of_an_instance,
    forward_of_an_instance_and_back,
    block_appended,
    blocks_swapped,
    table_replaced,
    lambda net: net.blocks[0].scales.append(3.0),
    lambda net: net.blocks[0].scales.__setitem__(0, 4.0),
    lambda net: net.blocks[0].scales.clear(),
    lambda net: net.blocks[0].settings.update(power=3),
    lambda net: net.blocks[0].config.__dict__.update(gain=4.0),
    lambda net: setattr(net.blocks[0], "config", types.SimpleNamespace(gain=5.0)),
    lambda net: setattr(net.blocks[0], "bias", 2.5),
    lambda net: net.blocks[0].register_buffer("offset", torch.zeros(4)),
    lambda net: setattr(net.blocks[1], "__class__", Other),
    lambda net: net.train(),
    lambda net: net.blocks[1].train(),
    lambda net: net.blocks[0].weight.data.mul_(3),
    lambda net: setattr(net.blocks[0].weight, "data", torch.zeros(4)),
]


def same(net, compiled, x):
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_a_module_is_followed(edit):
    net = Net().eval()
    compiled = tw.compile(net)
    x = torch.arange(12.0).reshape(3, 4) / 8
    for _ in range(3):
        same(net, compiled, x)
    edit(net)
    same(net, compiled, x)
    same(net, compiled, x)


def test_edits_of_classes_and_globals_are_followed(monkeypatch):
    net = Net().eval()
    compiled = tw.compile(net)
    x = torch.arange(12.0).reshape(3, 4) / 8
    for _ in range(2):
        same(net, compiled, x)
    monkeypatch.setattr(Block, "bias", 3.0)
    same(net, compiled, x)
    monkeypatch.setitem(globals(), "SHIFT", -2.0)
    same(net, compiled, x)
    monkeypatch.setattr(Block, "forward", lambda self, x: x - self.weight)
    same(net, compiled, x)
    monkeypatch.setattr(Block, "__call__", lambda self, x: x, raising=False)
    same(net, compiled, x)
    monkeypatch.undo()
    same(net, compiled, x)


def test_a_patched_call_of_the_compiled_object_s_class_is_followed(monkeypatch):
    net = Net().eval()
    run = tw.compile(lambda x: net(x))
    x = torch.arange(12.0).reshape(3, 4) / 8
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), net(x))
        monkeypatch.setattr(Net, "__call__", lambda self, x: x - 1, raising=False)
        torch.testing.assert_close(run(x), net(x))


def test_the_sentence_of_the_failing_row_survives():
    net = Net().eval()
    compiled = tw.compile(net)
    x = torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(2):
            compiled(x)
        (entry,) = compiled._tilewright.entries
        assert entry.check(x) is None
        net.blocks[1].scales[1] = 8.0
        assert "scales" in entry.data.table.explain(entry.check(x))
        net.blocks[1].scales[1] = 2.0
        net.blocks[0].register_forward_hook(lambda *args: None)
        assert "_forward_hooks" in entry.data.table.explain(entry.check(x))
