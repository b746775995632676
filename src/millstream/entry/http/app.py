"""The ASGI app: which handler answers what, and what an exception means to the client. One path for every error.

Handlers take an `Exchange` and the `Service`. A table is all the routing there is: the paths are fixed but for one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from millstream.entry.anthropic.messages import count_tokens, messages
from millstream.entry.failure import INTERNAL, Failure, RequestFailed, failure_of_error
from millstream.entry.http.auth import KeyRing
from millstream.entry.http.cors import Cors
from millstream.entry.http.errors import Header, method_not_allowed, not_found
from millstream.entry.http.exchange import ClientGone, Exchange, Message, Receive, Send
from millstream.entry.http.gate import Gate
from millstream.entry.native.abort import abort_request
from millstream.entry.native.generate import generate
from millstream.entry.native.info import health, model, models, ready, root, server_info
from millstream.entry.native.ledger import debug_ledger
from millstream.entry.native.tokenize import detokenize, tokenize
from millstream.entry.openai.chat import chat_completions
from millstream.entry.openai.completions import completions
from millstream.entry.service import Service
from millstream.errors import MillstreamError

log = logging.getLogger(__name__)

Handler = Callable[[Exchange, Service], Awaitable[None]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/": {"GET": root},
    "/health": {"GET": health},
    "/ready": {"GET": ready},
    "/server_info": {"GET": server_info},
    "/debug/ledger": {"GET": debug_ledger},
    "/v1/models": {"GET": models},
    "/v1/chat/completions": {"POST": chat_completions},
    "/v1/completions": {"POST": completions},
    "/v1/messages": {"POST": messages},
    "/v1/messages/count_tokens": {"POST": count_tokens},
    "/generate": {"POST": generate},
    "/abort_request": {"POST": abort_request},
    "/tokenize": {"POST": tokenize},
    "/v1/tokenize": {"POST": tokenize},
    "/detokenize": {"POST": detokenize},
    "/v1/detokenize": {"POST": detokenize},
}
PROBES = ("/health", "/ready")
UNCOUNTED = ("/abort_request",)  # what ends requests must work where there are too many
MODEL_PREFIX = "/v1/models/"  # the rest is a model's name, which may hold slashes


class App:
    """ASGI application over one `Service`."""

    def __init__(self, service: Service) -> None:
        self._service = service
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

    async def _answer(self, exchange: Exchange) -> None:
        headers: list[Header] = []
        try:
            exchange.more_headers = self._cors.headers(exchange)
            if (preflight := self._cors.preflight(exchange)) is not None:
                await exchange.send_empty(preflight)
                return
            exchange.is_admin = self._keys.check(
                exchange.path, exchange.header(b"authorization"), exchange.header(b"x-api-key")
            )
            handler = self._handler(exchange, headers)
            if exchange.method != "POST" or exchange.path in UNCOUNTED:
                await handler(exchange, self._service)
            else:
                with self._gate.admit() as exchange.hold:
                    await handler(exchange, self._service)
        except ClientGone:
            raise
        except RequestFailed as error:
            await self._fail(exchange, error.failure, headers)
        except MillstreamError as error:
            await self._fail(exchange, failure_of_error(error), headers)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            await self._fail(exchange, INTERNAL, headers)

    def _handler(self, exchange: Exchange, headers: list[Header]) -> Handler:
        methods = ROUTES.get(exchange.path)
        if methods is None:
            name = exchange.path.removeprefix(MODEL_PREFIX)
            if name in ("", exchange.path):
                raise RequestFailed(not_found(exchange.path))
            methods = {"GET": partial(model, name=name)}
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            allowed = ", ".join(methods)
            headers.append((b"allow", allowed.encode("ascii")))
            raise RequestFailed(method_not_allowed(exchange.method, exchange.path, allowed))
        return handler

    async def _fail(self, exchange: Exchange, failure: Failure, headers: list[Header]) -> None:
        level = logging.DEBUG if exchange.path in PROBES else logging.INFO  # they ask many times a second while we load
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
