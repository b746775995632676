"""The table of routes: what answers what, which fields a body has, whose key it takes. The app follows it, docs come from it.

A line is a route. A route with a body cannot be written without its `FieldRules`, so nothing is taken that is not declared.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from millstream.entry.fields import FieldRules
from millstream.entry.http.auth import Access
from millstream.entry.http.exchange import Exchange
from millstream.entry.native.abort import abort_request
from millstream.entry.native.generate import generate
from millstream.entry.native.info import health, model, models, ready, root, server_info
from millstream.entry.native.ledger import debug_ledger
from millstream.entry.native.protocol import ABORT, DETOKENIZE, GENERATE, TOKENIZE
from millstream.entry.native.tokenize import detokenize, tokenize
from millstream.entry.openai.chat import chat_completions
from millstream.entry.openai.completions import completions
from millstream.entry.openai.protocol import CHAT, COMPLETIONS
from millstream.entry.openai.responses.create import create_response
from millstream.entry.openai.responses.protocol import RESPONSES
from millstream.entry.openai.responses.stored import (
    QUERY_LIST,
    QUERY_READ,
    cancel_response,
    delete_response,
    list_input_items,
    read_response,
)
from millstream.entry.service import Service

Handler = Callable[[Exchange, Service], Awaitable[None]]
Method = Literal["GET", "POST", "DELETE"]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path. A name in braces stands for text of any length, which the exchange has in `parameters`."""

    method: Method
    path: str
    handler: Handler
    rules: FieldRules[Any] | None = None
    """The fields of its body; None: a body is not read."""
    query: tuple[str, ...] = ()
    """Names that may stand behind the path."""
    access: Access = "user"
    """Whose key it takes."""
    is_counted: bool = True
    """Refused where there are too many calls already."""


def get(path: str, handler: Handler, *, query: tuple[str, ...] = (), access: Access = "user") -> Route:
    """A route of GET and HEAD."""
    return Route(method="GET", path=path, handler=handler, query=query, access=access, is_counted=False)


def post(
    path: str, handler: Handler, rules: FieldRules[Any] | None, *, access: Access = "user", is_counted: bool = True
) -> Route:
    """A route of POST; None for `rules` says that it reads no body."""
    return Route(method="POST", path=path, handler=handler, rules=rules, access=access, is_counted=is_counted)


def delete(path: str, handler: Handler) -> Route:
    """A route of DELETE."""
    return Route(method="DELETE", path=path, handler=handler, is_counted=False)


ROUTES = (
    get("/", root),
    get("/health", health, access="open"),
    get("/ready", ready, access="open"),
    get("/server_info", server_info, access="admin"),
    get("/debug/ledger", debug_ledger, query=("rid",), access="admin"),
    get("/v1/models", models),
    get("/v1/models/{model}", model),
    post("/v1/chat/completions", chat_completions, CHAT),
    post("/v1/completions", completions, COMPLETIONS),
    post("/v1/responses", create_response, RESPONSES),
    get("/v1/responses/{response_id}", read_response, query=QUERY_READ),
    delete("/v1/responses/{response_id}", delete_response),
    post("/v1/responses/{response_id}/cancel", cancel_response, None, is_counted=False),  # it ends requests, too
    get("/v1/responses/{response_id}/input_items", list_input_items, query=QUERY_LIST),
    post("/generate", generate, GENERATE),
    post("/abort_request", abort_request, ABORT, is_counted=False),  # what ends requests must work where there are too many
    post("/tokenize", tokenize, TOKENIZE),
    post("/v1/tokenize", tokenize, TOKENIZE),
    post("/detokenize", detokenize, DETOKENIZE),
    post("/v1/detokenize", detokenize, DETOKENIZE),
)


class Place(NamedTuple):
    """What a path leads to: its routes by method, and what stands in the place of names in braces."""

    routes: dict[str, Route]
    parameters: dict[str, str]

    def route(self, method: str) -> Route | None:
        """The route that answers a method."""
        return self.routes.get("GET" if method == "HEAD" else method)

    @property
    def access(self) -> Access:
        """Whose key the path takes; the same for all of its methods."""
        return next(iter(self.routes.values())).access


class Router:
    """Finds the place of a path. Where several patterns fit, the one with the most fixed text does."""

    def __init__(self, routes: Iterable[Route]) -> None:
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._fixed = {path: Place(methods, {}) for path, methods in by_path.items() if "{" not in path}
        patterns = [(re.split(r"\{(\w+)\}", path), methods) for path, methods in by_path.items() if "{" in path]
        patterns.sort(key=lambda pattern: -sum(map(len, pattern[0][::2])))
        self._patterns = [(_compiled(parts), methods) for parts, methods in patterns]

    def find(self, path: str) -> Place | None:
        """The place of `path`; None where there is nothing."""
        if (place := self._fixed.get(path)) is not None:
            return place
        for pattern, methods in self._patterns:
            if (match := pattern.fullmatch(path)) is not None:
                return Place(methods, match.groupdict())
        return None


def _compiled(parts: list[str]) -> re.Pattern[str]:
    """The pattern of a path split at its braces: fixed text and names in turn."""
    return re.compile(
        "".join(f"(?P<{part}>.+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)), re.DOTALL
    )
