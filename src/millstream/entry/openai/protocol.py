"""The bodies of the OpenAI routes: what is honoured, what has no effect, what is refused. Docs are made from this file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from millstream.entry.chat_messages import MESSAGE
from millstream.entry.fields import FieldRules, Refused
from millstream.entry.grammar import Choices, JsonSource, ResponseFormat, StructuredOutputs, spec_of, spec_of_format
from millstream.entry.limits import (
    MAX_CHOICES,
    AnswerTokens,
    MaxTokens,
    MinTokens,
    Priority,
    Prompts,
    Rid,
    Salt,
    ThoughtTokens,
    Timeout,
    declared,
)
from millstream.entry.openai.logprob_options import MAX_TOP
from millstream.entry.sampling import SamplingFields
from millstream.entry.thinking import Effort
from millstream.entry.tools import TOOL
from millstream.messages.grammar import GrammarSpec

TopLogprobs = Annotated[int, declared(minimum=0, maximum=MAX_TOP)]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`stream_options`. `include_obfuscation` has no effect: nothing is padded. `include_progress` is our own."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """What both OpenAI routes take. `max_completion_tokens` wins over `max_tokens`."""

    model: str = ""  # empty: the served model
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    min_tokens: MinTokens = 0
    cache_salt: Salt = ""
    extra_key: Salt = ""
    rid: Rid | None = None
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False  # in `logprobs` tokens go by their ids
    prompt_logprobs: TopLogprobs | None = None  # so many of the likeliest at each position of the prompt; not in a stream
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = (
        None  # answered by the only one, `default`
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSource | None = None  # older names of the members of `structured_outputs`
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    def grammars(self) -> list[GrammarSpec | None]:
        """What each field asks of the form of the text."""
        return [
            *super().grammars(),
            spec_of_format(self.response_format, "response_format"),
            *(() if self.structured_outputs is None else self.structured_outputs.specs()),
            spec_of("json_schema", self.guided_json, "guided_json"),
            spec_of("regex", self.guided_regex, "guided_regex"),
            spec_of("choice", self.guided_choice, "guided_choice"),
            spec_of("ebnf", self.guided_grammar, "guided_grammar"),
        ]


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: AnswerTokens | None = None
    max_completion_tokens: AnswerTokens | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None  # default: true, unless the last message is continued
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None  # absent: auto
    parallel_tool_calls: bool = True  # otherwise one call at most
    reasoning_effort: Effort | None = None
    thinking_token_budget: ThoughtTokens | None = None  # the most tokens of reasoning
    thinking_budget: ThoughtTokens | None = None  # another name of it
    enable_thinking: bool | None = None
    include_reasoning: bool = True  # otherwise it is not in the answer
    separate_reasoning: bool = True  # otherwise it stays in the content, tags and all


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions. `prompt`: text, ids, or a list of either. Of `best_of` answers a prompt the `n` best are given."""

    prompt: str | Prompts
    best_of: int | None = None
    echo: bool = False
    logprobs: TopLogprobs | None = None  # alternatives for each token
    add_special_tokens: bool = True  # of prompts that are text

    @property
    def width(self) -> int:
        """Answers made for each prompt."""
        return self.n if self.best_of is None else self.best_of


_WITHOUT_EFFECT = {
    "user": "not used",
    "metadata": "not stored; at most 16 pairs of 64 and 512 characters",
    "store": "nothing is stored",
    "safety_identifier": "not used",
    "prompt_cache_key": "prefixes are found by their tokens; use `cache_salt` to keep them apart",
    "prompt_cache_retention": "prefixes stay cached while there is room",
    "prompt_cache_options": "prefixes are found by their tokens, and stay cached while there is room",
    "prediction": "a hint for speed; the answer is the same without it",
    "parallel_tool_calls": "there are no tool calls",
}

# what a field without effect must look like all the same
FORMS: dict[str, Any] = {
    "user": str,
    "metadata": Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)],
    "store": bool,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "prompt_cache_retention": Literal["in_memory", "in-memory", "24h"],
    "prompt_cache_options": dict[str, Any],
    "prediction": dict[str, Any],
    "parallel_tool_calls": bool,
}

_LOGPROBS_HERE = "use OpenAI's `logprobs`"
_NO_CODE = "code from requests is never run"
_NO_REASONING = "reasoning is for chats"
_NO_TOOLS = "tools are for chats, in `tools`"
_NO_MEDIA = "this server takes and makes text only"
_NO_LORA = "LoRA adapters are not supported by this server"
_NO_SESSIONS = "sessions are not supported by this server"
_INTERNAL = "it is not a field of the public API"

