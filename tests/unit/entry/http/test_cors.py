"""CORS: pages of allowed origins may ask and read, also where keys are needed; without the option nothing changes."""

from __future__ import annotations

import pytest

from millstream.config import ServerConfig
from tests.support.asgi import Call, Response, post, run
from tests.support.engine import Entry

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PAGE = "https://chat.example.com"


async def preflight(entry: Entry, origin: str, names: str | None = "authorization,content-type,x-stainless-os") -> Response:
    headers = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": names}
    return await Call(entry.app, "/v1/chat/completions", b"", method="OPTIONS", headers=headers).response()


@pytest.mark.parametrize("allowed", [(PAGE,), ("http://other", PAGE + "/"), ("*",)])
def test_a_page_of_an_allowed_origin_may_ask_without_a_key_and_read_with_one(allowed: tuple[str, ...]) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(allowed_origins=allowed, api_key=("secret",)))
        first = await preflight(entry, PAGE)
        assert (first.status, first.content) == (204, b"")
        assert {"GET", "POST", "DELETE"} <= set(first.headers["access-control-allow-methods"].split(", "))
        assert first.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
        for key, status in (("secret", 200), ("wrong", 401)):
            headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
            for stream in (False, True):
                response = await post(entry.app, "/v1/chat/completions", {**CHAT, "stream": stream}, headers=headers)
                assert response.status == status
                assert response.headers["access-control-allow-origin"] == ("*" if allowed == ("*",) else PAGE)
                assert "retry-after" in response.headers["access-control-expose-headers"]
                assert "access-control-allow-credentials" not in response.headers

    run(scenario())


def test_a_page_may_use_anthropics_headers_and_read_the_requests_id() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(allowed_origins=(PAGE,), api_key=("secret",)))
        names = "anthropic-version,content-type,x-api-key"
        assert (await preflight(entry, PAGE, names)).headers["access-control-allow-headers"] == names
        body = {"max_tokens": 8, "messages": CHAT["messages"]}
        response = await post(entry.app, "/v1/messages", body, headers={"origin": PAGE, "x-api-key": "secret"})
        assert (response.status, response.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "request-id" in response.headers["access-control-expose-headers"].split(", ")

    run(scenario())


@pytest.mark.parametrize("origin", ["https://evil.example.com", "https://chat.example.com.evil", "null", ""])
def test_other_pages_may_not(origin: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(allowed_origins=(PAGE,)))
        first = await preflight(entry, origin)
        assert first.status == 405
        response = await post(entry.app, "/v1/chat/completions", CHAT, headers={"origin": origin})
        for each in (first, response):
            assert not any(name.startswith("access-control") for name in each.headers)
            assert each.headers["vary"] == "Origin"

    run(scenario())


def test_without_the_option_no_page_may_and_no_header_is_added() -> None:
    async def scenario() -> None:
        entry = Entry()
        first = await preflight(entry, PAGE)
        response = await post(entry.app, "/v1/chat/completions", CHAT, headers={"origin": PAGE})
        assert (first.status, response.status) == (405, 200)
        for each in (first, response):
            assert not any(name.startswith("access-control") or name == "vary" for name in each.headers)

    run(scenario())


@pytest.mark.parametrize("names", [None, "a\u00e9", "x" * 3000])
def test_header_names_that_are_none_are_not_repeated(names: str | None) -> None:
    async def scenario() -> None:
        first = await preflight(Entry(ServerConfig(allowed_origins=(PAGE,))), PAGE, names)
        assert first.status == 204
        assert "access-control-allow-headers" not in first.headers

    run(scenario())
