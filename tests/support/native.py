"""Answers of /generate, put together as a client of an incremental stream does."""

from __future__ import annotations

from typing import Any


def join(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The events of an incremental stream as the whole answer: lists and texts joined, the rest as the last one says."""
    joined: dict[str, Any] = {**events[-1], "meta_info": {**events[-1]["meta_info"]}}
    joined["text"] = "".join(event["text"] for event in events)
    for name in joined.keys() & {"output_ids", "prompt_token_ids"}:
        joined[name] = [item for event in events for item in event[name]]
    for name in joined["meta_info"]:
        if name.endswith("_logprobs"):
            joined["meta_info"][name] = [item for event in events for item in event["meta_info"][name]]
        elif name.endswith("_length"):
            joined["meta_info"][name] = sum(event["meta_info"][name] for event in events)
    return joined
