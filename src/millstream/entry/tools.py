"""`tools` of a request: functions that the model may call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from millstream.entry.fields import FieldRules, check_count
from millstream.errors import RequestError
from millstream.parsing.draft import Tools
from millstream.parsing.forms import MAX_NAME_CHARS

MAX_TOOLS = 1024


ToolName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\s<>\[\]{}()|`\"',;=]+$")]


class ToolFunction(Struct, kw_only=True):
    """A function: its name, and a JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False  # the arguments follow `parameters` even where the model may call as it likes


class Tool(Struct, kw_only=True):
    """An item of `tools`."""

    type: Literal["function"] = "function"
    function: dict[str, Any]


FUNCTION = FieldRules(
    honoured=ToolFunction,
    example={"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
)
TOOL = FieldRules(
    honoured=Tool,
    parts={"function": FUNCTION},
    example={"type": "function", "function": {"name": "get_weather"}},
)


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """A function that the model may call. A call of a `strict` one follows `parameters` whether calls are required or not.

    `parameters`: None where it takes none. `given` is what the chat template gets, in OpenAI's form. `where` is the path of the
    schema in the request, as its API names it.
    """

    name: str
    parameters: dict[str, Any] | None
    given: dict[str, Any]
    where: str
    strict: bool = False


def offered_tools(given: list[dict[str, Any]], param: str = "tools") -> tuple[OfferedTool, ...]:
    """The tools of a request in OpenAI's form, checked.

    Raises:
        RequestError: there are too many, one is wrong, or two have one name; `param` says where.
    """
    check_count(param, len(given), MAX_TOOLS)
    offered: dict[str, OfferedTool] = {}
    for index, item in enumerate(given):
        where = f"{param}[{index}]"
        function = _within(FUNCTION, _within(TOOL, item, where).function, f"{where}.function")
        if function.name in offered:
            raise RequestError(f"{where}.function.name is {function.name!r}, which an earlier one has.", param=where)
        offered[function.name] = OfferedTool(
            name=function.name,
            parameters=function.parameters,
            given=item,
            where=f"{where}.function.parameters",
            strict=function.strict,
        )
    return tuple(offered.values())


def tools_of(offered: Iterable[OfferedTool], *, max_calls: int | None = None) -> Tools:
    """The same, as parsers know them."""
    return Tools({tool.name: tool.parameters for tool in offered}, max_calls)


def read_tools(given: list[dict[str, Any]]) -> Tools:
    """The tools of a request in OpenAI's form, as parsers know them. Raises as `offered_tools` does."""
    return tools_of(offered_tools(given))


def _within(rules: FieldRules[Any], value: dict[str, Any], where: str) -> Any:
    try:
        return rules.parse(value)
    except RequestError as error:
        inner = f"{where}.{error.param}" if error.param else where
        raise RequestError(f"{where}: {error.message}", param=inner, code=error.code) from None
