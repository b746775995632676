"""Which formats there are, by name, and which one a chat template speaks. Others come by entry point.

An installed package adds one by an entry point in the group `millstream.tool_parsers` or `millstream.reasoning_parsers` that
names a `ToolFormat` or a `ReasoningFormat`; it is loaded when it is asked for by the entry point's name.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from millstream.errors import StartupError
from millstream.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from millstream.parsing.formats.glm import GLM45
from millstream.parsing.formats.harmony import GPT_OSS, GPT_OSS_TOOLS
from millstream.parsing.formats.hermes import HERMES
from millstream.parsing.formats.kimi import KIMI_K2
from millstream.parsing.formats.llama import LLAMA3, PYTHONIC
from millstream.parsing.formats.mistral import MISTRAL
from millstream.parsing.formats.qwen3_coder import QWEN3_CODER
from millstream.parsing.formats.think import DEEPSEEK_R1, KIMI, MAGISTRAL, QWEN3
from millstream.parsing.reasoning import ReasoningFormat
from millstream.parsing.stage import ToolFormat

# in the order in which a template is compared with them: what has more marks comes first
TOOL_FORMATS = (
    QWEN3_CODER,
    GLM45,
    HERMES,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    GPT_OSS_TOOLS,
    MISTRAL,
    PYTHONIC,
    LLAMA3,
)
REASONING_FORMATS = (GPT_OSS, KIMI, MAGISTRAL, QWEN3, DEEPSEEK_R1)

AUTO, NONE = "auto", "none"

T = TypeVar("T")


def tool_format(name: str) -> ToolFormat:
    """The format called `name`.

    Raises:
        KeyError: there is none.
        StartupError: it comes from another package, and is not what it should be.
    """
    for known in TOOL_FORMATS:
        if name == known.name or name in known.aliases:
            return known
    return _loaded("millstream.tool_parsers", name, ToolFormat)


def reasoning_format(name: str) -> ReasoningFormat:
    """The format called `name`. Raises as `tool_format` does."""
    for known in REASONING_FORMATS:
        if name == known.name or name in known.aliases:
            return known
    return _loaded("millstream.reasoning_parsers", name, ReasoningFormat)


def tool_format_names() -> list[str]:
    """The names that `tool_format` knows, without aliases."""
    return [known.name for known in TOOL_FORMATS] + sorted(entry_points(group="millstream.tool_parsers").names)


def reasoning_format_names() -> list[str]:
    """The names that `reasoning_format` knows, without aliases."""
    return [known.name for known in REASONING_FORMATS] + sorted(entry_points(group="millstream.reasoning_parsers").names)


def tool_format_of(template: str) -> ToolFormat | None:
    """The format that a chat template's source speaks, if it is one that we know."""
    return next((known for known in TOOL_FORMATS if _has(template, known.template_marks)), None)


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The format of the reasoning that a chat template's source speaks of."""
    return next((known for known in REASONING_FORMATS if _has(template, known.template_marks)), None)


def _has(template: str, marks: tuple[str, ...]) -> bool:
    return bool(marks) and all(mark in template for mark in marks)


def _loaded(group: str, name: str, kind: type[T]) -> T:
    for entry in entry_points(group=group, name=name):
        loaded = entry.load()
        if not isinstance(loaded, kind):
            raise StartupError(f"the entry point {name} in {group} is a {type(loaded).__name__}, not a {kind.__name__}")
        return loaded
    raise KeyError(name)
