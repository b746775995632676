"""Scheduler: owner of every live request and of its pages, and the one who decides that a request ends.

Called by the loop in `process`: `handle` for each message, then `step`. Synchronous, one thread. Never sees text, HTTP or
sockets, and never judges by itself what a step does (`policy`; `placement` carries it out), who may join (`admission`) or where
a request ends (`finish`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.errors import DeadlineExceeded, EngineError, InvariantError, MillstreamError, OverloadError
from millstream.execution.interface import Executor, ForwardOutput
from millstream.grammar.matcher import GrammarCompiler
from millstream.ipc.channel import Sender
from millstream.kv.pool import KVPool
from millstream.messages import (
    Abort,
    AbortNotice,
    AbortOthersReply,
    AbortOthersReq,
    AbortReq,
    Delivered,
    FinishReason,
    FlushReply,
    FlushReq,
    JourneysReply,
    JourneysReq,
    Length,
    PauseReq,
    ProgressOutput,
    RadixReq,
    ReplayReq,
    ResumeReq,
    StatsReply,
    StatsReq,
    Stop,
    TokenizedGenerateReqInput,
    ToScheduler,
)
from millstream.messages.finish import AbortCause, end_cause
from millstream.observe.ledger import Ledger
from millstream.scheduler import admission
from millstream.scheduler.admission import Limits
from millstream.scheduler.deadlines import Deadlines
from millstream.scheduler.family import Families
from millstream.scheduler.finish import EndRule
from millstream.scheduler.forward import run_step
from millstream.scheduler.grammars import POLL_S, Grammars
from millstream.scheduler.meter import Meter
from millstream.scheduler.order import Order
from millstream.scheduler.output import StepOutput, ToDetokenizer
from millstream.scheduler.pace import Pace
from millstream.scheduler.placement import Placement
from millstream.scheduler.policy import Work
from millstream.scheduler.progress import ProgressWatch
from millstream.scheduler.queues import Queues
from millstream.scheduler.speculation import Speculation, SpeculationOptions
from millstream.scheduler.state import Phase, Req
from millstream.scheduler.stays import StayBook, live_request
from millstream.scheduler.step_cost import StepCost
from millstream.scheduler.verdicts import Verdicts
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# HTTP status of an end from outside, for where nothing was sent yet
_ABORT_STATUS: dict[AbortCause, int] = {
    "client_gone": 499,
    "aborted": 500,
    "deadline": 504,
    "engine_error": 500,
    "drain": 503,
    "slow_reader": 499,
}
_DRAINED = "The server is shutting down."


class Scheduler:
    """receive -> admit -> plan -> forward -> settle -> send.

    Every accepted request gets rows, the last of them final, and then nothing of it is held here.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        tokenizer: Tokenizer,
        pool: KVPool,
        eos_token_ids: frozenset[int],
        limits: Limits,
        share_prefixes: bool = True,
        order: Order | None = None,
        to_detokenizer: ToDetokenizer,
        to_entry: Callable[[int], Sender],
        speculation: SpeculationOptions | None = None,
        grammars: GrammarCompiler | None = None,
        jumps_forward: bool = True,
        ledger: Ledger | None = None,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._pool = pool
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._to_entry = to_entry  # by the number of the worker
        self._clock = clock
        self._live: dict[str, Req] = {}  # in order of arrival
        self._stays = StayBook(clock)
        self._queues = Queues(self._stays)
        self._step_cost = StepCost(limits.target_itl_s)
        self._placement = Placement(
            queues=self._queues,
            order=order or Order(),
            pool=pool,
            limits=limits,
            step_cost=self._step_cost,
            stays=self._stays,
            clock=clock,
        )
        self._families = Families(pool=pool, share_prefixes=share_prefixes)
        self._speculation = Speculation(speculation or SpeculationOptions(), pool, limits.chunked_prefill_size)
        self._grammars = Grammars(grammars, limits.chunked_prefill_size if jumps_forward else 0)
        self._num_arrivals = 0
        self._deadlines = Deadlines()
        self._pace = Pace()
        self._progress = ProgressWatch()
        self._verdicts = Verdicts(to_entry)
        self._output = StepOutput(to_detokenizer)
        self.got_on = False  # the last step made a token or computed a part of a prompt
        self._handlers: dict[type, Callable[[Any], None]] = {
            TokenizedGenerateReqInput: self._receive,
            AbortReq: self._abort,
            AbortOthersReq: self._abort_others,
            PauseReq: self._pause,
            ResumeReq: self._resume,
            Delivered: self._output.confirm,
            ReplayReq: self._replay,
            JourneysReq: self._answer_journeys,
            StatsReq: self._answer_stats,
            FlushReq: self._flush,
            RadixReq: self._show_tree,
        }
        self._num_steps = 0
        self._meter = meter or Meter()
        self._ledger = ledger or Ledger("scheduler")
        self._queues.watch(self._ledger)
        self._ledger.watch("pages", lambda: pool.num_owned)
        self._ledger.watch("prefix_pin", lambda: pool.num_pins)
        self._ledger.watch("input_embeds", lambda: sum(req.num_embeds_bytes for req in self._live.values()))

    @property
    def has_work(self) -> bool:
        """Whether another `step` would get somebody on; no, while all that is live is paused."""
        return bool(self._queues.running or self._queues.waiting)

    @property
    def wait_s(self) -> float | None:
        """Seconds the loop may wait for a message: none with work, else up to the next deadline, or for ever (None)."""
        if self.has_work:
            return 0.0
        wait_s = self._deadlines.wait_s(self._clock())
        if self._queues.compiling:
            return POLL_S if wait_s is None else min(wait_s, POLL_S)
        return wait_s

    def handle(self, message: ToScheduler) -> None:
        """Take one message. A fault here is logged and ends at most the message's own request."""
        try:
            self._handlers[type(message)](message)
        except InvariantError:
            raise
        except Exception:
            log.exception("a message could not be handled: %s", type(message).__name__)

    def step(self) -> bool:
        """Run one step: admit, compute, settle, send. Returns whether there is more work."""
        self._end_overdue()
        if self._queues.compiling:
            self._queue_compiled()
        self._verdicts.send(self._retry_after_s)  # before the forward: a client learns at once that it was accepted
        self.got_on = False
        if self.has_work:
            started = self._clock()
            work = self._masked(self._placement.next_work())
            if work:
                self._num_steps += 1
                if self._speculation.is_on:
                    self._speculation.draft(work)
                output = run_step(self._executor, [item.req.row for item in work])
                self.got_on = any(output.token_ids) or not all(item.req.row.sample for item in work)
                now = self._clock()
                self._note_step(work, started, now)
                for index, item in enumerate(work):
                    self._settle(item, output, index, now)
        self._send()
        if self._progress:
            self._report_progress()
        if not self._live:
            self._pool.audit_counts(idle=True)
            self._ledger.reconcile()
        return self.has_work

    def entry_gone(self, entry: int) -> int:
        """The entry worker with this number is dead: abort its requests, and wait for no more of its words.

        Returns:
            How many were aborted.
        """
        orphans = [req for req in self._live.values() if req.entry == entry]
        for req in orphans:
            self._end_by_abort(req, "client_gone", "The entry worker of this request is gone.")
        self._output.send()  # a rid of theirs may come again before the next step: two ends of one name, two messages
        self._output.forget_entry(entry)
        self._verdicts.forget_entry(entry)
        return len(orphans)

    def close(self) -> None:
        """End every request: the server is going down."""
        for req in list(self._live.values()):
            self._end_by_abort(req, "drain", _DRAINED)
        self._send()

    def audit(self) -> None:
        """Check every page and every request against every other book. For tests: O(num_pages).

        Raises:
            InvariantError: something is lost, shared or held by nobody.
        """
        self._queues.audit(self._live.values())
        self._families.audit(self._live.values())
        self._pool.audit([req.lease for req in self._live.values() if req.lease is not None])
        for req in self._live.values():
            if req.phase is not Phase.PAUSED and (req.lease is not None) != (req.phase is Phase.RUNNING):
                raise InvariantError(f"{req.rid} is {req.phase.value} and {'has' if req.lease is not None else 'has no'} pages")

    def _receive(self, message: TokenizedGenerateReqInput) -> None:
        message.timing.queued = now = self._clock()
        if self._output.has_row(message.rid):
            self._send()  # a batch tells what it opens before its rows: the end of an earlier request must not be among them
        try:
            if message.deadline is not None and message.deadline <= now:
                raise DeadlineExceeded(message.deadline - message.timing.received)
            waiting, num_running = self._queues.waiting, len(self._queues.running)
            num_ahead = waiting.num_ahead_of(message.priority)
            admission.check(
                message,
                live=self._live,
                # without a slot, they count as queued
                num_waiting=num_ahead + len(self._queues.paused) + len(self._queues.compiling),
                num_running=num_running,
                num_queued_tokens=waiting.num_tokens_between(admission.num_free_slots(num_running, self._limits), num_ahead),
                limits=self._limits,
            )
            end_rule = EndRule(
                sampling=message.sampling,
                max_new_tokens=message.max_new_tokens,
                eos_token_ids=self._eos_token_ids,
                tokenizer=self._tokenizer,
            )
            req = Req(message, end_rule, self._ledger.open(message.rid), self._num_arrivals)
        except InvariantError:
            raise
        except MillstreamError as error:
            self._reject(message, error)
        except Exception as error:
            log.exception("request %s could not be taken on", message.rid)
            self._reject(message, EngineError(f"The request could not be taken on: {error}"))
        else:
            self._num_arrivals += 1
            self._live[req.rid] = req
            self._families.join(req)
            self._queues.add(req)
            self._verdicts.accept(req.entry, req.slot)
            if message.deadline is not None:
                self._deadlines.add(req.rid, message.deadline)
            if message.progress:
                self._progress.add(req.rid)

    def _queue_compiled(self) -> None:
        """Queue the requests whose grammar has compiled."""
        for req, error in self._grammars.give_all(self._queues.compiling.values()):
            if error is None:
                self._queues.move(req, Phase.WAITING, "compiled")
            else:
                self._end_by_abort(req, "engine_error", error)

    def _masked(self, work: Sequence[Work]) -> Sequence[Work]:
        """The work of a step, each row with what its grammar allows; those whose grammar cannot be followed end."""
        failed = self._grammars.mask(work)
        if not failed:
            return work
        for req, error in failed:
            self._end_by_abort(req, "engine_error", error)
        return [item for item in work if item.req.phase is Phase.RUNNING]

    def _reject(self, message: TokenizedGenerateReqInput, error: MillstreamError) -> None:
        if isinstance(error, OverloadError):
            error.retry_after_s = self._retry_after_s()
        self._verdicts.reject(message.entry, message.rid, message.slot, error)

    def _abort(self, message: AbortReq) -> None:
        req = self._live.get(message.rid)
        if req is not None:
            self._end_by_abort(req, message.cause, _DRAINED if message.cause == "drain" else "The request was aborted.")

    def _note_step(self, work: Sequence[Work], started: float, now: float) -> None:
        seconds = now - started
        decode = prefill = guessed = 0
        for req, start, end in work:
            guessed += len(req.row.draft)
            if req.is_prefilling:
                prefill += end - start
                self._stays.note_chunk(req, end - start, started, now)
            else:
                decode += end - start
        self._pace.note_step(decode + prefill, seconds)
        self._step_cost.note_step(decode + guessed, prefill, seconds)
        self._meter.note_step(num_rows=len(work), num_prefilled=prefill, num_decoded=decode, seconds=seconds)

    def _end_overdue(self) -> None:
        if not self._deadlines:
            return
        for rid, deadline in self._deadlines.overdue(self._clock()):
            req = self._live[rid]
            self._end_by_abort(req, "deadline", DeadlineExceeded(deadline - req.timing.received).message)

    def _pause(self, message: PauseReq) -> None:
        if (req := self._live.get(message.rid)) is not None:
            self._placement.pause(req)

    def _resume(self, message: ResumeReq) -> None:
        if (req := self._live.get(message.rid)) is not None:
            self._placement.resume(req)

    def _abort_others(self, message: AbortOthersReq) -> None:
        rids, prefix = set(message.rids) - {""}, message.prefix
        found = [
            req
            for req in self._live.values()
            if req.entry != message.entry
            and (req.rid in rids or req.call in rids or (prefix is not None and req.rid.startswith(prefix)))
        ]
        for req in found:
            self._end_by_abort(req, message.cause, "The request was aborted.")
        for entry in dict.fromkeys(req.entry for req in found):
            slots = [req.slot for req in found if req.entry == entry]
            self._to_entry(entry).send(AbortNotice(slots, message.cause))
        self._to_entry(message.entry).send(AbortOthersReply(message.id, [req.rid for req in found]))

    def _settle(self, item: Work, output: ForwardOutput, index: int, now: float) -> None:
        """Take in what the step made of one request."""
        req = item.req
        error = output.errors.get(index)
        if error is not None:
            self._end_by_abort(req, "engine_error", error)
            return
        try:
            if req.logprobs is not None:
                req.logprobs.take(req.row, output, index)
            req.num_computed = item.end
            if not req.row.sample:
                if req.is_prompt_only and item.end == req.num_prompt_tokens:
                    self._end_prompt_only(req, output.hidden.get(index), now)
                return
            if req.is_prefilling:
                self._end_prefill(req)
            new_ids, is_last = output.token_ids[index], index in output.finished
            if new_ids or is_last:
                self._take_tokens(req, new_ids, now, is_last=is_last)
            if self._speculation.is_on:
                self._speculation.give_back(req)
        except InvariantError:
            raise
        except Exception as fault:
            log.exception("the tokens of %s could not be settled", req.rid)
            self._end_by_abort(req, "engine_error", f"The engine failed: {fault}")

    def _end_prefill(self, req: Req) -> None:
        req.is_prefilling = False
        if req.lease is not None:
            # the last position may be computed again, and what is shared is never written again
            self._pool.share(req.lease, req.token_ids, req.num_computed - 1)

    def _take_tokens(self, req: Req, new_ids: Sequence[int], now: float, *, is_last: bool) -> None:
        verdict = req.end_rule.settle(new_ids, req.num_output_tokens)
        if verdict.num_kept < len(new_ids):
            new_ids = new_ids[: verdict.num_kept]
        new_ids, verdict, has_grammar_ended = self._grammars.follow(req, new_ids, verdict, may_jump=not is_last)
        req.token_ids += new_ids
        self._meter.completion_tokens += len(new_ids)
        if self._speculation.is_on:
            req.num_computed += self._speculation.settle(req, new_ids)
        timing = req.timing
        timing.decoded = now
        if not timing.prefilled:
            timing.prefilled = now
            self._progress.discard(req.rid)
        if has_grammar_ended:
            self._finish(req, Stop(None), new_ids)
        elif verdict.finish is not None:
            self._finish(req, verdict.finish, new_ids, held_back=verdict.held_back)
        elif is_last:
            self._finish(req, Stop(None), new_ids)
        else:
            self._output.add(req, new_ids, held_back=verdict.held_back)

    def _end_prompt_only(self, req: Req, hidden: NDArray[np.float32] | None, now: float) -> None:
        req.timing.prefilled = req.timing.decoded = now
        if req.row.wants_hidden:
            if hidden is None or not np.isfinite(hidden).all():
                self._end_by_abort(
                    req, "engine_error", "The engine failed: the state of the prompt's end is missing or not finite."
                )
                return
            req.embedding = hidden.astype(np.float32).tobytes()
        self._finish(req, Length(0))

    def _end_by_abort(self, req: Req, cause: AbortCause, message: str) -> None:
        # what may be the start of a stop string stays back: nobody knows now that it is none
        self._finish(req, Abort(cause, message, _ABORT_STATUS[cause]), held_back=req.held_back)

    def _finish(self, req: Req, reason: FinishReason, new_ids: Sequence[int] = (), *, held_back: int = 0) -> None:
        """End a request: the only way into FINISHED. Gives everything back and makes its one final row."""
        cause = end_cause(reason)
        self._queues.move(req, Phase.FINISHED, cause)
        del self._live[req.rid]
        self._deadlines.discard(req.rid)
        self._progress.discard(req.rid)
        self._speculation.forget(req.rid)
        if not req.is_probe:
            self._pace.note_end(req.num_output_tokens)
        # after a fault nobody knows what is in the pages
        self._placement.release(req, 0 if cause == "engine_error" else req.num_computed, cause)
        req.drop_embeds(cause)
        self._families.leave(req)
        req.timing.finished = self._clock()
        req.timing.journey = self._stays.journey(req)
        self._output.add(req, new_ids, held_back=held_back, finish=reason)
        req.account.settle(cause)

    def _send(self) -> None:
        self._verdicts.send(self._retry_after_s)
        self._output.send()

    def _report_progress(self) -> None:
        news = self._progress.report(self._queues.waiting, self._queues.running.values(), self._clock())
        for entry, progress in news.items():
            self._to_entry(entry).send(ProgressOutput(progress))

    def _retry_after_s(self) -> int:
        return self._pace.retry_after_s(self._queues.waiting, self._queues.running.values())

    def _replay(self, message: ReplayReq) -> None:
        self._output.replay(message, self._live)

    def _flush(self, message: FlushReq) -> None:
        num_live = len(self._live)
        num_pages = 0 if num_live else self._pool.flush()
        self._to_entry(message.entry).send(FlushReply(message.id, num_live, num_pages))

    def _show_tree(self, message: RadixReq) -> None:
        self._to_entry(message.entry).send(self._pool.view(message.id, message.max_nodes))

    def _answer_journeys(self, message: JourneysReq) -> None:
        requests = [live_request(req, self._stays) for req in self._live.values()]
        self._to_entry(message.entry).send(JourneysReply(message.id, requests))

    def _answer_stats(self, message: StatsReq) -> None:
        self._verdicts.send(self._retry_after_s)
        self._output.pass_on(self._stats(message))

    def _stats(self, asked: StatsReq) -> StatsReply:
        books = [] if asked.ledger is None else [self._ledger.book(asked.ledger)]
        stats = StatsReply(
            id=asked.id,
            entry=asked.entry,
            scheduler_requests=len(self._live),
            waiting=len(self._queues.waiting) + len(self._queues.compiling),
            running=len(self._queues.running),
            paused=len(self._queues.paused),
            pages_total=self._pool.num_pages,
            pages_free=self._pool.available,
            pages_cached=self._pool.num_cached,
            steps=self._num_steps,
            retractions=self._placement.num_retractions,
            preemptions=self._placement.num_preemptions,
            ledger_mismatches=self._ledger.reconcile(),
            ledger=asked.ledger,
            books=books,
            undelivered=self._output.num_undelivered,
            draft_tokens=self._speculation.num_drafted,
            accepted_draft_tokens=self._speculation.num_accepted,
            forced_tokens=self._grammars.num_forced,
        )
        if asked.metrics:
            measures = self._meter.measures(
                stats,
                self._pool,
                self._ledger.totals(),
                compiling=len(self._queues.compiling),
                prompt_tokens=self._placement.num_prompt_tokens,
                cached_tokens=self._placement.num_cached_tokens,
            )
            stats.measures = None if measures is None else [measures]
        return stats
