"""The JSON of Anthropic answers, whole and in events. Pure: facts in, bytes out."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.entry.fields import Json
from millstream.entry.sse import named_event
from millstream.errors import InvariantError
from millstream.messages import FinishReason, Length, Stop, Usage

_TEXT_MARK = "text goes here"
_BEFORE_TEXT, _AFTER_TEXT = named_event(
    b"content_block_delta",
    msgspec.json.encode(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": _TEXT_MARK}},
    ),
).split(msgspec.json.encode(_TEXT_MARK))
AROUND_TEXT = (_BEFORE_TEXT, _AFTER_TEXT)  # an event that is a text and nothing else


def message(message_id: str, model: str, content: list[Json], stop: Json, usage: Json) -> Json:
    """A message, whole or as a stream begins with it."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stop,
        "usage": {**usage, "service_tier": "standard"},
    }


def text_block(text: str) -> Json:
    """The one block of an answer that is not taken apart."""
    return {"type": "text", "text": text}


def stop_members(finish: FinishReason | None, max_tokens: int, *, in_calls: bool = False) -> Json:
    """`stop_reason` in Anthropic's words, and `stop_sequence`, the string that ended the answer; nulls where it goes on.

    With `in_calls` the answer asks for tools: it ended where its model wanted it to.

    An answer that fills the context before it has `max_tokens` tokens says so. There are no further details to a stop.
    """
    in_calls = in_calls and isinstance(finish, Stop)
    matched = finish.matched if isinstance(finish, Stop) and isinstance(finish.matched, str) and not in_calls else None
    if finish is None:
        reason = None
    elif in_calls:
        reason = "tool_use"
    elif isinstance(finish, Stop):
        reason = "end_turn" if matched is None else "stop_sequence"
    elif isinstance(finish, Length):
        reason = "max_tokens" if finish.limit >= max_tokens else "model_context_window_exceeded"
    else:
        raise InvariantError("a request that failed has no stop_reason")
    return {"stop_reason": reason, "stop_sequence": matched, "stop_details": None}


def usage_members(usage: Usage, thinking_tokens: int | None = None) -> Json:
    """Counts as Anthropic has them: `input_tokens` are those that no cache had. Caching is automatic: nothing is created by
    request."""
    details = {} if thinking_tokens is None else {"output_tokens_details": {"thinking_tokens": thinking_tokens}}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **details,
    }


def event(type: str, **members: Any) -> bytes:
    """One event: its type stands beside and in its data."""
    return named_event(type.encode("ascii"), msgspec.json.encode({"type": type, **members}))
