"""Caller: who sent an HTTP request and in which trace, for the log, timelines and traces; nothing behind the entry sees it."""

from __future__ import annotations

from typing import NamedTuple

from millstream.entry.tape import Tape
from millstream.messages import TraceContext


class Caller(NamedTuple):
    """Made by the exchange, once the app knows whose key it is."""

    request_id: str  # of the HTTP request: the client's own, or ours
    owner: str  # a digest of its API key, "" where it has none
    trace: TraceContext
    tape: Tape | None = None  # where it is recorded
