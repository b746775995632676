"""ServerConfig: every option, declared once, in groups. Flags, environment variables, the YAML file and docs are made from it.

Resolved once in the supervisor; children read the finished value and never the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from millstream.errors import StartupError

EMBEDDED_MODEL = "embedded"
MetricsAccess = Literal["open", "admin", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogRequests = Literal["none", "end", "text"]
QUEUED_CONTEXTS = 32  # what may wait unless the options say so, in prompts of the largest size


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Model: what is served, and under which names."""

    model: str = EMBEDDED_MODEL
    """What to serve: `embedded` (the SmolLM2 package), a GGUF file, or a Hugging Face directory with safetensors."""
    served_model_name: tuple[str, ...] = ()
    """Names that requests may use in `model`; the first is reported. Default: taken from the model."""
    chat_template: str | None = None
    """Used instead of the model's own chat template: a Jinja file, the name of another one the model has, or one of `chatml`,
    `gemma`, `llama-2`, `llama-3`, `mistral`, `phi-3`, `zephyr`."""
    chat_special_tokens: Literal["escape", "parse"] = "escape"
    """What the text of a control token in a chat message is: `escape`, ordinary text; `parse`, the control token, with which a
    message can end its turn and begin another's."""
    tool_call_parser: str = "auto"
    """How the model writes tool calls: the name of a format, such as `hermes`, or `none`. `auto`: as its chat template has
    it."""
    reasoning_parser: str = "auto"
    """How the model writes its reasoning: the name of a format, such as `qwen3`, or `none`. `auto`: as its chat template has
    it."""
    context_length: int | None = None
    """Tokens a request may have, prompt and output together. Default: the model's own limit."""


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """HTTP: where the server listens, and what a connection may do."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback makes the server reachable from outside."""
    port: int = 30000
    """Port to bind; 0 picks a free one."""
    entry_workers: int = 1
    """Processes that answer HTTP, all of them on the one port."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, such as `https://chat.example.com`, or `*`. Default: none (CORS)."""
    disable_page: bool = False
    """Do not serve the web page at `/`."""
    max_connections: int = 10_000
    """Connections that may be open; what comes on one more is refused with 429."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body."""
    max_held_body_bytes: int = 256 * 1024 * 1024
    """Bytes of all bodies that are being read or worked on; what is more is refused with 429."""
    read_timeout_s: float = 60.0
    """Seconds without a byte after which a request that is not complete, or has not begun, ends its connection."""
    write_timeout_s: float = 60.0
    """Seconds a client may take nothing of what waits for it before its request is ended and its connection dropped."""
    max_unsent_bytes: int = 256 * 1024
    """Bytes of a stream that may wait for its client; with more, its requests pause until the client has read on."""
    max_stored_responses: int = 1000
    """Responses of /v1/responses that all entry workers keep to be read and continued, each worker its part. The one that was
    not used for longest makes room. 0: none is kept."""
    max_stored_response_bytes: int = 64 * 1024 * 1024
    """Bytes of them, each with the conversation before it."""
    sse_keep_alive_s: float = 15.0
    """Seconds without data after which a stream gets a comment line."""


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """Keys: who may use it."""

    api_key: tuple[str, ...] = field(default=(), repr=False)
    """Keys that clients must send as `Authorization: Bearer KEY`, on all routes but /health, /health_generate, /ready
    and the files of the web page. Default: no key."""
    api_key_file: str | None = None
    """File with such keys, one a line: an option shows in the list of processes while the server starts."""
    admin_api_key: tuple[str, ...] = field(default=(), repr=False)
    """Keys for what shows or ends others' requests, and for everything else. Default: every client may do that."""
    admin_api_key_file: str | None = None
    """File with such keys, one a line."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Executor: what computes tokens, and on what."""

    executor: Literal["auto", "native", "torch", "scripted"] = "auto"
    """What computes tokens: `native` (our CPU kernels), `torch` (fp32 on CPU, or a GPU) or `scripted` (a stand-in that needs no
    model). `auto`: native where it can run and there is no GPU, else torch."""
    threads: int = 0
    """CPU threads for the model; 0 uses all cores."""
    mem_fraction_static: float | None = None
    """Share of a GPU's memory for weights and KV pool together; the rest is left to activations. Default: 0.85. Without effect
    on a CPU, and where `max_total_tokens` is given."""
    cache_dir: str | None = None
    """Where packed weights are kept for the next start. Default: the user's cache directory, such as ~/.cache/millstream."""
    script: str | None = None
    """Scripted executor: a JSON file of rules, or `inline` to read the script from each prompt."""
    scripted_step_ms: float = 0.0
    """Scripted executor: milliseconds a step takes; 0 is as fast as it can."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """KV cache: what keys and values take."""

    max_total_tokens: int | None = None
    """Tokens the KV pool holds. Default: 8 contexts, within a quarter of the memory and 2 GiB; on a GPU what
    `mem_fraction_static` leaves."""
    page_size: int = 16
    """Tokens in a KV page; a multiple of 16 for the native executor."""
    kv_cache_dtype: Literal["auto", "fp16", "fp32", "int8"] = "auto"
    """How keys and values are kept. `auto`: fp16 in the native executor; torch keeps what it computes in, and takes no
    other."""
    disable_radix_cache: bool = False
    """Do not reuse the KV of shared prompt prefixes. The choices of one call still compute their prompt once."""


@dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """Scheduling: who runs, who waits, and how much of a prompt a step computes."""

    max_running_requests: int = 64
    """Requests that may run in one batch."""
    max_queued_requests: int = 512
    """Requests that may wait; one more is refused with 429."""
    max_queued_tokens: int | None = None
    """Prompt tokens that may wait; more are refused with 429. Default: 32 contexts."""
    max_live_requests: int | None = None
    """Requests the entry holds, from their first byte on; more are refused with 429. Default: twice what may run and wait."""
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    """Who is next of those that wait, at equal priority: `fcfs` (first come) or `lpm` (longest known prefix)."""
    enable_priority_scheduling: bool = False
    """Honour `priority` of requests: the higher goes first, and lower ones that run give way. Without it, it is refused."""
    oldest_first_every: int = 8
    """Of so many admissions one goes to whoever waits longest, whatever priorities and prefixes say: nobody waits for ever."""
    chunked_prefill_size: int = 256
    """Tokens in one step, decode included: a longer prompt is prefilled in chunks beside running requests."""
    disable_jump_forward: bool = False
    """Draw what a grammar forces token by token. Without it such text is appended at once; texts are the same."""
    target_itl_ms: float = 100.0
    """Milliseconds a step should stay within while requests decode: chunks beside them are sized for it; 0 for any."""


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Speculation: tokens that are guessed, so that a step brings several."""

    speculative_algorithm: Literal["ngram"] | None = None
    """Guess tokens so that a step brings several: `ngram`, what followed before in prompt and output. Texts stay the same."""
    speculative_num_draft_tokens: int = 8
    """Tokens guessed for a request in one step, at most."""
    speculative_ngram_min_match_window_size: int = 2
    """Tokens at the end of a sequence that must have stood in it before for a guess."""
    speculative_ngram_max_match_window_size: int = 8
    """Tokens of such a match beyond which a longer one is no better."""
    speculative_disable_by_batch_size: int = 8
    """Requests in one batch up to which tokens are guessed; with more, a guess costs more than it brings."""


