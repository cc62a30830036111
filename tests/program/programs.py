"""Random small Python programs over tensors, containers, objects and control flow, and what one does.

In: a hypothesis `draw`. Out: source text of a function `f(x, y, i, items, table)`; `observe`, all that a call gave or changed.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import math
import traceback
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

FILE = "<generated program>"

PRELUDE = """
import collections, contextlib, dataclasses, functools, itertools, operator
import torch
from torch import nn

SCALE = 2
SETTINGS = {"bias": 1.0, "mode": "a"}
LOG = []


class Box:
    kind = "box"

    def __init__(self):
        self.n, self.t = 1, torch.ones(1)

    @property
    def twice(self):
        return self.n * 2

    def bump(self, k=1):
        self.n += k
        return self

    def __call__(self, a):
        return a * self.n

    def __len__(self):
        return self.n % 4

    def __eq__(self, other):
        return isinstance(other, Box) and self.n == other.n

    __hash__ = None


class Child(Box):
    def bump(self, k=1):
        super().bump(k + 1)
        LOG.append(k)
        return self


@dataclasses.dataclass
class Pair:
    a: object
    b: int = 3

    def total(self):
        return self.a + self.b


Named = collections.namedtuple("Named", "left right")


class Managed:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append("enter " + self.name)
        return self

    def __exit__(self, kind, value, tb):
        LOG.append("exit " + self.name + str(kind and kind.__name__))
        return self.swallow


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


def count(a, n):
    for q in range(n):
        got = yield a + q
        if got:
            a = a * got


def helper(a, n, *rest, k=1, **more):
    if n > 3:
        return a * n
    box.n = n
    return a + box.n + sum(rest) + k + more.get("z", 0)


def decide(a):
    if a.sum() > 4:
        return a - 1
    return a.cos()


def deep(a, n):
    return decide(a) * n if n < 2 else deep(a + 1, n - 1) + n


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.calls = nn.Linear(3, 3), 0
        self.stack = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.register_buffer("seen", torch.zeros(3))
        with torch.no_grad():
            for n, p in enumerate(self.parameters()):
                p.copy_((torch.arange(float(p.numel())).reshape(p.shape) + n) % 5 / 4 - 0.5)

    def forward(self, a):
        self.calls += 1
        self.seen.add_(1)
        for layer in self.stack:
            a = torch.tanh(layer(a))
        return self.lin(a) if self.training else self.lin(a) + self.seen


