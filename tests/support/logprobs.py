"""Log probabilities of an answer, and of a stream put together again."""

from __future__ import annotations

from typing import Any


def content_bytes(logprobs: dict[str, Any] | None) -> bytes:
    """The bytes of all tokens that a chat's `logprobs` list."""
    return b"".join(bytes(entry["bytes"] or ()) for entry in (logprobs or {"content": ()})["content"])


def joined_choices(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices of a stream as a plain answer would have them: text, `logprobs` and how each ended."""
    joined: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            mine = joined.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
            mine["text"] += choice.get("text", "") or choice.get("delta", {}).get("content") or ""
            mine["finish_reason"] = choice["finish_reason"] or mine["finish_reason"]
            mine["logprobs"] = merged(mine["logprobs"], choice["logprobs"])
    return joined


def plain_choices(body: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The same of a plain answer; an answer without tokens lists none, which no chunk of a stream need say."""
    return {
        choice["index"]: {
            "text": choice["message"]["content"] if "message" in choice else choice["text"],
            "logprobs": choice["logprobs"] if any((choice["logprobs"] or {}).values()) else None,
            "finish_reason": choice["finish_reason"],
        }
        for choice in body["choices"]
    }


def merged(first: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """`logprobs` of two parts of an answer as those of both."""
    if first is None or more is None:
        return first or more
    return {name: value + more[name] if isinstance(value, list) else value for name, value in first.items()}
