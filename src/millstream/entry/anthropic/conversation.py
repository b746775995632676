"""Anthropic's messages -> chat messages, the form that chat templates are written for.

Pure. Texts of one message are joined as they are. Neighbours of one role become one turn, as in Anthropic's API, with a blank
line between them; `system` comes first, its blocks apart by a blank line too. A result of a tool is a message of its own. What
an answer says behind its calls is told before them, where alone templates write it.
"""

from __future__ import annotations

from typing import Any

from millstream.entry.anthropic.blocks import parse_at, parse_blocks, text_of
from millstream.entry.anthropic.protocol import MESSAGE, Message, PromptFields, TextBlock, ThinkingBlock
from millstream.entry.chat_messages import no_tool_calls
from millstream.entry.fields import check_count
from millstream.errors import RequestError
from millstream.text.conversation import MAX_MESSAGES, PARAGRAPH

_USER = ("text", "tool_result")
_ASSISTANT = ("text", "thinking", "tool_use")


def item_count(request: PromptFields) -> int:
    """How many messages and blocks these are, about: each costs time, however short its text.

    Raises:
        RequestError: more messages than are allowed.
    """
    check_count("messages", len(request.messages), MAX_MESSAGES)
    contents = [message.get("content") for message in request.messages if isinstance(message, dict)]
    return len(contents) + sum(len(each) for each in (*contents, request.system) if isinstance(each, list))


def to_chat(request: PromptFields, *, writes_tool_calls: bool) -> list[dict[str, Any]]:
    """The chat messages of a request. Where the last one is the assistant's, it is to be continued.

    Raises:
        RequestError: something cannot be read, or a template could not write it; `param` is its path.
    """
    chat = _Chat(writes_tool_calls=writes_tool_calls)
    if request.system:
        chat.add_text("system", text_of(request.system, "system", between=PARAGRAPH))
    for index, item in enumerate(request.messages):
        where = f"messages[{index}]"
        message = parse_at(MESSAGE, item, where)
        if message.role == "user":
            chat.add_user(message, f"{where}.content")
        elif message.role == "assistant":
            chat.add_assistant(message, f"{where}.content")
        else:
            chat.add_text("system", text_of(message.content, f"{where}.content"))
    if chat.turns and "tool_calls" in chat.turns[-1]:
        raise RequestError("messages ends with a tool_use; a user message with its tool_result must follow.", param="messages")
    return chat.finished()


class _Chat:
    """Chat messages in the making. What a turn says and thinks are lists of texts until the end: it may be in many pieces."""

    def __init__(self, *, writes_tool_calls: bool) -> None:
        self.turns: list[dict[str, Any]] = []
        self._writes_tool_calls = writes_tool_calls
        self._tool_names: dict[str, str] = {}  # of the calls so far, by their ids

    def finished(self) -> list[dict[str, Any]]:
        """The chat messages."""
        for turn in self.turns:
            turn["content"] = PARAGRAPH.join(filter(None, turn["content"]))
            if "reasoning_content" in turn:
                turn["reasoning_content"] = "".join(turn["reasoning_content"])
        return self.turns

    def add_text(self, role: str, text: str) -> dict[str, Any]:
        """Add `text` to the turn of `role`, which is the last one or a new one; returns it."""
        if not self.turns or self.turns[-1]["role"] != role:
            self.turns.append({"role": role, "content": []})
        self.turns[-1]["content"].append(text)
        return self.turns[-1]

    def add_user(self, message: Message, where: str) -> None:
        """Add what a user says, and the results of tools, in their order."""
        texts: list[str] = []
        for at, block in parse_blocks(message.content, where, _USER):
            if isinstance(block, TextBlock):
                texts.append(block.text)
                continue
            self._check_tools(at)
            if (name := self._tool_names.get(block.tool_use_id)) is None:
                raise RequestError(
                    f"{at}.tool_use_id is {block.tool_use_id[:100]!r}; no earlier tool_use has this id.",
                    param=f"{at}.tool_use_id",
                )
            if texts:
                self.add_text("user", "".join(texts))
                texts.clear()
            result = text_of(block.content, f"{at}.content")
            self.turns.append({"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": [result]})
        if texts or not message.content:
            self.add_text("user", "".join(texts))

    def add_assistant(self, message: Message, where: str) -> None:
        """Add an earlier answer, or the beginning of this one."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        may_speak = not self.turns or "tool_calls" not in self.turns[-1]
        for at, block in parse_blocks(message.content, where, _ASSISTANT):
            if isinstance(block, TextBlock):
                if not may_speak:
                    raise RequestError(f"{at} is text after a tool_use of an earlier message, before its result.", param=at)
                texts.append(block.text)
            elif isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
            else:
                self._check_tools(at)
                self._tool_names[block.id] = block.name
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
        turn = self.add_text("assistant", "".join(texts))
        if thoughts:
            turn.setdefault("reasoning_content", []).extend(thoughts)
        if calls:
            turn.setdefault("tool_calls", []).extend(calls)

    def _check_tools(self, where: str) -> None:
        if not self._writes_tool_calls:
            raise no_tool_calls(where)
