"""A connection's short way that can be closed. What takes it stands in the call's answer at its place."""

from __future__ import annotations

from types import SimpleNamespace

from millstream.entry.http.direct import DirectWriter
from tests.support.asgi import Call


class ShortWay(DirectWriter):
    """Its own transport. Both ways end in `call.sent`, in the order of writing; `written` is what took this one."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.call: Call | None = None
        super().__init__(self, SimpleNamespace(write_paused=False))  # type: ignore[arg-type]

    @property
    def is_open(self) -> bool:
        return not self.flow.write_paused

    @is_open.setter
    def is_open(self, value: bool) -> None:
        self.flow.write_paused = not value

    def is_closing(self) -> bool:
        return self.call is None or self.call.closed

    def write(self, data: bytes) -> None:
        """Take one chunk of a chunked answer."""
        size, _, rest = data.partition(b"\r\n")
        data = rest.removesuffix(b"\r\n")
        assert len(data) == int(size, 16)
        self.written.append(data)
        assert self.call is not None
        self.call.sent.append({"type": "http.response.body", "body": data, "more_body": True})
