"""What a chat message may hold, checked before the template sees it. How content is joined is the template's business."""

from __future__ import annotations

from typing import Any

from millstream.errors import RequestError
from millstream.text.conversation import MAX_MESSAGES

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_FIELDS = frozenset({"role", "content", "name", "refusal", "reasoning_content", "reasoning", "tool_calls", "tool_call_id"})
_EMPTY: tuple[Any, ...] = (None, [], {}, "")  # clients send whole earlier answers back, with everything they did not use
_NEEDS_TOOLS = ("tool_calls", "tool_call_id")


def check_messages(messages: list[dict[str, Any]]) -> int | None:
    """Check number, roles and field names; returns the index of the first message that belongs to a tool call.

    Raises:
        RequestError: too many, or an unknown role or field; `param` names it.
    """
    first_tooled = None
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages has {len(messages)} items; at most {MAX_MESSAGES} are allowed.", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}.", param=f"{where}.role")
        for name, value in message.items():
            if name not in _FIELDS and value not in _EMPTY:
                raise RequestError(
                    f"Unrecognized or unsupported field `{name}` in {where}.", param=f"{where}.{name}", code="unknown_parameter"
                )
        tooled = role in ("tool", "function") or any(message.get(name) not in _EMPTY for name in _NEEDS_TOOLS)
        if tooled and first_tooled is None:
            first_tooled = index
    return first_tooled


def text_size(messages: list[dict[str, Any]]) -> int:
    """About how many characters of text `messages` hold."""
    size = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            size += len(content)
        elif isinstance(content, list):
            size += sum(len(str(part.get("text", ""))) if isinstance(part, dict) else 0 for part in content)
    return size


def item_count(messages: list[dict[str, Any]]) -> int:
    """How many messages and parts these are: each costs time, however short its text."""
    return len(messages) + sum(len(content) for message in messages if isinstance(content := message.get("content"), list))
