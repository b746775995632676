"""Recent: the requests of an entry worker that have ended lately, in a ring of fixed size, for whoever looks.

`Endings` adds each at its end. Kept encoded: one object a request that no collector walks, of known size, decoded when somebody
looks. No text is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from millstream.messages.requests import RequestRecord

MAX_BYTES = 8192  # of one record: beyond this it is not kept

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RequestRecord)


class Recent:
    """At most `size` records; the oldest makes room."""

    def __init__(self, size: int) -> None:
        self.num_bytes = 0
        self._size = size
        self._ring: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[RequestRecord]:
        """All of them, the newest first."""
        return map(_decoder.decode, reversed(list(self._ring)))

    @property
    def is_on(self) -> bool:
        """Whether any is kept."""
        return self._size > 0

    def add(self, record: RequestRecord) -> None:
        """Keep the record of a request that has ended."""
        data = _encode(record)
        if len(data) > MAX_BYTES:
            return
        self._ring.append(data)
        self.num_bytes += len(data)
        while len(self._ring) > self._size:
            self.num_bytes -= len(self._ring.popleft())
