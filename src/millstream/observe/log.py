"""Logging: where it goes, and the one line that each request leaves at its end. Never holds prompt or answer text."""

from __future__ import annotations

import logging
import sys
from typing import NamedTuple

from millstream.messages import Timing

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


def configure_logging(process: str, level: str) -> None:
    """Send the records of this process to stderr, marked with its name."""
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s %(levelname).1s {process:<11} %(message)s",
        stream=sys.stderr,
        force=True,
    )
    # when the server starts and stops, its supervisor says; what is wrong with a client's bytes, the client is told
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


def log_request_end(end: RequestEnd, level: int = logging.INFO) -> None:
    """Write the request's line at `level`; where debug is shown also how long each stage took."""
    if not log.isEnabledFor(level):
        return
    timing = end.timing
    log.log(
        level,
        "request %s api=%s model=%s cause=%s prompt=%d cached=%d completion=%d ttft_ms=%s total_ms=%s%s%s",
        end.rid,
        end.api,
        end.model,
        end.cause,
        end.prompt_tokens,
        end.cached_tokens,
        end.completion_tokens,
        _milliseconds(timing.received, timing.first_written or timing.prefilled),  # a plain answer is written only once
        _milliseconds(timing.received, timing.written or end.ended),
        f" request_id={end.request_id}" if end.request_id else "",
        f" trace_id={end.trace_id}" if end.trace_id else "",
    )
    if log.isEnabledFor(logging.DEBUG):
        log.debug("request %s stages_ms %s", end.rid, stage_durations(timing))


def stage_durations(timing: Timing) -> str:
    """Milliseconds from each stamp to the next that was reached, as `name=value` words, in order of time."""
    stamps = sorted((stamp, name) for name in _STAGES if (stamp := getattr(timing, name)) > 0.0)
    return " ".join(
        f"{name}={(stamp - before) * 1000:.2f}" for (before, _), (stamp, name) in zip(stamps, stamps[1:], strict=False)
    )


def _milliseconds(start: float, end: float) -> str:
    return f"{(end - start) * 1000:.1f}" if start > 0.0 and end > 0.0 else "-"
