"""ServerConfig: every option, declared once. The command line, environment variables and docs are made from this class.

Resolved once in the supervisor; children read the finished value and never the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.errors import StartupError

EMBEDDED_MODEL = "embedded"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of `millstream serve`. Each comes as a flag, and as an environment variable `MILLSTREAM_<NAME>`."""

    model: str = EMBEDDED_MODEL
    """What to serve: `embedded` (the SmolLM2 package), a GGUF file, or a Hugging Face directory with safetensors."""
    served_model_name: tuple[str, ...] = ()
    """Names that requests may use in `model`; the first is reported. Default: taken from the model."""
    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback makes the server reachable from outside."""
    port: int = 30000
    """Port to bind; 0 picks a free one."""

    entry_workers: int = 1
    """Processes that answer HTTP, all of them on the one port."""

    executor: Literal["torch", "scripted"] = "torch"
    """What computes tokens: `torch` (a real model) or `scripted` (a stand-in that needs no model)."""
    script: str | None = None
    """Scripted executor: a JSON file of rules, or `inline` to read the script from each prompt."""
    scripted_step_ms: float = 0.0
    """Scripted executor: milliseconds a step takes; 0 is as fast as it can."""
    threads: int = 0
    """CPU threads for the model; 0 uses all cores."""

    chat_template: str | None = None
    """Jinja file used instead of the model's own chat template."""
    context_length: int | None = None
    """Tokens a request may have, prompt and output together. Default: the model's own limit."""
    max_total_tokens: int | None = None
    """Tokens the KV pool holds. Default: 8 contexts, within a quarter of the memory and 2 GiB."""
    page_size: int = 16
    """Tokens in a KV page."""
    disable_radix_cache: bool = False
    """Do not reuse the KV of shared prompt prefixes."""
    max_running_requests: int = 64
    """Requests that may run in one batch."""
    max_queued_requests: int = 512
    """Requests that may wait; one more is refused with 503."""
    chunked_prefill_size: int = 256
    """Tokens in one step, decode included: a longer prompt is prefilled in chunks beside running requests."""
    max_detokenizer_states: int = 65536
    """Requests whose text may be under way at once; one more is ended with 503."""

    sse_keep_alive_s: float = 15.0
    """Seconds without data after which a stream gets a comment line."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body."""
    read_timeout_s: float = 60.0
    """Seconds without a byte after which a request that is not complete, or has not begun, ends its connection."""
    write_timeout_s: float = 60.0
    """Seconds a client may leave its connection unread before its request is aborted."""
    start_timeout_s: float = 300.0
    """Seconds each process may take to become ready."""
    max_restarts: int = 10
    """Deaths of one process within ten minutes that are answered by a restart; one more ends the server."""
    drain_timeout_s: float = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    wedge_timeout_s: float = 10.0
    """Seconds without a sign of life after which a process is killed and restarted."""
    step_timeout_s: float = 300.0
    """Seconds in which a process that has work must get something done, or it is killed and restarted. Longer than any step."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message to log, on stderr."""

    def check(self) -> None:
        """Refuse values that cannot work; called before anything is started.

        Raises:
            StartupError: the first option out of range, with its value.
        """
        if any(not name.strip() for name in self.served_model_name):
            raise StartupError("served_model_name has an empty name")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise StartupError(f"{name} is {value}; it must be from {low:,} to {high:,}")
        if self.chunked_prefill_size <= self.max_running_requests:
            raise StartupError(
                f"chunked_prefill_size is {self.chunked_prefill_size}; it must be more than max_running_requests, "
                f"{self.max_running_requests}: every running request decodes one token in each step"
            )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65535),
    ("entry_workers", 1, 256),
    ("scripted_step_ms", 0, 60_000),
    ("threads", 0, 1024),
    ("context_length", 2, 1 << 30),
    ("max_total_tokens", 2, 1 << 40),
    ("page_size", 1, 1024),
    ("max_running_requests", 1, 65536),
    ("max_queued_requests", 0, 1 << 20),
    ("chunked_prefill_size", 1, 1 << 20),
    ("max_detokenizer_states", 1, 1 << 24),
    ("sse_keep_alive_s", 0.01, 3600),
    ("max_body_bytes", 1024, 1 << 34),
    ("read_timeout_s", 0.1, 86400),
    ("write_timeout_s", 0.1, 86400),
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
