"""Matrix products with prepacked weights: the generated micro-kernels in the loops that a lowering writes, against F.linear.

    python -m bench.gemm [--threads 1 2] [--rows 1 128 ...] [--weights 3072x768 ...] [--seconds S] [--variants]

A grid over panels of the weight runs on the threads of torch's OpenMP pool. A block multiplies `block` rows into an
accumulator block, then adds the bias on the way to the result. `--variants` compares tile and block sizes. Candidates take
turns; printed are the best GFLOP/s of each and the median of its speed over F.linear's in the same turn.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import linear

from tilewright.base import dtypes
from tilewright.targets.cpu import compile as cpu
from tilewright.targets.cpu import llvm
from tilewright.targets.cpu.gemm import GemmOperand, emit_gemm, tiles
from tilewright.targets.cpu.isa import Isa, selected_isa

WEIGHTS = ["768x768", "3072x768", "768x3072", "2304x768", "512x128", "50257x768"]
ROWS = [1, 4, 16, 128, 197, 512]


@dataclass(frozen=True)
class Plan:
    """`block` rows share an accumulator block, `outer` rows share a pass over the panels, `depth` of k one call."""

    block: int = 170
    outer: int = 170
    depth: int = 1024
    mr: int = 0  # 0: the instruction set's
    pad: bool = True  # rows of a are padded where they are a multiple of 1 KB apart


VARIANTS = {
    "13 rows": Plan(mr=13), "12 rows": Plan(mr=12), "block 28": Plan(block=28), "block 28, outer all": Plan(28, 1 << 30),
    "block 56, outer all": Plan(56, 1 << 30), "outer all": Plan(1 << 30, 1 << 30), "outer 85": Plan(85, 85),
    "all of k": Plan(depth=1 << 30), "depth 384": Plan(depth=384), "no padding": Plan(pad=False),
}  # fmt: skip


def aligned(*shape: int) -> torch.Tensor:
    size = 1
    for n in shape:
        size *= n
    room = torch.zeros(size + 16)
    start = -room.data_ptr() % 64 // 4
    return room[start : start + size].view(shape)


def write_part(module: llvm.Module, isa: Isa, m: int, n: int, k: int, row: int, plan: Plan) -> None:
    """void part(a, b, c, bias, scratch, from, to): panels from..to of the product."""
    f = llvm.Function(module, "part", ["ptr %a", "ptr %b", "ptr %c", "ptr %bias", "ptr %scratch", "i64 %from", "i64 %to"])
    nr = isa.nr

    def block(panel: str, first: int | str, rows: int) -> None:
        weight = f.at("%b", f.index("mul", panel, k * nr), "float")
        for start in range(0, k, plan.depth):
            depth = min(plan.depth, k - start)
            a = GemmOperand(f.at("%a", f.index("add", f.index("mul", first, row), start), "float"), row, 1, dtypes.f32)
            b = GemmOperand(f.at(weight, start * nr, "float"), nr, 1, dtypes.f32, padded=True)
            emit_gemm(f, isa, a, b, GemmOperand("%scratch", nr, 1, dtypes.f32), rows, nr, depth, start == 0)
        epilogue(panel, first, rows)

    def epilogue(panel: str, first: int | str, rows: int) -> None:
        v = llvm.vector(isa.lanes, "float")
        column = f.index("mul", panel, nr)
        bias = [
            f.let(f"load {v}, ptr {f.at(f.at('%bias', column, 'float'), c, 'float')}, align 4") for c in range(0, nr, isa.lanes)
        ]
        result = f.at(f.at("%c", f.index("mul", first, n), "float"), column, "float")

        def line(i: str) -> None:
            source, target = (f.at(p, f.index("mul", i, step), "float") for p, step in (("%scratch", nr), (result, n)))
            for c, x in enumerate(bias):
                y = f.let(f"load {v}, ptr {f.at(source, c * isa.lanes, 'float')}, align 4")
                f.do(f"store {v} {f.let(f'fadd {v} {x}, {y}')}, ptr {f.at(target, c * isa.lanes, 'float')}, align 4")

        f.loop(0, rows, 1, line)

    def nest(first: int | str, rows: int, limit: int, body: Callable[[int | str, int], None]) -> None:
        for size, times in tiles(rows, limit):
            f.loop(0, times, 1, lambda t, at=first, size=size: body(f.index("add", f.index("mul", t, size), at), size))  # type: ignore[misc]
            first = f.index("add", first, size * times)

    def panels(first: int | str, rows: int) -> None:
        f.loop("%from", "%to", 1, lambda p: nest(first, rows, plan.block, lambda at, size: block(p, at, size)))

    nest(0, m, plan.outer, panels)
    f.close()


def write_work(module: llvm.Module, panels: int, scratch: int) -> None:
    """void run(arguments, threads): `part` on each thread's share of the panels, with its own scratch."""
    f = llvm.Function(module, "work", ["ptr %arguments"])
    numbers = [f.call("i32", name, [], []) for name in ("omp_get_thread_num", "omp_get_num_threads")]
    thread, threads = (f.let(f"zext i32 {number} to i64") for number in numbers)
    ends = [f.let(f"udiv i64 {f.index('mul', t, panels)}, {threads}") for t in (thread, f.index("add", thread, 1))]
    pointers = [f.let(f"load ptr, ptr {f.at('%arguments', i, 'ptr')}") for i in range(5)]
    pointers[4] = f.at(pointers[4], f.index("mul", thread, scratch), "float")
    f.do(f"call void @part({', '.join(f'ptr {p}' for p in pointers)}, {', '.join(f'i64 {e}' for e in ends)})")
    f.close()
    f = llvm.Function(module, "run", ["ptr %arguments", "i32 %threads"])
    f.call("void", "GOMP_parallel", ["ptr", "ptr", "i32", "i32"], ["@work", "%arguments", "%threads", "0"])
    f.close()


