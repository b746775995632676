"""A stand-in for any OpenAI server: fixed answers to GETs, and streams of events that a test writes, each request kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = {"/v1/models": {"object": "list", "data": [{"id": "tiny", "object": "model"}]}}
Answer = Iterable[Any] | tuple[int, dict[str, Any]]


def deltas(*pieces: str, reason: str = "stop", usage: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Events of a chat answer: one piece of text each, then the reason."""
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if usage is not None:
        events.append({"choices": [], "usage": usage})
    return events


class StandIn:
    """What the server got: bodies and headers of its POSTs, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def openai_stand_in(
    answer: Callable[[dict[str, Any]], Answer], gets: dict[str, Any] = MODELS, *, done: bool = True
) -> Iterator[StandIn]:
    """Serve; `answer` makes events of a body, or a status with an error body. Events that are strings go out as they are."""
    seen = StandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = gets.get(self.path)
            self.whole(404 if found is None else 200, found or {"error": {"message": "nothing here"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.bodies.append(body)
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            made = answer(body)
            if isinstance(made, tuple):
                self.whole(*made)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")  # the end of the stream is the end of the connection
            self.end_headers()
            for event in made:
                line = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
                self.wfile.write(line.encode())
                self.wfile.flush()
            if done:
                self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def whole(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def handle(self) -> None:
            with suppress(OSError):  # the client has gone, as some tests want
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()
