"""The example programs of `torch._export.db`, compiled: results, printed text, arguments afterwards and errors are eager's."""

import copy

import pytest
import torch
from torch._export.db.examples import all_examples

import tilewright as tw
from program.agreement import outcome

EXAMPLES = all_examples()


def run(model, case, args):
    torch.manual_seed(1)
    return outcome(lambda *a: model(*a, **copy.deepcopy(case.example_kwargs)), copy.deepcopy(args))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example(name):
    case = EXAMPLES[name]
    model = copy.deepcopy(case.model)
    fast = tw.compile(copy.deepcopy(case.model))
    for args in (case.example_args, case.example_args, *([case.extra_args] if case.extra_args else ())):
        assert run(fast, case, args) == run(model, case, args)
