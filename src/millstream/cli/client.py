"""HTTP as the commands speak it: one GET of JSON, and one POST whose answer is a stream of events.

The standard library's client, on purpose: it takes no way through a proxy of the environment. Blocking; a read that brings
nothing for the time limit is an error, so no command hangs on a server that does.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import msgspec

from millstream.errors import StartupError

TIMEOUT_S = 10.0
DEFAULT_URL = "http://127.0.0.1:30000"
_DATA = b"data:"
_LONGEST_LINE = 64 * 1024 * 1024


class Unreachable(StartupError):
    """Nothing that speaks HTTP answers at the URL."""


class ServerError(StartupError):
    """The server refused, failed, or broke off. `http_status` is that of the answer; 200 if it came within a stream."""

    def __init__(self, message: str, *, http_status: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.http_status = http_status


def split_url(url: str) -> SplitResult:
    """The parts of a server's URL; `http://` may be left out.

    Raises:
        StartupError: the URL is none.
    """
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != -1  # reading a port checks it
    except ValueError as error:
        raise StartupError(f"`{url}` is not a URL of a server: {error}.", hint=f"it looks like {DEFAULT_URL}") from None
    if not sound:
        raise StartupError(f"`{url}` is not a URL of a server.", hint=f"it looks like {DEFAULT_URL}")
    return parts


def fetch(url: str, path: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body of `path` at the server of `url`; `key` is an API key.

    Raises:
        Unreachable: nobody answers there.
        StartupError: the URL is none, or what answers is not a Millstream server.
    """
    connection, response = _send(url, "GET", path, key, None, TIMEOUT_S)
    try:
        body = _read(url, response)
    finally:
        connection.close()
    try:
        return response.status, msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise StartupError(f"what answers at {url} is not a Millstream server.") from None


def fetch_ok(url: str, path: str, key: str | None = None) -> dict[str, Any]:
    """The body of `path` at a server that can answer it.

    Raises:
        StartupError: it cannot, and why; or as `fetch`.
    """
    status, body = fetch(url, path, key)
    if status == 200:
        return body
    raise ServerError(f"{path} at {url} answers {status}: {error_message(body)}", http_status=status)


def error_message(body: Any) -> str:
    """What an error body says, of OpenAI's shape or any other."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)


class EventStream:
    """The events of one streamed answer. Iterate once; closing early ends the request at the server.

    Each event is the JSON object behind `data:`. The end is `[DONE]`: a stream that stops before it was cut off.
    """

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        *,
        key: str | None,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the request and read the head of the answer.

        Raises:
            Unreachable: nobody answers there.
            ServerError: an answer that is an error.
        """
        self._url = url
        data = msgspec.json.encode(body)
        self._connection, self._response = _send(url, "POST", path, key, data, timeout_s, headers)
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in self._response.getheaders()}
        """Of the answer, names in small letters."""
        if self._response.status != 200:
            try:
                text = _read(url, self._response)
            finally:
                self.close()
            status = self._response.status
            raise ServerError(f"{path} at {url} answers {status}: {_told(text)}", http_status=status)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The events, until `[DONE]`.

        Raises:
            ServerError: an event is an error or no JSON, or the stream ended too early.
        """
        while (line := self._line()) != b"":
            if not line.startswith(_DATA):
                continue  # a comment that keeps the connection alive, a name, or the empty line between two
            data = line.removeprefix(_DATA).strip()
            if data == b"[DONE]":
                return
            try:
                event = msgspec.json.decode(data, type=dict[str, Any])
            except msgspec.DecodeError:
                raise ServerError(f"{self._url} sent an event that is no JSON: {data[:100]!r}", http_status=200) from None
            if event.get("error"):
                raise ServerError(error_message(event), http_status=200)
            yield event
        raise ServerError(f"{self._url} ended the answer before it was complete.", http_status=200)

    def close(self) -> None:
        """Give the connection back. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> bytes:
        try:
            return self._response.readline(_LONGEST_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self._url} broke off the answer: {error or type(error).__name__}.", http_status=200) from None


def _send(
    url: str,
    method: str,
    path: str,
    key: str | None,
    body: bytes | None,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """One request on a connection of its own, up to the head of its answer."""
    parts = split_url(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    sent = {**(headers or {}), **({} if key is None else {"Authorization": f"Bearer {key}"})}
    if body is not None:
        sent["Content-Type"] = "application/json"
    try:
        connection.request(method, parts.path.rstrip("/") + path, body=body, headers=sent)
        return connection, connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise Unreachable(
            f"no server answers at {url}: {error or type(error).__name__}.",
            hint="start one with `millstream serve`, or name another --url",
        ) from None
    except BaseException:
        connection.close()
        raise


def _read(url: str, response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} broke off its answer: {error or type(error).__name__}.") from None


def _told(body: bytes) -> str:
    try:
        return error_message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:500]
