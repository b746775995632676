"""Many streams at once against a server whose processes die: every client keeps what it got and how its stream ended."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


class Stream:
    """One streamed answer, read by a thread of its own from the moment it is made.

    `end` is `done`, `error` (with `error` from the stream, or from a plain refusal) or `cut`: the connection ended before.
    """

    def __init__(self, url: str, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        address = urlsplit(url)
        data = json.dumps({**body, "stream": True}).encode()
        self.events: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None
        self.end: str | None = None
        self._news = threading.Condition()
        self._socket = socket.create_connection((str(address.hostname), address.port or 80), timeout=TIMEOUT_S)
        self._socket.sendall(
            f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n".encode()
            + f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def num_content(self) -> int:
        """Events with text so far."""
        return sum(bool(self._text(event)) for event in list(self.events))

    def text(self, index: int = 0) -> str:
        """The text of one choice so far."""
        return "".join(self._text(event, index) for event in self.events)

    @property
    def finish_reasons(self) -> list[str]:
        """All finish reasons so far."""
        return [c["finish_reason"] for e in self.events for c in e.get("choices", ()) if c["finish_reason"] is not None]

    def wait(self, condition: Callable[[Stream], bool], timeout: float = TIMEOUT_S) -> None:
        """Wait until `condition` holds; fails with what there is."""
        with self._news:
            assert self._news.wait_for(lambda: condition(self), timeout), (self.end, self.error, self.events[-3:])

    def wait_end(self) -> str:
        """How it ended."""
        self.wait(lambda stream: stream.end is not None)
        self._thread.join(TIMEOUT_S)
        assert self.end is not None
        return self.end

    def leave(self) -> None:
        """Close the connection, whatever is under way."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)

    def _text(self, event: dict[str, Any], index: int = 0) -> str:
        for choice in event.get("choices", ()):
            if choice["index"] == index:
                return str((choice.get("delta") or {}).get("content") or choice.get("text") or "")
        return ""

    def _read(self) -> None:
        end = "cut"
        try:
            with self._socket.makefile("rb") as lines:
                head = [lines.readline().rstrip()]
                while line := lines.readline().rstrip():
                    head.append(line)
                if not head[0].startswith(b"HTTP/1.1 200"):
                    body = lines.read()
                    self.error, end = (json.loads(body)["error"], "error") if body else (None, "cut")
                else:
                    end = self._read_events(lines)
        except (OSError, ValueError) as error:
            self.error = {"message": repr(error), "code": None}
        finally:
            self._socket.close()
            with self._news:
                self.end = end
                self._news.notify_all()

    def _read_events(self, lines: Any) -> str:
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return "done"
            event = json.loads(data)
            with self._news:
                if "error" in event:
                    self.error = event["error"]
                    return "error"
                self.events.append(event)
                self._news.notify_all()
        return "cut"
