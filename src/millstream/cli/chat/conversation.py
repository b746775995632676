"""Conversation: the messages so far, and the body of the next request. Knows nothing of screens or sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.cli.chat.answer import Answer


class Conversation:
    """Turns of one chat. A question whose answer failed stays, so that it can be asked again."""

    def __init__(self, model: str, system: str | None, sampling: Mapping[str, Any]) -> None:
        """`sampling`: further fields of each request, such as `temperature`; those that are None are left out."""
        self._model = model
        self._sampling = {name: value for name, value in sampling.items() if value is not None}
        self._turns: list[dict[str, Any]] = []
        self.system = system

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What is sent: the system prompt, if there is one, and every turn."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self._turns]

    def body(self, *, count_tokens: bool) -> dict[str, Any]:
        """The request for the next answer; `count_tokens` asks for its usage."""
        usage = {"stream_options": {"include_usage": True}} if count_tokens else {}
        return {"model": self._model, "messages": self.messages, "stream": True, **usage, **self._sampling}

    def ask(self, text: str) -> None:
        """The user's next turn. It takes the place of a question that got no answer."""
        if self._turns and self._turns[-1]["role"] == "user":
            self._turns.pop()
        self._turns.append({"role": "user", "content": text})

    def answered(self, answer: Answer) -> None:
        """The assistant's turn, whole or stopped. Calls that were stopped are left out: nobody can answer half a call."""
        if answer.finish_reason is None:
            answer.calls.clear()
        if (message := answer.message()) is not None:
            self._turns.append(message)

    def result(self, call: Mapping[str, Any], text: str) -> None:
        """What a tool gave."""
        self._turns.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def rewind(self) -> bool:
        """Take back everything after the last question; False where none was asked."""
        last = max((index for index, turn in enumerate(self._turns) if turn["role"] == "user"), default=None)
        if last is None:
            return False
        del self._turns[last + 1 :]
        return True

    def reset(self) -> None:
        """Forget every turn; the system prompt stays."""
        self._turns.clear()
