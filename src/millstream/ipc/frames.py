"""Frames: how a stream of bytes is cut into messages. Four bytes of length, then the message; one format for all links."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")


def frame(data: bytes) -> bytes:
    """One frame that holds `data`."""
    return _LENGTH.pack(len(data)) + data


class NotAMessage(Exception):
    """A frame does not hold a message of the types its receiver takes."""


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    """The message in a frame.

    Raises:
        NotAMessage: it is none: of another type, damaged, or nested without end.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAMessage(str(error)) from None


class FrameReader:
    """Puts frames together from the pieces in which they arrive."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Take the next piece; return what is complete now.

        Raises:
            ValueError: a frame is too long to be one of ours; nothing after it can be read.
        """
        self._buffer += data
        buffer, start, frames = self._buffer, 0, []
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self._max_bytes:
                raise ValueError(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if end > len(buffer):
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return frames
