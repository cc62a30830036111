"""Fails first when a torch release moves a private name that `graph/` uses: the rest of the suite would fail in riddles."""

import re
import sys
from pathlib import Path

import pytest
import torch

import tilewright.graph
from tilewright.graph import torch_private as private

SOURCES = sorted(Path(tilewright.graph.__file__).parent.rglob("*.py"))


def test_wrapper_has_its_metadata_and_comes_to_python():
    seen = []

    class Probe(torch.Tensor):
        __torch_function__ = private.plain_function

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return args[0]

    x = private.wrapper(Probe, (2, 3), (1, 2), 4, torch.float16, torch.device("cpu"))
    assert (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.device.type) == ((2, 3), (1, 2), 4, torch.float16, "cpu")
    torch.neg(x)
    assert seen == ["aten.neg.default"]


def test_dispatch_mode_sees_factories_and_composites_in_parts():
    seen = []

    class Mode(private.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        x = torch.zeros(2, 3)
        torch.nn.functional.linear(x, x)
        with private.without_modes():
            torch.ones(2)
    assert "aten.zeros.default" in seen
    assert "aten.mm.default" in seen or "aten.addmm.default" in seen
    assert "aten.ones.default" not in seen
    assert not hasattr(Mode.__torch_dispatch__, "__wrapped__"), "torch wraps the mode: each call would pass through its compiler"


def test_function_mode_sees_methods_attributes_and_functions():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.zeros(2)
    with Mode():
        x.shape  # noqa: B018
        x.neg()
        torch.nn.functional.layer_norm(x, (2,))
    assert seen == [torch.Tensor.shape.__get__, torch.Tensor.neg, torch.nn.functional.layer_norm]


def test_schemas():
    add_, view, split, randn = (
        torch.ops.aten.add_.Tensor, torch.ops.aten.view.default, torch.ops.aten.split.Tensor, torch.ops.aten.randn.default,
    )  # fmt: skip
    assert private.written(add_) == ("self",)
    assert private.written(torch.ops.aten.add.out) == ("out",)
    assert private.written(view) == ()
    assert private.aliases(view)
    assert private.aliases(split)
    assert not private.aliases(torch.ops.aten.add.Tensor)
    assert private.is_random(randn)
    assert not private.is_random(view)
    assert private.is_composite(torch.ops.aten.linear.default)
    assert not private.is_composite(torch.ops.aten.addmm.default)
    assert [name for name, _, _ in private.parameters(add_)] == ["self", "other", "alpha"]
    assert torch.ops.aten.add.Tensor in private.overloads("aten", "add")
    assert private.overloads("aten", "no_such_operator") == []
    assert torch.Tag.dynamic_output_shape in torch.ops.aten.nonzero.default.tags


def test_decompositions():
    table = private.decompositions()
    assert torch.ops.aten.hardsigmoid.default in table or torch.ops.aten.huber_loss.default in table


def test_pytrees():
    leaves, tree = private.tree_flatten({"a": (1, [2]), "b": 3})
    assert leaves == [1, 2, 3]
    assert private.tree_unflatten([4, 5, 6], tree) == {"a": (4, [5]), "b": 6}
    assert isinstance(tree, private.TreeSpec)
    assert private.tree_flatten(1)[1].is_leaf()
    paths = [[private.path_step(k) for k in path] for path, _ in private.tree_flatten_with_path(((1, {"k": [2]}), {"z": 3}))[0]]
    assert paths == [[0, 0], [0, 1, "k", 0], [1, "z"]]


def test_compiling_flag_nests_and_is_restored():
    assert not torch.compiler.is_compiling()
    with private.compiling():
        with private.compiling():
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()


def test_transform_wrappers_are_known():
    seen = []
    torch.vmap(lambda x: (seen.append(private.in_transform(x)), x)[1])(torch.zeros(2))
    assert seen == [True]
    assert not private.in_transform(torch.zeros(2))


def test_attention_backends():
    q = torch.empty(1, 2, 8, 16)
    assert private.sdpa_backend([q, q, q], None, False, None, False) == private.SDPA_FLASH
    assert private.sdpa_backend([q, q, q[..., :8]], None, False, None, False) == private.SDPA_MATH
    swapped = torch.empty(1, 8, 2, 16, device="meta").transpose(1, 2)
    assert private.flash_strides([swapped] * 3, None, False, None) == swapped.stride()


def test_custom_functions_are_known_by_their_frame():
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(private.in_autograd_function(sys._getframe()))
            return x * 2

    Probe.apply(torch.ones(2))
    assert seen == [True]
    assert not private.in_autograd_function(sys._getframe())


def test_kernels_below_python():
    class Probe(torch.Tensor):
        __torch_function__ = private.plain_function

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    x = private.wrapper(Probe, (2, 1, 3), (3, 3, 1), 0, torch.float32, torch.device("cpu"))
    private.below_python(torch.ops.aten.squeeze_.dim, x, 1)
    assert (tuple(x.shape), x.stride()) == ((2, 3), (3, 1))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_other_module_uses_private_names(path):
    if path.name == "torch_private.py":
        pytest.skip("the one that may")
    text = path.read_text()
    assert not re.search(r"torch(\.\w+)*\._[a-z]\w*", text.replace("torch.ops.aten._", "")), "use torch_private"
    assert not re.search(r"from torch(\.\w+)*\._|import _[a-z]\w* .*torch", text)
