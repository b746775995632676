"""TokenizerManager: entry-side request coordinator: the way in, the rows, and through its `Registry` and `Endings` the way out.

Adapters call `generate_request`, consume the `Generation` it returns, and always `release` it. The process feeds `handle`
with what the scheduler and the detokenizer send. Everything runs on one event loop; it knows no HTTP and no protocol.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from millstream.config import LogRequests, ServerConfig
from millstream.entry.deadline import before
from millstream.entry.due_ends import END_GRACE_S
from millstream.entry.endings import Endings, end_for
from millstream.entry.failure import Failure, failure_of_rejection
from millstream.entry.generation import Generation, Origin
from millstream.entry.pauses import Pauses
from millstream.entry.prompt_encoder import PromptEncoder
from millstream.entry.questions import ANSWERS, Questions
from millstream.entry.recent import Recent
from millstream.entry.registry import Live, Registry
from millstream.entry.state import Phase, ReqState
from millstream.entry.tokenize import CallTokenizer, check_grammar, check_logprobs
from millstream.grammar.checker import GrammarChecker
from millstream.grammar.vocabulary import vocabulary_of
from millstream.ipc.channel import Sender
from millstream.messages import (
    AbortNotice,
    AdmissionOutput,
    BatchStrOutput,
    EngineInfo,
    GenerateReqInput,
    LedgerQuery,
    ProgressOutput,
    ReplayReq,
    TextColumns,
    TextRow,
    ToEntry,
    WorkerReport,
)
from millstream.messages.finish import AbortCause
from millstream.observe.ledger import Ledger
from millstream.observe.recorder import Recorder
from millstream.observe.tally import Tally
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
        recorder: Recorder | None = None,
        log_requests: LogRequests = "end",
        recent: Recent | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] = lambda: secrets.randbits(64),
        end_grace_s: float = END_GRACE_S,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.ledger = ledger or Ledger("entry")
        self.prompts = PromptEncoder(tokenizer, engine.context_length, self.ledger)
        self.grammars = GrammarChecker(lambda: vocabulary_of(tokenizer, engine.eos_token_ids))
        self.retry_after_s = 1  # what somebody refused now is told; the scheduler knows
        self.late_rows_dropped = 0
        self.tokens_at = 0.0  # when the last token of any request came
        self.registry = Registry(ledger=self.ledger, max_live=max_live, retry_after_s=lambda: self.retry_after_s)
        recorder = recorder or Recorder(Tally("entry"))
        self._row_gap = recorder.row_gap
        self._log_requests = log_requests
        self.endings = Endings(
            registry=self.registry,
            to_scheduler=to_scheduler,
            entry=entry,
            recorder=recorder,
            log_requests=log_requests,
            clock=clock,
            grace_s=end_grace_s,
            recent=Recent(0) if recent is None else recent,
        )
        self.questions = Questions(to_scheduler=to_scheduler, entry=entry)
        self._to_scheduler = to_scheduler
        self._pauses = Pauses(to_scheduler=to_scheduler, max_unsent_bytes=max_unsent_bytes)
        self._entry = entry  # the number of this worker
        self._clock = clock
        self._call_tokenizer = CallTokenizer(
            self.prompts,
            self.grammars,
            engine,
            num_ids=tokenizer.vocab_size,
            entry=entry,
            recorder=recorder,
            clock=clock,
            new_seed=new_seed,
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            BatchStrOutput: self._take_texts,
            AdmissionOutput: self._take_verdicts,
            AbortNotice: self._take_notice,
            ProgressOutput: self._take_progress,
            **dict.fromkeys(ANSWERS, self.questions.answer),
        }

    async def generate_request(self, rid: str, requests: Sequence[GenerateReqInput], origin: Origin) -> Generation:
        """Register, tokenise, check and dispatch all requests of one call, and wait until every one is admitted.

        All or none: when one fails, the others are aborted. The caller must `release` the generation it gets.

        Raises:
            RequestError: a request is wrong; nothing was dispatched. DuplicateRid, ContextLengthExceeded are of this kind.
            DeadlineExceeded: its time was up before it was dispatched.
            OverloadError: too many are live.
            RequestFailed: the scheduler refused one, or the call was ended meanwhile.
        """
        self.registry.check(rid, requests)
        for request in requests:
            request.sampling.verify(self.engine.vocab_size)
            if request.logprobs is not None:
                check_logprobs(request.logprobs, self.engine)
            if request.sampling.grammar is not None:
                check_grammar(request.sampling.grammar, self.engine)
        generation = self.registry.register(rid, requests, origin)
        if self._log_requests == "text":
            generation.keep_text()
        try:
            first = generation.states[0].obj
            ready = await before(first.deadline, first.timing.received, self._clock, self._call_tokenizer.tokenize(generation))
            if origin.caller is not None and (tape := origin.caller.tape) is not None:
                number = tape.opened(ready)
                generation.taps.append(lambda index, row: tape.row(number + index, row))
            for state, tokenized in zip(generation.states, ready, strict=True):
                self._to_scheduler.send(tokenized)
                state.move(Phase.DISPATCHED)  # after the send: it says that the scheduler may hold something
                state.drop_embeds("done")
                self.endings.expect_deadline(state)
                if state.early_abort is not None:
                    self.endings.ask(state, state.early_abort)
            while not all(state.accepted for state in generation.states):
                await generation.wait()
        except BaseException as error:
            self.release(generation, *end_for(error))
            raise
        generation.ring()  # rows may have come with the verdicts
        return generation

    def release(self, generation: Generation, cause: AbortCause = "client_gone", failure: Failure | None = None) -> None:
        """Nobody waits for `generation` any more: abort what still runs, and log what has ended.

        `failure` is why, where the scheduler has not seen the request and only the log hears of it.
        """
        cause = generation.cut_off or cause
        if not generation.released:
            self.registry.reader_left(generation, "done" if generation.finished else cause)
        for state in generation.states:
            already, state.released = state.released, True
            state.drop_rows()
            self.endings.due.forget(state.slot)
            if state.phase is not Phase.FINISHED:
                self.endings.abort(state, generation, cause, failure)
            elif not already:
                self.endings.settle(state, generation)

    def abort(self, rid: str, cause: AbortCause = "aborted") -> list[str]:
        """Abort the request or the whole call with exactly this rid; returns the rids that were live."""
        return self._abort_all_of(self.registry.named(rid), cause)

    def abort_prefix(self, prefix: str, cause: AbortCause = "aborted") -> list[str]:
        """Abort every request whose rid begins with `prefix`, as those of a call begin with the call's; returns their rids."""
        return self._abort_all_of(self.registry.beginning_with(prefix), cause)

    def abort_all(self, cause: AbortCause = "aborted") -> list[str]:
        """Abort every live request; returns their rids."""
        return self.abort_prefix("", cause)

    def fail_all(self, failure: Failure) -> None:
        """End every request at once: the scheduler is gone, or does not answer, and their final rows will never come."""
        for state, generation in self.registry:
            self.endings.fail(state, generation, failure)
        self.questions.fail(failure)

    def ask_replay(self, pid: int, lost_at: float = 0.0) -> None:
        """The detokenizer was replaced by `pid`, and all that the old one sent was handled: have the new one go on there.

        `lost_at`: when it was known that the old one is gone.
        """
        states = [state for state, _ in self.registry if state.dispatched]
        received = [state.received for state in states]
        if received:
            now = self._clock()
            for state in states:
                state.obj.timing.lost, state.obj.timing.replayed = lost_at or now, now
            self._to_scheduler.send(ReplayReq(received, pid, self._entry))

    def handle(self, message: ToEntry) -> None:
        """Take one message from another process; what other workers ask is the service's to answer."""
        self._handlers[type(message)](message)

    def report(self, ledger: LedgerQuery | None = None) -> WorkerReport:
        """How this worker is; with `ledger`, with its book."""
        return WorkerReport(
            live_requests=self.live_requests,
            late_rows_dropped=self.late_rows_dropped,
            stream_mismatches=self.endings.stream_mismatches,
            ledger_mismatches=self.ledger.reconcile(),
            book=None if ledger is None else self.ledger.book(ledger),
        )

    @property
    def live_requests(self) -> int:
        """Requests whose final row has not come."""
        return len(self.registry)

    def close(self) -> None:
        """Stop the worker threads and processes."""
        self.prompts.close()
        self.grammars.close()

    def _abort_all_of(self, requests: Sequence[Live], cause: AbortCause) -> list[str]:
        for state, generation in requests:
            self.endings.abort(state, generation, cause)
        return [state.rid for state, _ in requests]

    def _take_verdicts(self, verdicts: AdmissionOutput) -> None:
        self.retry_after_s = verdicts.retry_after_s
        for slot in verdicts.accepted:
            if (live := self.registry.by_slot.get(slot)) is not None:  # it may have ended: rows come by another way
                live[0].accepted = True
                live[1].ring()
        for rejection in verdicts.rejected:
            if (live := self.registry.by_slot.get(rejection.slot)) is not None:
                self.endings.fail(*live, failure_of_rejection(rejection))

    def _take_texts(self, texts: BatchStrOutput) -> None:
        now = self._clock()
        if texts.columns or any(row.token_ids for row in texts.rows):
            self.tokens_at = now
        for columns in texts.columns:
            self._take_columns(columns, now)
        self._take_rows(texts.rows, now)

    def _take_notice(self, notice: AbortNotice) -> None:
        for slot in notice.slots:
            if (live := self.registry.by_slot.get(slot)) is not None:
                self.endings.was_asked(live[0], notice.cause)

    def _take_progress(self, news: ProgressOutput) -> None:
        for progress in news.requests:
            if (live := self.registry.by_rid.get(progress.rid)) is not None:
                live[1].note_progress(progress)

    def _take_columns(self, columns: TextColumns, now: float) -> None:
        by_slot = self.registry.by_slot
        before, num_rows = 0.0, 0  # rows in turn whose requests had their last ones together, as those of a step have
        for slot, text, token_ids in columns.rows():
            live = by_slot.get(slot)
            if live is None:
                self.late_rows_dropped += 1
                continue
            state = live[0]
            if state.row_at != before:
                if before:
                    self._row_gap.observe(now - before, num_rows)
                before, num_rows = state.row_at, 0
            num_rows += 1
            state.row_at = now
            try:
                if not state.hand_on(text, token_ids):
                    self._queue(*live, TextRow(state.rid, slot, text, token_ids, None))
            except Exception:
                log.exception("a row of %s could not be delivered", state.rid)
                self.endings.fail_row(TextRow(state.rid, slot, text, token_ids, None))
        if before:
            self._row_gap.observe(now - before, num_rows)

    def _take_rows(self, rows: Sequence[TextRow], now: float) -> None:
        finals: list[str] = []
        for row in rows:
            live = self.registry.by_slot.get(row.slot)
            if live is None:
                self.late_rows_dropped += 1
                continue
            if row.finish is not None:
                finals.append(row.rid)
            if row.token_ids:
                if live[0].row_at:
                    self._row_gap.observe(now - live[0].row_at)
                live[0].row_at = now
            try:
                self._take_row(*live, row)
            except Exception:  # a fault with one row belongs to its request: the others of the step are not touched
                log.exception("a row of %s could not be delivered", row.rid)
                self.endings.fail_row(row)
        if finals:
            self.endings.confirm(finals)

    def _take_row(self, state: ReqState, generation: Generation, row: TextRow) -> None:
        says_more = row.finish is not None or row.details is not None or state.phase is not Phase.RECEIVING
        if says_more or not state.hand_on(row.text, row.token_ids):
            self._queue(state, generation, row)

    def _queue(self, state: ReqState, generation: Generation, row: TextRow) -> None:
        """Take a row that the consumer must wake for: the first, the last, one that cannot be written at once."""
        state.accepted = True
        if row.timing is not None:
            state.adopt_timing(row.timing)
        elif row.finish is not None:
            self.endings.ask(state, "engine_error")  # the detokenizer has ended it, and the scheduler does not know
        state.push(row)
        generation.ring()
        if state.phase is Phase.FINISHED:
            self.endings.close(state, generation)
        else:
            self._pauses.note_waiting(state, generation, row)
