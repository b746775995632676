"""What the fields of a request for a message say about its answer, in the terms of `entry.turn`."""

from __future__ import annotations

from typing import Any

from millstream.entry.anthropic.blocks import parse_at
from millstream.entry.anthropic.protocol import TOOL, CustomTool, PromptFields, ThinkingConfig
from millstream.entry.fields import check_count
from millstream.entry.grammar import spec_of
from millstream.entry.thinking import Effort, Thinking
from millstream.entry.tools import MAX_TOOLS, OfferedTool
from millstream.entry.turn import ToolChoice, Wish
from millstream.errors import RequestError


def wish_of(request: PromptFields) -> Wish:
    """What the request wants of its answer.

    Raises:
        RequestError: `tools`, `tool_choice` or `thinking` is wrong.
    """
    choice = request.tool_choice
    config = request.output_config
    form = None if config is None or config.format is None else config.format.schema
    thinking = _thinking(request.thinking, None if config is None else config.effort)
    return Wish(
        tools=_offered(request.tools),
        choice=_choice(request),
        parallel=choice is None or not choice.disable_parallel_tool_use,
        thinking=thinking,
        form=spec_of("json_schema", form, "output_config.format.schema"),
    )


def _thinking(config: ThinkingConfig | None, effort: Effort | None) -> Thinking:
    if config is None:
        return Thinking(effort=effort, param="output_config.effort")
    if (config.type == "enabled") != (config.budget_tokens is not None):
        raise RequestError(
            "thinking.budget_tokens goes with the type `enabled`, and only with it.", param="thinking.budget_tokens"
        )
    is_enabled = None if config.type == "adaptive" else config.type == "enabled"
    param = "thinking" if is_enabled else "output_config.effort"
    return Thinking(is_enabled=is_enabled, effort=effort, budget=config.budget_tokens, param=param)


def _choice(request: PromptFields) -> ToolChoice:
    choice = request.tool_choice
    if choice is None:
        return ToolChoice("auto")
    if (choice.type == "tool") != (choice.name is not None):
        raise RequestError("tool_choice.name goes with the type `tool`, and only with it.", param="tool_choice.name")
    if choice.type in ("any", "tool"):
        return ToolChoice("required", None if choice.name is None else (choice.name,))
    return ToolChoice("none" if choice.type == "none" else "auto")


def _offered(given: list[Any]) -> tuple[OfferedTool, ...]:
    check_count("tools", len(given), MAX_TOOLS)
    offered: dict[str, OfferedTool] = {}
    for index, item in enumerate(given):
        where = f"tools[{index}]"
        if isinstance(item, dict) and item.get("type") not in (None, "custom"):
            shown = str(item["type"])[:100]
            raise RequestError(
                f"{where}.type is `{shown}`: this server runs no tools itself; it takes `custom` ones.",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        tool = parse_at(TOOL, item, where)
        if tool.name in offered:
            raise RequestError(f"{where}.name is {tool.name!r}, which an earlier one has.", param=f"{where}.name")
        offered[tool.name] = OfferedTool(
            name=tool.name,
            parameters=tool.input_schema,
            given=_openai_form(tool),
            where=f"{where}.input_schema",
            strict=bool(tool.strict),
        )
    return tuple(offered.values())


def _openai_form(tool: CustomTool) -> dict[str, Any]:
    """What chat templates are written for."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}
