"""What the fields of a chat request say about its answer, in the terms of `entry.turn`."""

from __future__ import annotations

from typing import Any

from millstream.entry.grammar import only_one
from millstream.entry.openai.protocol import ChatCompletionRequest
from millstream.entry.tools import offered_tools
from millstream.entry.turn import ToolChoice, Wish
from millstream.errors import RequestError


def wish_of(request: ChatCompletionRequest) -> Wish:
    """What the request wants of its answer.

    Raises:
        RequestError: `tools`, `tool_choice` or a grammar is wrong.
    """
    return Wish(
        tools=offered_tools(request.tools),
        choice=_choice(request.tool_choice),
        parallel=request.parallel_tool_calls,
        separate_reasoning=request.separate_reasoning,
        form=only_one(request.grammars()),
    )


def _choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    match choice:
        case None | "auto":
            return ToolChoice("auto")
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", (name,))
    raise RequestError(
        'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.',
        param="tool_choice",
    )
