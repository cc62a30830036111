"""Where the native launcher meets torch: its functions, its tensor exchange table, and the OpenMP library it loaded.

In: nothing. Out: a launcher that is ready for calls. The names used here that torch does not document live in this module.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch

from .. import native


@functools.cache
def connect() -> None:
    """Hand torch's functions to the launcher, once. Raises ImportError where torch lacks the DLPack exchange table."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        raise ImportError(f"torch {torch.__version__} has no DLPack exchange table; 2.11 or newer is needed")
    native.set_exchange(torch.Tensor)
    native.configure(torch.empty_strided, view, torch.autograd.graph.increment_version, torch.get_num_threads)
    native.set_openmp(*_openmp())


def view(base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """`base`'s memory seen through shape and strides, `offset` elements after its first one."""
    return base.as_strided(shape, strides, base.storage_offset() + offset)


def _openmp() -> tuple[int, int]:
    """Addresses of GOMP_parallel and omp_get_thread_num in the library that torch uses; zeros where there is none."""
    for path in _loaded("libgomp") or _loaded("libomp") or _loaded("libiomp"):
        library = ctypes.CDLL(path)
        try:
            functions = library.GOMP_parallel, library.omp_get_thread_num
        except AttributeError:
            continue
        parallel, number = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
        return parallel, number
    return 0, 0


def _loaded(name: str) -> list[str]:
    """Paths of the shared libraries in this process whose file name starts with `name`."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if f"/{name}" in line}
    except OSError:
        return []
    return sorted(paths)


_CODES = {
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16), torch.int8: (0, 8),
    torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64), torch.uint8: (1, 8), torch.uint16: (1, 16),
    torch.uint32: (1, 32), torch.uint64: (1, 64), torch.bool: (6, 8), torch.complex64: (5, 64), torch.complex128: (5, 128),
    torch.float8_e4m3fn: (10, 8), torch.float8_e5m2: (12, 8),
}  # fmt: skip


def dlpack_dtype(dtype: torch.dtype) -> tuple[int, int]:
    """DLPack's (type code, bits) of a torch dtype. Raises KeyError for one that DLPack cannot describe."""
    return _CODES[dtype]


def dlpack_device(device: torch.device) -> tuple[int, int]:
    """DLPack's (device type, index). Raises KeyError for a device other than a CPU or an NVIDIA GPU."""
    return {"cpu": 1, "cuda": 2}[device.type], device.index or 0
