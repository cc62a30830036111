"""FX graphs to and from ours.

In: a `Graph`, or an FX graph module with example inputs. Out: an FX graph module of ATen operators, or a `Graph`. Must not know
who asks.

`to_fx` runs each operator's eager function on tensors without data, and writes down the ATen calls that it makes. `from_fx`
records the module as any other function.
"""

from __future__ import annotations

import dataclasses
import keyword
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..base.errors import CompileError
from ..graph import torch_private as private
from ..graph.ir import INPUT, Graph, InputAttrs, InputKind, Node, Output, TupleType, make, rewrite_nodes
from ..graph.ops.opaque import CALL, GETITEM, fill, resolve
from ..graph.ops.torch_dtypes import to_torch
from ..graph.record import Recorded, record

_ATEN = torch.ops.aten
_META = torch.device("meta")


def to_fx(graph: Graph) -> fx.GraphModule:
    """A module of ATen calls with the graph's inputs and a tuple of its outputs; effects are written into the inputs last.

    Outputs have the strides and share the memory that the graph says. Raises CompileError for a graph of symbolic sizes.
    """
    if graph.hints:
        raise CompileError(reason="a graph of symbolic sizes has no FX form; record it with dynamic=False")
    return fx.GraphModule(nn.Module(), _Writer(graph).written())


