"""Graphs with symbolic sizes, as text, for tests of every layer. In: nothing. Out: `SYMBOLIC`: name -> graph."""

from __future__ import annotations

from tilewright.graph.ir import Graph
from tilewright.graph.text import parse_graph

TEXTS = {
    "pointwise": """
dim s0 >= 2 = 16
%0 = input(index=0, name="x", kind=user) : f32[s0, 24], strides=(24, 1)
%1 = input(index=1, name="b", kind=user) : f32[24], strides=(1,)
%2 = add(%0, %1) : f32[s0, 24]
%3 = tanh(%2) : f32[s0, 24]
return %3, strides=(24, 1)
""",
    "transposed": """
dim s0 >= 2 = 16
dim s1 >= 2 = 24
%0 = input(index=0, name="x", kind=user) : f32[s0, s1], strides=({s1}, 1)
%1 = permute(%0, dims=(1, 0)) : f32[s1, s0]
%2 = exp(%1) : f32[s1, s0]
return %2, strides=({s0}, 1)
""",
    "linear": """
dim s0 >= 2 = 32
%0 = input(index=0, name="x", kind=user) : f32[s0, 64], strides=(64, 1)
%1 = input(index=1, name="w", kind=parameter) : f32[64, 40], strides=(40, 1)
%2 = input(index=2, name="b", kind=parameter) : f32[40], strides=(1,)
%3 = matmul(%0, %1) : f32[s0, 40]
%4 = add(%3, %2) : f32[s0, 40]
%5 = relu(%4) : f32[s0, 40]
return %5, strides=(40, 1)
""",
    "softmax": """
dim s0 >= 2 = 16
dim s1 >= 2 = 33
%0 = input(index=0, name="x", kind=user) : f32[s0, s1], strides=({s1}, 1)
%1 = softmax(%0, dim=1) : f32[s0, s1]
return %1, strides=({s1}, 1)
""",
    "sums": """
dim s0 >= 2 = 12
dim s1 >= 2 = 20
%0 = input(index=0, name="x", kind=user) : f32[s0, s1, 8], strides=({8 * s1}, 8, 1)
%1 = sum(%0, dims=(1,), keepdim=False) : f32[s0, 8]
%2 = amax(%0, dims=(0, 1, 2), keepdim=False) : f32[]
%3 = cumsum(%1, dim=0) : f32[s0, 8]
return %3, strides=(8, 1)
return %2, strides=()
""",
    "reshaped": """
dim s0 >= 2 = 6
%0 = input(index=0, name="x", kind=user) : f32[s0, 64], strides=(64, 1)
%1 = reshape(%0, shape=({4 * s0}, 2, 8)) : f32[4 * s0, 2, 8]
%2 = permute(%1, dims=(1, 0, 2)) : f32[2, 4 * s0, 8]
%3 = neg(%2) : f32[2, 4 * s0, 8]
return %3, strides=({32 * s0}, 8, 1)
""",
    "joined": """
dim s0 >= 2 = 6
dim s1 >= 2 = 9
%0 = input(index=0, name="x", kind=user) : f32[s0, 8], strides=(8, 1)
%1 = input(index=1, name="y", kind=user) : f32[s1, 8], strides=(8, 1)
%2 = cat(%0, %1, dim=0) : f32[s0 + s1, 8]
%3 = sin(%2) : f32[s0 + s1, 8]
%4 = slice(%3, dim=0, start=1, stop={s0 + s1}, step=1) : f32[s0 + s1 - 1, 8]
%5 = iota(size={s0 + s1 - 1}, dtype=i64, start=0, step=1) : i64[s0 + s1 - 1]
%6 = cast(%5, dtype=f32) : f32[s0 + s1 - 1]
%7 = reshape(%6, shape=({s0 + s1 - 1}, 1)) : f32[s0 + s1 - 1, 1]
%8 = mul(%4, %7) : f32[s0 + s1 - 1, 8]
return %8, strides=(8, 1)
""",
    "attention": """
dim s0 >= 2 = 16
%0 = input(index=0, name="x", kind=user) : f32[2, s0, 32], strides=({32 * s0}, 32, 1)
%1 = reshape(%0, shape=(2, {s0}, 4, 8)) : f32[2, s0, 4, 8]
%2 = permute(%1, dims=(0, 2, 1, 3)) : f32[2, 4, s0, 8]
%3 = permute(%1, dims=(0, 2, 3, 1)) : f32[2, 4, 8, s0]
%4 = matmul(%2, %3) : f32[2, 4, s0, s0]
%5 = softmax(%4, dim=3) : f32[2, 4, s0, s0]
%6 = matmul(%5, %2) : f32[2, 4, s0, 8]
%7 = permute(%6, dims=(0, 2, 1, 3)) : f32[2, s0, 4, 8]
%8 = reshape(%7, shape=(2, {s0}, 32)) : f32[2, s0, 32]
return %8, strides=({32 * s0}, 32, 1)
""",
}

SYMBOLIC: dict[str, Graph] = {name: parse_graph(text) for name, text in TEXTS.items()}
