"""What a chat request says about tools and reasoning: which tools are offered, and how the answer's text is to be read."""

from __future__ import annotations

from typing import Any

from millstream.entry.openai.protocol import ChatCompletionRequest
from millstream.entry.service import Service
from millstream.entry.tools import read_tools
from millstream.errors import RequestError
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading

TAIL_TOKENS = 32  # more than any tag has


def offered_tools(request: ChatCompletionRequest, service: Service) -> Tools | None:
    """The tools that the model may call; None where there are none, or `tool_choice` is `none`.

    Raises:
        RequestError: `tools` or `tool_choice` is wrong, or the served model has no use for them.
    """
    tools = read_tools(request.tools, max_calls=None if request.parallel_tool_calls else 1)
    _check_choice(request.tool_choice, tools, has_tools=bool(request.tools))
    if not request.tools or request.tool_choice == "none":
        return None
    if not service.chat.template_for(has_tools=True).uses_tools:
        raise RequestError("`tools` is refused: this model's chat template has no place for them.", param="tools")
    if service.text.parsers.tools is None:
        raise RequestError(
            "`tools` is refused: this server does not know how the model writes calls; start it with --tool-call-parser.",
            param="tools",
        )
    return tools


def _check_choice(choice: str | dict[str, Any] | None, tools: Tools, *, has_tools: bool) -> None:
    if choice in (None, "none", "auto"):
        return
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise RequestError(
                'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.',
                param="tool_choice",
            )
        if not tools.has(name):
            raise RequestError(f"tool_choice names {name[:100]!r}, which is not among tools.", param="tool_choice")
    if not has_tools:
        raise RequestError("tool_choice needs tools.", param="tool_choice")
    raise RequestError(
        "tool_choice is refused but for `none` and `auto`: a call cannot be enforced by this server.",
        param="tool_choice",
        code="unsupported_parameter",
    )


def reading_of(
    request: ChatCompletionRequest, service: Service, tools: Tools | None, prompt: str | list[int]
) -> Reading | None:
    """How the answer to `prompt` is to be read; None where all of it is content.

    Raises:
        RequestError: tools may be called, and a grammar binds the answer; or reasoning, which may speak of calls, is to stay
            in the content.
    """
    if any(grammar is not None for grammar in request.grammars()):
        if tools is not None:
            raise RequestError("tools cannot be offered where a grammar binds the answer.", param="tools")
        return None  # it binds all of the answer, which has no reasoning then
    parsers = service.text.parsers
    reasoning = parsers.reasoning
    if not request.separate_reasoning:
        if reasoning is not None and tools is not None:
            raise RequestError("separate_reasoning must not be false where there are tools.", param="separate_reasoning")
        reasoning = None
    if reasoning is None and tools is None:
        return None
    is_open = False
    if reasoning is not None:
        tail = (
            prompt
            if isinstance(prompt, str)
            else service.manager.tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        )
        is_open = reasoning.opened_by(tail)
    return Reading(
        reasoning=reasoning,
        tool_format=parsers.tools if tools is not None else None,
        tools=tools or Tools({}),
        is_open=is_open,
    )
