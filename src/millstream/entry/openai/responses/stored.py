"""The routes of one response by its id: read it, delete it, cancel it, list what it answered."""

from __future__ import annotations

from typing import Any

from millstream.entry.fields import refusal
from millstream.entry.http.exchange import Exchange
from millstream.entry.openai.responses.history import items_of
from millstream.entry.openai.responses.items import Item
from millstream.entry.openai.responses.lookup import find
from millstream.entry.openai.responses.protocol import check_include
from millstream.entry.query import read_query
from millstream.entry.service import Service
from millstream.errors import RequestError

QUERY_READ = ("include", "include[]", "include_obfuscation", "starting_after", "stream")
QUERY_LIST = ("after", "include", "include[]", "limit", "order")
MAX_LIMIT = 100
DEFAULT_LIMIT = 20


async def read_response(exchange: Exchange, service: Service) -> None:
    """GET /v1/responses/{id}: the response as it is now. A stream cannot be taken up again."""
    query = _query(exchange, QUERY_READ)
    if query.get("stream", "false") != "false":
        raise refusal("stream", "a stream cannot be taken up again; ask until the response has ended")
    if "starting_after" in query:
        raise refusal("starting_after", "a stream cannot be taken up again")
    record = await find(service, exchange.parameters["response_id"], exchange.owner)
    await exchange.send_json(record.response)


async def delete_response(exchange: Exchange, service: Service) -> None:
    """DELETE /v1/responses/{id}. One that is being made ends as cancelled."""
    _query(exchange, ())
    response_id = exchange.parameters["response_id"]
    await find(service, response_id, exchange.owner, action="delete")
    await exchange.send_json({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(exchange: Exchange, service: Service) -> None:
    """POST /v1/responses/{id}/cancel: end a response that is being made. The answer is the response, however it ended."""
    _query(exchange, ())
    record = await find(service, exchange.parameters["response_id"], exchange.owner, action="cancel")
    await exchange.send_json(record.response)


async def list_input_items(exchange: Exchange, service: Service) -> None:
    """GET /v1/responses/{id}/input_items: the conversation that a response answered, newest first unless told otherwise."""
    query = _query(exchange, QUERY_LIST)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is `{order[:100]}`; it must be `asc` or `desc`.", param="order")
    limit = _limit(query.get("limit"))
    record = await find(service, exchange.parameters["response_id"], exchange.owner)
    items = await items_of(record)
    if order == "desc":
        items.reverse()
    if (after := query.get("after")) is not None:
        items = items[_place(items, after) + 1 :]
    page = items[:limit]
    body: dict[str, Any] = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
    await exchange.send_json(body)


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= MAX_LIMIT:
        raise RequestError(f"limit is `{given[:100]}`; it must be from 1 to {MAX_LIMIT}.", param="limit")
    return int(given)


def _place(items: list[Item], after: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == after:
            return index
    raise RequestError(f"after is `{after[:100]}`, which is no item of this response.", param="after")


def _query(exchange: Exchange, known: tuple[str, ...]) -> dict[str, str]:
    """The parameters behind the path, with `include` looked at."""
    query = read_query(exchange, *known)
    check_include([query[name] for name in ("include", "include[]") if name in query])
    return query
