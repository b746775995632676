"""What entry workers ask each other, so that any of them can speak for the whole server."""

from __future__ import annotations

from msgspec import Struct

from millstream.messages.ledger import Book, LedgerQuery


class WorkerReq(Struct, frozen=True, omit_defaults=True, tag="worker_req", gc=False):
    """Ask another worker how it is. entry -> entry; answered by a `WorkerReply`, when all that was sent to that one is read."""

    id: int
    entry: int  # the worker that asks
    ledger: LedgerQuery | None = None  # with it, the answer has a book


class WorkerReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """One worker's part in what the server says of itself. Counts are since its start, but for `live_requests`."""

    live_requests: int
    late_rows_dropped: int
    stream_mismatches: int
    ledger_mismatches: int
    book: Book | None = None


class WorkerReply(Struct, frozen=True, tag="worker_reply", gc=False):
    """How a worker is. entry -> entry."""

    id: int
    report: WorkerReport
