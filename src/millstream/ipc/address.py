"""Where each process receives: one socket file a process, by its name, in a directory only its owner can enter."""

from __future__ import annotations

from pathlib import Path


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
