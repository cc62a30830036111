"""The disk cache: named byte strings under a content key.

In: a key (a hash of everything the content depends on) and parts. Out: the same parts, or None. Entries are written
whole and renamed into place, so a reader in another process sees all of one or nothing; a damaged entry counts as
absent. Must not know what is stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

MAGIC = b"TWCACHE1"


def content_key(*parts: str | bytes) -> str:
    """A key for content that depends on `parts`, in order (SHA-256, hexadecimal)."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


class Store:
    """A directory of entries whose total size stays below `limit` bytes: those unused for longest go first."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.limit = limit

    def get(self, key: str) -> dict[str, bytes] | None:
        """The parts stored under `key`, or None where there is no whole entry."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        parts = _unpacked(data)
        if parts is None:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return parts

    def put(self, key: str, parts: dict[str, bytes]) -> bool:
        """Store the parts; False where the directory cannot be written (a full or read-only disk is no error here)."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
            try:
                with os.fdopen(fd, "wb") as f:
                    f.write(_packed(parts))
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError:
            return False
        self._shrink()
        return True

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key[2:]

    def _shrink(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for path in self.root.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def _packed(parts: dict[str, bytes]) -> bytes:
    head = json.dumps([[name, len(data)] for name, data in parts.items()]).encode()
    body = len(head).to_bytes(8, "little") + head + b"".join(parts.values())
    return MAGIC + hashlib.sha256(body).digest() + body


def _unpacked(data: bytes) -> dict[str, bytes] | None:
    start = len(MAGIC) + 32
    body = data[start:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    at = 8 + int.from_bytes(body[:8], "little")
    parts: dict[str, bytes] = {}
    for name, size in json.loads(body[8:at]):
        parts[name] = body[at : at + size]
        at += size
    return parts
