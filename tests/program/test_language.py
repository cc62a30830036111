"""Python's constructs, each in a small function with a tensor in it: interpreted and compiled, they do what CPython does.

Syntax that the running Python lacks is left out: the sources are texts.
"""

import contextlib
import dataclasses
import io
import os
import re
import sys
import types

import pytest
import torch

import tilewright as tw
from tilewright.program import glue, opcodes, units

PLACES = int(os.environ.get("TW_TEST_PLACES", "5"))  # instructions of each program at which the graph is made to break

# `# name [from 3.12] [breaks]`: a function f(x) follows. "breaks": the construct ends the graph or runs in eager by design.
PROGRAMS = '''
# if_elif_else
def f(x):
    out = []
    for k in (1, 2, 3):
        if k == 1: out.append(x + k)
        elif k == 2: out.append(x - k)
        else: out.append(x * k)
    return out
# while_else_break_continue
def f(x):
    n, log = 0, []
    while n < 5:
        n += 1
        if n == 2: continue
        if n == 4: break
        log.append(x * n)
    else:
        log.append("never")
    while n: n -= 1
    else: log.append("else")
    for i in range(3):
        if i == 7: break
    else:
        log.append(i)
    for i in []: pass
    else: log.append("empty")
    return log
# nested_loops
def f(x):
    for i in range(3):
        for j in range(i):
            if j == 1: continue
            x = x + i * j
            for k in "ab":
                if k == "b": break
                x = x * 2
    return x
# chained_comparisons
def f(x):
    a, b, c = 1, 2, 3
    return x + (a < b < c), a < b > c, a == a != b <= c, not a < b, 1 < x.dim() < 3, a < b < c < 0 or x
# boolean_operators
def f(x):
    return x and 1 if x.dim() == 9 else x, (0 or "" or x), (1 and [] and x), not (1 and 0), None or x
# conditional_expression
def f(x):
    return (x if x.dim() else -x) + (1 if not x.dim() else 2)
# walrus
def f(x):
    if (n := x.dim()) and (y := x * n) is not x:
        return [z := y + 1, z * 2, n, [w := i for i in range(3)], w]
# star_expressions
def f(x):
    a, *b = [1, 2, 3]
    *c, d = (4, 5)
    e, *g, h = "xyz"
    (i, *j), k = (range(3), x)
    return [*b, *c, *g, *"hi"], (a, *b, d), {*b, e, h}, {**{"a": 1}, "b": k, **{"c": 3}}, i, j
# slices
def f(x):
    a = list(range(10))
    a[2:4] = [0]
    a[::3] = "abc"
    del a[1:3], a[-1]
    s = slice(1, None)
    y = x.clone()
    y[1:] = 0
    y[:1] += 2
    return a[:], a[1:-1], a[::-2], x[1:], x[:-1], x[None, 1:], a[s], x[s], y
# augmented_assignments
def f(x):
    class O: pass
    o, d, a = O(), {"k": [1]}, [1, 2]
    o.v = 1
    o.v += 2; o.v *= 3; o.v -= 1; o.v //= 2; o.v **= 2; o.v %= 10; o.v <<= 2; o.v >>= 1; o.v |= 1; o.v &= 7; o.v ^= 2
    d["k"] += [2]; a[0] += 5; a += (9,)
    x = x + 0
    x += 1; x *= 2; x -= 3; x /= 4
    d["x"] = x
    d["x"] += 1
    m = torch.eye(2); m @= m
    return o.v, d, a, x, m
# unary
def f(x):
    return -x, +x, ~torch.tensor([1, 2]), not 1, -3, +True, ~5
# del
def f(x):
    a = {"k": 1, "l": 2}
    del a["k"]
    b = x
    del b
    try: b
    except UnboundLocalError as e: s = str(e)
    class O: pass
    o = O(); o.z = 1
    del o.z
    def g():
        c = 1
        def h(): return c
        del c
        try: return h()
        except NameError as e: return type(e).__name__, str(e)
    def k():
        c = 1
        del c
        def h(): return c
        try: return c
        except NameError as e: return type(e).__name__, str(e)
    return a, x + 1, s, hasattr(o, "z"), g(), k()
# global_variables
def f(x):
    global SCALE, MADE
    SCALE = SCALE + 1
    MADE = 5
    r = x * SCALE + MADE
    del MADE
    try: MADE
    except NameError as e: return r, str(e)
# nonlocal
def f(x):
    n = 0
    def up(k):
        nonlocal n, x
        n += k
        x = x + n
        return n
    return up(1), up(2), n, x
# closures_nested
def f(x):
    def a(k):
        def b(m):
            def c(): return x * k + m
            return c
        return b
    fs = [lambda v, i=i: v * i for i in range(3)]
    gs = [lambda: i for i in range(3)]
    return a(2)(3)(), [g(x) for g in fs], [g() for g in gs]
# lambda_defaults
def f(x):
    g = lambda a, b=2, *c, d=3, **e: (a, b, c, d, e)
    return g(x), g(1, 3, 4, d=5, z=6), (lambda: x)()
# parameters
def f(x):
    def g(a, b, /, c, d=4, *rest, e, h=6, **more): return a, b, c, d, rest, e, h, more
    def bad(*a, **k):
        try: return g(*a, **k)
        except TypeError: return "TypeError"
    def merged():
        try: return g(*args, **kw, c=1)
        except TypeError as e: return "multiple values" in str(e)
    def missing():
        try: return g(1, 2, **5)
        except TypeError as e: return "mapping" in str(e)
    args, kw = [1, 2], {"e": x, "c": 3}
    return (g(1, 2, 3, e=5), g(*args, **kw), g(*args, 3, *"yz", **kw | {"c": 1} if 0 else {"e": 1}), g(1, 2, c=3, e=5, a=9),
            bad(1), bad(1, 2, 3), bad(1, 2, 3, e=1, c=2), merged(), missing())
# decorators
def f(x):
    def twice(g): return lambda *a: g(*a) * 2
    def scaled(k):
        def wrap(g):
            def run(*a, **kw): return g(*a, **kw) * k
            return run
        return wrap
    @twice
    @scaled(3)
    def g(v): return v + 1
    return g(x)
# comprehensions
def f(x):
    return ([x * i for i in range(4) if i % 2], {i: x + i for i in range(2)}, sorted({i % 2 for i in range(5)}),
            [(i, j) for i in range(3) for j in range(i) if i + j > 1], list(i * 2 for i in range(3)))
# comprehensions_nested_with_closures
def f(x):
    m = 3
    fs = [[lambda v: v * i + j + m for j in range(2)] for i in range(2)]
    i = "kept"
    t = [[y + len(r) for y in r] for r in [[x, x * 2], [x]]]
    z = [k for k in [q for q in range(3)] if (lambda: k > 0)()]
    return [g(x) for r in fs for g in r], i, t, z
# comprehension_shadows_variables
def f(x):
    i = 5
    r = [i for i in range(3)]
    def g():
        return i, [i for i in "ab"], x
    try:
        [undefined for q in range(1)]
        undefined = 1
    except UnboundLocalError as e: s = str(e)
    except NameError as e: s = "free" if "free" in str(e) else str(e)
    try: [1 // k for k in (1, 0)]
    except ZeroDivisionError: r.append(i)
    return r, i, g(), s == s, x + i
# fstrings
def f(x):
    w, v, o = 8, 3.14159, {"k": 1}
    return (f"{v:{w}.{2}f}|{v!r:>10}|{w=}|{w = :>4}|{o['k']}|{{}}|{x.dim()}{'a' 'b'!s}", f"{w:#x} {v:e} {'é'!a}",
            f"{x.shape}", "%s-%d" % ("a", 2), "{} {k:>3}".format(1, k=2), x)
# try_except_else_finally
def f(x):
    log = []
    def g(k):
        try:
            log.append("try")
            if k == 1: raise KeyError("k")
            if k == 2: {}[0].z
            if k == 3: raise ValueError
            if k == 4: return "returned"
        except (KeyError, IndexError) as e: log.append(repr(e))
        except ValueError: log.append("value")
        else: log.append("else")
        finally: log.append("finally")
        return x * k
    return [g(k) for k in (0, 1, 3, 4)], log
# finally_paths
def f(x):
    log = []
    def returns():
        for i in range(3):
            try:
                if i == 1: return x + i
            finally: log.append(i)
    def continues():
        n = 0
        for i in range(4):
            try:
                if i % 2: continue
                if i == 3: break
                n += i
            finally: n += 10
        return n
    def nested():
        try:
            try: 1 / 0
            finally: log.append("inner")
        except ZeroDivisionError as e:
            log.append(str(e))
            try: raise ValueError("second") from e
            except ValueError as g: return type(g.__cause__).__name__, type(g.__context__).__name__, g.__suppress_context__
    return returns(), continues(), nested(), log
# return_in_finally
def f(x):
    def g():
        try: raise ValueError("lost")
        finally: return x + 1
    def h():
        while True:
            try: 1 / 0
            finally: break
        return "broken out"
    return g(), h()
# exception_variables
def f(x):
    try: raise ValueError("a", 1)
    except ValueError as e: args = e.args
    try: e
    except UnboundLocalError: gone = True
    return args, gone, x + 1
# reraise_and_context
def f(x):
    def a():
        try: raise KeyError(1)
        except KeyError:
            try: raise TypeError("t")
            except TypeError as e: first = type(e.__context__).__name__
            try: raise
            except KeyError as k: return first, k.args
    def b():
        try:
            try: raise ValueError("x")
            except ValueError as e: raise RuntimeError("y") from None
        except RuntimeError as e: return e.__cause__, e.__suppress_context__, type(e.__context__).__name__
    def c():
        try: raise
        except RuntimeError as e: return str(e)
    def d():
        try: raise int
        except TypeError as e: return str(e)
    def g():
        try:
            try: 1 / 0
            except 5: pass
        except TypeError as e: return str(e)
    return a(), b(), c(), d(), g(), x * 2
# base_exceptions_caught
def f(x):
    log = []
    try:
        try: raise KeyboardInterrupt("k")
        except Exception: log.append("wrong")
        finally: log.append("finally")
    except BaseException as e: log.append(repr(e))
    try: raise SystemExit(3)
    except SystemExit as e: log.append(e.code)
    return x + 1, log
# except_star
def f(x):
    log = []
    def run(e, again=False):
        try:
            try: raise e
            except* ValueError as g:
                log.append(("value", [str(v) for v in g.exceptions]))
                if again: raise
            except* (TypeError, KeyError) as g:
                log.append(("type", len(g.exceptions)))
                if again: raise RuntimeError("new")
            else: log.append("else")
            finally: log.append("finally")
        except BaseException as out:
            def shape(v): return (type(v).__name__, [shape(w) for w in v.exceptions]) if hasattr(v, "exceptions") else repr(v)
            return shape(out)
        return "done"
    G = ExceptionGroup
    return (x + 1, run(G("g", [ValueError(1), TypeError(2)])), run(G("g", [ValueError(1), G("h", [OSError(3), KeyError(4)])])),
            run(ValueError("bare")), run(OSError("o")), run(G("g", [ValueError(1), TypeError(2), OSError(3)]), True), log)
# with_items
def f(x):
    log = []
    class C:
        def __init__(self, n, swallow=False): self.n, self.swallow = n, swallow
        def __enter__(self): log.append("+" + self.n); return self.n
        def __exit__(self, kind, value, traceback): log.append(("-" + self.n, kind and kind.__name__)); return self.swallow
    with C("a") as a, C("b") as (b), C("c"):
        log.append(a + b)
    with (C("d", True) as d, C("e")):
        raise ValueError("in")
    def g():
        with C("r"): return x * 2
    for i in range(3):
        with C("l"):
            if i == 0: continue
            break
    try:
        with 5: pass
    except TypeError as e: log.append("TypeError")
    with torch.no_grad(), C("t") as t: y = x + 1
    return g(), log, d, y
# contextmanager
def f(x):
    log = []
    @contextlib.contextmanager
    def c(k):
        try: yield x * k
        except KeyError: log.append("swallowed")
        finally: log.append(k)
    with c(1) as a: pass
    with c(2) as b: {}["z"]
    with contextlib.suppress(ZeroDivisionError): 1 / 0
    with contextlib.ExitStack() as s:
        s.enter_context(c(3)); s.callback(log.append, "back")
    return a, b, log
# generators
def f(x):
    log = []
    def g(n):
        try:
            for i in range(n):
                got = yield x * i
                if got: log.append(got)
        finally: log.append("closed")
        return "result"
    it = g(5)
    first = next(it)
    second = it.send("hello")
    it.close()
    try: next(it)
    except StopIteration: log.append("stopped")
    a = list(g(2))
    for v in g(3): break
    log.append("after break")
    r = next(g(0), "default")
    return first, second, a, r, log, list(zip(g(2), "ab")), sum(i for i in range(4)), dict((k, x) for k in "ab")
# generator_throw
def f(x):
    log = []
    def g():
        while True:
            try: yield x
            except ValueError as e: log.append(str(e)); yield "caught"
            except GeneratorExit: log.append("exit"); raise
    it = g()
    next(it)
    a = it.throw(ValueError("v"))
    it.close()
    def stubborn():
        try: yield 1
        except GeneratorExit: yield 2
    s = stubborn(); next(s)
    try: s.close()
    except RuntimeError as e: log.append(str(e))
    def raises():
        yield 1
        raise StopIteration("inside")
    try: list(raises())
    except RuntimeError as e: log.append((str(e), type(e.__cause__).__name__))
    n = raises()
    try: n.send(1)
    except TypeError as e: log.append(str(e))
    try: n.throw(KeyError("early"))
    except KeyError as e: log.append(repr(e))
    return a, log, x + 1
# generator_in_handler
def f(x):
    log = []
    def g():
        try: 1 / 0
        except ZeroDivisionError:
            yield 1
            log.append(type(sys.exc_info()[1]).__name__)
            yield 2
    it = g()
    next(it)
    log.append(sys.exc_info()[1])
    try: raise KeyError
    except KeyError:
        next(it)
        log.append(type(sys.exc_info()[1]).__name__)
    try: raise
    except RuntimeError as e: log.append(str(e))
    it.close()
    return x * 2, log
# yield_from
def f(x):
    log = []
    def inner():
        try:
            a = yield x
            log.append(a)
            b = yield x + 1
        except KeyError as e: log.append("inner " + repr(e)); return "from handler"
        finally: log.append("inner finally")
        return b
    def outer():
        r = yield from inner()
        log.append(("result", r))
        r = yield from [1, 2]
        log.append(r)
        return (yield from (i for i in range(2)))
    it = outer()
    p = [next(it), it.send("s")]
    p.append(it.send("t"))
    p += list(it)
    it = outer(); next(it)
    p.append(it.throw(KeyError("k")))
    try: it.throw(ValueError("v"))
    except ValueError as e: log.append(repr(e))
    it = outer(); next(it); it.close()
    return p, log
# generator_recursion
def f(x):
    def walk(t):
        if isinstance(t, list):
            for v in t: yield from walk(v)
        else: yield x + t
    return list(walk([1, [2, [3, [4]]], 5]))
# classes
def f(x):
    class A:
        k: int = 2
        names = [n for n in "ab"]
        def __init__(self, v): self.v = v
        def get(self): return self.v * self.k
        @property
        def two(self): return 2
        @two.setter
        def two(self, v): self.v = v
        @staticmethod
        def s(a): return a + 1
        @classmethod
        def make(cls, v): return cls(v)
        def __getitem__(self, i): return self.v[i]
        def __len__(self): return 3
        def __eq__(self, o): return self.v is o.v
        def __hash__(self): return 7
    class B(A):
        k = 3
        def get(self): return super().get() + super(B, self).two
        @classmethod
        def make(cls, v): return super().make(v + 1)
        def __getattr__(self, name): return name.upper()
    b = B.make(x)
    b.two = x * 5
    return b.get(), b.s(1), b.missing, b[0], len(b), b == b, A.__annotations__, B.names, isinstance(b, A), B.__name__, {b: 1}[b]
# class_scopes
def f(x):
    n = 4
    class A:
        m = n
        o = [n for _ in range(2)]
        try: zz = undefined
        except NameError: zz = "NameError"
        del m
        class Inner:
            p = n
            def q(self): return n, __class__.__name__
    return A.o, hasattr(A, "m"), A.zz, A.Inner.p, A.Inner().q(), x + 1
# metaclass_and_keywords
def f(x):
    class Meta(type):
        def __new__(meta, name, bases, ns, tag=None):
            cls = super().__new__(meta, name, bases, ns)
            cls.tag = tag
            return cls
        def __init__(cls, name, bases, ns, tag=None): super().__init__(name, bases, ns)
    class A(metaclass=Meta, tag="t"): pass
    class Base:
        subs = []
        def __init_subclass__(cls, **kw): cls.kw = kw
    class C(Base, z=1): pass
    return A.tag, C.kw, x + 1
# descriptors_and_slots
def f(x):
    class D:
        def __set_name__(self, owner, name): self.name = name
        def __get__(self, o, cls): return self if o is None else o.__dict__.get(self.name, 0)
        def __set__(self, o, v): o.__dict__[self.name] = v
    class A:
        d = D()
    class S:
        __slots__ = ("a", "b")
        def __init__(self): self.a = x
    a, s = A(), S()
    a.d = 5
    s.b = 1
    return a.d, A.d.name, s.a, s.b, hasattr(s, "c")
# operators_overloaded
def f(x):
    class V:
        def __init__(self, v): self.v = v
        def __add__(self, o): return V(self.v + (o.v if isinstance(o, V) else o))
        __radd__ = __add__
        def __iadd__(self, o): self.v = self.v + 1; return self
        def __neg__(self): return V(-self.v)
        def __matmul__(self, o): return "mm"
        def __lt__(self, o): return NotImplemented
        def __gt__(self, o): return True
        def __contains__(self, o): return o == 3
        def __bool__(self): return False
        def __call__(self, *a, **k): return a, k
        def __iter__(self): return iter([1, 2])
        def __format__(self, spec): return "<" + spec + ">"
        def __index__(self): return 1
        def __enter__(self): return self
        def __exit__(self, *a): return True
    v = V(x)
    w = v + v + 1
    u = 1 + v
    u += 5
    return (w.v, u.v, (-v).v, v @ 1, v < V(1), 3 in v, 4 not in v, not v, v(1, k=2), [*v],
            f"{v:>4}", [5, 6][v], (lambda a, b: b)(*v))
# dataclass_in_function
def f(x):
    @dataclasses.dataclass(order=True)
    class P:
        a: int
        b: list = dataclasses.field(default_factory=list)
    p = P(1, [x.dim()])
    return p.a, p.b, P(1) < P(2), P(1) == P(1, []), x + p.a
# local_class_at_a_break [breaks]
def f(x):
    @dataclasses.dataclass
    class P:
        a: int
    print("broken")
    return P(x).a + 1, repr(P(1))
# local_class_returned [breaks]
def f(x):
    class A:
        n = []
        def __init__(self): self.v = x
    A.n.append(1)
    a = A()
    return a.v, len(A.n), type(a).__name__, a
# match_values
def f(x):
    import enum
    class Color(enum.Enum):
        RED = 1
    class P:
        __match_args__ = ("a", "b")
        def __init__(self, a, b): self.a, self.b = a, b
    def kind(v):
        match v:
            case None: return "none"
            case True: return "true"
            case Color.RED: return "red"
            case 0 | 1: return "bit"
            case -1.5: return "negative"
            case "s": return "str"
            case [] : return "empty"
            case [1, *rest] if len(rest) > 2: return "long", rest
            case [a, (b, *_)]: return "nested", a, b
            case {"k": k, "l": [_, m], **rest}: return "map", k, m, rest
            case {"only": str() as s}: return "text", s
            case P(0, b=q): return "P0", q
            case P(a=int(z)): return "P", z
            case P(): return "any P"
            case float(n) | complex(n): return "number", n
            case (int() | str()) as w: return "w", w
            case _: return "other"
    values = [None, True, Color.RED, 0, -1.5, "s", [], [1, 2, 3, 4], [1, [2, 3]], (5, (6,)), {"k": 1, "l": [0, 2], "z": 3},
              {"only": "t"}, {"only": 1}, P(0, 1), P(2, 3), P("a", 1), 2.5, 7, "abc", [9]]
    return [kind(v) for v in values], kind([1, [x]]), kind({"k": x, "l": [0, x]})
# match_errors
def f(x):
    class P: __match_args__ = ("a",)
    def g(v):
        try:
            match v:
                case P(1, 2): return 1
        except TypeError as e: return str(e)
    def h(v):
        try:
            match v:
                case int(1, 2): return 1
        except TypeError as e: return str(e)
    class MyInt(int): pass
    match MyInt(4):
        case MyInt(n): r = n + 0
    return g(P()), h(3), r, x + 1
# imports_inside
def f(x):
    import math
    import os, os.path as p, collections.abc
    from math import sqrt as root, pi
    from collections import OrderedDict, abc
    try: import no_such_module_anywhere
    except ImportError as e: missing = e.name
    try: from math import no_such_name
    except ImportError as e: name = "no_such_name" in str(e)
    return math.floor(pi), p is os.path, root(4) + x, collections.abc is abc, missing, name
# asserts
def f(x):
    assert x.dim() == 1, "one dimension"
    assert x is not None
    try: assert x.dim() == 2, f"dim {x.dim()}"
    except AssertionError as e: return str(e), x + 1
# constants_and_displays
def f(x):
    return (1, 2.5, 3j, b"b", "s", ..., None, True, (), [], {}, {1}, frozenset((1,)), {"a": [1, {"b": (2,)}]}, [1, 2, 3],
            {"x": 1, "y": 2}, x + 1)
# strings_and_bytes
def f(x):
    s = "a,b"
    return s.split(","), s[0], s * 2, "a" in s, s.upper() + "!", b"xy"[0], "".join(["p", "q"]), "%(k)s" % {"k": x.dim()}, x * 1
# unpacking_errors
def f(x):
    out = []
    for v in ((1,), (1, 2, 3), 5):
        try: a, b = v
        except (ValueError, TypeError) as e: out.append(type(e).__name__)
    try: a, *b, c = [1]
    except ValueError as e: out.append(type(e).__name__)
    return out, x + 1
# swaps
def f(x):
    a, b = x, x * 2
    a, b = b, a
    a, b, c = b, a, 3
    l = [1, 2]
    l[0], l[1] = l[1], l[0]
    i = 0
    i, l[i] = 1, "q"
    p = q = [x]
    return a, b, c, l, p is q
# is_and_none_tests
def f(x):
    y = None
    if y is None: y = x
    if y is not None and y is x: z = 1
    w = None if y is None else y + z
    while y is not None: y = None
    return w, y is None, x is not x
# annotations_and_type_comments
def f(x: "torch.Tensor", *, k: int = 3) -> "tuple":
    y: int = 2
    z: "undefined"
    def g(a: int, *b: str, **c: float) -> None: return g.__annotations__
    return x * y * k, sorted(g(1))
# recursion_inside
def f(x):
    def fact(n): return 1 if n < 2 else n * fact(n - 1)
    return x * fact(5)
# builtins_over_interpreted
def f(x):
    return (sorted("bca", key=lambda c: -ord(c)), list(map(lambda v: v * 2, [1, 2])), list(filter(None, [0, 1])),
            max([1, 3], key=lambda v: -v),
            any(v > 1 for v in [1, 2]), all([]), list(enumerate("ab", 1)), list(reversed([1, 2])), [*zip([1], [x])], divmod(7, 2),
            sum([x, x]), round(2.567, 2), abs(-3), min(2, 1), isinstance(x, torch.Tensor), callable(f),
            getattr(x, "nope", 5), len("abc"))
# many_locals
def f(x):
    %MANY%
    return x + v299
# large_jumps
def f(x):
    n = 0
    for i in range(2):
        %LARGE%
    return x + n
# async_function [breaks]
def f(x):
    async def g(): return x
    c = g()
    c.close()
    return x + 1
# locals_call [breaks]
def f(x):
    y = 2
    return sorted(locals()), x + y
# locals_in_comprehension [breaks]
def f(x):
    y = 2
    return [sorted(k for k in locals() if k in ("x", "y", "i")) for i in range(1)], x + y
# star_subscript
def f(x):
    class G:
        def __getitem__(self, k): return k
        def __class_getitem__(cls, k): return k
    a = (1, 2)
    return G()[*a, 3], G[int, *a], G()[1:2, ...], x[0:1, ...]
# type_parameters_of_functions [from 3.12]
def f(x):
    def g[T, *Ts, **P](a: T, b: int = 2) -> T: return a * b
    def bound[S: int, U: (str, bytes)](s: S): return S.__bound__, U.__constraints__
    return g(x), [t.__name__ for t in g.__type_params__], bound(1)
# type_parameters_of_classes [from 3.12]
def f(x):
    class A[T]:
        v: T
        def get[U](self, u: U): return T.__name__, U.__name__, x + 1
    class B[T: int](A[T]): pass
    return A().get(1), [t.__name__ for t in A.__type_params__], B.__orig_bases__[0].__origin__ is A, A[int].__args__
# type_aliases [from 3.12]
def f(x):
    type Pair[T] = tuple[T, T]
    type Simple = int
    return Pair.__name__, Simple.__value__, Pair.__type_params__[0].__name__, x + 1
# nested_fstrings [from 3.12]
def f(x):
    k = {"a": 1}
    return f"{f"{k["a"]:>{2 + 1}}"} {'\\n'.join(["p", "q"])}", x + 1
# type_parameter_defaults [from 3.13]
def f(x):
    def g[T = int, *Ts = *tuple[int, str], **P = [int]](a: T): return T.__default__
    return g(x), x + 1
'''


def programs():
    many = "\n    ".join(f"v{n} = x * {n}" if n % 100 == 99 else f"v{n} = {n}" for n in range(300))
    large = "\n        ".join(f"if n == {n * 7 + 1000}: n = n + {n + 500}" for n in range(120))
    text = PROGRAMS.replace("%MANY%", many).replace("%LARGE%", large)
    for part in re.split(r"^# ", text, flags=re.M)[1:]:
        head, _, source = part.partition("\n")
        name, notes = head.split()[0], head
        since = re.search(r"from 3\.(\d+)", notes)
        yield name, source, (3, int(since[1])) if since else (3, 11), "[breaks]" in notes


CASES = [pytest.param(s, b, id=n) for n, s, since, b in programs() if sys.version_info >= since]


def made(source: str) -> types.FunctionType:
    namespace = {
        "torch": torch, "contextlib": contextlib, "dataclasses": dataclasses, "sys": sys, "SCALE": 2.0, "__name__": __name__,
    }  # fmt: skip
    exec(compile(source, "<language>", "exec", dont_inherit=True), namespace)
    return namespace["f"]


def plain(v, depth=0):
    if isinstance(v, torch.Tensor):
        return "tensor", v.dtype, tuple(v.shape), [round(n, 4) for n in v.double().flatten().tolist()]
    if isinstance(v, dict):
        return type(v).__name__, [(plain(k), plain(x)) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return type(v).__name__, [plain(x) for x in v]
    if isinstance(v, (set, frozenset)):
        return type(v).__name__, sorted(map(repr, map(plain, v)))
    return type(v).__name__, re.sub(r"0x[0-9a-f]+", "", repr(v))


def outcome(f, x):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            return plain(f(x)), out.getvalue(), plain(x)
    except Exception as e:
        return type(e), str(e), out.getvalue(), plain(x)


@pytest.mark.parametrize(("source", "breaks"), CASES)
def test_construct(source, breaks):
    eager, fast = made(source), tw.compile(made(source))
    with torch.no_grad():
        for _ in range(3):
            want, got = outcome(eager, torch.arange(1.0, 4.0)), outcome(fast, torch.arange(1.0, 4.0))
            assert got == want
    assert not isinstance(want[0], type), want  # the program itself is right
    if not breaks:
        assert (fast.stats.graph_breaks, fast.stats.compiles > 0) == (0, True), fast.program.breaks
        assert fast.stats.eager_calls <= 1  # an import is left to eager once


def broken_at(at):
    """As `units._piece`, with a break before the at-th instruction that is executed; the rest is left whole."""
    first, piece = [True], units._piece

    def broken(program, capture):
        stop, first[0] = (at if first[0] else -1), False
        return piece(program, lambda count: capture(stop if count < 0 else count))

    return broken


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize(("source", "breaks"), CASES)
def test_a_break_anywhere(source, breaks, interpreted, monkeypatch):
    """What follows a break runs as glue and a piece of its own, or all of it without the interpreter."""
    want = outcome(made(source), torch.arange(1.0, 4.0))
    count = len(opcodes.decode(made(source).__code__).instructions)
    if not interpreted:
        monkeypatch.setattr(glue, "_one_instruction", lambda *a: None)
    for at in range(1, count, max(1, count // PLACES)):
        fast = tw.compile(made(source))
        with monkeypatch.context() as m, torch.no_grad():
            m.setattr(units, "_piece", broken_at(at))
            assert outcome(fast, torch.arange(1.0, 4.0)) == want, at
