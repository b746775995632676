"""Families: every metric the server has, declared once: name, kind, labels, buckets, and the sentence that explains it.

Processes count by these, /metrics and docs/metrics.md are made from them. Names stand here without the prefix `millstream:`.
Every label has few values, whatever clients send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PREFIX = "millstream:"

SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0,
)  # fmt: skip
SHORT_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.5, 5.0, 10.0, 60.0,
)  # fmt: skip
TOKENS = tuple(float(each) for power in range(7) for each in (10**power, 2 * 10**power, 5 * 10**power))[:-2]
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


@dataclass(frozen=True)
class Family:
    """One metric. A counter's name has no `_total` here; a histogram's `buckets` are upper bounds, rising."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name that it has in an answer."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")


# requests, by the entry workers
REQUESTS = Family(
    "requests", "counter", "Requests that ended, by the word for why; each choice of a call is one.", ("cause", "api", "model")
)
HTTP_ERRORS = Family(
    "http_errors",
    "counter",
    "Answers with an HTTP error, before or in place of a stream; routes as declared.",
    ("route", "status"),
)
FIRST_TOKEN = Family(
    "time_to_first_token_seconds",
    "histogram",
    "From the body's last byte to the first text handed to a stream's connection; of a plain answer, to its first token.",
    buckets=SECONDS,
)
FIRST_TOKEN_PART = Family(
    "time_to_first_token_part_seconds",
    "histogram",
    "The same time by the stage that took it.",
    ("part",),
    SECONDS,
)
ROW_GAP = Family(
    "inter_token_latency_seconds",
    "histogram",
    "From one row of a request to the next, as they reach the entry. A row is a token; with drafts, up to several.",
    buckets=SHORT_SECONDS,
)
TOKEN_TIME = Family(
    "time_per_output_token_seconds",
    "histogram",
    "A request's time from its first token to its last, by the tokens after the first; one observation a request.",
    buckets=SHORT_SECONDS,
)
LATENCY = Family(
    "e2e_request_latency_seconds",
    "histogram",
    "From the body's last byte to the answer's last, of requests that ran.",
    buckets=SECONDS,
)
QUEUE = Family(
    "queue_seconds", "histogram", "From the scheduler's having a request to its first slot and pages.", buckets=SECONDS
)
PREFILL = Family("prefill_seconds", "histogram", "From then to the first token.", buckets=SECONDS)
DECODE = Family("decode_seconds", "histogram", "From the first token to the last.", buckets=SECONDS)
INFERENCE = Family("inference_seconds", "histogram", "From the first slot and pages to the last token.", buckets=SECONDS)
REQUEST_PROMPT = Family("request_prompt_tokens", "histogram", "Prompt tokens of a request that ran.", buckets=TOKENS)
REQUEST_COMPLETION = Family("request_completion_tokens", "histogram", "Tokens made for a request that ran.", buckets=TOKENS)
GRAMMAR_CHECKS = Family(
    "grammar_checks", "counter", "Grammars of requests by what came of them; known ones count again.", ("result",)
)
GRAMMAR_SECONDS = Family("grammar_check_seconds", "histogram", "How long a request waited for that.", buckets=SHORT_SECONDS)
LATE_ROWS = Family("late_rows", "counter", "Rows of requests that had ended; each was dropped.")
STREAM_MISMATCHES = Family("stream_mismatches", "counter", "Answers whose text was not the text of their tokens: a bug.")
STORED = Family("stored_responses", "gauge", "Responses kept to be read and continued.")
STORED_BYTES = Family("stored_response_bytes", "gauge", "Bytes of them.")
EVICTED = Family("evicted_responses", "counter", "Responses that made room for others.")

# steps and tokens, by the scheduler
RUNNING = Family("requests_running", "gauge", "Requests with a slot in the batch.")
WAITING = Family("requests_waiting", "gauge", "Requests in the queue.")
COMPILING = Family("requests_waiting_grammar", "gauge", "Requests that wait for their grammar.")
PAUSED = Family("requests_paused", "gauge", "Requests whose clients do not read.")
UNDELIVERED = Family("requests_undelivered", "gauge", "Requests that ended, whose entry has not said yet that it knows.")
PAGES = Family(
    "kv_pages", "gauge", "KV pages: of requests, of prefixes that nobody uses now, and free ones; together all.", ("state",)
)
USAGE = Family("kv_usage_ratio", "gauge", "Share of the KV pages that requests use, from 0 to 1.")
PROMPT_TOKENS = Family("prompt_tokens", "counter", "Prompt tokens of requests when they were first admitted.")
CACHED_TOKENS = Family("cached_tokens", "counter", "Of those, tokens whose KV was known.")
COMPLETION_TOKENS = Family("completion_tokens", "counter", "Tokens made.")
COMPUTED_TOKENS = Family(
    "computed_tokens", "counter", "Positions computed, by phase: known ones are not, retracted ones are again.", ("phase",)
)
STEPS = Family("steps", "counter", "Steps of the model.")
STEP_SECONDS = Family("step_seconds", "histogram", "How long a step took, planning and all.", buckets=SHORT_SECONDS)
STEP_ROWS = Family("step_requests", "histogram", "Requests in a step.", buckets=ROWS)
RETRACTIONS = Family("retractions", "counter", "Times that a request's pages went to others.")
PREEMPTIONS = Family("preemptions", "counter", "Of those, for a request of higher priority.")
DRAFT_TOKENS = Family("draft_tokens", "counter", "Tokens guessed.")
ACCEPTED_DRAFT_TOKENS = Family("accepted_draft_tokens", "counter", "Tokens guessed right.")
FORCED_TOKENS = Family("forced_tokens", "counter", "Tokens appended without a draw, since the grammar left nothing else.")

# text, by the detokenizer
DROPPED_ROWS = Family("detokenizer_rows_dropped", "counter", "Rows of requests that the detokenizer did not know.")

# every process
LIVE = Family("live_requests", "gauge", "Requests that the processes of a kind know.", ("process",))
HELD = Family("ledger_held", "gauge", "What is held for requests, as `/debug/ledger` has it.", ("process", "kind"))
MISMATCHES = Family("ledger_mismatches", "counter", "Times that a ledger did not balance: a bug.", ("process",))
UP = Family("process_up", "gauge", "Whether a process works: 1; 0 where it starts or is gone.", ("process",))
CPU = Family("process_cpu_seconds", "counter", "CPU time of a process.", ("process",))
MEMORY = Family("process_resident_bytes", "gauge", "Memory of a process.", ("process",))
RESTARTS = Family("process_restarts", "counter", "Processes that took the place of one that died.", ("process",))
BUILD = Family("build_info", "gauge", "Always 1; what runs is in the labels.", ("version", "executor", "model"))
KV_CACHE = Family(
    "kv_cache_info", "gauge", "Always 1; tokens of a KV page and how many pages there are.", ("page_size", "num_pages")
)

BY_NAME: dict[str, Family] = {family.name: family for family in list(globals().values()) if isinstance(family, Family)}


def families() -> Iterator[Family]:
    """All of them, in the order above."""
    yield from BY_NAME.values()
