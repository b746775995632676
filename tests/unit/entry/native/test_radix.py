"""GET /debug/radix: the scheduler's prefix tree in words, for admins alone."""

from __future__ import annotations

import pytest

from millstream.config import ServerConfig
from millstream.messages import RadixNode, RadixReq
from tests.support.asgi import Call, run
from tests.support.engine import TOKENIZER, Entry


def test_the_tree_is_shown_with_its_text() -> None:
    async def scenario() -> None:
        entry = Entry()
        ids = TOKENIZER.encode("Hello you", add_special_tokens=False)
        entry.engine.tree = [RadixNode(-1, 0, ids, 16, 1, 2, 7, 1), RadixNode(0, 0, ids[:1], 32, 2, 0, 9, 0)]
        body = (await Call(entry.app, "/debug/radix", b"", method="GET").response()).body
        assert body["nodes"] == [
            {"id": 0, "parent": None, "namespace": 0, "text": "Hello you", "tokens": 16, "pages": 1, "pins": 2, "uses_ago": 7,
             "children": 1},
            {"id": 1, "parent": 0, "namespace": 0, "text": "H", "tokens": 32, "pages": 2, "pins": 0, "uses_ago": 9,
             "children": 0},
        ]  # fmt: skip
        assert {name: value for name, value in body.items() if name != "nodes"} == {
            "page_size": 16, "pages_cached": 9, "pages_evictable": 6, "pins": 2,
        }  # fmt: skip

    run(scenario())


@pytest.mark.parametrize(
    "query", [b"max_nodes=0", b"max_nodes=1001", b"max_nodes=x", b"max_nodes=-1", b"max_nodes=", b"nodes=3"]
)
def test_a_wrong_parameter_is_refused_by_name(query: bytes) -> None:
    async def scenario() -> None:
        entry = Entry()
        response = await Call(entry.app, "/debug/radix", b"", method="GET", query=query).response()
        assert (response.status, response.error["param"]) == (400, query.partition(b"=")[0].decode())
        assert entry.engine.sent == []

    run(scenario())


def test_the_number_of_nodes_is_the_scheduler_s_to_keep() -> None:
    async def scenario() -> None:
        entry = Entry()
        await Call(entry.app, "/debug/radix", b"", method="GET", query=b"max_nodes=7").response()
        assert [message.max_nodes for message in entry.engine.sent if isinstance(message, RadixReq)] == [7]

    run(scenario())


def test_it_takes_an_admin_s_key() -> None:
    async def scenario() -> None:
        entry = Entry(ServerConfig(api_key=("user",), admin_api_key=("admin",)))
        for key, status in (("user", 403), ("admin", 200), ("", 401)):
            headers: dict[str, str | None] = {"authorization": f"Bearer {key}"}
            response = await Call(entry.app, "/debug/radix", b"", method="GET", headers=headers).response()
            assert response.status == status

    run(scenario())
