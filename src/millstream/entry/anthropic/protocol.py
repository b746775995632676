"""The bodies of the Anthropic routes: what is honoured, what has no effect, what is refused. Docs are made from this file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from millstream.entry.fields import FieldRules, Refused
from millstream.entry.limits import MaxTokens, Priority, Rid, Salt, Seed, StopStrings, Temperature, ThoughtTokens, Timeout, TopP
from millstream.entry.tools import ToolName
from millstream.messages.sampling import MAX_COUNT


class CustomTool(Struct, kw_only=True):
    """An item of `tools`: a tool that its client runs."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] = "custom"
    strict: bool | None = None  # the input follows the schema even where the model may call as it likes


class ToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`: whether tools are called, with `any` in any case, with `tool` that of the `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`thinking`. `adaptive`: as the model's template has it. With `display` `omitted` thinking blocks are empty."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: ThoughtTokens | None = None  # the most tokens of thought; of `enabled` alone
    display: Literal["summarized", "omitted"] | None = None  # nothing is summed up: otherwise they are shown


class JsonFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """`format` of `output_config`: the form that the text has."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`output_config`."""

    format: JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class PromptFields(Struct, kw_only=True):
    """What makes the prompt: all that /v1/messages/count_tokens takes. `chat_template_kwargs` is our own."""

    model: str = ""  # empty: the served model
    messages: list[Any]
    system: str | list[Any] = ""
    tools: list[Any] = []
    tool_choice: ToolChoice | None = None  # absent: auto
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] = {}


class MessagesRequest(PromptFields, kw_only=True):
    """POST /v1/messages. From `seed` on the fields are our own, as the other routes have them."""

    max_tokens: MaxTokens
    stop_sequences: StopStrings = []
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: Annotated[int, Meta(ge=0, le=MAX_COUNT)] = 0  # 0: off
    stream: bool = False
    seed: Seed | None = None
    rid: Rid | None = None
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first
    cache_salt: Salt = ""
    extra_key: Salt = ""


class Message(Struct, kw_only=True):
    """One item of `messages`."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Any]


class TextBlock(Struct, kw_only=True):
    """A block of type `text`."""

    type: str
    text: str


class ThinkingBlock(Struct, kw_only=True):
    """A block of type `thinking`, of an earlier answer."""

    type: str
    thinking: str


class ToolUseBlock(Struct, kw_only=True):
    """A block of type `tool_use`, of an earlier answer."""

    type: str
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct, kw_only=True):
    """A block of type `tool_result`: what a tool said to an earlier call."""

    type: str
    tool_use_id: str
    content: str | list[Any] = ""


_CACHED = {"cache_control": "prefixes are cached without being marked; use `cache_salt` to keep them apart"}
_NO_SERVER_TOOLS = "this server runs no tools"

_PROMPT_REFUSED = {
    "output_format": Refused("here it is called `output_config.format`"),
    "context_management": Refused("conversations are never edited by this server", ({}, {"edits": []})),
    "mcp_servers": Refused(_NO_SERVER_TOOLS, ([],)),
    "speed": Refused("there is one speed", ("standard",)),
}

BLOCKS: dict[str, FieldRules[Any]] = {
    "text": FieldRules(
        honoured=TextBlock,
        example={"type": "text", "text": "Say hello"},
        without_effect={**_CACHED, "citations": "they point at sources; the text is the same without them"},
    ),
    "thinking": FieldRules(
        honoured=ThinkingBlock,
        example={"type": "thinking", "thinking": "well"},
        without_effect={"signature": "not checked: no thinking is signed by this server"},
    ),
    "tool_use": FieldRules(
        honoured=ToolUseBlock,
        example={"type": "tool_use", "id": "t", "name": "f", "input": {}},
        without_effect={**_CACHED, "caller": "not told to the model", "toolset_name": "not told to the model"},
    ),
    "tool_result": FieldRules(
        honoured=ToolResultBlock,
        example={"type": "tool_result", "tool_use_id": "t"},
        without_effect={
            **_CACHED,
            "is_error": "chat templates have no place for it; `content` says what went wrong",
            "toolset_name": "not told to the model",
        },
        forms={"is_error": bool},
    ),
}
TOOL = FieldRules(
    honoured=CustomTool,
    example={"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    without_effect={
        **_CACHED,
        "eager_input_streaming": "input is always streamed as it is made",
        "input_examples": "chat templates have no place for them",
    },
    forms={"eager_input_streaming": bool, "input_examples": list[dict[str, Any]]},
    refused={
        "allowed_callers": Refused("tools are called by the model alone", (["direct"],)),
        "defer_loading": Refused("there is no search for tools: all are told to the model", (False,)),
    },
)
MESSAGE = FieldRules(
    honoured=Message, parts={"content": tuple(BLOCKS.values())}, example={"role": "user", "content": "Say hello"}
)
_PARTS: dict[str, FieldRules[Any] | tuple[FieldRules[Any], ...]] = {
    "messages": MESSAGE,
    "system": BLOCKS["text"],
    "tools": TOOL,
}
_EXAMPLE = {"messages": [{"role": "user", "content": "Say hello"}]}

MESSAGES = FieldRules(
    honoured=MessagesRequest,
    parts=_PARTS,
    example={**_EXAMPLE, "max_tokens": 16},
    without_effect={**_CACHED, "metadata": "`user_id` is not used"},
    refused={
        **_PROMPT_REFUSED,
        "service_tier": Refused("there is one tier", ("auto", "standard_only")),
        "container": Refused(_NO_SERVER_TOOLS),
        "diagnostics": Refused("diagnostics of the cache are not supported; `usage.cache_read_input_tokens` counts its hits"),
        "inference_geo": Refused("the server is where it is"),
        "stop": Refused("use `stop_sequences`", ([],)),
    },
)
COUNT_TOKENS = FieldRules(
    honoured=PromptFields, parts=_PARTS, example=_EXAMPLE, without_effect=_CACHED, refused=_PROMPT_REFUSED
)
