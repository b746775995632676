"""Packed weights on disk, mapped: a model that was packed once starts at once, and processes that serve it share the memory.

A file is named after the SHA-256 of the model file it was made of, and says in its first page what it is and what one page in
every `PAGES_A_SAMPLE` of it adds up to. Whatever does not fit is made again: a file that was cut short, or that a disk gave
back as zeros, is found at once; single bits that rot are not, for that would mean to read all of it at each start. A
directory that cannot be written to costs a start some seconds and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

LAYOUT = 1  # of everything packed; another number makes all cached files stale
HEADER_BYTES = 4096  # a page, so that what follows is aligned
PAGES_A_SAMPLE = 64

Bytes = NDArray[np.uint8]


class PackedCache:
    """Packed weights under `directory`, one file a model."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, model: Path, size: int, pack: Callable[[Bytes], None]) -> Bytes:
        """Return `size` bytes that `pack` has written, now or for an earlier start with the same model file. Read-only."""
        try:
            digest = self._digest(model)
            path = self._directory / f"{digest}-{LAYOUT}-{size}.packed"
            found = _map(path, size, digest)
            if found is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                _write(path, size, digest, pack)
                found = _map(path, size, digest)
        except OSError as error:
            log.warning("packed weights cannot be kept in %s: %s", self._directory, error)
            return packed_in_memory(size, pack)
        return packed_in_memory(size, pack) if found is None else found

    def _digest(self, model: Path) -> str:
        """The SHA-256 of the model file. It is taken anew only where the file's identity, size or times of change differ."""
        stat = model.stat()
        # ctime, too: the other can be set, and files out of archives all have the same
        identity = f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"
        known = self._directory / "digests.json"
        digests: dict[str, str] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            digests = msgspec.json.decode(known.read_bytes(), type=dict[str, str])
        if identity not in digests:
            with model.open("rb") as file:
                digests[identity] = hashlib.file_digest(file, "sha256").hexdigest()
            with contextlib.suppress(OSError):  # a directory that came filled and read-only serves without
                self._directory.mkdir(parents=True, exist_ok=True)
                _replace(known, msgspec.json.encode(digests))
        return digests[identity]


def packed_in_memory(size: int, pack: Callable[[Bytes], None]) -> Bytes:
    """Return `size` bytes that `pack` has written, page-aligned, in memory of their own."""
    out = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
    pack(out)
    return out


def _map(path: Path, size: int, digest: str) -> Bytes | None:
    """Return what is packed in the file; None where there is none, or where it is not what was once written."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        if os.fstat(file.fileno()).st_size != HEADER_BYTES + size:
            log.warning("%s has another length than it was made with: it is made again", path)
            return None
        whole = np.frombuffer(mmap.mmap(file.fileno(), HEADER_BYTES + size, prot=mmap.PROT_READ), dtype=np.uint8)
    packed = whole[HEADER_BYTES:]
    if whole[:HEADER_BYTES].tobytes() != _header(packed, digest):
        log.warning("%s does not hold what was written to it: it is made again", path)
        return None
    return packed


def _header(packed: Bytes, digest: str) -> bytes:
    checksum = 0
    for begin in range(0, len(packed), PAGES_A_SAMPLE * mmap.PAGESIZE):
        checksum = zlib.crc32(packed[begin : begin + mmap.PAGESIZE].data, checksum)
    return f"millstream packed weights {LAYOUT} {digest} {len(packed)} {checksum:08x}\n".encode().ljust(HEADER_BYTES, b"\0")


def _write(path: Path, size: int, digest: str, pack: Callable[[Bytes], None]) -> None:
    """Make the file complete under another name first: whoever sees `path` sees all of it."""
    _remove_abandoned(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(descriptor, "r+b") as file:
            with contextlib.suppress(OSError):  # where nobody can lock, nobody removes either
                fcntl.flock(file, fcntl.LOCK_EX)  # as long as somebody works on it
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + size)  # a full disk is an error here, and not a SIGBUS later
            memory = mmap.mmap(file.fileno(), HEADER_BYTES + size)
            whole = np.frombuffer(memory, dtype=np.uint8)
            pack(whole[HEADER_BYTES:])
            whole[:HEADER_BYTES] = np.frombuffer(_header(whole[HEADER_BYTES:], digest), dtype=np.uint8)
            memory.flush()  # before it has its name: a machine that loses power keeps names and forgets contents
            os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _remove_abandoned(directory: Path) -> None:
    """Remove what processes that were killed have left: the size of a model each."""
    for path in directory.glob("*.part"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
