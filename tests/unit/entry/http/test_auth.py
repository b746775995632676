"""API keys: every route but the probes and the page needs one, admin routes an admin's, and no answer tells more than that."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.config import ServerConfig
from millstream.entry.failure import RequestFailed
from millstream.entry.http.auth import KeyRing
from millstream.entry.http.dialect import OPENAI, dialect_of
from millstream.entry.http.routes import ROUTES
from millstream.messages import TokenizedGenerateReqInput
from tests.support.asgi import Call, Response, post, run
from tests.support.engine import Entry

FILE = "/page/app.js"
PATHS = {route.path.replace("/page/{file}", FILE): route.access for route in ROUTES}
OPEN = {path for path, access in PATHS.items() if access == "open"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def ask(entry: Entry, method: str, path: str, authorization: str | None, body: Any = b"") -> Response:
    headers = {} if authorization is None else {"authorization": authorization}
    return await Call(entry.app, path, body, method=method, headers=headers).response()


@pytest.mark.parametrize("path", [*PATHS, "/v1/models/tiny", "/no/such/path"])
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "secret"])
def test_without_a_key_nothing_is_answered_but_probes_and_the_page_s_files(path: str, authorization: str | None) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("secret",)))
        for method in ("GET", "POST", "HEAD", "OPTIONS"):
            response = await ask(entry, method, path, authorization)
            if path in OPEN:
                assert response.status == (200 if method in ("GET", "HEAD") else 405)
            else:
                assert response.status == 401
                assert response.headers["www-authenticate"] == "Bearer"
                if dialect_of(path) is OPENAI:
                    assert (response.error["type"], response.error["code"]) == ("invalid_request_error", "invalid_api_key")
                else:
                    assert response.body["error"]["type"] == "authentication_error"
                assert "wrong" not in response.content.decode()
        if path not in ("/health_generate", "/metrics"):  # one makes a token of its own, the other asks for counts
            assert entry.engine.sent == []

    run(scenario())


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        ("BEARER   secret ", 200),
        ("Bearer zweiter-schlüssel", 200),
        ("Bearer secret2", 401),
        ("Bearer secre", 401),
        ("Bearer Secret", 401),
        ("Bearer secret secret", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Basic secret", 401),
        ("secret", 401),
        ("", 401),
        ("Bearer é", 401),
    ],
)
def test_a_key_is_taken_exactly_and_its_scheme_in_any_case(authorization: str, status: int) -> None:
    ring = KeyRing(("secret", "zweiter-schlüssel"), ())
    if status == 200:
        assert ring.check("user", authorization.encode())
    else:
        with pytest.raises(RequestFailed) as caught:
            ring.check("user", authorization.encode())
        assert caught.value.failure.status == status


@pytest.mark.parametrize(
    ("authorization", "api_key", "status"),
    [
        (None, "secret", 200),
        (None, " secret ", 200),
        (None, "Bearer secret", 401),
        (None, "Secret", 401),
        (None, "", 401),
        ("Bearer wrong", "secret", 200),
        ("Bearer secret", "wrong", 200),
        ("Bearer wrong", "wrong", 401),
    ],
)
def test_a_key_may_be_in_a_header_of_its_own(authorization: str | None, api_key: str, status: int) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("secret",)))
        headers = {"authorization": authorization, "x-api-key": api_key}
        for path in ("/v1/models", "/server_info"):
            assert (await Call(entry.app, path, b"", method="GET", headers=headers).response()).status == status

    run(scenario())


@pytest.mark.parametrize(
    ("users", "admins", "key", "statuses"),
    [  # of /v1/models, /server_info, an abort by rid, an abort of all
        pytest.param((), (), None, (200, 200, 404, 200), id="no keys: everybody may do everything"),
        pytest.param(("user",), (), "user", (200, 200, 404, 200), id="user keys alone: every user may do everything"),
        pytest.param(("user",), (), None, (401, 401, 401, 401), id="user keys alone, none given"),
        pytest.param(("user",), ("admin",), "user", (200, 403, 404, 403), id="both: a user"),
        pytest.param(("user",), ("admin",), "admin", (200, 200, 404, 200), id="both: an admin"),
        pytest.param(("user",), ("admin",), None, (401, 401, 401, 401), id="both: nobody"),
        pytest.param((), ("admin",), None, (200, 401, 404, 403), id="admin keys alone: everybody is a user"),
        pytest.param((), ("admin",), "none", (200, 401, 404, 403), id="admin keys alone: the placeholder of a client"),
        pytest.param((), ("admin",), "admin", (200, 200, 404, 200), id="admin keys alone: an admin"),
    ],
)
def test_what_shows_or_ends_the_requests_of_others_is_for_admins(
    users: tuple[str, ...], admins: tuple[str, ...], key: str | None, statuses: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=users, admin_api_key=admins))
        authorization = None if key is None else f"Bearer {key}"
        seen = []
        for method, path, body in (
            ("GET", "/v1/models", b""),
            ("GET", "/server_info", b""),
            ("POST", "/abort_request", {"rid": "nobody"}),
            ("POST", "/abort_request", {"abort_all": True}),
        ):
            response = await ask(entry, method, path, authorization, body)
            seen.append(response.status)
            if response.status == 403:
                assert response.error["type"] == "permission_error"
        assert tuple(seen) == statuses
        assert (await ask(entry, "GET", "/debug/ledger", authorization, b"")).status == statuses[1]
        by_prefix = await ask(entry, "POST", "/abort_request", authorization, {"rid": "x", "prefix": True})
        assert by_prefix.status == (404 if statuses[3] == 200 else statuses[3])

    run(scenario())


@pytest.mark.parametrize("host", ["h/health?x=", "h/health", "h:80/ready?", "h/health#", "h;/health", "../health", ""])
def test_what_a_host_header_says_is_no_way_around_a_key(host: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("secret",)))
        response = await post(entry.app, "/v1/chat/completions", CHAT, headers={"host": host})
        assert (response.status, response.error["code"]) == (401, "invalid_api_key")
        assert entry.engine.sent == []

    run(scenario())


@pytest.mark.parametrize(
    "path", ["/health/../server_info", "/health/", "//health", "/HEALTH", "/health;x", "/ready/v1/models", "/health%2f"]
)
def test_a_path_that_only_looks_like_a_probe_needs_a_key(path: str) -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("secret",)))
        assert (await ask(entry, "GET", path, None)).status == 401
        assert (await ask(entry, "GET", path, "Bearer secret")).status == 404

    run(scenario())


def test_a_user_may_abort_by_rid() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("user",), admin_api_key=("admin",)))
        entry.engine.answer = lambda sent: entry.engine.accept(sent.rid)
        user = {"authorization": "Bearer user"}
        call = Call(entry.app, "/generate", {"text": "a", "rid": "r"}, headers=user)
        await entry.engine.wait_sent(TokenizedGenerateReqInput)
        assert (await post(entry.app, "/abort_request", {"rid": "r"}, headers=user)).body == {"aborted": ["r"]}
        entry.engine.end("r", "aborted")
        await call.response()

    run(scenario())


def test_keys_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def scenario() -> None:
        config = ServerConfig(api_key=("geheim-1", "geheim-2"), admin_api_key=("geheim-3",))
        entry = Entry(config)
        response = await ask(entry, "GET", "/server_info", "Bearer geheim-3")
        assert response.body["configuration"]["api_key"] == "2 hidden"
        assert response.body["configuration"]["admin_api_key"] == "1 hidden"
        refused = await ask(entry, "GET", "/server_info", "Bearer geheim-1")
        wrong = await ask(entry, "POST", "/generate", "Bearer geheim-4", {"text": "x"})
        assert (refused.status, wrong.status) == (403, 401)
        for text in (response.content.decode(), refused.content.decode(), wrong.content.decode(), repr(config), caplog.text):
            assert "geheim" not in text

    run(scenario())


def test_what_a_request_makes_belongs_to_its_key_whichever_header_has_it() -> None:
    keys = KeyRing(["one", "two"], ["boss"])
    one = keys.owner(b"Bearer one")
    assert one == keys.owner(b"bearer one ", None) == keys.owner(None, b"one") == keys.owner(b"Bearer wrong", b"one")
    assert len({one, keys.owner(b"Bearer two"), keys.owner(None, b"boss"), ""}) == 4
    assert "one" not in one
    assert keys.owner(b"Bearer wrong") == keys.owner(None) == KeyRing([], []).owner(b"Bearer one") == ""
    assert KeyRing([], ["boss"]).owner(b"Bearer anybody") == ""