box, child, net = Box(), Child(), Net()
bag = {1, 2}
queue = collections.deque([1, 2], maxlen=4)
tally = collections.defaultdict(int)
"""

TENSORS = ("x", "y", "t")
INTS = ("i", "j", "k")

TENSOR_EXPRESSIONS = (
    "{t} + {u}",
    "{t} * {n}",
    "{t} - {n}",
    "{t}.sin()",
    "torch.relu({t}) - {u}",
    "torch.stack([{t}, {u}]).sum(0)",
    "({t} + 1).abs()",
    "{t}.clone()",
    "{t}.flip(0)",
    "helper({t}, {v})",
    "helper({t}, {v}, {n}, k=2, z=i)",
    "table.get('t', {t}) + {u}",
    "items[-1] + {t} if items and isinstance(items[-1], torch.Tensor) else {t} - 1",
    "box.t.sum() * {t}",
    "decide({t})",
    "deep({t}, 2)",
    "net({t}[:3]).sum() + {t}",
    "box({t})",
    "child.bump()({t})",
    "Pair({t}, {n}).total()",
    "Named({t}, {u}).right",
    "sum(count({t}, 2))",
    "functools.reduce(operator.add, [{t}, {u}])",
    "functools.partial(helper, n=1)({t})",
    "(lambda q: q * j)({t})",
    "torch.cat([{t}, {u}])[: len({t})]",
    "torch.where({t} > 0, {t}, {u})",
    "{t}[None, :].expand(2, -1).mean(0)",
    "{t}.view(-1, 1).squeeze(1)",
    "{t} / ({u}.abs() + 1)",
    "{t}.to(torch.float64).float()",
    "torch.full({t}.shape, {n}) + {t}",
    "{t}.new_zeros({u}.shape[0]) + {n}",
    "max([{t}, {u}], key=len)",
    "{t} @ torch.eye(len({t}))",
    "[*count({t}, 2)][-1]",
    "next(count({t}, {v} % 3 + 1))",
    "{t} * SCALE",
    "{t} + SETTINGS['bias']",
    "{t}[[1, 0, 2]].sum() + {u}",
    "{t}[: len({t}) // 2].sum() * {u}",
    "{t}.reshape(1, -1).repeat(2, 1)[1]",
    "torch.nn.functional.pad({t}, (1, 0))[:-1]",
    "{t} * {t}.numel()",
    "{t} * {t}.shape[0]",
    "torch.arange({t}.shape[0]) * {t}",
    "{t}.softmax(0)",
    "(t2 := {t} + 1) * t2",
    "{t} if {c} else {u}",
)
INT_EXPRESSIONS = (
    "{v}",
    "{v} + 2",
    "{v} % 3",
    "len(items)",
    "len(table)",
    "min({v}, 4)",
    "sum(v for v in items if type(v) is int) % 50",
    "-{v}",
    "table.get('a', 2)",
    "{v} - j",
    "{v} * 2 // 3",
    "box.twice",
    "len(box)",
    "int({c})",
    "[3, 1, 2][{v} % 3]",
    "(1, 2, 3)[-1]",
    "abs({v})",
    "len(f'{{i}}{{j}}')",
    "len(bag)",
    "queue[-1] if queue else 0",
    "tally['n']",
    "max(items, key=str) if items and all(type(v) is int for v in items) else 1",
    "next((q for q in (1, 2, 3) if q > {v}), 9)",
    "x.shape[0]",
    "{t}.numel() // 2",
    "len(y) - 1",
    "x.dim()",
    "len(sorted(bag, reverse=True))",
    "child.n",
    "net.calls",
    "operator.mul({v}, 2)",
    "dict(a=1, b=2).get('b')",
    "len(list(zip('abc', range({v} % 4))))",
    "hash({v}) % 5",
    "int('12')",
    "round(2.6)",
    "SCALE",
)
CONDITIONS = (
    "{n} > 1",
    "{n} == {v}",
    "'a' in table",
    "{v} % 2 == 0",
    "{t} is {u}",
    "bool(items) and items[0] == 2",
    "{t}.sum() > 2",
    "hasattr(box, 'z')",
    "not ({v} < 2)",
    "1 < {v} <= 3",
    "isinstance(child, Box)",
    "{t}.shape[0] == 3",
    "len({t}) > 4",
    "{t}.shape == {u}.shape",
    "any(q > 1 for q in (0, {v}))",
    "box == child",
    "type({t}) is torch.Tensor",
    "SETTINGS['mode'] == 'a'",
    "net.training",
    "{t}.requires_grad",
    "callable(box)",
    "{v} in (1, 2)",
    "all(items)",
    "{t}.dtype == torch.float32",
    "None is not items",
    "torch.is_grad_enabled()",
    "{v} in bag",
)
STATEMENTS = (
    "{t} = {e}",
    "{t} = {e}",
    "{t} = {e}",
    "{v} = {n}",
    "{v} += {n}",
    "{t} += {n}",
    "{t} = {t} + 0; {t}.mul_(2)",
    "{t}[1:].add_(1)",
    "{t}[0] = {n}",
    "table['a'] = {n}",
    "table['b'] = {t}",
    "items.append({n})",
    "items.append({t})",
    "table.pop('a', None)",
    "items and items.pop()",
    "items.insert(0, 7)",
    "del items[3:]",
    "box.z = {n}",
    "box.t = {t}",
    "table.setdefault('q', []).append({v})",
    "box.__dict__.pop('z', None)",
    "bag.add({v})",
    "bag.discard(1)",
    "queue.append({v})",
    "tally['n'] += 1",
    "print({n}, 'p')",
    "print(({t}.sum() > 1).item())",
    "{v} = int({t}.sum().item()) % 5",
    "box.bump({v})",
    "LOG.append(f'{{{v}:>3}}|{{len(items)!r}}')",
    "seen.append([{n} for q in range(2)])",
    "seen.append({{q: q + {v} for q in items if type(q) is int}})",
    "(i, j), *rest = ({v}, 1), {n}, 3; seen.append(rest)",
    "items[:1] = [{n}, 4]",
    "items.sort(key=str)",
    "seen.extend(map(str, items[:2]))",
    "SETTINGS['bias'] = float({v})",
    "net.seen.add_({n})",
    "LOG.append(type({t}).__name__)",
    "seen.append({t}.shape)",
    "assert {v} != 77, 'no'",
    "table |= {{'m': {n}}}",
    "i, j = j, i",
    "seen.append(sorted(table))",
    "seen.append(list(enumerate(items[:2])))",
    "nonlocal_add({v})",
    "global_set({n})",
    "{t} = nested({t})",
    "del LOG[2:]",
    "seen.append(Pair({v}))",
    "setattr(box, 'w', {n})",
    "seen.append(getattr(box, 'w', None))",
    "{t} = torch.stack([q * 2 for q in ({t}, {u})])[0]",
    "for_else(seen, {v})",
    "seen += [*map(lambda q: q + {v}, (1, 2))]",
)
RAISES = (
    "raise ValueError('v')",
    "table['nokey']",
    "{t} = {t} + torch.ones(7)",
    "items[99]",
    "raise LookupError(str({v}))",
    "{t} = {t} + 1",
    "1 // ({v} - {v})",
)
HANDLERS = (
    "except (ValueError, KeyError) as e:",
    "except Exception as e:",
    "except (LookupError, RuntimeError) as e:",
    "except ZeroDivisionError as e:",
)
CONTEXTS = (
    "torch.no_grad()",
    "managed(seen)",
    "Managed('m')",
    "Managed('s', True)",
    "managed(seen) as {v}, Managed('n')",
    "contextlib.suppress(KeyError)",
    "torch.enable_grad()",
    "contextlib.nullcontext({v})",
)
ITERABLES = (
    "range(3)",
    "[4, 1]",
    "list(range(len(items)))[:2]",
    "sorted(bag)[:2]",
    "(1, 2)",
    "range({v} % 3)",
    "reversed([1, 2])",
    "itertools.chain([1], (2,))",
)
CASES = ("case 0 | 1:", "case int(q) if q > 3:", "case [a, *more]:", "case {'a': q}:", "case str():")

HEAD = """def f(x, y, i, items, table):
    j, k, seen = tally["c"], 1, []
    t = x * 1
    held = [0]

    def nonlocal_add(q):
        nonlocal k
        k += q
        held[0] += k

    def global_set(q):
        global SCALE
        SCALE = q % 5

    def nested(a, w=i):
        return a * w + k

    def for_else(log, q):
        for p in range(3):
            if p == q:
                log.append("found")
                break
        else:
            log.append("none")
