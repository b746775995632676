"""Cors: which web pages may read our answers. Asked by the app for each request; off unless origins are allowed by option."""

from __future__ import annotations

import re

from millstream.entry.http.errors import Header
from millstream.entry.http.exchange import Exchange

ANY = "*"
MAX_AGE_S = 600
_METHODS = b"GET, POST, DELETE, HEAD, OPTIONS"
_EXPOSED = b"retry-after, request-id, x-request-id, traceparent"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")


class Cors:
    """The origins that are allowed, `*` for all of them. Cookies never count here, so no credentials are allowed for."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY in origins
        self._origins = {origin.rstrip("/").lower().encode() for origin in origins}

    def headers(self, exchange: Exchange) -> list[Header]:
        """What any answer to a page of an allowed origin carries; nothing for others, and their browser keeps it from them."""
        if not self._origins:
            return []
        origin = exchange.header(b"origin")
        if origin is None or not (self._any or origin.lower() in self._origins):
            return [] if self._any else [(b"vary", b"Origin")]
        allowed = [
            (b"access-control-allow-origin", b"*" if self._any else origin),
            (b"access-control-expose-headers", _EXPOSED),
        ]
        return allowed if self._any else [*allowed, (b"vary", b"Origin")]

    def preflight(self, exchange: Exchange) -> list[Header] | None:
        """What a browser's question before a request is answered with, besides `headers`; None where it is none we know.

        It has no key: browsers send none with it. So this comes before keys are looked at.
        """
        if exchange.method != "OPTIONS" or exchange.header(b"access-control-request-method") is None:
            return None
        if not any(name == b"access-control-allow-origin" for name, _ in self.headers(exchange)):
            return None
        names = exchange.header(b"access-control-request-headers")
        answer = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", b"%d" % MAX_AGE_S)]
        if names is not None and _HEADER_NAMES.fullmatch(names):
            answer.append((b"access-control-allow-headers", names))  # by name: `*` does not stand for `authorization`
        return answer
