"""Aliases: the numbers of our families under the names that dashboards, autoscalers and benchmark tools look for.

Each has the labels `model_name`, the served model's first name, and `engine`, always 0; over our other labels it is the sum,
unless they are kept under the names that are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.observe import families
from millstream.observe.families import Family

PREFIX = "vllm:"
LABELS = ("model_name", "engine")


@dataclass(frozen=True)
class Alias:
    """`name` stands for `family`.

    With `label`, the values of the family's `cause` become its, by the words in `words`. With `kept`, the family's labels stay,
    under these names, in their order.
    """

    name: str
    family: Family
    label: str = ""
    words: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """The name that it has in an answer."""
        return PREFIX + self.name + ("_total" if self.family.kind == "counter" else "")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that it has in an answer."""
        return (*LABELS, *((self.label,) if self.label else self.kept))


_FINISHED = {  # a request that was never admitted has not finished
    "stop": "stop",
    "length": "length",
    "client_gone": "abort",
    "aborted": "abort",
    "deadline": "abort",
    "drain": "abort",
    "slow_reader": "abort",
    "engine_error": "error",
}

ALIASES = (
    Alias("num_requests_running", families.RUNNING),
    Alias("num_requests_waiting", families.WAITING),
    Alias("kv_cache_usage_perc", families.USAGE),
    Alias("gpu_cache_usage_perc", families.USAGE),
    Alias("prompt_tokens", families.PROMPT_TOKENS),
    Alias("generation_tokens", families.COMPLETION_TOKENS),
    Alias("prefix_cache_queries", families.PROMPT_TOKENS),
    Alias("prefix_cache_hits", families.CACHED_TOKENS),
    Alias("num_preemptions", families.RETRACTIONS),
    Alias("request_success", families.REQUESTS, "finished_reason", _FINISHED),
    Alias("time_to_first_token_seconds", families.FIRST_TOKEN),
    Alias("inter_token_latency_seconds", families.ROW_GAP),
    Alias("time_per_output_token_seconds", families.ROW_GAP),
    Alias("request_time_per_output_token_seconds", families.TOKEN_TIME),
    Alias("e2e_request_latency_seconds", families.LATENCY),
    Alias("request_queue_time_seconds", families.QUEUE),
    Alias("request_prefill_time_seconds", families.PREFILL),
    Alias("request_decode_time_seconds", families.DECODE),
    Alias("request_inference_time_seconds", families.INFERENCE),
    Alias("request_prompt_tokens", families.REQUEST_PROMPT),
    Alias("request_generation_tokens", families.REQUEST_COMPLETION),
    Alias("spec_decode_num_draft_tokens", families.DRAFT_TOKENS),
    Alias("spec_decode_num_accepted_tokens", families.ACCEPTED_DRAFT_TOKENS),
    Alias("cache_config_info", families.KV_CACHE, kept=("block_size", "num_gpu_blocks")),
)
