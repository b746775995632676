"""The table of routes: a path leads to one place, whatever stands where a pattern has a name."""

from __future__ import annotations

import pytest

from millstream.entry.http.exchange import Exchange
from millstream.entry.http.route import Router, delete, get, post
from millstream.entry.http.routes import ROUTES
from millstream.entry.service import Service


async def nothing(exchange: Exchange, service: Service) -> None:
    """A handler that is never called."""


TABLE = (
    get("/things", nothing),
    get("/things/{name}", nothing),
    delete("/things/{name}", nothing),
    post("/things/{name}/cancel", nothing, None),
)


@pytest.mark.parametrize(
    ("path", "methods", "parameters"),
    [
        ("/things", ["GET"], {}),
        ("/things/a", ["GET", "DELETE"], {"name": "a"}),
        ("/things/a/b", ["GET", "DELETE"], {"name": "a/b"}),
        ("/things/a\nb", ["GET", "DELETE"], {"name": "a\nb"}),
        ("/things/a/cancel", ["POST"], {"name": "a"}),
    ],
)
def test_a_path_leads_to_the_pattern_with_the_most_fixed_text(
    path: str, methods: list[str], parameters: dict[str, str]
) -> None:
    place = Router(TABLE).find(path)
    assert place is not None
    assert (list(place.routes), place.parameters) == (methods, parameters)


@pytest.mark.parametrize("path", ["", "/", "/things/", "/thing", "//things"])
def test_a_path_that_no_pattern_has_leads_nowhere(path: str) -> None:
    assert Router(TABLE).find(path) is None


def test_no_method_of_a_path_is_declared_twice_and_all_of_a_path_take_the_same_key() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    access = {route.path: route.access for route in ROUTES}
    assert all(access[route.path] == route.access for route in ROUTES)