def openmp() -> dict[str, int]:
    """The addresses of torch's OpenMP functions."""
    with open("/proc/self/maps") as f:
        path = next(line.split()[-1] for line in f if "libgomp" in line)
    library = ctypes.CDLL(path)
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names}


def prepared(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, plan: Plan, packed: dict[int, torch.Tensor]
) -> Callable[[], None]:
    """A call that computes x @ weight.T + bias by the plan; checked once."""
    (m, k), n = x.shape, weight.shape[0]
    isa = replace(selected_isa(), mr=plan.mr or selected_isa().mr)
    nr, panels = isa.nr, -(-n // isa.nr)
    row = k + 16 if plan.pad and k * 4 % 1024 == 0 and m > isa.mr else k
    a, c, shift = aligned(m, row), aligned(m, panels * nr), aligned(panels * nr)
    a[:, :k], shift[:n] = x, bias
    if nr not in packed:
        whole = torch.zeros(panels * nr, k)
        whole[:n] = weight
        packed[nr] = aligned(panels, k, nr)
        packed[nr].copy_(whole.view(panels, nr, k).transpose(1, 2))
    room = min(m, plan.block) * nr + 64
    scratch = aligned(torch.get_num_threads(), room)
    module = llvm.Module()
    write_part(module, isa, m, panels * nr, k, row, plan)
    write_work(module, panels, room)
    code = cpu.load([cpu.compile_module(module.text(isa.attributes), isa)], ["run"], openmp())
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(code["run"])
    tensors = (a, packed[nr], c, shift, scratch)
    arguments = (ctypes.c_void_p * 5)(*(t.data_ptr() for t in tensors))
    address, threads = ctypes.addressof(arguments), torch.get_num_threads()

    def call(_keep: object = (arguments, tensors)) -> None:
        run(address, threads)

    call()
    torch.testing.assert_close(c[:, :n], linear(x, weight, bias), rtol=1e-4, atol=1e-3)
    return call


def turns(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Seconds a call, one a turn, of each candidate; short calls are repeated within a turn."""
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(2e-3 / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(samples["F.linear"]) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.perf_counter() - start) / repeats[name])
    return samples


def measure(m: int, n: int, k: int, seconds: float, variants: bool) -> str:
    x, weight, bias = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)
    packed: dict[int, torch.Tensor] = {}
    calls: dict[str, Callable[[], object]] = {"F.linear": lambda: linear(x, weight, bias)}
    for name, plan in {"own": Plan(), **(VARIANTS if variants else {})}.items():
        calls[name] = prepared(x, weight, bias, plan, packed)
    samples = turns(calls, seconds)
    base, work = samples["F.linear"], 2e-9 * m * n * k
    cells = []
    for name, times in samples.items():
        ratio = statistics.median(b / t for b, t in zip(base, times, strict=True))
        cells.append(f"{name} {work / min(times):.0f} GF" + (f" {ratio:.2f}x" if name != "F.linear" else ""))
    return f"threads {torch.get_num_threads()}  {m} x {n} x {k}: " + " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, help="NxK")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--variants", action="store_true")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    for threads in options.threads:
        torch.set_num_threads(threads)
        for weight in options.weights:
            n, k = map(int, weight.split("x"))
            for m in options.rows:
                print(measure(m, n, k, options.seconds, options.variants), flush=True)


if __name__ == "__main__":
    main()
