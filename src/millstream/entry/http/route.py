"""Route: one method of one path, with everything that is declared of it; and the way from a path to its routes.

A route with a body cannot be written without its `FieldRules`, so nothing is taken that is not declared.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from millstream.entry.fields import FieldRules
from millstream.entry.http.auth import Access
from millstream.entry.http.exchange import Exchange
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
    types: tuple[str, ...] = ("application/json",)
    """What its answers may be."""
    is_counted: bool = True
    """Refused where there are too many calls already."""

    @property
    def summary(self) -> str:
        """The first line of what its handler says of itself."""
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]


def get(
    path: str,
    handler: Handler,
    *,
    query: tuple[str, ...] = (),
    access: Access = "user",
    types: tuple[str, ...] = Route.types,
) -> Route:
    """A route of GET and HEAD."""
    return Route(method="GET", path=path, handler=handler, query=query, access=access, types=types, is_counted=False)


def post(
    path: str, handler: Handler, rules: FieldRules[Any] | None, *, access: Access = "user", is_counted: bool = True
) -> Route:
    """A route of POST; None for `rules` says that it reads no body."""
    return Route(method="POST", path=path, handler=handler, rules=rules, access=access, is_counted=is_counted)


def delete(path: str, handler: Handler) -> Route:
    """A route of DELETE."""
    return Route(method="DELETE", path=path, handler=handler, is_counted=False)


class Place(NamedTuple):
    """What a path leads to: its routes by method, and what stands in the place of names in braces."""

    routes: dict[str, Route]
    parameters: dict[str, str]

    def route(self, method: str) -> Route | None:
        """The route that answers a method."""
        return self.routes.get("GET" if method == "HEAD" else method)

    @property
    def path(self) -> str:
        """As it was declared, names in braces and all."""
        return next(iter(self.routes.values())).path

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
