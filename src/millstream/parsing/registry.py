"""Which formats there are, by name, and which one a chat template speaks. Others come by entry point.

An installed package adds one by an entry point in the group `millstream.tool_parsers` or `millstream.reasoning_parsers` that
names a `ToolFormat` or a `ReasoningFormat`; it is loaded when it is asked for by the entry point's name.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from millstream.errors import StartupError
from millstream.parsing.formats.command import COMMAND, COMMAND_TOOLS
from millstream.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from millstream.parsing.formats.glm import GLM45
from millstream.parsing.formats.granite import GRANITE as GRANITE_TOOLS
from millstream.parsing.formats.granite import PHI4_MINI
from millstream.parsing.formats.harmony import GPT_OSS, GPT_OSS_TOOLS
from millstream.parsing.formats.hermes import HERMES
from millstream.parsing.formats.hunyuan import HUNYUAN as HUNYUAN_TOOLS
from millstream.parsing.formats.hunyuan import NEMOTRON
from millstream.parsing.formats.internlm import INTERNLM
from millstream.parsing.formats.invoke import DEEPSEEK_V32, MINIMAX_M2, STEP3
from millstream.parsing.formats.kimi import KIMI_K2
from millstream.parsing.formats.lfm2 import LFM2
from millstream.parsing.formats.llama import LLAMA3, PYTHONIC
from millstream.parsing.formats.mistral import MISTRAL
from millstream.parsing.formats.qwen3_coder import QWEN3_CODER
from millstream.parsing.formats.seed import SEED_OSS, SEED_OSS_TOOLS
from millstream.parsing.formats.think import DEEPSEEK_R1, EXAONE, GRANITE, GRANITE32, HUNYUAN, KIMI, MAGISTRAL, QWEN3
from millstream.parsing.reasoning import ReasoningFormat
from millstream.parsing.stage import ToolFormat

# in the order in which a template is compared with them: what has more marks comes first
TOOL_FORMATS = (
    SEED_OSS_TOOLS,
    MINIMAX_M2,
    STEP3,
    DEEPSEEK_V32,
    QWEN3_CODER,
    GLM45,
    HERMES,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    GPT_OSS_TOOLS,
    MISTRAL,
    COMMAND_TOOLS,
    GRANITE_TOOLS,
    PHI4_MINI,
    HUNYUAN_TOOLS,
    NEMOTRON,
    INTERNLM,
    LFM2,
    PYTHONIC,
    LLAMA3,
)
REASONING_FORMATS = (
    GPT_OSS,
    SEED_OSS,
    COMMAND,
    KIMI,
    MAGISTRAL,
    GRANITE32,
    GRANITE,
    HUNYUAN,
    EXAONE,
    QWEN3,
    DEEPSEEK_R1,
)

AUTO, NONE = "auto", "none"

T = TypeVar("T")


def tool_format(name: str) -> ToolFormat:
    """The format called `name`.

    Raises:
        KeyError: there is none.
        StartupError: it comes from another package, and cannot be loaded or is not what it should be.
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
        try:
            loaded = entry.load()
        except (ImportError, AttributeError) as error:
            raise StartupError(f"the entry point {name} in {group} cannot be loaded: {error}") from error
        if not isinstance(loaded, kind):
            raise StartupError(f"the entry point {name} in {group} is a {type(loaded).__name__}, not a {kind.__name__}")
        return loaded
    raise KeyError(name)
