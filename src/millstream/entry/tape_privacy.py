"""Mask: what is kept of a call where no text may be: its shape. Letters become `x`, digits `0`, token ids other numbers.

One mask a call: equal ids become equal numbers within it, in the order in which they come, and nobody can tell which they were.
"""

from __future__ import annotations

import re
from typing import Any

from millstream.messages import Abort, FinishReason, Stop

_KEPT = {
    "model",
    "role",
    "type",
    "object",
    "cause",
    "rid",
    "call",
    "cache_namespace",
    "tool_choice",
    "reasoning_effort",
    "kind",
}


class Mask:
    """See the module."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def ids(self, token_ids: list[int]) -> list[int]:
        """Other numbers for ids."""
        return [self._numbers.setdefault(each, len(self._numbers)) for each in token_ids]

    def text(self, value: Any, key: str = "") -> Any:
        """JSON of the same shape."""
        if isinstance(value, str):
            return value if key in _KEPT else _masked(value)
        if key == "logit_bias":
            return {"tokens": len(value or {})}
        if isinstance(value, dict):
            return {name: self.text(each, name) for name, each in value.items()}
        if isinstance(value, list | tuple):
            kinds = set(map(type, value))
            if kinds == {int}:  # ids, whatever the API calls them
                return self.ids(list(value))
            if kinds <= {int, float} and value:  # embeddings
                return [0.0] * len(value)
            return [self.text(each, key) for each in value]
        return value

    def finish(self, finish: FinishReason | None) -> FinishReason | None:
        """The same end, with nothing of the text in it."""
        if isinstance(finish, Stop) and finish.matched is not None:
            return Stop(_masked(finish.matched) if isinstance(finish.matched, str) else self.ids([finish.matched])[0])
        return Abort(finish.cause, "", finish.status) if isinstance(finish, Abort) else finish


def _masked(text: str) -> str:
    return re.sub(r"\d", "0", re.sub(r"[^\W\d]", "x", text))
