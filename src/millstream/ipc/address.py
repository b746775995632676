"""Where each process receives: one socket file a process, by its name, in a directory only its owner can enter."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from millstream.errors import StartupError

MAX_BYTES = 103  # of a socket's path: so many macOS takes, Linux four more
_SHORT = "/tmp"  # where the system's own directory for temporary files has a long name
_ROOM = len("/millstream-12345678/entry-1234567890.sock")


def make_socket_directory(parent: str) -> str:
    """A new directory for sockets in `parent`, or in /tmp where paths in that are too long. Only its owner may enter it.

    Raises:
        StartupError: they would be too long, and /tmp cannot be used.
    """
    if len(os.fsencode(parent)) + _ROOM > MAX_BYTES:
        if not os.access(_SHORT, os.W_OK | os.X_OK):
            raise StartupError(
                f"the path of the directory for temporary files, {parent}, is too long for sockets.",
                hint="set TMPDIR to a shorter one",
            )
        parent = _SHORT
    return tempfile.mkdtemp(prefix="millstream-", dir=parent)  # mode 0700


def socket_path(socket_dir: Path, receiver: str) -> Path:
    """The socket file on which `receiver` gets its messages."""
    return socket_dir / f"{receiver}.sock"


def socket_address(socket_dir: Path, receiver: str) -> str:
    """The address of `receiver`'s inbox."""
    return str(socket_path(socket_dir, receiver))


def entry_name(number: int) -> str:
    """The name of the entry worker with this number. A number is never used again: its successor has another."""
    return f"entry-{number}"


def entry_number(name: str) -> int | None:
    """The number in the name of an entry worker; None for other processes."""
    kind, _, number = name.partition("-")
    return int(number) if kind == "entry" else None