def from_fx(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Graph:
    """The graph of a call on example inputs (tensors, of which only the metadata counts, and numbers, which become constants).

    Its inputs are the placeholders that are tensors, in order, then the tensors that the module holds, in order of first use.
    Raises RecordError where the module cannot be recorded.
    """
    return recorded(module, [_real(x) for x in example_inputs]).graph


def recorded(module: fx.GraphModule, inputs: Sequence[Any], parameters: Collection[int] = ()) -> Recorded:
    """A recording of the module. Inputs numbered in `parameters` count as parameters, which may be packed."""
    assert module.code  # a lazy graph module writes its forward when this is read, and recording admits no change of state
    found = record(module, tuple(inputs), module=module)
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    new: dict[Node, Node] = {}
    for number, node in zip(tensors, found.graph.inputs):
        if number in parameters and isinstance(node.attrs, InputAttrs):
            new[node] = make(INPUT, (), dataclasses.replace(node.attrs, kind=InputKind.PARAMETER))
    if not new:
        return found
    graph = rewrite_nodes(found.graph, lambda node, args: new.get(node))
    graph = dataclasses.replace(graph, inputs=tuple(new.get(n, n) for n in graph.inputs))
    return dataclasses.replace(found, graph=graph)


def examples(graph: Graph) -> list[torch.Tensor]:
    """A tensor of zeros an input, laid out as the graph expects it. The memory is not touched."""
    return [_zeros(to_torch(n.dtype), n.shape, s) for n, s in zip(graph.inputs, graph.strides, strict=True)]  # type: ignore[arg-type]


def _real(x: Any) -> Any:
    """A tensor that may be read; FX examples may have no data."""
    if not isinstance(x, torch.Tensor) or (type(x) in (torch.Tensor, nn.Parameter) and x.device.type != "meta"):
        return int(x) if isinstance(x, torch.SymInt) else x
    return _zeros(x.dtype, tuple(map(int, x.shape)), tuple(map(int, x.stride()))).requires_grad_(x.requires_grad)


def _zeros(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(_extent(shape, strides), dtype=dtype).as_strided(shape, strides)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


class _Calls(private.DispatchMode):
    """Writes down every ATen call on tensors without data."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, fx.Node] = {}
        self.fresh: dict[int, bool] = {}  # whether the tensor shares memory with nothing older
        self.kept: list[torch.Tensor] = []  # so that ids stay theirs

    def know(self, tensor: torch.Tensor, node: fx.Node, fresh: bool = True) -> torch.Tensor:
        self.nodes[id(tensor)], self.fresh[id(tensor)] = node, fresh
        self.kept.append(tensor)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = self.graph.call_function(func, _mapped(args, self.nodes), _mapped(kwargs, self.nodes))
        result = func(*args, **({**kwargs, "device": "meta"} if "device" in kwargs else kwargs))
        fresh = not private.aliases(func)
        if isinstance(result, torch.Tensor):
            return self.know(result, node, fresh)
        for i, r in enumerate(result if isinstance(result, list | tuple) else ()):
            if isinstance(r, torch.Tensor):
                self.know(r, self.graph.call_function(operator.getitem, (node, i)), fresh)
        return result


def _mapped(value: Any, nodes: Mapping[int, fx.Node]) -> Any:
    """Tensors by their FX nodes, sequences as FX holds them."""
    if isinstance(value, torch.Tensor):
        return nodes[id(value)]
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, nodes) for v in value) if type(value) in (list, tuple) else list(value)
    if value == _META or value == "meta":
        return torch.device("cpu")
    return {k: _mapped(v, nodes) for k, v in value.items()} if isinstance(value, dict) else value


class _Writer:
    """One conversion to FX."""

    def __init__(self, graph: Graph) -> None:
        self.source = graph
        self.graph = fx.Graph()
        self.calls = _Calls(self.graph)
        self.inputs: list[torch.Tensor] = []
        self.values: dict[Node, Any] = {}

    def written(self) -> fx.Graph:
        g, calls = self.source, self.calls
        for n, strides in zip(g.inputs, g.strides, strict=True):
            shape: Any = n.shape
            made = torch.empty_strided(shape, strides, dtype=to_torch(n.dtype), device="meta")  # type: ignore[arg-type]
            self.inputs.append(calls.know(made, self.graph.placeholder(_name(n.attrs)), fresh=False))
            self.values[n] = made
        for n in g.in_sequence():
            if n.op is not INPUT:
                self._node(n)
        with calls:
            outputs = self._outputs()
            values = [self._owned(self.values[e.node]) for e in g.effects]
            for e, v in zip(g.effects, values):
                _ATEN.copy_.default(self.inputs[e.index], v)
        self._input_outputs(outputs)
        self.graph.output(tuple(outputs[i] for i in range(len(g.outputs))))
        self.graph.lint()
        return self.graph

    def _node(self, n: Node) -> None:
        tensors = [self.values[a] for a in n.args]
        if n.op is GETITEM:
            self.values[n] = tensors[0][n.attrs.index]  # type: ignore[attr-defined]
        elif n.op is CALL:
            self.values[n] = self._call(n, tensors)
        else:
            with self.calls:
                self.values[n] = n.op.eager(n.attrs, *tensors)

    def _call(self, n: Node, tensors: list[torch.Tensor]) -> Any:
        """A call of an operator without a row: written as it is, its results' metadata taken from the graph."""
        a: Any = n.attrs
        with self.calls:
            tensors = [t.contiguous() for t in tensors]
        args, kwargs = fill(a.args, a.kwargs, tensors)
        nodes = self.calls.nodes
        node = self.graph.call_function(resolve(a.overload), _mapped(tuple(args), nodes), _mapped(kwargs, nodes))
        if not isinstance(n.type, TupleType):
            return self.calls.know(_meta(n.type), node, fresh=False)
        parts = [self.graph.call_function(operator.getitem, (node, i)) for i in range(len(n.type.items))]
        return [self.calls.know(_meta(t), p, fresh=False) for t, p in zip(n.type.items, parts)]

    def _outputs(self) -> dict[int, fx.Node]:
        """Outputs that share no input's memory: one that others share is a buffer with room for all."""
        outputs: dict[int, fx.Node] = {}
        for root, members in _groups(self.source.outputs).items():
            (first, _), *others = members
            o = self.source.outputs[root]
            value = self.values[o.node]
            if not others and tuple(value.stride()) == o.strides and self.calls.fresh[id(value)]:
                self.calls.fresh[id(value)] = False  # another output of this value is another tensor
                outputs[first] = self.calls.nodes[id(value)]
                continue
            low = min(start for _, start in members)
            size = max(start + _extent(*_layout(self.source.outputs[i])) for i, start in members) - low
            buffer = _ATEN.new_empty.default(value, [max(size, 0)])
            for i, start in members:
                shape, strides = _layout(self.source.outputs[i])
                view = _ATEN.as_strided.default(buffer, list(shape), list(strides), start - low)
                outputs[i] = self.calls.nodes[id(view)]
                _copy(view, self.values[self.source.outputs[i].node])
        return outputs

    def _owned(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.calls.fresh[id(value)] else _ATEN.clone.default(value)

    def _input_outputs(self, outputs: dict[int, fx.Node]) -> None:
        """Outputs that are an input's memory, after everything was written."""
        for i, o in enumerate(self.source.outputs):
            if i in outputs:
                continue
            assert o.alias is not None
            shape, strides = _layout(o)
            start: Any = o.alias.offset
            of = self.graph_input(o.alias.index) if o.alias.of == "input" else outputs[o.alias.index]
            first = self.graph.call_function(_ATEN.sym_storage_offset.default, (of,))
            at = self.graph.call_function(operator.add, (first, start)) if start else first
            outputs[i] = self.graph.call_function(_ATEN.as_strided.default, (of, list(shape), list(strides), at))

    def graph_input(self, index: int) -> fx.Node:
        return self.calls.nodes[id(self.inputs[index])]


def _groups(outputs: Sequence[Output]) -> dict[int, list[tuple[int, int]]]:
    """First output of a buffer -> (output, offset from the first one's first element) of all that share it."""
    groups: dict[int, list[tuple[int, int]]] = {}
    place: dict[int, tuple[int, int]] = {}
    for i, o in enumerate(outputs):
        if o.alias is None:
            place[i] = (i, 0)
        elif o.alias.of == "output" and o.alias.index in place:
            root, start = place[o.alias.index]
            place[i] = (root, start + int(o.alias.offset))  # type: ignore[arg-type]
        else:
            continue
        groups.setdefault(place[i][0], []).append((i, place[i][1]))
    return groups


def _layout(o: Output) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return o.node.shape, o.strides  # type: ignore[return-value]


def _copy(target: torch.Tensor, value: torch.Tensor) -> None:
    """Into a view of which all indices along some dimensions may be one element."""
    for d, s in enumerate(target.stride()):
        if s == 0 and target.shape[d] > 1:
            target, value = _ATEN.slice.Tensor(target, d, 0, 1), _ATEN.slice.Tensor(value, d, 0, 1)
    _ATEN.copy_.default(target, value)


def _meta(t: Any) -> torch.Tensor:
    return torch.empty(t.shape, dtype=to_torch(t.dtype), device="meta")


def _name(attrs: Any) -> str:
    """The input's name as a Python identifier."""
    name = re.sub(r"\W+", "_", attrs.name).strip("_")
    return f"input_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name
