"""Products of bf16 matrices in the tile registers of Intel's AMX: up to 32 x 32 of the accumulator at a time.

In: a tile's size, and the function being written. Out: an internal function a distinct size, and the data that configures
the tile registers. Must not know loops over tiles: `gemm` has them. b is in pairs, [k / 2][n][2].

A tile register holds 16 rows of 64 bytes. Four of them are accumulators, two hold 32 elements of k of a's rows, two of b's
columns. The process must have asked the kernel for the registers (`permitted`).
"""

from __future__ import annotations

import ctypes
import functools

from . import llvm

ROWS, COLUMNS, DEPTH = 32, 32, 32
"""Rows and columns of a tile of the accumulator, and elements of k in one step."""

_SYSCALL_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_TILE_DATA = 158, 0x1023, 18


@functools.cache
def permitted() -> bool:
    """Ask Linux for the tile registers, for all threads of this process. False where it does not give them."""
    try:
        return ctypes.CDLL(None).syscall(_SYSCALL_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_TILE_DATA) == 0
    except (AttributeError, OSError):
        return False


def tile_kernel(module: llvm.Module, rows: int, columns: int, fetch: int, configured: bool = False) -> str:
    """`void name(a, b, acc, next, steps, clear, a_row, b_row, acc_row)`: a tile over `steps` * DEPTH of k; strides in bytes.

    Each step fetches the next `fetch` bytes at `next` into the second-level cache. `configured`: the tile registers are.
    """
    name = f"amx_{rows}_{columns}_{fetch}" + "_configured" * configured
    if name in module.functions:
        return name
    params = ["ptr noalias readonly %a", "ptr noalias readonly %b", "ptr noalias %acc", "ptr %next", "i64 %steps", "i1 %clear"]
    f = llvm.Function(module, name, [*params, "i64 %a_row", "i64 %b_row", "i64 %acc_row"], internal=True)
    upper = range(2 if rows > 16 else 1)  # halves of the tile that exist
    left = range(2 if columns > 16 else 1)
    accumulators = {(r, c): 2 * r + c for r in upper for c in left}
    if not configured:
        configure(f, rows, columns)
    acc_half, a_half, b_step = (f.let(f"shl i64 %{x}, 4") for x in ("acc_row", "a_row", "b_row"))
    lower = f.at("%acc", acc_half, "i8")
    places = {(r, c): f.at(lower if r else "%acc", 64 * c, "i8") for r, c in accumulators}

    def zero() -> None:
        for t in accumulators.values():
            _do(f, "tilezero", t)

    def old() -> None:
        for at, t in accumulators.items():
            _move(f, "tileloadd64", t, places[at], "%acc_row")

    def step(i: str, a: str, b: str, ahead: str) -> list[str]:
        for line in range(0, fetch, 64):
            f.call("void", "llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"], [f.at(ahead, line, "i8"), "0", "2", "1"])
        for r in upper:
            _move(f, "tileloadd64", 4 + r, f.at(a, a_half, "i8") if r else a, "%a_row")
        for c in left:
            _move(f, "tileloadd64", 6 + c, f.at(b, 64 * c, "i8"), "%b_row")
        for (r, c), t in accumulators.items():
            _do(f, "tdpbf16ps", t, 4 + r, 6 + c)
        return [f.at(a, 2 * DEPTH, "i8"), f.at(b, b_step, "i8"), f.at(ahead, fetch, "i8")]

    f.when("%clear", zero, old)
    f.loop(0, "%steps", 1, step, [("ptr", "%a"), ("ptr", "%b"), ("ptr", "%next")])
    for at, t in accumulators.items():
        _move(f, "tilestored64", t, places[at], "%acc_row")
    f.close()
    return name


