"""The field `priority` on every route that makes text: honoured where the server has priorities, refused by name elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.config import ServerConfig
from tests.support.asgi import Response, post, run
from tests.support.engine import Entry

ROUTES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ("/generate", {"text": "hi"}),
]

WRONG = [2**63, -(2**63) - 1, 10**30, 1.5, "1"]


def ask(path: str, body: dict[str, Any], *, is_enabled: bool) -> tuple[Response, list[int]]:
    async def scenario() -> tuple[Response, list[int]]:
        entry = Entry(ServerConfig(enable_priority_scheduling=is_enabled))
        response = await post(entry.app, path, body)
        return response, [request.priority for request in entry.engine.requests]

    return run(scenario())


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("priority", [-(2**63), -1, 0, 7, 2**63 - 1])
def test_every_request_of_a_call_has_its_priority(path: str, body: dict[str, Any], priority: int) -> None:
    response, sent = ask(path, {**body, "priority": priority}, is_enabled=True)
    assert (response.status, set(sent)) == (200, {priority})


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(("priority", "is_enabled"), [(1, False), (-1, False), *((wrong, True) for wrong in WRONG)])
def test_a_priority_that_cannot_be_kept_is_refused_by_name(
    path: str, body: dict[str, Any], priority: Any, is_enabled: bool
) -> None:
    response, sent = ask(path, {**body, "priority": priority}, is_enabled=is_enabled)
    assert (response.status, response.body["error"]["param"], sent) == (400, "priority", [])


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_without_priorities_the_neutral_one_passes(path: str, body: dict[str, Any]) -> None:
    assert ask(path, {**body, "priority": 0}, is_enabled=False)[0].status == 200
