"""What a response answers: the conversation of the response it continues, and its input with references resolved."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millstream.entry.http.body import INLINE_BYTES
from millstream.entry.openai.responses.ids import response_of
from millstream.entry.openai.responses.items import Item, to_items
from millstream.entry.openai.responses.lookup import find, not_found
from millstream.entry.openai.responses.protocol import PromptRequest
from millstream.entry.service import Service
from millstream.errors import RequestError
from millstream.messages import ResponseRecord


async def conversation(service: Service, request: PromptRequest, response_id: str, owner: str) -> list[Item]:
    """All items of the conversation, in order; instructions of earlier responses are not among them.

    Raises:
        RequestError: an item is wrong, or the response before it has not ended.
        RequestFailed: what it refers to is not stored, or not its owner's.
        EngineDeadError: the entry worker that keeps it does not answer.
    """
    items = to_items(request.input, response_id, writes_tool_calls=service.chat.template_for(has_tools=True).writes_tool_calls)
    earlier: list[Item] = []
    if (previous := request.previous_response_id) is not None:
        record = await find(service, previous, owner, param="previous_response_id", code="previous_response_not_found")
        if record.status in ("queued", "in_progress"):
            raise RequestError(f"The response `{previous}` has not ended.", param="previous_response_id")
        earlier = await _conversation_of(record)
    return earlier + await _resolve(service, items, {item["id"]: item for item in earlier}, owner)


async def items_of(record: ResponseRecord) -> list[Item]:
    """The items that a response answers; many are decoded off the event loop."""
    items: list[Item] = await _decoded(record.items)
    return items


async def _conversation_of(record: ResponseRecord) -> list[Item]:
    response = await _decoded(record.response)
    return [*await items_of(record), *response["output"]]


async def _decoded(data: bytes) -> Any:
    return msgspec.json.decode(data) if len(data) <= INLINE_BYTES else await asyncio.to_thread(msgspec.json.decode, data)


async def _resolve(service: Service, items: list[Item], known: dict[str, Item], owner: str) -> list[Item]:
    """`items` with each reference replaced by what it stands for: an item of the conversation, or of any stored response."""
    looked_up: set[str] = set()
    resolved = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            param = f"input[{index}].id"
            response_id = response_of(item["id"])
            if item["id"] not in known and response_id is not None and response_id not in looked_up:
                looked_up.add(response_id)
                record = await find(service, response_id, owner, param=param, code="item_not_found")
                known.update((each["id"], each) for each in await _conversation_of(record))
            if item["id"] not in known:
                raise not_found("item", item["id"], param=param, code="item_not_found")
            item = known[item["id"]]
        resolved.append(item)
        known[item["id"]] = item
    return resolved
