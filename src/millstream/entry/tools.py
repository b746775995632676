"""`tools` of a request: functions that the model may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from millstream.entry.fields import FieldRules
from millstream.errors import RequestError
from millstream.parsing.draft import Tools
from millstream.parsing.forms import MAX_NAME_CHARS

MAX_TOOLS = 1024


class ToolFunction(Struct, kw_only=True):
    """A function: its name, and a JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\s<>\[\]{}()|`\"',;=]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct, kw_only=True):
    """An item of `tools`."""

    type: Literal["function"] = "function"
    function: dict[str, Any]


FUNCTION = FieldRules(
    honoured=ToolFunction,
    example={"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    without_effect={"strict": "arguments are not constrained"},
    forms={"strict": bool},
)
TOOL = FieldRules(
    honoured=Tool,
    parts={"function": FUNCTION},
    example={"type": "function", "function": {"name": "get_weather"}},
)


def read_tools(given: list[dict[str, Any]], param: str = "tools", *, max_calls: int | None = None) -> Tools:
    """The tools of a request, checked.

    Raises:
        RequestError: there are too many, one is wrong, or two have one name; `param` says where.
    """
    if len(given) > MAX_TOOLS:
        raise RequestError(f"{param} has {len(given)} items; at most {MAX_TOOLS} are allowed.", param=param)
    schemas: dict[str, object] = {}
    for index, item in enumerate(given):
        where = f"{param}[{index}]"
        function = _within(FUNCTION, _within(TOOL, item, where).function, f"{where}.function")
        if function.name in schemas:
            raise RequestError(f"{where}.function.name is {function.name!r}, which an earlier one has.", param=where)
        schemas[function.name] = function.parameters
    return Tools(schemas, max_calls)


def _within(rules: FieldRules[Any], value: dict[str, Any], where: str) -> Any:
    try:
        return rules.parse(value)
    except RequestError as error:
        inner = f"{where}.{error.param}" if error.param else where
        raise RequestError(f"{where}: {error.message}", param=inner, code=error.code) from None