_REFUSED = {
    "return_logprob": Refused(_LOGPROBS_HERE, (False,)),
    "logprob_start_len": Refused("use `echo` with `logprobs`, or `prompt_logprobs`", (-1,)),
    "top_logprobs_num": Refused(_LOGPROBS_HERE, (0,)),
    "token_ids_logprob": Refused("use /generate for log probabilities of given ids", ([],)),
    "tools": Refused(_NO_TOOLS, ([],)),
    "tool_choice": Refused(_NO_TOOLS, ("none", "auto")),
    "functions": Refused(_NO_TOOLS, ([],)),
    "function_call": Refused(_NO_TOOLS, ("none", "auto")),
    "web_search_options": Refused("this server runs no tools itself"),
    "custom_logit_processor": Refused(_NO_CODE, ("",)),
    "logits_processors": Refused(_NO_CODE, ([],)),
    "custom_params": Refused("they are for custom logit processors"),
    "input_ids": Refused("use /v1/completions or /generate for token ids"),
    "input_embeds": Refused("use /generate for embeddings as input"),
    "prompt_embeds": Refused("use `input_embeds` of /generate for embeddings as input"),
    "image_data": Refused(_NO_MEDIA),
    "video_data": Refused(_NO_MEDIA),
    "audio_data": Refused(_NO_MEDIA),
    "audio": Refused(_NO_MEDIA),
    "modalities": Refused(_NO_MEDIA, (["text"],)),
    "lora_path": Refused(_NO_LORA, ("",)),
    "session_id": Refused(_NO_SESSIONS),
    "session_params": Refused(_NO_SESSIONS, ({},)),
    "reasoning_effort": Refused(_NO_REASONING, ("none",)),
    "thinking_token_budget": Refused(_NO_REASONING),
    "thinking_budget": Refused(_NO_REASONING),
    "enable_thinking": Refused(_NO_REASONING, (False,)),
    "include_reasoning": Refused(_NO_REASONING, (True, False)),
    "verbosity": Refused("the model has no verbosity modes", ("medium",)),
    "separate_reasoning": Refused("reasoning is taken apart in chats", (False,)),
    "return_hidden_states": Refused("hidden states are not available", (False,)),
    "return_routed_experts": Refused("expert routing is not available", (False,)),
    "stream_interval": Refused("each step is sent as it comes", (1,)),
    "use_beam_search": Refused("beam search is not supported by this server", (False,)),
    "length_penalty": Refused("beam search is not supported by this server", (1, 1.0)),
    "bad_words": Refused("use `logit_bias` to ban tokens", ([],)),
    "allowed_token_ids": Refused("use `logit_bias` to prefer tokens"),
    "truncate_prompt_tokens": Refused("prompts are never cut"),
    "include_stop_str_in_output": Refused("use `no_stop_trim`", (False,)),
    "return_prompt_token_ids": Refused("use `return_token_ids`", (False,)),
    "request_id": Refused("use `rid`, or the header X-Request-Id"),
    "moderation": Refused("nothing is moderated by this server"),
    "mm_processor_kwargs": Refused(_NO_MEDIA, ({},)),
    "vllm_xargs": Refused(_INTERNAL, ({},)),
    "kv_transfer_params": Refused(_INTERNAL),
    "bootstrap_host": Refused(_INTERNAL),
    "bootstrap_port": Refused(_INTERNAL),
    "bootstrap_room": Refused(_INTERNAL),
    "data_parallel_rank": Refused(_INTERNAL),
}

_CHATS_ALONE = (  # what chats honour and completions cannot
    *("tools", "tool_choice", "parallel_tool_calls", "separate_reasoning", "reasoning_effort", "thinking_token_budget"),
    *("thinking_budget", "enable_thinking", "include_reasoning"),
)
_NO_TEMPLATES = "the server's operator chooses the template"

CHAT = FieldRules(
    honoured=ChatCompletionRequest,
    parts={"messages": MESSAGE, "tools": TOOL},
    example={"messages": [{"role": "user", "content": "Say hello"}]},
    without_effect={name: why for name, why in _WITHOUT_EFFECT.items() if name not in _CHATS_ALONE},
    forms={name: form for name, form in FORMS.items() if name not in _CHATS_ALONE},
    refused={
        **{name: rule for name, rule in _REFUSED.items() if name not in _CHATS_ALONE},
        "chat_template": Refused(_NO_TEMPLATES),
        "documents": Refused("documents are not supported by this server", ([],)),
        "echo": Refused("the prompt is not repeated in a chat answer", (False,)),
        "add_special_tokens": Refused("the chat template writes all special tokens", (False,)),
    },
)

COMPLETIONS = FieldRules(
    honoured=CompletionRequest,
    example={"prompt": "Once upon a time"},
    without_effect=_WITHOUT_EFFECT,
    forms=FORMS,
    refused={
        **_REFUSED,
        "top_logprobs": Refused("use `logprobs`, a number here"),
        "suffix": Refused("filling in the middle is not supported by this server", ("",)),
        "messages": Refused("use /v1/chat/completions"),
        "chat_template_kwargs": Refused("use /v1/chat/completions"),
    },
)
