"""What entry workers ask each other, so that any of them can speak for the whole server, and for the responses it keeps."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from millstream.messages.ledger import Book, LedgerQuery
from millstream.messages.measures import Measures


class WorkerReq(Struct, frozen=True, omit_defaults=True, tag="worker_req", gc=False):
    """Ask another worker how it is. entry -> entry; answered by a `WorkerReply`, when all that was sent to that one is read."""

    id: int
    entry: int  # the worker that asks
    ledger: LedgerQuery | None = None  # with it, the answer has a book
    metrics: bool = False  # the answer has measures


class WorkerReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """One worker's part in what the server says of itself. Counts are since its start, but for `live_requests`."""

    live_requests: int
    late_rows_dropped: int
    stream_mismatches: int
    ledger_mismatches: int
    book: Book | None = None
    stored_responses: int = 0
    stored_response_bytes: int = 0
    evicted_responses: int = 0
    measures: Measures | None = None


class WorkerReply(Struct, frozen=True, tag="worker_reply", gc=False):
    """How a worker is. entry -> entry."""

    id: int
    report: WorkerReport


ResponseAction = Literal["read", "delete", "cancel"]


class ResponseReq(Struct, frozen=True, tag="response_req", gc=False):
    """Do something with a response that another worker keeps, for a client of this one. entry -> entry; answered by a
    `ResponseReply`.
    """

    id: int
    entry: int  # the worker that asks
    response_id: str
    owner: str  # the digest of the client's API key, "" without keys: others' responses are not there
    action: ResponseAction


class ResponseRecord(Struct, frozen=True, gc=False):
    """A response as it is kept, and as it travels: what is seldom looked into stays encoded, as JSON."""

    owner: str
    status: str
    response: bytes  # the object
    items: bytes  # the list of items that it answers, with the conversation before them

    @property
    def size(self) -> int:
        """Bytes of what is encoded."""
        return len(self.response) + len(self.items)


class ResponseReply(Struct, frozen=True, omit_defaults=True, tag="response_reply", gc=False):
    """The response, as it was or has become; None: there is none. entry -> entry."""

    id: int
    record: ResponseRecord | None = None
