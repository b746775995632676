"""From items, which are one conversation, to the messages that a chat template writes. Called before each rendering."""

from __future__ import annotations

from typing import Any

from millstream.entry.openai.responses.items import Item
from millstream.errors import RequestError

Message = dict[str, Any]


def to_messages(instructions: str | None, items: list[Item]) -> list[Message]:
    """The messages of a conversation: first the instructions, which are the developer's, then the items in their order.

    Reasoning is left out. Function calls join the assistant's message before them.

    Raises:
        RequestError: the output of a function call that is not in the conversation.
    """
    messages: list[Message] = [] if not instructions else [{"role": "developer", "content": instructions}]
    calls: set[str] = set()
    for item in items:
        kind = item["type"]
        if kind == "message":
            messages.append({"role": item["role"], "content": _content(item["content"])})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_tool_call(item))
            calls.add(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in calls:
                raise RequestError(
                    f"There is no function_call with the call_id `{item['call_id'][:100]}` before its output.", param="input"
                )
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    if not messages:
        raise RequestError("input has nothing that the model can read.", param="input")
    return messages


def _content(parts: list[Item]) -> Any:
    """One text as a string, which every template takes; more as parts, which the template's own rules join."""
    if len(parts) == 1 and "text" in parts[0]:
        return parts[0]["text"]
    return [
        {"type": "text", "text": part["text"]} if "text" in part else {"type": "refusal", "refusal": part["refusal"]}
        for part in parts
    ]


def _tool_call(item: Item) -> Item:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
