"""Recent: the requests of an entry worker that have ended lately, in a ring of fixed size, for whoever looks.

`Endings` adds each at its end. Kept encoded: one object a request that no collector walks, of known size, decoded when somebody
looks. No text is kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from millstream.messages.requests import RequestRecord

MAX_BYTES = 8192  # of one record: beyond this it is not kept

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RequestRecord)


class Recent:
    """At most `size` records; the oldest makes room. `export` is told of each, too, where somebody else wants them."""

    def __init__(self, size: int, export: Callable[[RequestRecord], None] | None = None) -> None:
        self.num_bytes = 0
        self._export = export
        self._size = size
        self._ring: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[RequestRecord]:
        """All of them, the newest first."""
        return map(_decoder.decode, reversed(list(self._ring)))

    @property
    def is_on(self) -> bool:
        """Whether any is kept or exported."""
        return self._size > 0 or self._export is not None

    def add(self, record: RequestRecord) -> None:
        """Keep the record of a request that has ended."""
        if self._export is not None:
            try:
                self._export(record)
            except Exception:  # it must never cost a request its end
                log.exception("the spans of %s could not be exported", record.rid)
        data = _encode(record)
        if len(data) > MAX_BYTES:
            return
        self._ring.append(data)
        self.num_bytes += len(data)
        while len(self._ring) > self._size:
            self.num_bytes -= len(self._ring.popleft())
