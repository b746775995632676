"""fetch: one GET of JSON from a running server, for commands that look at it."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

from millstream.errors import StartupError

TIMEOUT_S = 10.0
DEFAULT_URL = "http://127.0.0.1:30000"


class Unreachable(StartupError):
    """Nothing that speaks HTTP answers at the URL."""


def fetch(url: str, path: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body of `path` at the server of `url`; `key` is an API key.

    Raises:
        Unreachable: nobody answers there.
        StartupError: the URL is none, or what answers is not a Millstream server.
    """
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StartupError(f"`{url}` is not a URL of a server.", hint=f"it looks like {DEFAULT_URL}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        # no library that would take the way through a proxy of the environment
        connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
    except ValueError as error:
        raise StartupError(f"`{url}` is not a URL of a server: {error}.", hint=f"it looks like {DEFAULT_URL}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"no server answers at {url}: {error}.", hint="millstream serve, or name another --url") from None
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
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    raise StartupError(f"{path} at {url} answers {status}: {message or body}")
