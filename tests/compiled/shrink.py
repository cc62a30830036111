"""Makes a failing random graph small: fewer outputs, plain strides, values in place of the nodes that computed them.

In: a `Sample` and a test of whether a sample still fails. Out: the smallest sample found. Must not know how one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from compiled.reference import Sample, evaluate, wide
from graph.op_cases import contiguous
from tilewright.graph.ir import INPUT, Effect, Graph, InputAttrs, InputKind, Node, Output, over, rewrite_nodes
from tilewright.graph.ops.torch_dtypes import to_torch

Change = tuple[Graph, Mapping[Node, torch.Tensor]]
"""A graph that may read more inputs, and their values; other values for inputs it has."""


def shrink(sample: Sample, fails: Callable[[Sample], bool]) -> Sample:
    """The sample after every change that keeps it failing. Raises nothing: a change that gives no valid graph is skipped."""
    while True:
        smaller = next((s for s in (_applied(sample, *c) for c in _changes(sample)) if s is not None and fails(s)), None)
        if smaller is None:
            return sample
        sample = smaller


def _applied(sample: Sample, graph: Graph, values: Mapping[Node, torch.Tensor]) -> Sample | None:
    """The changed graph over the inputs that it still reads; None where it is no graph, or no smaller."""
    known = {**dict(zip(sample.graph.inputs, sample.tensors, strict=True)), **values}
    new: dict[Node, Node] = {}
    inputs: list[Node] = []
    tensors: list[torch.Tensor] = []
    try:
        for n in graph.nodes():
            if n.op is INPUT:
                assert isinstance(n.attrs, InputAttrs)
                attrs = replace(n.attrs, index=len(inputs), name=f"x{len(inputs)}")
                new[n] = Node(INPUT, (), attrs, n.type)
                inputs.append(new[n])
                tensors.append(known[n])
            else:
                new[n] = over(n, tuple(new[a] for a in n.args))
    except ValueError:
        return None
    outputs = tuple(Output(new[o.node], o.strides) for o in graph.outputs)
    places = {n: i for i, n in enumerate(inputs)}
    effects = tuple(
        Effect(places[new[graph.inputs[e.index]]], new[e.node]) for e in graph.effects if graph.inputs[e.index] in new
    )
    made = Graph(tuple(inputs), outputs, tuple(tuple(t.stride()) for t in tensors), effects)
    exact = frozenset(new[n] for n in new if n in sample.exact or n in values)
    return Sample(made, tensors, exact) if _size(made) < _size(sample.graph) else None


def _size(g: Graph) -> tuple[int, ...]:
    odd = sum(o.strides != contiguous(o.node.shape) for o in g.outputs)
    odd += sum(s != contiguous(n.shape) for n, s in zip(g.inputs, g.strides, strict=True))
    return (sum(n.op is not INPUT for n in g.nodes()) + len(g.outputs) + len(g.effects), len(g.inputs), odd)


def _changes(s: Sample) -> Iterator[Change]:
    g = s.graph
    for k in range(len(g.outputs) if len(g.outputs) > 1 else 0):
        yield replace(g, outputs=g.outputs[:k] + g.outputs[k + 1 :]), {}
    if g.effects:
        yield replace(g, effects=()), {}
    if len(g.outputs) == 1:
        for a in g.outputs[0].node.args:
            if a.op is not INPUT:
                yield replace(g, outputs=(Output(a, contiguous(a.shape)),)), {}
    yield from _without_nodes(s)
    for k, o in enumerate(g.outputs):
        plain = Output(o.node, contiguous(o.node.shape))
        yield replace(g, outputs=g.outputs[:k] + (plain,) + g.outputs[k + 1 :]), {}
    for n, t in zip(g.inputs, s.tensors, strict=True):
        yield g, {n: t.contiguous()}


def _without_nodes(s: Sample) -> Iterator[Change]:
    """A node replaced by an input that holds its value, or by one of its operands."""
    values = dict(zip(s.graph.inputs, map(wide, s.tensors), strict=True))
    for n in s.graph.nodes():
        if n.op is not INPUT:
            values[n] = evaluate(n, [values[a] for a in n.args])
    for n in reversed(s.graph.nodes()):
        if n.op is INPUT or n in s.graph.roots:
            continue
        name = f"v{n.serial}"
        held = INPUT(index=len(s.graph.inputs), name=name, kind=InputKind.USER, type=n.type)
        yield _replaced(s.graph, n, held), {held: values[n].to(to_torch(n.dtype)).contiguous()}
        for a in n.args:
            if a.type == n.type:
                yield _replaced(s.graph, n, a), {}


def _replaced(g: Graph, old: Node, new: Node) -> Graph:
    return rewrite_nodes(g, lambda n, args: new if n is old else None)
