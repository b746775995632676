"""What the fields of a chat request say about its answer, in the terms of `entry.turn`."""

from __future__ import annotations

from typing import Any

from millstream.entry.grammar import only_one
from millstream.entry.openai.protocol import ChatCompletionRequest
from millstream.entry.thinking import Thinking
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
        thinking=_thinking(request),
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
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools}}:
            return ToolChoice(mode, tuple(_name(tool) for tool in tools))
    raise _wrong_choice()


def _name(tool: object) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise _wrong_choice()


def _thinking(request: ChatCompletionRequest) -> Thinking:
    """What the fields about reasoning come to.

    Raises:
        RequestError: there are two budgets.
    """
    budgets = {"thinking_token_budget": request.thinking_token_budget, "thinking_budget": request.thinking_budget}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) > 1:
        raise RequestError("thinking_budget is another name of thinking_token_budget; give one.", param="thinking_budget")
    fields = {"reasoning_effort": request.reasoning_effort, "enable_thinking": request.enable_thinking, **given}
    return Thinking(
        is_enabled=request.enable_thinking,
        effort=request.reasoning_effort,
        budget=next(iter(given.values()), None),
        param=next((name for name, value in fields.items() if value not in (None, "none", False, 0)), "reasoning_effort"),
    )


def _wrong_choice() -> RequestError:
    return RequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": ...}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}.',
        param="tool_choice",
    )
