"""Every route, fuzzed from the server's own OpenAPI document: what it sends is refused or answered as declared, never a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks

from millstream.entry.http.route import Route
from millstream.entry.http.routes import ROUTES
from tests.support.server import running_server

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
QUICK, LONG = 3, 30  # requests to each route
every_operation = pytest.mark.parametrize(
    ("route", "mode"),
    [
        pytest.param(route, mode, id=f"{route.method} {route.path}, {mode.value}")
        for route in ROUTES
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or route.rules is not None or route.query  # there is something to do wrong
    ],
)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Any, requests.Session]]:
    """A server whose contexts are short, since nothing else may limit an answer; its schema; and a connection."""
    load_all_checks()
    with running_server("--executor", "scripted", "--context-length", "256") as url, requests.Session() as session:
        yield url, schemathesis.openapi.from_url(f"{url}/openapi.json"), session


@every_operation
def test_a_few_requests_to_each_route(server: Any, route: Route, mode: GenerationMode) -> None:
    fuzz(server, route, mode, QUICK)


@pytest.mark.long
@every_operation
def test_many_requests_to_each_route(server: Any, route: Route, mode: GenerationMode) -> None:
    fuzz(server, route, mode, LONG)


def fuzz(server: tuple[str, Any, requests.Session], route: Route, mode: GenerationMode, count: int) -> None:
    url, schema, session = server
    operation = schema[route.path][route.method]
    allowed = body_schema(schema.raw_schema, route)
    seen = []

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(session=session, timeout=30)
        seen.append(response.status_code)
        case.validate_response(response, checks=CHECKS)
        is_late = response.status_code == 504 and "timeout" in case.body
        assert response.status_code < 500 or is_late, response.text
        if response.status_code < 300 and allowed is not None:
            assert allowed.is_valid(case.body), list(allowed.iter_errors(case.body))
        if response.status_code >= 400:
            assert_serves_on(url, session)

    ask()
    assert seen


def body_schema(document: dict[str, Any], route: Route) -> Draft202012Validator | None:
    """What the document says of the route's body, None where it has none."""
    declared = document["paths"][route.path][route.method.lower()].get("requestBody")
    if declared is None:
        return None
    schema = declared["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


def assert_serves_on(url: str, session: requests.Session) -> None:
    """The canary: a small request is answered after a failure."""
    answer = session.post(f"{url}/v1/completions", json={"prompt": "hi", "max_tokens": 2}, timeout=30)
    assert answer.json()["usage"]["completion_tokens"] == 2
