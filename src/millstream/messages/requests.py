"""What is known of one request, live or ended, as it is kept, shown, and asked for between entry workers. No text."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from millstream.messages.finish import EndCause
from millstream.messages.timing import Timing, Usage

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "msg_")  # what the APIs put before a call's rid


class TraceContext(NamedTuple):
    """One request in a trace that may span servers, as W3C Trace Context has it. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str  # of this request's root span, here
    parent_id: str = ""  # of the caller's span; empty where no caller named one
    is_sampled: bool = True  # whether the trace is recorded, as its caller decided

    @property
    def header(self) -> str:
        """The `traceparent` of the answer."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"


# received: before the scheduler knows it. paused: for its client. writing: all is made, and its client has not taken it yet
RequestState = Literal["received", "queued", "running", "paused", "writing", "ended"]


class RequestRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One request at the moment `until`: its end, or when somebody looked; a time on the clock of `timing`, as all but one."""

    rid: str
    call: str  # the rid of its call, the same where that has no other request
    api: str
    model: str
    state: RequestState
    received_at: float  # unix seconds
    until: float
    timing: Timing
    usage: Usage
    cause: EndCause | None = None  # None: live
    request_id: str = ""  # of the HTTP request
    owner: str = ""  # the digest of its client's API key, "" without keys
    trace: TraceContext | None = None

    def goes_by(self, name: str) -> bool:
        """Whether it is called `name`: by its rid, its call's, its request id, or the id of its answer."""
        return name in (self.rid, self.request_id) or name.removeprefix(_answer_prefix(name)) in (self.rid, self.call)


def _answer_prefix(name: str) -> str:
    return next((prefix for prefix in ANSWER_PREFIXES if name.startswith(prefix)), "")


class RequestsReq(Struct, frozen=True, omit_defaults=True, tag="requests_req", gc=False):
    """Ask another worker for its requests, live and recent. entry -> entry; answered by a `RequestsReply`."""

    id: int
    entry: int  # the worker that asks
    owner: str | None = None  # only those of this client; None: all
    name: str = ""  # only those that go by it: `RequestRecord.goes_by`


class RequestsReply(Struct, frozen=True, tag="requests_reply", gc=False):
    """The requests, live ones first, then the newest first. entry -> entry."""

    id: int
    records: list[RequestRecord]
