"""What goes between a checker and its workers: messages framed by 4 bytes of length."""

from __future__ import annotations

from typing import IO, Any

import msgspec
from msgspec import Struct


class Proof(Struct, frozen=True):
    """What a worker found: the grammar in the library's words, or what is wrong with it and where."""

    grammar: str = ""
    error: str = ""
    place: str = ""
    is_certain: bool = True  # False: the worker was killed or died, which another time it might not


def send(stream: IO[bytes], message: Any) -> None:
    """Write one framed message."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read one framed message; None where the other side has gone."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    data = stream.read(size)
    return data if len(data) == size else None
