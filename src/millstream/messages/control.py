"""Control messages: everything that is not a request's way from prompt to text."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from millstream.messages.finish import AbortCause
from millstream.messages.ledger import Book, LedgerQuery
from millstream.messages.measures import Measures

LogLevel = Literal["debug", "info", "warning", "error"]
ProcessName = Literal["entry", "scheduler", "detokenizer"]
ProcessPhase = Literal["STARTING", "READY", "DRAINING", "STOPPED", "FAILED"]


class AbortReq(Struct, frozen=True, tag="abort_req", gc=False):
    """Stop one request. entry -> scheduler; answered by the request's one final row.

    Matching is exact. An unknown rid is ignored: requests and aborts share one ordered channel, so its final row is already
    on the way.
    """

    rid: str
    cause: AbortCause = "client_gone"


class PauseReq(Struct, frozen=True, tag="pause_req", gc=False):
    """Make nothing more of one request for now: its client does not read. entry -> scheduler; has no answer.

    In order with requests and aborts. An unknown or paused rid is ignored; rows that are on the way still come.
    """

    rid: str


class ResumeReq(Struct, frozen=True, tag="resume_req", gc=False):
    """Go on with a paused request. entry -> scheduler; has no answer. A rid that is unknown or not paused is ignored."""

    rid: str


class AbortOthersReq(Struct, frozen=True, omit_defaults=True, tag="abort_others"):
    """Stop requests of other entry workers. entry -> scheduler; answered by an `AbortOthersReply`.

    Those whose rid, or whose call's rid, is in `rids`, and those whose rid begins with `prefix`, if that is given. Their final
    rows go to the workers that own them.
    """

    id: int
    entry: int  # the worker that asks
    rids: list[str] = []
    prefix: str | None = None
    cause: AbortCause = "aborted"


class AbortOthersReply(Struct, frozen=True, tag="abort_others_reply", gc=False):
    """The rids that were live with other workers and are aborted now. scheduler -> entry."""

    id: int
    rids: list[str]


class AbortNotice(Struct, frozen=True, tag="abort_notice", gc=False):
    """Requests of this worker, by their slots, that another worker has aborted. scheduler -> entry; final rows follow."""

    slots: list[int]
    cause: AbortCause


class FlushReq(Struct, frozen=True, tag="flush_req", gc=False):
    """Forget all prefixes that are kept for requests to come. entry -> scheduler; answered by a `FlushReply`."""

    id: int
    entry: int  # the worker that asks


class FlushReply(Struct, frozen=True, tag="flush_reply", gc=False):
    """What became of it. scheduler -> entry. While requests are live, `num_live` of them, nothing is forgotten."""

    id: int
    num_live: int
    num_pages: int = 0  # freed


class Rejection(Struct, frozen=True, omit_defaults=True, gc=False):
    """One request the scheduler did not admit, in the terms of an HTTP error."""

    rid: str
    slot: int
    message: str
    status: int
    type: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None


class AdmissionOutput(Struct, frozen=True, omit_defaults=True, tag="admission", gc=False):
    """Verdicts on new requests. scheduler -> entry. A rejected request has no rows.

    By slot: a rid may be in use again when the verdict on its last request comes, for rows come by another way.
    `retry_after_s` is what the entry tells those whom it refuses by itself.
    """

    accepted: list[int] = []
    rejected: list[Rejection] = []
    retry_after_s: int = 1


class Progress(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How far one request is that has no token yet: its `place` in the queue, from 1, or 0 and the prompt tokens done."""

    rid: str
    place: int = 0
    done: int = 0
    total: int = 0


class ProgressOutput(Struct, frozen=True, tag="progress", gc=False):
    """News of requests whose clients asked for them. scheduler -> entry, now and then; nobody relies on it."""

    requests: list[Progress]


class StatsReq(Struct, frozen=True, omit_defaults=True, tag="stats_req", gc=False):
    """Ask for a snapshot. entry -> scheduler -> detokenizer -> entry as `StatsReply`, in order with the data it counts.

    With `ledger` every process adds its `Book`, with `metrics` its `Measures`.
    """

    id: int
    ledger: LedgerQuery | None = None
    entry: int = 0  # the worker that asks
    metrics: bool = False


class StatsReply(Struct, kw_only=True, tag="stats", gc=False):
    """Live counts. The scheduler fills its part, the detokenizer adds its own on the way through."""

    id: int
    entry: int = 0
    scheduler_requests: int
    waiting: int
    running: int
    pages_total: int
    pages_free: int  # evictable prefix pages count as free
    pages_cached: int
    steps: int
    retractions: int
    preemptions: int = 0  # of those, for a request of higher priority
    paused: int = 0
    undelivered: int = 0  # ended, and their entry has not said yet that the final row arrived
    draft_tokens: int = 0  # guessed, since the scheduler's start
    accepted_draft_tokens: int = 0  # of those, guessed right
    forced_tokens: int = 0  # appended without a draw, since grammars left nothing else
    detokenizer_requests: int = 0
    dropped_rows: int = 0
    ledger_mismatches: int = 0  # of the processes it has passed
    ledger: LedgerQuery | None = None  # as in the `StatsReq`
    books: list[Book] = []  # one of each process it has passed, where the ledger was asked for
    measures: list[Measures] | None = None  # the same, where metrics were asked for


class EngineInfo(Struct, frozen=True, kw_only=True):
    """What the scheduler's start-up resolved, for the entry to check requests against."""

    vocab_size: int
    context_length: int  # tokens: prompt and output together, also bounded by the KV pool
    eos_token_ids: list[int]
    num_pages: int
    page_size: int
    max_running_requests: int
    executor: str
    hidden_size: int = 0  # of embeddings, in and out; 0: the executor has none
    has_logprobs: bool = False
    has_grammars: bool = False  # the executor draws by masks, and the tokenizer's ids are strings of bytes


class SetLogLevel(Struct, frozen=True, tag="set_log_level"):
    """Log from this level on. entry -> supervisor -> every child; the `ServerState` that follows has the level."""

    level: LogLevel


class Ready(Struct, frozen=True, omit_defaults=True, tag="ready"):
    """This child can work. child -> supervisor, once."""

    process: ProcessName
    engine: EngineInfo | None = None  # from the scheduler


class ChildError(Struct, frozen=True, omit_defaults=True, tag="error"):
    """This child cannot go on and is about to exit. child -> supervisor; printed once, by the supervisor."""

    process: ProcessName
    message: str
    hint: str | None = None


class Heartbeat(Struct, frozen=True, tag="heartbeat", gc=False):
    """This child runs. child -> supervisor, about once a second from READY on."""

    progress: int  # changes whenever it gets something done
    is_busy: bool  # it has something to do


class ProcessState(Struct, frozen=True, gc=False):
    """One process as the supervisor sees it."""

    pid: int
    state: ProcessPhase


class ServerState(Struct, frozen=True, omit_defaults=True, tag="state"):
    """All processes by name and, once known, the engine's facts. supervisor -> entry, at every change.

    `measures`: what processes that are gone had counted when they last told, added up by kind, and the supervisor's own counts.
    """

    processes: dict[str, ProcessState]
    engine: EngineInfo | None = None
    measures: list[Measures] = []
    log_level: LogLevel | None = None  # where it was set since the start


class Shutdown(Struct, frozen=True, tag="shutdown"):
    """Finish and exit. supervisor -> child. The entry drains for up to `drain_s` seconds first.

    `has_failed`: nobody has asked for it, the server cannot go on; what runs ends as after a death.
    """

    drain_s: float = 0.0
    has_failed: bool = False
