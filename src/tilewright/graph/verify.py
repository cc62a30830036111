"""The verifier of graphs. In: a `Graph`. Out: nothing, or `VerifyError` naming the node by its text and what is wrong with it.

Checks what the types of `ir.py` cannot: inference agrees with each node's type, operands come first, inputs are distinct and are
all there are, outputs and effects fit their inputs. Must not know why a pass made what it checks.
"""

from __future__ import annotations

from typing import NoReturn

from ..base.errors import VerifyError
from .ir import INPUT, Alias, Effect, Graph, InputAttrs, Node, Output, TensorType
from .ops import OPS
from .ops.opaque import PURE, CallAttrs
from .ops.rules import known
from .text import node_line


def verify(graph: Graph) -> None:
    """Raises VerifyError for the first thing that is wrong; the graph's size is the time it takes."""
    _check_inputs(graph)
    inputs = set(graph.inputs)
    seqs: dict[int, Node] = {}
    for n in graph.nodes():
        _check_node(n)
        if n.op is INPUT and n not in inputs:
            _fail(n, "it is none of the graph's inputs")
        if isinstance(n.attrs, CallAttrs) and n.attrs.seq != PURE and seqs.setdefault(n.attrs.seq, n) is not n:
            _fail(n, f"its seq {n.attrs.seq} is another call's")
    for i, o in enumerate(graph.outputs):
        _check_output(graph, i, o)
    for e in graph.effects:
        _check_effect(graph, e)


def _check_inputs(graph: Graph) -> None:
    if len(graph.strides) != len(graph.inputs):
        _fail_graph(f"{len(graph.inputs)} inputs have {len(graph.strides)} rows of strides")
    for i, (n, strides) in enumerate(zip(graph.inputs, graph.strides, strict=True)):
        if not isinstance(n.attrs, InputAttrs):
            _fail(n, "it stands among the inputs and is none")
        elif n.attrs.index != i:
            _fail(n, f"its index is {n.attrs.index} and its place {i}")
        if len(strides) != len(n.shape):
            _fail(n, f"it has the strides {strides}")


def _check_node(n: Node) -> None:
    if n.op is not OPS.get(n.op.name, n.op):
        _fail(n, "its operator is not the row of that name")
    if type(n.attrs) is not n.op.attrs:
        _fail(n, f"its attributes are {type(n.attrs).__name__}, not {n.op.attrs.__name__}")
    if n.op.arity is not None and len(n.args) != n.op.arity:
        _fail(n, f"{n.op.arity} operands expected, got {len(n.args)}")
    for a in n.args:
        if a.serial >= n.serial:
            _fail(n, f"operand %{a.serial} comes after it")
    try:
        inferred = n.op.infer(n.attrs, *(a.type for a in n.args))
    except ValueError as e:
        _fail(n, str(e))
    else:
        if inferred != n.type:
            _fail(n, f"its type should be {inferred}")


def _check_output(graph: Graph, i: int, o: Output) -> None:
    what = f"output {i}"
    if not isinstance(o.node.type, TensorType):
        _fail(o.node, f"{what} has several results")
    if len(o.strides) != len(o.node.shape):
        _fail(o.node, f"{what} has the strides {o.strides}")
    if any(s < 0 for s in known(*o.strides) or ()):
        _fail(o.node, f"{what} has a negative stride")
    if o.alias is not None:
        _check_alias(graph, i, o.node, o.alias)


def _check_alias(graph: Graph, i: int, node: Node, alias: Alias) -> None:
    bases = {"input": graph.inputs, "output": tuple(o.node for o in graph.outputs[:i])}.get(alias.of)
    if bases is None:
        _fail(node, f"output {i} shares the memory of {alias.of!r}, which is neither input nor output")
    elif not 0 <= alias.index < len(bases):
        _fail(node, f"output {i} shares the memory of {alias.of} {alias.index}, which does not come before it")
    elif bases[alias.index].dtype is not node.dtype:
        _fail(node, f"output {i} shares the memory of a tensor of {bases[alias.index].dtype}")


def _check_effect(graph: Graph, e: Effect) -> None:
    if not 0 <= e.index < len(graph.inputs):
        _fail(e.node, f"it is written into input {e.index} of {len(graph.inputs)}")
    target = graph.inputs[e.index].type
    if e.node.type != target:
        _fail(e.node, f"it is written into input {e.index}, a {target}")


def _fail(node: Node, reason: str) -> NoReturn:
    raise VerifyError(what=f"the node {node_line(node)}", reason=reason)


def _fail_graph(reason: str) -> NoReturn:
    raise VerifyError(what="the graph", reason=reason)