"""
TAIL = "    return t, x, y, i, j, k, seen, box.n, list(items), dict(table), sorted(bag), box.t, held, child.n"


@st.composite
def programs(draw: Callable[..., Any], most: int = 9) -> str:
    """The source of a function `f`."""
    return "\n".join([*HEAD.splitlines(), *_block(draw, "    ", draw(st.integers(2, most)), 0), TAIL])


def _filled(draw: Callable[..., Any], text: str, depth: int = 0) -> str:
    """The text with its holes filled: t, u tensors; v an int variable; n, c, e an int, a condition, a tensor expression."""
    if "{" not in text:
        return text
    inner = {
        "t": draw(st.sampled_from(TENSORS)),
        "u": draw(st.sampled_from(TENSORS)),
        "v": draw(st.sampled_from(INTS)),
        "n": "2",
        "c": "i > 1",
        "e": "x + y",
    }
    for hole, choices in (("n", INT_EXPRESSIONS), ("c", CONDITIONS), ("e", TENSOR_EXPRESSIONS)):
        if "{" + hole + "}" in text and depth < 3:
            inner[hole] = _filled(draw, draw(st.sampled_from(choices)), depth + 1)
    return text.format(**inner)


def _block(draw: Callable[..., Any], indent: str, count: int, depth: int) -> list[str]:
    return [line for _ in range(count) for line in _statement(draw, indent, depth)]


def _statement(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    kinds = ["plain"] * 6 + (["if", "for", "while", "try", "with", "match"] if depth < 3 else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        return [indent + _filled(draw, draw(st.sampled_from(STATEMENTS)))]
    return _COMPOUND[kind](draw, indent, depth)


def _body(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    return _block(draw, indent + "    ", draw(st.integers(1, 3)), depth + 1)


def _condition(draw: Callable[..., Any]) -> str:
    return _filled(draw, draw(st.sampled_from(CONDITIONS)))


def _if(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    lines = [f"{indent}if {_condition(draw)}:", *_body(draw, indent, depth)]
    if draw(st.booleans()):
        lines += [f"{indent}elif {_condition(draw)}:", *_body(draw, indent, depth), f"{indent}else:", *_body(draw, indent, depth)]
    return lines


def _for(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    over = _filled(draw, draw(st.sampled_from(ITERABLES)))
    lines = [f"{indent}for {draw(st.sampled_from(INTS))} in {over}:", *_body(draw, indent, depth)]
    if draw(st.booleans()):
        lines += [f"{indent}    if {_condition(draw)}:", f"{indent}        {draw(st.sampled_from(('break', 'continue')))}"]
        lines += _body(draw, indent, depth)
    return lines + ([f"{indent}else:", *_body(draw, indent, depth)] if draw(st.booleans()) else [])


def _while(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    name = f"w{depth}"
    body = [f"{indent}    {name} += 1", *_body(draw, indent, depth)]
    return [f"{indent}{name} = 0", f"{indent}while {name} < 2 and {_condition(draw)}:", *body]


def _try(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    raising = f"{indent}    " + _filled(draw, draw(st.sampled_from(RAISES)))
    lines = [f"{indent}try:", *_body(draw, indent, depth), raising]
    lines += [indent + draw(st.sampled_from(HANDLERS)), f"{indent}    seen.append(repr(e))", *_body(draw, indent, depth)]
    if draw(st.booleans()):
        lines += [f"{indent}else:", *_body(draw, indent, depth)]
    return lines + ([f"{indent}finally:", *_body(draw, indent, depth)] if draw(st.booleans()) else [])


def _with(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    lines = [f"{indent}with {_filled(draw, draw(st.sampled_from(CONTEXTS)))}:", *_body(draw, indent, depth)]
    return lines + ([f"{indent}    " + _filled(draw, draw(st.sampled_from(RAISES)))] if draw(st.integers(0, 3)) == 0 else [])


def _match(draw: Callable[..., Any], indent: str, depth: int) -> list[str]:
    subject = draw(st.sampled_from(("i", "items", "table", "(j, k)", "str(i)")))
    lines = [f"{indent}match {subject}:"]
    for case in draw(st.lists(st.sampled_from(CASES), min_size=1, max_size=3, unique=True)):
        lines += [f"{indent}    {case}", *_body(draw, indent + "    ", depth)]
    return lines


_COMPOUND = {"if": _if, "for": _for, "while": _while, "try": _try, "with": _with, "match": _match}


# --- running ----------------------------------------------------------------------------------------------------------

EDITS = (
    "pass",
    "box.n = 5",
    "SCALE = SCALE + 1",
    "SETTINGS['bias'] = 3.0",
    "net.lin.weight.data.mul_(2)",
    "net.train(not net.training)",
    "net.stack[0] = nn.Linear(3, 3, bias=False); nn.init.ones_(net.stack[0].weight)",
    "Box.kind = 'other'",
    "box.z = 9",
    "bag.clear()",
    "decide = lambda a: a * 3",
    "Child.bump = Box.bump",
    "helper.__kwdefaults__['k'] = 5",
    "box = Child()",
    "net.forward = lambda a: a + 9",
    "queue.clear()",
    "SETTINGS['mode'] = 'b'",
    "net.lin.register_forward_hook(lambda m, a, o: o * 2)",
    "tally['c'] += 1",
    "child.n = 0",
)


SIZES = ((3, 3, 3, 3), (3, 5, 4, 6))


def arguments(call: int, sizes: tuple[int, ...] = SIZES[0]) -> tuple[Any, ...]:
    """Fresh arguments of the given call: values, aliasing, sizes and containers differ from call to call."""
    x = torch.arange(float(sizes[call])) * (-1 if call == 1 else 1)
    y = x if call == 3 else torch.ones(sizes[call])
    return x, y, (2, 2, 3, 2)[call], [1, 2][: call % 3], {} if call == 3 else {"a": 1, "b": call // 2}


def world(source: str) -> dict[str, Any]:
    """A fresh namespace in which the program is defined."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    namespace: dict[str, Any] = {"__name__": "generated"}
    exec(compile(PRELUDE, "<prelude>", "exec", dont_inherit=True), namespace)
    exec(compile(source, FILE, "exec", dont_inherit=True), namespace)
    return namespace


