"""/flush_cache: it empties the prefix cache where nothing runs, or waits for that, or says why not."""

from __future__ import annotations

import pytest

from millstream.config import ServerConfig
from millstream.messages import FlushReq
from tests.support.asgi import Call, run
from tests.support.engine import Entry


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_flush_says_what_it_freed(method: str) -> None:
    async def scenario() -> None:
        entry = Entry()
        # clients post without a body, and without a content type
        response = await Call(entry.app, "/flush_cache", b"", method=method, headers={"content-type": None}).response()
        assert (response.status, response.body["success"], response.body["pages_freed"]) == (200, True, 3)

    run(scenario())


def test_a_flush_is_refused_while_requests_are_live() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.num_live = 4
        response = await Call(entry.app, "/flush_cache", b"").response()
        assert (response.status, response.error["code"]) == (400, "requests_live")
        assert "4 requests" in response.error["message"]

    run(scenario())


def test_a_flush_with_a_timeout_waits_for_the_last_request() -> None:
    async def scenario() -> None:
        entry = Entry()
        entry.engine.num_live = 1
        call = Call(entry.app, "/flush_cache", b"", method="GET", query=b"timeout=60")
        await entry.engine.wait_sent(FlushReq, 2)
        assert not call.task.done()
        entry.engine.num_live = 0
        assert (await call.response()).status == 200
        entry.engine.num_live = 1
        assert (await Call(entry.app, "/flush_cache", b"", query=b"timeout=0.01").response()).status == 400

    run(scenario())


@pytest.mark.parametrize("path", ["/flush_cache", "/health_generate"])
@pytest.mark.parametrize("query", [b"timeout=x", b"timeout=-1", b"timeout=nan", b"timeout=601", b"timeout=", b"wait=1"])
def test_a_wrong_parameter_is_refused_by_name(path: str, query: bytes) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await Call(entry.app, path, b"", method="GET", query=query).response()
        assert (response.status, response.error["param"]) == (400, query.partition(b"=")[0].decode())
        assert entry.engine.sent == []

    run(scenario())


def test_a_flush_takes_an_admins_key() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("user",), admin_api_key=("admin",)))
        for key, status in (("user", 403), ("admin", 200)):
            headers: dict[str, str | None] = {"authorization": f"Bearer {key}"}
            assert (await Call(entry.app, "/flush_cache", b"", headers=headers).response()).status == status

    run(scenario())