def rows_kernel(module: llvm.Module, columns: int) -> str:
    """`void name(a, b, acc, m, steps, clear, a_row, b_row, acc_row)`: as many tiles as m rows take; strides in bytes."""
    name = f"amx_rows_{columns}"
    if name in module.functions:
        return name
    numbers = [f"i64 %{x}" for x in ("m", "steps", "a_row", "b_row", "acc_row")]
    pointers = ["ptr noalias readonly %a", "ptr noalias readonly %b", "ptr noalias %acc"]
    f = llvm.Function(module, name, [*pointers, "i1 %clear", *numbers], internal=True)
    room = f.let("alloca [64 x i8], align 64")
    whole, rest = f.let(f"udiv i64 %m, {ROWS}"), f.let(f"urem i64 %m, {ROWS}")

    def tile(i: str, rows: int) -> None:
        a, acc = (f.at(f"%{x}", f.let(f"mul i64 {i}, %{x}_row"), "i8") for x in ("a", "acc"))
        strides = "i64 %a_row, i64 %b_row, i64 %acc_row"
        kernel = tile_kernel(module, rows, columns, 0, True)
        f.do(f"call void @{kernel}(ptr {a}, ptr %b, ptr {acc}, ptr null, i64 %steps, i1 %clear, {strides})")

    def full() -> None:
        configure(f, ROWS, columns)
        f.loop(0, whole, 1, lambda t: tile(f.let(f"mul i64 {t}, {ROWS}"), ROWS))

    def last(halves: int) -> None:
        """Fewer rows than a tile has: the registers of the last half are as high as there are rows."""
        template = _configuration(module, halves * ROWS // 2, columns)
        f.do(f"store <64 x i8> {f.let(f'load <64 x i8>, ptr {template}, align 64')}, ptr {room}, align 64")
        height = f.let(f"trunc i64 {f.let(f'sub i64 {rest}, {(halves - 1) * ROWS // 2}')} to i8")
        for t in (2 * halves - 2, 2 * halves - 1, 3 + halves):
            if t % 2 == 0 or columns > COLUMNS // 2 or t > 3:
                f.do(f"store i8 {height}, ptr {f.at(room, 48 + t, 'i8')}, align 1")
        f.call("void", "llvm.x86.ldtilecfg", ["ptr"], [room])
        tile(f.let(f"mul i64 {whole}, {ROWS}"), halves * ROWS // 2)

    f.when(f.let(f"icmp sgt i64 {whole}, 0"), full)
    some = f.let(f"icmp sgt i64 {rest}, 0")
    both = f.let(f"icmp sgt i64 {rest}, {ROWS // 2}")
    f.when(some, lambda: f.when(both, lambda: last(2), lambda: last(1)))
    f.close()
    return name


def configure(f: llvm.Function, rows: int, columns: int) -> None:
    """Set the tile registers up for tiles of this size."""
    f.call("void", "llvm.x86.ldtilecfg", ["ptr"], [_configuration(f.module, rows, columns)])


def release(f: llvm.Function) -> None:
    """Give the tile registers back to their initial state, which context switches need not save."""
    _do(f, "tilerelease")


def _configuration(module: llvm.Module, rows: int, columns: int) -> str:
    """A global's name: rows and bytes a row of each tile register (Intel's manual, volume 1, chapter "AMX", palette 1)."""
    name = f"amx_configuration_{rows}_{columns}"
    heights = [min(rows, 16), max(rows - 16, 0)]
    widths = [4 * min(columns, 16), 4 * max(columns - 16, 0)]
    tiles = [(h, w) for h in heights for w in widths] + [(h, 2 * DEPTH) for h in heights] + [(DEPTH // 2, w) for w in widths]
    data = bytearray(64)
    data[0] = 1
    for i, (height, width) in enumerate(tiles):
        if height and width:
            data[16 + 2 * i], data[48 + i] = width, height
    text = "".join(f"\\{byte:02X}" for byte in data)
    module.globals[name] = f'@{name} = private unnamed_addr constant [64 x i8] c"{text}", align 64'
    return f"@{name}"


def _do(f: llvm.Function, name: str, *tiles: int) -> None:
    f.module.declare(f"declare void @llvm.x86.{name}({', '.join(['i8 immarg'] * len(tiles))})")
    f.do(f"call void @llvm.x86.{name}({', '.join(f'i8 {t}' for t in tiles)})")


def _move(f: llvm.Function, name: str, tile: int, pointer: str, row: str) -> None:
    f.module.declare(f"declare void @llvm.x86.{name}(i8 immarg, ptr, i64)")
    f.do(f"call void @llvm.x86.{name}(i8 {tile}, ptr {pointer}, i64 {row})")
