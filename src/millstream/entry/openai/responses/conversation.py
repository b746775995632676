"""From items, which are one conversation, to the messages that a chat template writes. Called before each rendering."""

from __future__ import annotations

from typing import Any

from millstream.entry.openai.responses.items import Item
from millstream.errors import RequestError

Message = dict[str, Any]


def to_messages(instructions: str | None, items: list[Item]) -> list[Message]:
    """The messages of a conversation: first the instructions, which are the developer's, then the items in their order.

    Reasoning and function calls belong to the assistant's message beside them, and so does what it says behind its calls: they
    are one answer. A call that broke off is left out, for nobody can have run it.

    Raises:
        RequestError: the output of a function call that is not in the conversation.
    """
    messages: list[Message] = [] if not instructions else [{"role": "developer", "content": instructions}]
    calls: set[str] = set()
    thoughts: list[str] = []  # that belong to the assistant's next message
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            thoughts += [part["text"] for part in item.get("content") or ()]
        elif kind == "message":
            _add_message(messages, item, thoughts)
        elif kind == "function_call" and item["status"] != "incomplete":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_tool_call(item))
            _add_thoughts(messages[-1], thoughts)
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


def _add_message(messages: list[Message], item: Item, thoughts: list[str]) -> None:
    content = item["content"]
    if item["role"] != "assistant":
        thoughts.clear()  # of an answer that came to nothing
        messages.append({"role": item["role"], "content": _content(content)})
        return
    if messages and "tool_calls" in messages[-1]:
        before = messages[-1]["content"]
        parts = before if isinstance(before, list) else [] if before is None else [{"type": "text", "text": before}]
        messages[-1]["content"] = [*parts, *(_part(part) for part in content)]
    else:
        messages.append({"role": "assistant", "content": _content(content)})
    _add_thoughts(messages[-1], thoughts)


def _add_thoughts(message: Message, thoughts: list[str]) -> None:
    if thoughts:
        message["reasoning_content"] = message.get("reasoning_content", "") + "".join(thoughts)
        thoughts.clear()


def _content(parts: list[Item]) -> Any:
    """One text as a string, which every template takes; more as parts, which the template's own rules join."""
    if len(parts) == 1 and "text" in parts[0]:
        return parts[0]["text"]
    return [_part(part) for part in parts]


def _part(part: Item) -> Item:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    return {"type": "refusal", "refusal": part["refusal"]}


def _tool_call(item: Item) -> Item:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