def observe(namespace: dict[str, Any], fn: Callable[..., Any], call: int, sizes: tuple[int, ...] = SIZES[0]) -> Any:
    """The result or the exception (type, text, line), what was printed, the arguments afterwards, and the world's state."""
    out, args = io.StringIO(), arguments(call, sizes)
    torch.manual_seed(call)
    try:
        with contextlib.redirect_stdout(out):
            result = _plain(fn(*args))
    except Exception as e:
        lines = [s.lineno for s in traceback.extract_tb(e.__traceback__) if s.filename == FILE]
        result = ("raised", type(e).__name__, str(e), lines[-1:])
    names = ("box", "child", "SCALE", "SETTINGS", "LOG", "bag", "queue", "tally", "net")
    return result, out.getvalue(), _plain(list(args)), {n: _plain(namespace[n]) for n in names}, torch.is_grad_enabled()


def _plain(v: Any) -> Any:
    if isinstance(v, torch.nn.Module):
        return type(v).__name__, v.training, v.calls, _plain(dict(v.state_dict()))
    if isinstance(v, torch.Tensor):
        return "tensor", str(v.dtype), tuple(v.shape), v.stride(), v.requires_grad, v.detach().flatten().tolist()
    if isinstance(v, dict):
        return type(v).__name__, {k: _plain(x) for k, x in v.items()}
    if isinstance(v, set):
        return "set", sorted(map(repr, v))
    if isinstance(v, (list, tuple)) or type(v).__name__ == "deque":
        return type(v).__name__, [_plain(x) for x in v]
    if type(v).__name__ in ("Box", "Child") or (hasattr(v, "__dict__") and not callable(v)):
        return type(v).__name__, _plain(vars(v))
    return repr(v)


def alike(a: Any, b: Any) -> bool:
    """Equal, floats within rounding of float32."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 2e-3 * max(1.0, abs(a))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b
