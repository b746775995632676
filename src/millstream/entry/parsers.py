"""Which parsers a server uses: what its options name, or what its chat template speaks. Chosen once, at load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millstream.config import ServerConfig
from millstream.errors import RequestError, StartupError
from millstream.parsing.reasoning import ReasoningFormat
from millstream.parsing.registry import (
    AUTO,
    NONE,
    reasoning_format,
    reasoning_format_names,
    reasoning_format_of,
    tool_format,
    tool_format_names,
    tool_format_of,
)
from millstream.parsing.stage import ToolFormat

T = TypeVar("T", ToolFormat, ReasoningFormat)


@dataclass(frozen=True)
class Parsers:
    """The parsers of the served model's text; None where it has none."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


def choose_parsers(config: ServerConfig, templates: dict[str, str]) -> Parsers:
    """The parsers that the options say; with `auto` those that the chat templates speak, the one for tools first.

    Raises:
        StartupError: an option names none.
    """
    sources = [templates[name] for name in ("tool_use", "default") if name in templates]

    def chosen(
        option: str, value: str, named: Callable[[str], T], found: Callable[[str], T | None], names: list[str]
    ) -> T | None:
        if value == NONE:
            return None
        if value == AUTO:
            return next((known for source in sources if (known := found(source)) is not None), None)
        try:
            return named(value)
        except KeyError:
            raise StartupError(f"{option} is `{value}`; there is none of this name", hint=_one_of(names)) from None

    return Parsers(
        tools=chosen("tool_call_parser", config.tool_call_parser, tool_format, tool_format_of, tool_format_names()),
        reasoning=chosen(
            "reasoning_parser", config.reasoning_parser, reasoning_format, reasoning_format_of, reasoning_format_names()
        ),
    )


def named_tool_format(name: str | None, parsers: Parsers) -> ToolFormat:
    """The parser that a request names in `tool_call_parser`; the server's where it names none.

    Raises:
        RequestError: there is none.
    """
    return _named("tool_call_parser", name, parsers.tools, tool_format, tool_format_names)


def named_reasoning_format(name: str | None, parsers: Parsers) -> ReasoningFormat:
    """The parser that a request names in `reasoning_parser`; the server's where it names none. Raises likewise."""
    return _named("reasoning_parser", name, parsers.reasoning, reasoning_format, reasoning_format_names)


def _named(param: str, name: str | None, own: T | None, named: Callable[[str], T], names: Callable[[], list[str]]) -> T:
    if name is None and own is not None:
        return own
    if name is None:
        raise RequestError(f"{param} is missing, and this server has none of its own: {_one_of(names())}.", param=param)
    try:
        return named(name)
    except KeyError:
        raise RequestError(f"{param} is {name[:100]!r}; there is none of this name: {_one_of(names())}.", param=param) from None
    except StartupError as error:
        raise RequestError(f"{param} is {name[:100]!r}: {error}.", param=param) from error


def _one_of(names: list[str]) -> str:
    return f"it is one of {', '.join(names)}"
