"""NumPy arrays whose last byte is followed by a page that nobody may touch, so that reading too far is a crash."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy of `array` that ends at an inaccessible page."""
    page = mmap.PAGESIZE
    pages = -(-max(array.nbytes, 1) // page)
    region = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    if _LIBC.mprotect(address + pages * page, page, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(region, array.dtype, array.size, pages * page - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy
