"""What the fields of a request for a response say about its answer, in the terms of `entry.turn`."""

from __future__ import annotations

from typing import Any

from millstream.entry.fields import check_count
from millstream.entry.grammar import only_one
from millstream.entry.openai.responses.protocol import TOOL, FunctionTool, PromptRequest, ResponseRequest, text_form
from millstream.entry.thinking import Thinking
from millstream.entry.tools import MAX_TOOLS, OfferedTool
from millstream.entry.turn import ToolChoice, Wish
from millstream.errors import RequestError

_CHOICES = (
    'tool_choice must be "none", "auto", "required", {"type": "function", "name": ...} or '
    '{"type": "allowed_tools", "mode": "auto" or "required", "tools": [{"type": "function", "name": ...}]}'
)


def wish_of(request: PromptRequest) -> Wish:
    """What the request wants of its answer.

    Raises:
        RequestError: `tools`, `tool_choice` or a grammar is wrong.
    """
    return Wish(
        tools=_offered(request.tools),
        choice=_choice(request.tool_choice),
        parallel=request.parallel_tool_calls,
        thinking=_thinking(request),
        form=only_one(request.grammars()) if isinstance(request, ResponseRequest) else text_form(request.text),
    )


def listed_tools(given: list[Any]) -> list[dict[str, Any]]:
    """`tools`, which were read, as the response object lists them."""
    names = ("type", "name", "description", "parameters", "strict")
    return [{name: tool.get(name) for name in names} for tool in given]


def _thinking(request: PromptRequest) -> Thinking:
    effort = None if request.reasoning is None else request.reasoning.effort
    budget = request.thinking_token_budget if isinstance(request, ResponseRequest) else None
    param = "reasoning.effort" if effort not in (None, "none") or budget is None else "thinking_token_budget"
    return Thinking(effort=effort, budget=budget, param=param)


def _choice(choice: str | dict[str, Any]) -> ToolChoice:
    match choice:
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("required", (name,))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]} if tools:
            return ToolChoice(mode, tuple(_name(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(tools)))
        case {"type": str(kind)} if kind not in ("function", "allowed_tools"):
            raise RequestError(
                f"tool_choice.type is `{kind[:100]}`: this server runs no tools itself; it takes functions.",
                param="tool_choice.type",
                code="unsupported_parameter",
            )
    raise RequestError(f"{_CHOICES}.", param="tool_choice")


def _name(tool: Any, where: str) -> str:
    match tool:
        case {"type": "function", "name": str(name)}:
            return name
    raise RequestError(f'{where} must be {{"type": "function", "name": ...}}.', param=where)


def _offered(given: list[Any]) -> tuple[OfferedTool, ...]:
    check_count("tools", len(given), MAX_TOOLS)
    offered: dict[str, OfferedTool] = {}
    for index, item in enumerate(given):
        where = f"tools[{index}]"
        tool = _tool(item, where)
        if tool.name in offered:
            raise RequestError(f"{where}.name is {tool.name!r}, which an earlier one has.", param=f"{where}.name")
        offered[tool.name] = OfferedTool(
            name=tool.name,
            parameters=tool.parameters,
            given=_chat_form(tool),
            where=f"{where}.parameters",
            strict=bool(tool.strict),
        )
    return tuple(offered.values())


def _tool(item: Any, where: str) -> FunctionTool:
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object.", param=where, code="invalid_type")
    if isinstance(kind := item.get("type"), str) and kind != "function":
        raise RequestError(
            f"{where}.type is `{kind[:100]}`: this server runs no tools itself; it takes functions, which their client runs.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    try:
        return TOOL.parse(item)
    except RequestError as error:
        path = where if error.param is None else f"{where}.{error.param}"
        raise RequestError(f"{where}: {error.message}", param=path, code=error.code) from None


def _chat_form(tool: FunctionTool) -> dict[str, Any]:
    """What chat templates are written for: OpenAI's older form, with what was given."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
