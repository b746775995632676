"""Where each process receives: one socket file a process, in a directory only its owner can enter."""

from __future__ import annotations

from pathlib import Path

from millstream.messages.control import ProcessName


def socket_path(socket_dir: Path, receiver: ProcessName) -> Path:
    """The socket file on which `receiver` gets its messages."""
    return socket_dir / f"{receiver}.sock"


def socket_address(socket_dir: Path, receiver: ProcessName) -> str:
    """The address of `receiver`'s inbox."""
    return str(socket_path(socket_dir, receiver))
