"""TokenizerManager: entry-side request coordinator, owner of rid -> ReqState.

Adapters call `generate_request`, consume the `Generation` it returns, and always `release` it. The process feeds `handle`
with what the scheduler and the detokenizer send. Everything runs on one event loop; it knows no HTTP and no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from millstream.config import ServerConfig
from millstream.entry.deadline import before
from millstream.entry.due_ends import END_GRACE_S, DueEnds
from millstream.entry.ending import describe_end
from millstream.entry.failure import INTERNAL, Failure, RequestFailed, failure_of_cause, failure_of_error, failure_of_rejection
from millstream.entry.generation import Generation, Origin
from millstream.entry.pauses import Pauses
from millstream.entry.questions import Questions
from millstream.entry.state import Phase, ReqState
from millstream.entry.tokenize import PromptEncoder, check_prompt, finalize, is_quick
from millstream.errors import DeadlineExceeded, DuplicateRid, MillstreamError, OverloadError
from millstream.ipc.channel import Sender
from millstream.messages import (
    Abort,
    AbortNotice,
    AbortOthersReply,
    AbortReq,
    AdmissionOutput,
    BatchStrOutput,
    Delivered,
    EngineInfo,
    GenerateReqInput,
    LedgerQuery,
    ProgressOutput,
    ReplayReq,
    StatsReply,
    TextColumns,
    TextRow,
    ToEntry,
    TokenizedGenerateReqInput,
    Usage,
    WorkerReply,
    WorkerReport,
)
from millstream.messages.columns import SLOTS
from millstream.messages.finish import AbortCause
from millstream.observe.ledger import Ledger
from millstream.observe.log import log_request_end
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class TokenizerManager:
    """Registers, tokenises and dispatches requests; hands their rows to whoever waits; aborts what nobody waits for."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        to_scheduler: Sender,
        engine: EngineInfo,
        entry: int = 0,
        max_live: int = ServerConfig().live_limit,
        max_unsent_bytes: int = ServerConfig.max_unsent_bytes,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
        end_grace_s: float = END_GRACE_S,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.ledger = ledger or Ledger("entry")
        self.prompts = PromptEncoder(tokenizer, engine.context_length, self.ledger)
        self.retry_after_s = 1  # what somebody refused now is told; the scheduler knows
        self.questions = Questions(to_scheduler=to_scheduler, entry=entry)
        self.due_ends = DueEnds(self._make_end, grace_s=end_grace_s)
        self.late_rows_dropped = 0
        self.stream_mismatches = 0  # requests whose text was not what their ids say; anything but 0 is a bug
        self._max_live = max_live
        self._to_scheduler = to_scheduler
        self._pauses = Pauses(to_scheduler=to_scheduler, max_unsent_bytes=max_unsent_bytes)
        self._entry = entry  # the number of this worker
        self._clock = clock
        self._new_seed = new_seed
        self._owners: dict[str, tuple[ReqState, Generation]] = {}
        self._by_slot: dict[int, tuple[ReqState, Generation]] = {}  # the same
        self._num_requests = 0
        self._num_readers = 0  # calls whose answer is not complete, whether or not their requests have ended
        self._generations: dict[str, Generation] = {}  # by the call's own rid, which may have none of its own
        self._idle = asyncio.Event()  # set whenever the last request has ended and its answer is complete
        self._handlers: dict[type, Callable[[Any], None]] = {
            BatchStrOutput: self._take_texts,
            AdmissionOutput: self._take_verdicts,
            AbortNotice: self._take_notice,
            ProgressOutput: self._take_progress,
            **dict.fromkeys((StatsReply, AbortOthersReply, WorkerReply), self.questions.answer),
        }
        self.ledger.watch("state", lambda: len(self._owners))
        self.ledger.watch("generation", lambda: len(self._generations))

    async def generate_request(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        """Register, tokenise, check and dispatch all requests of one call, and wait until every one is admitted.

        All or none: when one fails, the others are aborted. The caller must `release` the generation it gets.

        Raises:
            RequestError: a request is wrong; nothing was dispatched. DuplicateRid, ContextLengthExceeded are of this kind.
            DeadlineExceeded: its time was up before it was dispatched.
            OverloadError: too many are live.
            RequestFailed: the scheduler refused one, or the call was ended meanwhile.
        """
        generation = self._register(rid, requests, origin)
        try:
            first = generation.states[0].obj
            ready = await before(first.deadline, first.timing.received, self._clock, self._tokenize(generation))
            for state, tokenized in zip(generation.states, ready, strict=True):
                self._to_scheduler.send(tokenized)
                state.move(Phase.DISPATCHED)  # after the send: it says that the scheduler may hold something
                if state.obj.deadline is not None:
                    self.due_ends.expect(state.slot, "deadline", state.obj.deadline - self._clock())
            while not all(state.accepted for state in generation.states):
                await generation.wait()
        except BaseException as error:
            self.release(generation, *_end_for(error))
            raise
        generation.ring()  # rows may have come with the verdicts
        return generation

    def release(self, generation: Generation, cause: AbortCause = "client_gone", failure: Failure | None = None) -> None:
        """Nobody waits for `generation` any more: abort what still runs, and log what has ended.

        `failure` is why, where the scheduler has not seen the request and only the log hears of it.
        """
        cause = generation.cut_off or cause
        if not generation.released:
            generation.released = True
            self._num_readers -= 1
            self._note_idle()
            generation.account.release("reader", "done" if generation.finished else cause)
            if generation.finished:
                generation.account.settle("done")
        for state in generation.states:
            already, state.released = state.released, True
            state.drop_rows()
            self.due_ends.forget(state.slot)
            if state.phase is Phase.FINISHED:
                if not already:
                    self._log_end(state, generation)
            else:
                self._abort(state, generation, cause, failure)

    def abort(self, rid: str, cause: AbortCause = "aborted") -> list[str]:
        """Abort the request or the whole call with exactly this rid; returns the rids that were live."""
        generation = self._generations.get(rid)
        if generation is not None:
            pairs = [(state, generation) for state in generation.states if state.phase is not Phase.FINISHED]
        else:
            pairs = [self._owners[rid]] if rid in self._owners else []
        for state, owner in pairs:
            self._abort(state, owner, cause)
        return [state.rid for state, _ in pairs]

    def abort_prefix(self, prefix: str, cause: AbortCause = "aborted") -> list[str]:
        """Abort every request whose rid begins with `prefix`, as those of a call begin with the call's; returns their rids."""
        pairs = [owned for rid, owned in self._owners.items() if rid.startswith(prefix)]
        for state, generation in pairs:
            self._abort(state, generation, cause)
        return [state.rid for state, _ in pairs]

    def abort_all(self, cause: AbortCause = "aborted") -> list[str]:
        """Abort every live request; returns their rids."""
        return self.abort_prefix("", cause)

    def fail_all(self, failure: Failure) -> None:
        """End every request at once: the scheduler is gone, or does not answer, and their final rows will never come."""
        for state, generation in list(self._owners.values()):
            self._end(state, generation, failure)
        self.questions.fail(failure)

    def ask_replay(self, pid: int) -> None:
        """The detokenizer was replaced by `pid`, and all that the old one sent was handled: have the new one go on there."""
        received = [state.received for state, _ in self._owners.values() if state.dispatched]
        if received:
            self._to_scheduler.send(ReplayReq(received, pid, self._entry))

    def handle(self, message: ToEntry) -> None:
        """Take one message from another process; what other workers ask is the service's to answer."""
        self._handlers[type(message)](message)

    def report(self, ledger: LedgerQuery | None = None) -> WorkerReport:
        """How this worker is; with `ledger`, with its book."""
        return WorkerReport(
            live_requests=self.live_requests,
            late_rows_dropped=self.late_rows_dropped,
            stream_mismatches=self.stream_mismatches,
            ledger_mismatches=self.ledger.reconcile(),
            book=None if ledger is None else self.ledger.book(ledger),
        )

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is live and every answer complete, for at most `timeout_s` seconds; returns whether it is."""
        if not self._is_idle and timeout_s > 0:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
        return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._owners and not self._num_readers

    def _note_idle(self) -> None:
        if self._is_idle:
            self._idle.set()

    @property
    def live_requests(self) -> int:
        """Requests whose final row has not come."""
        return len(self._owners)

    def close(self) -> None:
        """Stop the worker threads."""
        self.prompts.close()

    def _register(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        for key in {rid, *(request.rid for request in requests)}:
            if key in self._owners or key in self._generations:
                raise DuplicateRid(key)
        if len(self._owners) + len(requests) > self._max_live:
            message = f"{len(self._owners)} requests are live, and at most {self._max_live} may be. Try again later."
            raise OverloadError(message, retry_after_s=self.retry_after_s)
        for request in requests:
            request.sampling.verify(self.engine.vocab_size)
        open_account = self.ledger.open
        states = [ReqState(request, open_account(request.rid), self._next_slot()) for request in requests]
        generation = Generation(rid, states, origin, open_account(rid))
        self._generations[rid] = generation
        generation.account.acquire("generation")
        generation.account.acquire("reader")
        self._num_readers += 1
        for state in states:
            self._owners[state.rid] = self._by_slot[state.slot] = (state, generation)
            state.account.acquire("state")
        return generation

    def _next_slot(self) -> int:
        slot = self._num_requests % SLOTS
        self._num_requests += 1
        return slot

    async def _tokenize(self, generation: Generation) -> list[TokenizedGenerateReqInput]:
        """Give every request its ids and its final form, all checked before one is sent. Equal texts are encoded once."""
        known: dict[tuple[str, bool], list[int]] = {}
        param = generation.origin.prompt_param
        for state in generation.states:
            obj = state.obj
            if obj.text is not None:
                key = (obj.text, obj.add_special_tokens)
                if key not in known:
                    encode = partial(
                        self.prompts.encode, obj.text, add_special_tokens=obj.add_special_tokens, param=param, rid=state.rid
                    )
                    known[key] = await (encode() if is_quick(len(obj.text)) else generation.unless_ended(encode))
                state.input_ids = known[key]
            is_ours = obj.text is not None and self.tokenizer.vocab_size <= self.engine.vocab_size
            check_prompt(state.input_ids, self.engine, param, is_ours=is_ours)
            obj.timing.tokenized = self._clock()
        for state in generation.states:
            if state.failure is not None:  # ended while it was being tokenised
                raise RequestFailed(state.failure)
            if state.obj.sampling.seed is None:
                state.obj.sampling = msgspec.structs.replace(state.obj.sampling, seed=self._new_seed())
        call = generation.rid if len(generation.states) > 1 else ""
        return [
            finalize(state.obj, state.input_ids, self.engine, generation.origin, slot=state.slot, entry=self._entry, call=call)
            for state in generation.states
        ]

    def _take_verdicts(self, verdicts: AdmissionOutput) -> None:
        self.retry_after_s = verdicts.retry_after_s
        for slot in verdicts.accepted:
            if (owned := self._by_slot.get(slot)) is not None:  # it may have ended: rows come by another way
                owned[0].accepted = True
                owned[1].ring()
        for rejection in verdicts.rejected:
            if (owned := self._by_slot.get(rejection.slot)) is not None:
                self._end(*owned, failure_of_rejection(rejection))

    def _take_texts(self, texts: BatchStrOutput) -> None:
        for columns in texts.columns:
            self._take_columns(columns)
        self._take_rows(texts.rows)

    def _take_notice(self, notice: AbortNotice) -> None:
        for slot in notice.slots:
            if (owned := self._by_slot.get(slot)) is not None:
                self._note_abort(owned[0], notice.cause)

    def _take_progress(self, news: ProgressOutput) -> None:
        for progress in news.requests:
            if (owned := self._owners.get(progress.rid)) is not None:
                owned[1].note_progress(progress)

    def _take_columns(self, columns: TextColumns) -> None:
        by_slot = self._by_slot
        for slot, text, token_ids in columns.rows():
            owned = by_slot.get(slot)
            if owned is None:
                self.late_rows_dropped += 1
                continue
            state = owned[0]
            try:
                if not state.hand_on(text, token_ids):
                    self._queue(*owned, TextRow(state.rid, slot, text, token_ids, None))
            except Exception:
                log.exception("a row of %s could not be delivered", state.rid)
                self._fail(TextRow(state.rid, slot, text, token_ids, None))

    def _take_rows(self, rows: Sequence[TextRow]) -> None:
        finals: list[str] = []
        for row in rows:
            owned = self._by_slot.get(row.slot)
            if owned is None:
                self.late_rows_dropped += 1
                continue
            if row.finish is not None:
                finals.append(row.rid)
            try:
                self._take_row(*owned, row)
            except Exception:  # a fault with one row belongs to its request: the others of the step are not touched
                log.exception("a row of %s could not be delivered", row.rid)
                self._fail(row)
        if finals:
            self._to_scheduler.send(Delivered(finals, self._entry))

    def _take_row(self, state: ReqState, generation: Generation, row: TextRow) -> None:
        if row.finish is not None or state.phase is not Phase.RECEIVING or not state.hand_on(row.text, row.token_ids):
            self._queue(state, generation, row)

    def _queue(self, state: ReqState, generation: Generation, row: TextRow) -> None:
        """Take a row that the consumer must wake for: the first, the last, one that cannot be written at once."""
        state.accepted = True
        if row.timing is not None:
            state.adopt_timing(row.timing)
        elif row.finish is not None:
            self._send_abort(state, "engine_error")  # the detokenizer has ended it, and the scheduler does not know
        state.push(row)
        generation.ring()
        if state.phase is Phase.FINISHED:
            self._remove(state, generation)
        else:
            self._pauses.note_waiting(state, generation, row)

    def _abort(self, state: ReqState, generation: Generation, cause: AbortCause, failure: Failure | None = None) -> None:
        """Lead one live request to its end: locally where the scheduler never saw it, else through the scheduler."""
        if state.dispatched:
            self._send_abort(state, cause)
        elif state.phase is Phase.CREATED:
            self._end(state, generation, failure or failure_of_cause(cause))

    def _send_abort(self, state: ReqState, cause: AbortCause) -> None:
        if state.dispatched and not state.abort_sent:
            self._to_scheduler.send(AbortReq(rid=state.rid, cause=cause))
            self._note_abort(state, cause)

    def _note_abort(self, state: ReqState, cause: AbortCause) -> None:
        """The scheduler knows, or will, that the request is to end."""
        state.abort_sent = True
        if not state.released:
            self.due_ends.expect(state.slot, cause)

    def _make_end(self, slot: int, cause: AbortCause) -> None:
        """End a request whose end is due and has not come: as its final row would, where it was admitted."""
        state, generation = self._by_slot[slot]
        log.warning("the end of %s (%s) did not come in time", state.rid, cause)
        self._send_abort(state, cause)
        self._to_scheduler.send(Delivered([state.rid], self._entry))  # nobody waits for the final row any more
        deadline = state.obj.deadline if cause == "deadline" else None
        message = None if deadline is None else DeadlineExceeded(deadline - state.obj.timing.received).message
        failure = failure_of_cause(cause, message)
        if not state.accepted:
            self._end(state, generation, failure)
            return
        end = Abort(cause, failure.message, failure.status)
        usage = state.usage or Usage(len(state.input_ids), 0)
        self._queue(state, generation, TextRow(state.rid, slot, "", [], usage, end))

    def _fail(self, row: TextRow) -> None:
        """End the request of a row that we could not deliver."""
        if (owned := self._by_slot.get(row.slot)) is None:
            return
        state, generation = owned
        if row.finish is None and state.dispatched:
            self._send_abort(state, "engine_error")
            generation.fail(state, INTERNAL)
        elif state.phase is not Phase.FINISHED:
            self._end(state, generation, INTERNAL)
        else:
            self._remove(state, generation)

    def _end(self, state: ReqState, generation: Generation, failure: Failure) -> None:
        """End a request that gets no final row."""
        state.end(failure)
        generation.interrupt()
        self._remove(state, generation)

    def _remove(self, state: ReqState, generation: Generation) -> None:
        """Let go of a request that has ended."""
        del self._owners[state.rid], self._by_slot[state.slot]
        self.due_ends.forget(state.slot)
        state.account.release("state", state.cause)
        self._note_idle()
        if generation.finished:
            del self._generations[generation.rid]
            generation.account.release("generation", state.cause)
            if generation.released:
                generation.account.settle("done")
        if state.released:
            self._log_end(state, generation)

    def _log_end(self, state: ReqState, generation: Generation) -> None:
        if state.mismatched:
            self.stream_mismatches += 1
            log.error("the text of request %s is not the text of its tokens: this is a bug, please report it", state.rid)
        log_request_end(describe_end(state, generation.origin, self._clock()))
        state.account.settle(state.cause)


def _end_for(error: BaseException) -> tuple[AbortCause, Failure | None]:
    """How requests end that `error` kept from being admitted: those that were sent, and those that were not."""
    if isinstance(error, asyncio.CancelledError):
        return "client_gone", None
    if isinstance(error, MillstreamError):
        return "aborted", failure_of_error(error)
    return ("aborted" if isinstance(error, RequestFailed) else "engine_error"), None
