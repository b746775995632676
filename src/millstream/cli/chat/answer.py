"""Answer: what the events of one streamed chat answer come to. Knows OpenAI's deltas, and the two names reasoning has."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Part(NamedTuple):
    """Text that has just come."""

    kind: Literal["text", "reasoning"]
    text: str


class Answer:
    """One answer as far as it has come. `take` each event, in order."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        """Tool calls as an assistant message has them; `arguments` is JSON text once the answer is complete."""
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> list[Part]:
        """What `event` adds that can be shown at once. Of several choices only the first is read."""
        self.usage = event.get("usage") or self.usage
        parts: list[Part] = []
        for choice in event.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
                self.reasoning += reasoning
                parts.append(Part("reasoning", reasoning))
            if text := delta.get("content") or delta.get("refusal"):
                self.text += text
                parts.append(Part("text", text))
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return parts

    def message(self) -> dict[str, Any] | None:
        """The assistant's message for the turns after this one; None where nothing came."""
        if not self.text and not self.calls:
            return None
        return {"role": "assistant", "content": self.text, **({"tool_calls": self.calls} if self.calls else {})}

    def _take_call(self, delta: dict[str, Any]) -> None:
        index = delta.get("index", len(self.calls))
        while len(self.calls) <= index:
            self.calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = self.calls[index], delta.get("function") or {}
        call["id"] = delta.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
