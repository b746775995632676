"""The bodies of the native routes, with SGLang's names. Docs are made from this file."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from millstream.entry.chat_messages import MESSAGE
from millstream.entry.fields import FieldRules, Refused
from millstream.entry.limits import MaxTokens, MinTokens, Priority, Prompts, Rid, Salt, Seed, Timeout, TokenId, TokenLists
from millstream.entry.sampling import SamplingFields
from millstream.entry.tools import TOOL
from millstream.messages.details import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS

DEFAULT_MAX_NEW_TOKENS = 128
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]
StartLen = Annotated[int, Meta(ge=-1)]


class GenerateRequest(Struct, kw_only=True):
    """POST /generate: one prompt, or a batch as a list. Exactly one of `text`, `input_ids` and `input_embeds` is given.

    In a batch what may be a list is one for each prompt, and anything else is the same for all of them.
    """

    text: str | list[str] | None = None
    input_ids: list[TokenId | list[TokenId]] | None = None
    input_embeds: list[Any] | None = None  # numbers, `[positions, hidden]`, in place of the embeddings of ids
    sampling_params: dict[str, Any] | list[dict[str, Any]] = {}
    rid: Rid | list[Rid] | None = None
    stream: bool = False
    incremental_streaming_output: bool = False  # of a stream: each event has what is new, and not all so far
    include_progress: bool = False  # of a stream
    return_logprob: bool | list[bool] = False
    logprob_start_len: StartLen | list[StartLen] = -1  # the first prompt position given; -1: none
    top_logprobs_num: TopLogprobs | list[TopLogprobs] = 0
    token_ids_logprob: list[TokenId | list[TokenId] | None] = []
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first
    cache_salt: Salt | list[Salt] = ""
    extra_key: Salt | list[Salt] = ""


class NativeSampling(SamplingFields, kw_only=True):
    """`sampling_params` of /generate. `sampling_seed` is SGLang's name of `seed`."""

    max_new_tokens: MaxTokens | None = None  # absent: DEFAULT_MAX_NEW_TOKENS, shortened to what the context leaves
    min_new_tokens: MinTokens = 0
    n: int = 1
    sampling_seed: Seed | None = None


class AbortRequest(Struct, kw_only=True):
    """POST /abort_request: one rid or a list. With `prefix` each stands for all live rids that begin with it."""

    rid: str | list[str] = ""
    prefix: bool = False
    abort_all: bool = False


