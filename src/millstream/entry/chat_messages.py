"""What a chat message may hold, checked before the template sees it. How content is joined is the template's business."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct

from millstream.entry.fields import UNUSED, FieldRules, check_count
from millstream.errors import RequestError
from millstream.text.conversation import MAX_MESSAGES

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ContentPart(Struct, kw_only=True):
    """An item of `content`: text alone, what `type` says it is."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class ChatMessage(Struct, kw_only=True):
    """An item of `messages`, as the chat template gets it. `check_messages` and `text.conversation` look at its values."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # another name of it
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


PART = FieldRules(
    honoured=ContentPart,
    without_effect={"cache_control": "prefixes are cached without being marked; use `cache_salt` to keep them apart"},
    example={"type": "text", "text": "Say hello"},
)
MESSAGE = FieldRules(honoured=ChatMessage, parts={"content": PART}, example={"role": "user", "content": "Say hello"})
ROLES = get_args(Role)
_NEEDS_TOOLS = ("tool_calls", "tool_call_id")
_TEXTS = ("name", "refusal", "reasoning_content", "reasoning", "tool_call_id")


def check_messages(messages: list[dict[str, Any]]) -> int | None:
    """Check number, roles, field names and texts; returns the index of the first message that belongs to a tool call.

    Raises:
        RequestError: too many, an unknown role or field, or a value that is no text; `param` names it.
    """
    first_tooled = None
    check_count("messages", len(messages), MAX_MESSAGES)
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(f"{where}.role is {role!r}; it must be one of {', '.join(ROLES)}.", param=f"{where}.role")
        MESSAGE.check_names(message, where)
        _check_texts(message, where)
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                PART.check_names(part, f"{where}.content[{number}]")
        tooled = role in ("tool", "function") or any(message.get(name) not in UNUSED for name in _NEEDS_TOOLS)
        if tooled and first_tooled is None:
            first_tooled = index
    return first_tooled


def _check_texts(message: dict[str, Any], where: str) -> None:
    for name in _TEXTS:  # a template would write whatever it gets, as Python shows it
        if not isinstance(message.get(name), str | None):
            raise RequestError(f"{where}.{name} must be a string.", param=f"{where}.{name}", code="invalid_type")


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


def no_tool_calls(where: str, param: str | None = None) -> RequestError:
    """The refusal of what is at the path `where` and belongs to a tool call; `param` is the field, where that is another."""
    message = f"{where} belongs to a tool call, which this model's chat template cannot write."
    return RequestError(message, param=param or where)