@dataclass(frozen=True, kw_only=True)
class LifecycleOptions:
    """Lifecycle and limits: how long things may take, and what is done about what dies."""

    request_timeout_s: float | None = None
    """Seconds a request may take, waiting included; clients may ask for less by `timeout`. Default: no limit."""
    max_detokenizer_states: int = 65536
    """Requests whose text may be under way at once; one more is ended with 503."""
    start_timeout_s: float = 300.0
    """Seconds each process may take to become ready."""
    drain_timeout_s: float = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    max_restarts: int = 10
    """Deaths of one process within ten minutes that are answered by a restart; one more ends the server."""
    wedge_timeout_s: float = 10.0
    """Seconds without a sign of life after which a process is killed and restarted."""
    step_timeout_s: float = 300.0
    """Seconds in which a process that has work must get something done, or it is killed and restarted. Longer than any step."""


@dataclass(frozen=True, kw_only=True)
class TimelineOptions:
    """Timelines: what /v1/requests knows of requests that have ended."""

    max_recent_requests: int = 512
    """Requests that are kept to be looked at after their end, by all entry workers together, each its part. 0: none is."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector that gets each request's spans at its end, over HTTP, such as `http://localhost:4318`. Needs
    `pip install millstream[otel]`. Default: none."""
    hide_timeline_text: bool = False
    """Keep no text in timelines: else they have a few tokens of the prompt around the place where the cached prefix ended."""


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Logging and checks."""

    log_level: LogLevel = "info"
    """Least severe message to log, on stderr. `POST /log_level` changes it in all processes of a running server."""
    log_format: Literal["human", "json"] = "human"
    """How messages are written: lines for people, or one JSON object a line."""
    log_requests: LogRequests = "end"
    """What is logged of each request: nothing, its end in one line, or that with prompt and answer, of each up to 2,000
    characters."""
    record: str | None = None
    """Directory for recordings of calls, which `millstream replay` runs again: of those that an admin sends with the header
    `X-Millstream-Record`, and of others by the options below. They hold prompts and answers. Default: none is made."""
    record_sample: float = 0.0
    """Share of calls to record, from 0 to 1."""
    record_failed: bool = False
    """Record calls that end by a fault of the server. All calls are then watched, which makes streams dearer."""
    record_privacy: bool = False
    """Record without text: letters become `x`, token ids other numbers. Such a recording shows what happened when, and cannot
    be replayed."""
    record_max_files: int = 100
    """Recordings the directory may hold; what is more is dropped."""
    metrics_access: MetricsAccess = "open"
    """Who may read /metrics: `open`, everybody, without a key, as scrapers are used to; `admin`, with an admin's key; `off`,
    nobody: it is not there."""
    strict_ledger: bool = False
    """Treat a ledger that does not balance as fatal, for tests; otherwise it is counted and logged."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(
    ModelOptions,
    HttpOptions,
    KeyOptions,
    ExecutorOptions,
    CacheOptions,
    SchedulingOptions,
    SpeculationOptions,
    LifecycleOptions,
    TimelineOptions,
    LogOptions,
):
    """Options of `millstream serve`, in groups. Each comes as a flag, an environment variable and a key of the YAML file."""

    @property
    def live_limit(self) -> int:
        """Requests the entry holds at most."""
        return self.max_live_requests or 2 * (self.max_running_requests + self.max_queued_requests)

    def queued_tokens_limit(self, context_length: int) -> int:
        """Prompt tokens that may wait."""
        return self.max_queued_tokens or QUEUED_CONTEXTS * context_length

    def check(self) -> None:
        """Refuse values that cannot work; called before anything is started.

        Raises:
            StartupError: the first option out of range, with its value.
        """
        if any(not name.strip() for name in self.served_model_name):
            raise StartupError("served_model_name has an empty name")
        for name in SECRETS:
            if any(not key.strip() or key.split() != [key] for key in getattr(self, name)):
                raise StartupError(f"{name} has a key that is empty or has a space in it")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise StartupError(f"allowed_origins has `{origin}`", hint="an origin is like `https://host:port`, or `*`")
        if self.otlp_endpoint is not None and not _COLLECTOR.fullmatch(self.otlp_endpoint):
            raise StartupError(f"otlp_endpoint is `{self.otlp_endpoint}`", hint="a collector is like `http://host:4318`")
        self._check_numbers()
        if self.chunked_prefill_size <= self.max_running_requests:
            raise StartupError(
                f"chunked_prefill_size is {self.chunked_prefill_size}; it must be more than max_running_requests, "
                f"{self.max_running_requests}: every running request decodes one token in each step"
            )

    def _check_numbers(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise StartupError(f"{name} is {value}; it must be from {low:,} to {high:,}")
        for name, lower in _ORDERED:
            value, least = getattr(self, name), getattr(self, lower)
            if value < least:
                raise StartupError(f"{name} is {value}; it must be at least {lower}, {least}")


GROUPS = ServerConfig.__bases__  # a group's title is what its docstring says before a colon
SECRETS = ("api_key", "admin_api_key")  # options whose values are never shown
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+/?", re.IGNORECASE)
_COLLECTOR = re.compile(r"https?://[^/\s]+(/\S*)?", re.IGNORECASE)

_ORDERED = (
    ("max_held_body_bytes", "max_body_bytes"),
    ("speculative_ngram_max_match_window_size", "speculative_ngram_min_match_window_size"),
)
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65535),
    ("entry_workers", 1, 256),
    ("scripted_step_ms", 0, 60_000),
    ("threads", 0, 1024),
    ("context_length", 2, 1 << 30),
    ("max_total_tokens", 2, 1 << 40),
    ("mem_fraction_static", 0.01, 1.0),
    ("page_size", 1, 1024),
    ("max_running_requests", 1, 65536),
    ("max_queued_requests", 0, 1 << 20),
    ("max_queued_tokens", 1, 1 << 40),
    ("max_live_requests", 1, 1 << 21),
    ("oldest_first_every", 1, 1 << 20),
    ("chunked_prefill_size", 1, 1 << 20),
    ("target_itl_ms", 0, 3_600_000),
    ("record_sample", 0, 1),
    ("record_max_files", 1, 1 << 20),
    ("speculative_num_draft_tokens", 1, 64),
    ("speculative_ngram_min_match_window_size", 1, 64),
    ("speculative_ngram_max_match_window_size", 1, 64),
    ("speculative_disable_by_batch_size", 1, 65536),
    ("max_detokenizer_states", 1, 1 << 24),
    ("sse_keep_alive_s", 0.01, 3600),
    ("request_timeout_s", 0.001, 86400),
    ("max_connections", 1, 1 << 20),
    ("max_body_bytes", 1024, 1 << 34),
    ("max_held_body_bytes", 1024, 1 << 40),
    ("read_timeout_s", 0.1, 86400),
    ("write_timeout_s", 0.1, 86400),
    ("max_unsent_bytes", 64 * 1024, 1 << 30),  # a connection takes as much before a row has to wait
    ("max_stored_responses", 0, 1 << 24),
    ("max_stored_response_bytes", 0, 1 << 40),
    ("max_recent_requests", 0, 1 << 20),
    ("start_timeout_s", 1, 86400),
    ("max_restarts", 0, 1 << 20),
    ("drain_timeout_s", 0, 86400),
    ("wedge_timeout_s", 3, 86400),
    ("step_timeout_s", 3, 86400),
)


@dataclass(frozen=True, kw_only=True)
class ChildConfig:
    """What a child process starts with: the options, who it is, and where the sockets are."""

    server: ServerConfig
    socket_directory: str
    name: str
    """The process's own name, which is also its socket's."""
    entry: int = 0
    """An entry worker's number."""
    listen_fd: int | None = None
    """An entry worker's listening socket."""
    is_successor: bool = False
    """The server was ready before: it replaces a process that died."""

    @property
    def socket_dir(self) -> Path:
        """The private directory that holds every process's inbox."""
        return Path(self.socket_directory)
