"""The ASGI app: the way of every request to its handler, and what an exception means to the client. One path for every error.

Which handler answers what is the table in `routes`. Handlers take an `Exchange` and the `Service`.
"""

from __future__ import annotations

import logging

from millstream.entry.failure import INTERNAL, Failure, RequestFailed, failure_of_error
from millstream.entry.http.auth import KeyRing
from millstream.entry.http.cors import Cors
from millstream.entry.http.errors import Header, method_not_allowed, not_found
from millstream.entry.http.exchange import ClientGone, Exchange, Message, Receive, Send
from millstream.entry.http.gate import Gate
from millstream.entry.http.route import Place, Route, Router
from millstream.entry.http.routes import served_routes
from millstream.entry.service import Service
from millstream.entry.tape import HEADER, Tapes
from millstream.errors import MillstreamError

log = logging.getLogger(__name__)


class App:
    """ASGI application over one `Service`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._router = Router(served_routes(service.config.metrics_access))
        self._keys = KeyRing(service.config.api_key, service.config.admin_api_key)
        self._cors = Cors(service.config.allowed_origins)
        self._gate = Gate(
            max_calls=service.config.live_limit,
            max_bytes=service.config.max_held_body_bytes,
            retry_after_s=lambda: service.retry_after_s,
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; never raises for what a client does."""
        exchange = Exchange(scope, receive, send, max_body_bytes=self._service.config.max_body_bytes)
        try:
            await self._answer(exchange)
        except ClientGone:
            await exchange.wait_gone()  # we may know it first, and the server would take our silence for a fault
        finally:
            if exchange.tape is not None and self._service.tapes is not None:
                self._service.tapes.end(exchange.tape, self._service.engine)

    async def _answer(self, exchange: Exchange) -> None:
        headers: list[Header] = []
        try:
            exchange.more_headers = self._cors.headers(exchange)
            if (preflight := self._cors.preflight(exchange)) is not None:
                await exchange.send_empty(preflight)
                return
            place = self._router.find(exchange.path)
            access = "user" if place is None else place.access
            keys = exchange.header(b"authorization"), exchange.header(b"x-api-key")
            exchange.is_admin = self._keys.check(access, *keys)
            exchange.owner = self._keys.owner(*keys)
            route = _route(exchange, place, headers)
            if self._service.tapes is not None and route.rules is not None:
                self._record(exchange, self._service.tapes)
            if not route.is_counted:
                await route.handler(exchange, self._service)
            else:
                with self._gate.admit() as exchange.hold:
                    await route.handler(exchange, self._service)
        except ClientGone:
            raise
        except RequestFailed as error:
            await self._fail(exchange, error.failure, headers)
        except MillstreamError as error:
            await self._fail(exchange, failure_of_error(error), headers)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            await self._fail(exchange, INTERNAL, headers)

    def _record(self, exchange: Exchange, tapes: Tapes) -> None:
        """Begin a tape, where this call is to have one. Its answer then goes one way, part for part."""
        exchange.tape = tapes.begin(is_asked=exchange.is_admin and exchange.header(HEADER) is not None)
        if exchange.tape is not None:
            exchange.direct = None

    async def _fail(self, exchange: Exchange, failure: Failure, headers: list[Header]) -> None:
        place = self._router.find(exchange.path)
        is_probe = place is not None and place.access == "open"
        self._service.recorder.refused("unmatched" if place is None else place.path, failure.status)
        level = logging.DEBUG if is_probe else logging.INFO  # they ask many times a second while we load
        log.log(  # quoted and cut: clients choose these words, line breaks and all
            level,
            "refused %s %.200r status=%d type=%s code=%s param=%.200r",
            exchange.method,
            exchange.path,
            failure.status,
            failure.type,
            failure.code,
            failure.param,
        )
        if exchange.started:  # too late for a status: a cut connection never looks like success
            exchange.drop_connection()
        else:
            await exchange.send_failure(failure, headers=headers)


def _route(exchange: Exchange, place: Place | None, headers: list[Header]) -> Route:
    """The route of a request; its parameters go to the exchange.

    Raises:
        RequestFailed: there is nothing at this path (404), or not with this method (405, with `headers` that say so).
    """
    if place is None:
        raise RequestFailed(not_found(exchange.path))
    exchange.parameters = place.parameters
    route = place.route(exchange.method)
    if route is None:
        allowed = ", ".join(place.routes)
        headers.append((b"allow", allowed.encode("ascii")))
        raise RequestFailed(method_not_allowed(exchange.method, exchange.path, allowed))
    return route