class TokenizeRequest(Struct, kw_only=True):
    """POST /tokenize: `prompt`, or `messages` rendered exactly as a chat request's are."""

    model: str = ""
    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = []  # that the chat offers
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize: a list of token ids, or a list of such lists."""

    model: str = ""
    tokens: TokenLists
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class ParseCallsRequest(Struct, kw_only=True):
    """POST /parse_function_call: a text, and the tools that it may call."""

    text: str
    tools: list[dict[str, Any]]
    tool_call_parser: str | None = None  # absent: the server's own


class SeparateRequest(Struct, kw_only=True):
    """POST /separate_reasoning."""

    text: str
    reasoning_parser: str | None = None  # absent: the server's own


class ScoreRequest(Struct, kw_only=True):
    """POST /v1/score: `query` and `items` both as text or both as token ids."""

    model: str = ""
    query: str | list[TokenId]
    items: str | Prompts
    label_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]
    apply_softmax: bool = False  # among the labels; otherwise probabilities among all tokens
    item_first: bool = False  # before the query
    rid: Rid | None = None
    timeout: Timeout | None = None  # seconds
    priority: Priority = 0  # the higher goes first
    cache_salt: Salt = ""
    extra_key: Salt = ""


_NO_MEDIA = "this server takes and makes text only"
_NO_SESSIONS = "sessions are not supported by this server"
_NO_EXPERTS = "expert routing is not available"
_NO_REASONING = "reasoning is not taken apart by this server"
_ONE_ENGINE = "there is one engine"
_INTERNAL = "it is not a field of the public API"

SAMPLING = FieldRules(
    honoured=NativeSampling,
    refused={
        "custom_params": Refused("they are for custom logit processors"),
        "stream_interval": Refused("each step is sent as it comes", (1,)),
        "beam_width": Refused("beam search is not supported by this server"),
    },
)

GENERATE = FieldRules(
    honoured=GenerateRequest,
    example={"text": ["Once upon a time"], "sampling_params": [{"max_new_tokens": 16}]},
    parts={"sampling_params": SAMPLING},
    without_effect={
        "no_logs": "no prompt or answer text is ever logged",
        "log_metrics": "not used",
        "conversation_id": "not used",
        "routing_key": _ONE_ENGINE,
    },
    refused={
        **dict.fromkeys(("image_data", "video_data", "audio_data", "mm_hashes", "mm_content_hashes"), Refused(_NO_MEDIA)),
        **dict.fromkeys(("video_config", "mm_processor_kwargs", "max_dynamic_patch", "min_dynamic_patch"), Refused(_NO_MEDIA)),
        "modalities": Refused(_NO_MEDIA, (["text"],)),
        "use_audio_in_video": Refused(_NO_MEDIA, (False,)),
        "return_flat_raw_top_logprobs": Refused("use `top_logprobs_num`", (False,)),
        "return_flat_raw_top_logprobs_output": Refused("use `top_logprobs_num`", (False,)),
        "return_flat_raw_top_logprobs_b64": Refused("use `top_logprobs_num`", (False,)),
        "sampling_logprobs_mode": Refused("log probabilities are those of the model's own distribution"),
        "return_sampling_mask": Refused("sampling masks are not available", (False,)),
        "return_entropy": Refused("entropies are not available", (False,)),
        "return_bytes": Refused("`output_ids` and /detokenize give the text of any part", (False,)),
        "return_hidden_states": Refused("hidden states are not available", (False,)),
        "return_routed_experts": Refused(_NO_EXPERTS, (False,)),
        "routed_experts_start_len": Refused(_NO_EXPERTS),
        "return_indexer_topk": Refused("the model has no indexer", (False,)),
        "lora_path": Refused("LoRA adapters are not supported by this server", ("",)),
        "session_id": Refused(_NO_SESSIONS),
        "session_params": Refused(_NO_SESSIONS, ({},)),
        "custom_logit_processor": Refused("code from requests is never run", ("",)),
        "require_reasoning": Refused(_NO_REASONING, (False,)),
        "max_thinking_tokens": Refused(_NO_REASONING),
        "custom_labels": Refused("this server has no metrics to label", ({},)),
        "background": Refused("an answer is made while its client waits", (False,)),
        "external_trace_header": Refused("traces are not supported by this server"),
        **dict.fromkeys(("received_time", "kv_hints", "disagg_prefill_dp_rank"), Refused(_INTERNAL)),
        **dict.fromkeys(("bootstrap_host", "bootstrap_port", "bootstrap_room"), Refused(_INTERNAL)),
        **dict.fromkeys(("data_parallel_rank", "routed_dp_rank"), Refused(_ONE_ENGINE, (0,))),
    },
)

ABORT = FieldRules(
    honoured=AbortRequest,
    example={"abort_all": True},
    for_admins=("abort_all", "prefix"),
    refused=dict.fromkeys(("abort_message", "finished_reason"), Refused("the reason of an abort is the server's to say")),
)

TOKENIZE = FieldRules(
    honoured=TokenizeRequest,
    parts={"messages": MESSAGE, "tools": TOOL},
    example={"prompt": "Once upon a time"},
    refused={"chat_template": Refused("the server's operator chooses the template")},
)

DETOKENIZE = FieldRules(honoured=DetokenizeRequest, example={"tokens": [1, 2, 3]})

PARSE_CALLS = FieldRules(
    honoured=ParseCallsRequest,
    parts={"tools": TOOL},
    example={
        "text": '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
        "tools": [{"type": "function", "function": {"name": "get_weather"}}],
        "tool_call_parser": "hermes",
    },
)

SEPARATE = FieldRules(
    honoured=SeparateRequest,
    example={"text": "<think>Two and two.</think>Four.", "reasoning_parser": "qwen3"},
    refused={"return_blocks": Refused("the text is told as reasoning and the rest", (False,))},
)

SCORE = FieldRules(
    honoured=ScoreRequest,
    example={"query": "Is the sky blue?", "items": [" Yes", " No"], "label_token_ids": [1, 2]},
    refused={
        "temperature": Refused("probabilities are the model's own", (1, 1.0)),
        "return_token_logprobs": Refused("the prompts' log probabilities are given by /generate", (False,)),
        "return_pooled_hidden_states": Refused("hidden states are given by /v1/embeddings", (False,)),
        "score_extraction_token": Refused("each item is a prompt of its own, scored at its end"),
        "embed_override_token_id": Refused("embeddings are not overridden by this server"),
        "query_embed_overrides": Refused("embeddings are not overridden by this server", ([],)),
        "item_embed_overrides": Refused("embeddings are not overridden by this server", ([],)),
        "stream": Refused("all scores come at once", (False,)),
    },
)
