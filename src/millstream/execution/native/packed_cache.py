"""Packed weights on disk, mapped: a model that was packed once starts at once, and processes that serve it share the memory.

A file is named after the SHA-256 of the model file it was made of, with its layout in its first bytes. Whatever does not fit
exactly is made again; a directory that cannot be written to costs a start some seconds and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

LAYOUT = 1  # of everything packed; another number makes all cached files stale
HEADER_BYTES = 4096

Bytes = NDArray[np.uint8]


class PackedCache:
    """Packed weights under `directory`, one file a model."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, model: Path, size: int, pack: Callable[[Bytes], None]) -> Bytes:
        """Return `size` bytes that `pack` has written, now or for an earlier start with the same model file. Read-only."""
        try:
            name = f"{self._digest(model)}-{LAYOUT}-{size}.packed"
            path = self._directory / name
            if not path.is_file():
                self._directory.mkdir(parents=True, exist_ok=True)
                _write(path, size, pack)
            return _map(path, size)
        except OSError as error:
            log.warning("packed weights cannot be kept in %s: %s", self._directory, error)
            return packed_in_memory(size, pack)

    def _digest(self, model: Path) -> str:
        """The SHA-256 of the model file. It is taken anew only where the file's identity, size or time of change differ."""
        stat = model.stat()
        identity = f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
        known = self._directory / "digests.json"
        digests: dict[str, str] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            digests = msgspec.json.decode(known.read_bytes(), type=dict[str, str])
        if identity not in digests:
            with model.open("rb") as file:
                digests[identity] = hashlib.file_digest(file, "sha256").hexdigest()
            self._directory.mkdir(parents=True, exist_ok=True)
            _replace(known, msgspec.json.encode(digests))
        return digests[identity]


def packed_in_memory(size: int, pack: Callable[[Bytes], None]) -> Bytes:
    """Return `size` bytes that `pack` has written, page-aligned, in memory of their own."""
    out = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
    pack(out)
    return out


def _map(path: Path, size: int) -> Bytes:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), dtype=np.uint8)


def _write(path: Path, size: int, pack: Callable[[Bytes], None]) -> None:
    """Make the file complete under another name first: whoever sees `path` sees all of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and not a SIGBUS later
            pack(np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(name, path)
