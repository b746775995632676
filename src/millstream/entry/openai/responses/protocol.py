"""The body of POST /v1/responses: what is honoured, what has no effect, what is refused. Docs are made from this file."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from millstream.entry.fields import FieldRules, Refused, check_count, check_range, refusal
from millstream.entry.grammar import spec_of
from millstream.entry.limits import MinTokens, Priority, Rid, Salt, ThoughtTokens, Timeout
from millstream.entry.openai.logprob_options import MAX_TOP
from millstream.entry.sampling import SamplingFields
from millstream.entry.thinking import Effort
from millstream.entry.tools import ToolName
from millstream.errors import RequestError
from millstream.messages.grammar import GrammarSpec
from millstream.messages.sampling import MAX_COUNT

MAX_METADATA = 16  # pairs
MAX_METADATA_KEY = 64  # characters
MAX_METADATA_VALUE = 512
# members of `text.format`, by its type; `name` and `description` are repeated, and what is not `strict` follows the schema, too
_FORMATS = {
    "text": {"type"},
    "json_object": {"type"},
    "json_schema": {"type", "name", "description", "schema", "strict"},
}
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (  # beside `LOGPROBS`: parts of items that this server never makes, so there is nothing to add
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
)


class FunctionTool(Struct, kw_only=True):
    """An item of `tools`: a function that its client runs."""

    type: Literal["function"]
    name: ToolName
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # the arguments follow `parameters` even where the model may call as it likes
    description: str | None = None


class ReasoningOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`reasoning`. A summary is never made: what the model thinks is in the items' `content`."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its older name
    context: Literal["auto"] | None = None  # what of it comes back into the prompt is the template's business
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`stream_options`. `include_obfuscation` has no effect: nothing is padded. `include_progress` is our own."""

    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class ResponseRequest(SamplingFields, kw_only=True):
    """POST /v1/responses. `input`: text, or a list of items. `max_output_tokens` may be any number from 1 on."""

    input: str | list[Any]
    model: str = ""  # empty: the served model
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = None
    include: list[str] = []
    top_logprobs: int = 0
    text: dict[str, Any] = {}
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    tools: list[Any] = []
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None  # of tools that the server runs, and there are none
    truncation: Literal["disabled", "auto"] = "disabled"
    reasoning: ReasoningOptions | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] = "auto"  # answered by `default`
    metadata: dict[str, str] = {}
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None  # only repeated: room decides
    thinking_token_budget: ThoughtTokens | None = None  # the most tokens of reasoning
    min_tokens: MinTokens = 0
    chat_template_kwargs: dict[str, Any] = {}
    cache_salt: Salt = ""
    extra_key: Salt = ""
    rid: Rid | None = None
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first

    def grammars(self) -> list[GrammarSpec | None]:
        """What each field asks of the form of the text; `text` was checked."""
        return [*super().grammars(), text_form(self.text)]

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are asked for."""
        return LOGPROBS in self.include or self.top_logprobs > 0

    def check(self) -> None:
        """Check what depends on this request alone, but for `input`, sampling and names.

        Raises:
            RequestError: a value is out of range, or asks for what the server does not do; `param` names the field.
        """
        self._check_ways()
        check_modes(self)
        check_include(self.include)
        _check_metadata(self.metadata)
        check_range("top_logprobs", self.top_logprobs, 0, MAX_TOP)
        for name in ("max_output_tokens", "max_tool_calls"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 1, MAX_COUNT)

    def _check_ways(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise RequestError("`stream_options` needs `stream`: true.", param="stream_options")
        if not self.background:
            return
        if self.stream:
            raise refusal("stream", "a background response is polled, not streamed")
        if not self.store:
            raise RequestError("A background response is read from the store: `store` must not be false.", param="store")


class InputTokensRequest(Struct, kw_only=True):
    """POST /v1/responses/input_tokens: the fields of a request for a response on which its prompt depends."""

    input: str | list[Any]
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    text: dict[str, Any] = {}
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    tools: list[Any] = []
    parallel_tool_calls: bool = True
    truncation: Literal["disabled", "auto"] = "disabled"
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] = {}


PromptRequest = ResponseRequest | InputTokensRequest


def text_form(text: dict[str, Any]) -> GrammarSpec | None:
    """What `text`, which was checked, asks of the form of the text."""
    form = text.get("format") or {}
    if form.get("type") == "json_schema":
        return spec_of("json_schema", form["schema"], "text.format.schema")
    return GrammarSpec("json_object", param="text.format") if form.get("type") == "json_object" else None


def check_modes(request: PromptRequest) -> None:
    """Check fields that pass only where they ask for nothing.

    Raises:
        RequestError: one asks for what the server does not do.
    """
    if request.truncation != "disabled":
        raise refusal("truncation", "the input is never cut; what is too long is an error")
    for name, value in request.text.items():
        if name == "format":
            _check_format(value)
        elif name != "verbosity":
            raise RequestError(f"Unrecognized field `text.{name[:100]}`.", param=f"text.{name[:100]}")
        elif value not in (None, "medium"):
            raise refusal("text.verbosity", "the model has no verbosity modes")


def _check_format(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise RequestError("text.format must be an object.", param="text.format")
    if not isinstance(kind := value.get("type"), str) or kind not in _FORMATS:
        raise RequestError("text.format.type must be `text`, `json_object` or `json_schema`.", param="text.format.type")
    if kind == "json_schema" and not isinstance(value.get("schema"), dict):
        raise RequestError("text.format.schema must be an object.", param="text.format.schema")
    if more := sorted(set(value) - _FORMATS[kind]):
        raise RequestError(f"Unrecognized field `text.format.{more[0][:100]}`.", param=f"text.format.{more[0][:100]}")


def check_include(include: list[str]) -> None:
    """Check names of what may be added to items.

    Raises:
        RequestError: one is unknown.
    """
    for index, name in enumerate(include):
        if name != LOGPROBS and name not in INCLUDABLE:
            known = ", ".join((LOGPROBS, *INCLUDABLE))
            raise RequestError(f"include[{index}] is `{name[:100]}`; it must be one of {known}.", param=f"include[{index}]")


def _check_metadata(metadata: dict[str, str]) -> None:
    check_count("metadata", len(metadata), MAX_METADATA, "pairs")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise RequestError(
                f"A key of metadata has {len(key)} characters; at most {MAX_METADATA_KEY} are allowed.", param="metadata"
            )
        check_count(f"metadata.{key}", len(value), MAX_METADATA_VALUE, "characters")


_NO_MANAGED = "it is kept by OpenAI's own service"

TOOL = FieldRules(
    honoured=FunctionTool,
    example={
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    without_effect={"output_schema": "chat templates have no place for it"},
    forms={"output_schema": dict[str, Any]},
    refused={
        "allowed_callers": Refused("tools are called by the model alone", (["direct"], [])),
        "defer_loading": Refused("there is no search for tools: all are told to the model", (False,)),
        "async": Refused("a call waits for its output", (False,)),
    },
)

RESPONSES = FieldRules(
    honoured=ResponseRequest,
    parts={"tools": TOOL},
    example={"input": "Say hello"},
    without_effect={"prompt_cache_options": "prefixes are found by their tokens, and stay cached while there is room"},
    forms={"prompt_cache_options": dict[str, Any]},
    refused={
        "n": Refused("a response has one answer", (1,)),
        "max_tokens": Refused("here it is called `max_output_tokens`"),
        "max_completion_tokens": Refused("here it is called `max_output_tokens`"),
        "messages": Refused("here it is called `input`; or use /v1/chat/completions"),
        "response_format": Refused("here it is called `text.format`"),
        "logprobs": Refused(f"here `include`: [`{LOGPROBS}`] asks for them", (False,)),
        "conversation": Refused(f"{_NO_MANAGED}; use `previous_response_id`"),
        "prompt": Refused(f"a prompt template is not known here: {_NO_MANAGED}"),
        "context_management": Refused("the input is never cut or summed up by this server", ([],)),
        "moderation": Refused(_NO_MANAGED),
        "access_programs": Refused(_NO_MANAGED),
        "background_options": Refused("a background response runs as soon as it can", ({"completion_window": "soonest"},)),
        "image": Refused("this server takes and makes text only"),
    },
)  # fmt: skip

INPUT_TOKENS = FieldRules(
    honoured=InputTokensRequest,
    parts={"tools": TOOL},
    example={"input": "Say hello"},
    refused={
        "conversation": Refused(f"{_NO_MANAGED}; use `previous_response_id`"),
        "personality": Refused(_NO_MANAGED),
    },
)
