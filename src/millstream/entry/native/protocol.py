"""The bodies of the native routes, with SGLang's names. Docs are made from this file."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from millstream.entry.fields import FieldRules, Refused
from millstream.entry.sampling import SamplingFields

DEFAULT_MAX_NEW_TOKENS = 128


class GenerateRequest(Struct, kw_only=True):
    """POST /generate: one prompt, `text` or `input_ids`."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: dict[str, Any] = {}
    stream: bool = False
    include_progress: bool = False  # of a stream
    rid: str | None = None
    timeout: float | None = None  # seconds
    priority: int = 0  # the higher goes first
    cache_salt: str = ""
    extra_key: str = ""


class NativeSampling(SamplingFields, kw_only=True):
    """`sampling_params` of /generate. `sampling_seed` is SGLang's name of `seed`."""

    max_new_tokens: int | None = None  # absent: DEFAULT_MAX_NEW_TOKENS, shortened to what the context leaves
    min_new_tokens: int = 0
    n: int = 1
    sampling_seed: int | None = None


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
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeRequest(Struct, kw_only=True):
    """POST /detokenize: a list of token ids, or a list of such lists."""

    model: str = ""
    tokens: list[Any]
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class ScoreRequest(Struct, kw_only=True):
    """POST /v1/score: `query` and `items` both as text or both as token ids."""

    model: str = ""
    query: str | list[int]
    items: str | list[Any]
    label_token_ids: list[int]
    apply_softmax: bool = False  # among the labels; otherwise probabilities among all tokens
    item_first: bool = False  # before the query
    rid: str | None = None
    timeout: float | None = None  # seconds
    priority: int = 0  # the higher goes first
    cache_salt: str = ""
    extra_key: str = ""


_NO_LOGPROBS = "log probabilities are not supported by this server"
_NO_GRAMMAR = "structured output is not supported by this server"
_NO_MEDIA = "this server takes and makes text only"
_INTERNAL = "it is not a field of the public API"

SAMPLING = FieldRules(
    honoured=NativeSampling,
    refused={
        "json_schema": Refused(_NO_GRAMMAR, ("",)),
        "regex": Refused(_NO_GRAMMAR, ("",)),
        "ebnf": Refused(_NO_GRAMMAR, ("",)),
        "structural_tag": Refused(_NO_GRAMMAR, ("",)),
        "custom_params": Refused("they are for custom logit processors"),
        "stream_interval": Refused("each step is sent as it comes", (1,)),
        "beam_width": Refused("beam search is not supported by this server"),
    },
)

GENERATE = FieldRules(
    honoured=GenerateRequest,
    parts={"sampling_params": SAMPLING},
    without_effect={"no_logs": "no prompt or answer text is ever logged", "log_metrics": "not used"},
    refused={
        "input_embeds": Refused("embeddings as input are not supported by this server"),
        "image_data": Refused(_NO_MEDIA),
        "video_data": Refused(_NO_MEDIA),
        "audio_data": Refused(_NO_MEDIA),
        "modalities": Refused(_NO_MEDIA),
        "return_logprob": Refused(_NO_LOGPROBS, (False,)),
        "logprob_start_len": Refused(_NO_LOGPROBS, (-1,)),
        "top_logprobs_num": Refused(_NO_LOGPROBS, (0,)),
        "token_ids_logprob": Refused(_NO_LOGPROBS, ([],)),
        "return_text_in_logprobs": Refused(_NO_LOGPROBS, (False,)),
        "return_hidden_states": Refused("hidden states are not available", (False,)),
        "return_routed_experts": Refused("expert routing is not available", (False,)),
        "lora_path": Refused("LoRA adapters are not supported by this server", ("",)),
        "session_id": Refused("sessions are not supported by this server"),
        "session_params": Refused("sessions are not supported by this server", ({},)),
        "custom_logit_processor": Refused("code from requests is never run", ("",)),
        "bootstrap_host": Refused(_INTERNAL),
        "bootstrap_port": Refused(_INTERNAL),
        "bootstrap_room": Refused(_INTERNAL),
        "data_parallel_rank": Refused(_INTERNAL),
        "routed_dp_rank": Refused(_INTERNAL),
    },
)

ABORT = FieldRules(honoured=AbortRequest, for_admins=("abort_all", "prefix"))

TOKENIZE = FieldRules(
    honoured=TokenizeRequest,
    refused={
        "tools": Refused("tools are not supported by this server", ([],)),
        "chat_template": Refused("the server's operator chooses the template"),
    },
)

DETOKENIZE = FieldRules(honoured=DetokenizeRequest)

SCORE = FieldRules(
    honoured=ScoreRequest,
    refused={
        "temperature": Refused("probabilities are the model's own", (1, 1.0)),
        "return_token_logprobs": Refused("the prompts' log probabilities are told by /generate", (False,)),
        "return_pooled_hidden_states": Refused("hidden states are told by /v1/embeddings", (False,)),
        "score_extraction_token": Refused("each item is a prompt of its own, scored at its end"),
        "embed_override_token_id": Refused("embeddings are not overridden by this server"),
        "query_embed_overrides": Refused("embeddings are not overridden by this server", ([],)),
        "item_embed_overrides": Refused("embeddings are not overridden by this server", ([],)),
        "stream": Refused("all scores come at once", (False,)),
    },
)
