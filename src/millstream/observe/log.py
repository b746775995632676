"""Logging: where it goes, in which form, and the one line that each request leaves at its end.

Prompt and answer are in it only where `--log-requests text` asks for that.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from millstream.messages import FromSupervisor, SetLogLevel, Shutdown, Timing

log = logging.getLogger("millstream.request")

_STAGES = (
    "received",
    "adapted",
    "tokenized",
    "checked",
    "queued",
    "admitted",
    "prefilled",
    "decoded",
    "finished",
    "first_detokenized",
    "detokenized",
    "first_written",
    "written",
)


class RequestEnd(NamedTuple):
    """What is known of a request when it has ended; `cause` is its one terminal event."""

    rid: str
    api: str
    model: str
    cause: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    timing: Timing
    ended: float  # seconds, the clock of `timing`
    request_id: str | None = None  # of the HTTP request
    trace_id: str | None = None


class JsonFormatter(logging.Formatter):
    """One JSON object a record: `time`, `level`, `process`, `logger`, `message`, the `facts` that it has, and `exception`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **record.__dict__.get("facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure_logging(process: str, level: str, form: str = "human") -> None:
    """Send the records of this process to stderr, marked with its name, and errors that nobody catches with them."""
    handler = logging.StreamHandler(sys.stderr)
    human = logging.Formatter(f"%(asctime)s %(levelname).1s {process:<11} %(message)s")
    handler.setFormatter(JsonFormatter(process) if form == "json" else human)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # when the server starts and stops, its supervisor says; what is wrong with a client's bytes, the client is told
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    if form == "json":
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
        sys.unraisablehook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    logging.getLogger("millstream").critical("an error that nobody caught", exc_info=(kind, error or kind(), trace))


def set_level(level: str) -> None:
    """Log from another level on, in this process."""
    logging.getLogger().setLevel(level.upper())


def heed(messages: Iterable[FromSupervisor]) -> bool:
    """Log from the level that the supervisor says, if it does; returns whether it said to stop."""
    stop = False
    for message in messages:
        if isinstance(message, SetLogLevel):
            set_level(message.level)
        stop = stop or isinstance(message, Shutdown)
    return stop


def log_request_end(end: RequestEnd, level: int = logging.INFO, texts: tuple[str, str] | None = None) -> None:
    """Write the request's line at `level`, with beginnings of prompt and answer if given; where debug is shown also how long
    each stage took.
    """
    if not log.isEnabledFor(level):
        return
    timing = end.timing
    ttft_s = _seconds(timing.received, timing.first_written or timing.prefilled)  # a plain answer is written only once
    total_s = _seconds(timing.received, timing.written or end.ended)
    log.log(
        level,
        "request %s api=%s model=%s cause=%s prompt=%d cached=%d completion=%d ttft_ms=%s total_ms=%s%s%s%s",
        end.rid,
        end.api,
        end.model,
        end.cause,
        end.prompt_tokens,
        end.cached_tokens,
        end.completion_tokens,
        _milliseconds(ttft_s),
        _milliseconds(total_s),
        f" request_id={end.request_id}" if end.request_id else "",
        f" trace_id={end.trace_id}" if end.trace_id else "",
        "" if texts is None else " prompt_text={!r} answer_text={!r}".format(*texts),
        extra={"facts": _facts(end, ttft_s, total_s, texts)},
    )
    if log.isEnabledFor(logging.DEBUG):
        log.debug("request %s stages_ms %s", end.rid, stage_durations(timing))


def stage_durations(timing: Timing) -> str:
    """Milliseconds from each stamp to the next that was reached, as `name=value` words, in order of time."""
    stamps = sorted((stamp, name) for name in _STAGES if (stamp := getattr(timing, name)) > 0.0)
    return " ".join(
        f"{name}={(stamp - before) * 1000:.2f}" for (before, _), (stamp, name) in zip(stamps, stamps[1:], strict=False)
    )


def _facts(end: RequestEnd, ttft_s: float | None, total_s: float | None, texts: tuple[str, str] | None) -> dict[str, Any]:
    """The line's numbers for programs."""
    facts: dict[str, Any] = {name: value for name, value in end._asdict().items() if name not in ("timing", "ended")}
    facts["ttft_ms"] = None if ttft_s is None else round(ttft_s * 1000, 3)
    facts["total_ms"] = None if total_s is None else round(total_s * 1000, 3)
    if texts is not None:
        facts["prompt_text"], facts["answer_text"] = texts
    return facts


def _seconds(start: float, end: float) -> float | None:
    return end - start if start > 0.0 and end > 0.0 else None


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"
