"""Scheduler: owner of every live request and of its pages, and the one who decides that a request ends.

Called by the loop in `process`: `handle` for each message, then `step`. Synchronous, one thread. Never sees text, HTTP or
sockets, and never judges by itself what a step does (`policy`), who may join (`admission`) or where a request ends (`finish`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from millstream.errors import DeadlineExceeded, EngineError, InvariantError, MillstreamError, OverloadError
from millstream.execution.interface import Executor, ForwardOutput
from millstream.ipc.channel import Sender
from millstream.kv.pool import KVPool, Lease
from millstream.kv.radix_cache import Match
from millstream.messages import (
    Abort,
    AbortReq,
    AdmissionOutput,
    FinishReason,
    Rejection,
    StatsReply,
    StatsReq,
    Stop,
    TokenizedGenerateReqInput,
    ToScheduler,
)
from millstream.messages.finish import AbortCause
from millstream.scheduler import admission
from millstream.scheduler.admission import Limits
from millstream.scheduler.deadlines import Deadlines
from millstream.scheduler.finish import EndRule
from millstream.scheduler.forward import run_step
from millstream.scheduler.output import StepOutput
from millstream.scheduler.pace import Pace
from millstream.scheduler.policy import Admission, Budgets, StepPlan, Work, plan
from millstream.scheduler.progress import ProgressWatch
from millstream.scheduler.queue import WaitingQueue
from millstream.scheduler.state import Phase, Req
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# HTTP status of an end from outside, for where nothing was sent yet
_ABORT_STATUS: dict[AbortCause, int] = {"client_gone": 499, "aborted": 500, "deadline": 504, "engine_error": 500, "drain": 503}
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
        to_detokenizer: Sender,
        to_entry: Sender,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._pool = pool
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._to_detokenizer = to_detokenizer
        self._to_entry = to_entry
        self._clock = clock
        self._live: dict[str, Req] = {}
        self._waiting = WaitingQueue()  # in order of arrival; all of it came after everybody running
        self._running: dict[str, Req] = {}  # in order of arrival
        self._deadlines = Deadlines()
        self._pace = Pace()
        self._progress = ProgressWatch()
        self._accepted: list[str] = []
        self._rejected: list[Rejection] = []
        self._output = StepOutput()
        self._num_steps = 0
        self._num_retractions = 0

    @property
    def has_work(self) -> bool:
        """Whether another `step` would get somebody on."""
        return bool(self._live)

    @property
    def wait_s(self) -> float | None:
        """Seconds the loop may wait for a message: none with work, else up to the next deadline, or for ever (None)."""
        return 0.0 if self.has_work else self._deadlines.wait_s(self._clock())

    def handle(self, message: ToScheduler) -> None:
        """Take one message. A fault here is logged and ends at most the message's own request."""
        try:
            match message:
                case TokenizedGenerateReqInput():
                    self._receive(message)
                case AbortReq():
                    self._abort(message)
                case StatsReq():
                    self._send()
                    self._to_detokenizer.send(self._stats(message.id))
        except InvariantError:
            raise
        except Exception:
            log.exception("a message could not be handled: %s", type(message).__name__)

    def step(self) -> bool:
        """Run one step: admit, compute, settle, send. Returns whether there is more work."""
        self._end_overdue()
        self._send_verdicts()  # before the forward: a client learns at once that it was accepted
        if self._live:
            started = self._clock()
            work = self._carry_out(self._plan())
            if work:
                self._num_steps += 1
                output = run_step(self._executor, [item.req.row for item in work])
                now = self._clock()
                self._pace.note_step(sum([item.end - item.start for item in work]), now - started)
                for index, item in enumerate(work):
                    self._settle(item, output, index, now)
        self._send()
        if self._progress:
            self._report_progress()
        if not self._live:
            self._pool.audit_counts(idle=True)
        return self.has_work

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
        self._pool.audit([req.lease for req in self._running.values() if req.lease is not None])
        if [*self._running.values(), *self._waiting] != list(self._live.values()):
            raise InvariantError("the queues are not the live requests in order of arrival")
        for req in self._live.values():
            is_running = req.rid in self._running
            if req.phase is not (Phase.RUNNING if is_running else Phase.WAITING) or (req.lease is not None) != is_running:
                raise InvariantError(f"{req.rid} is {req.phase.value} in the wrong place")

    def _receive(self, message: TokenizedGenerateReqInput) -> None:
        message.timing.queued = now = self._clock()
        try:
            if message.deadline is not None and message.deadline <= now:
                raise DeadlineExceeded(message.deadline - message.timing.received)
            admission.check(
                message,
                live=self._live,
                num_waiting=len(self._waiting),
                num_running=len(self._running),
                num_queued_tokens=self._waiting.num_tokens_behind(admission.num_free_slots(len(self._running), self._limits)),
                limits=self._limits,
            )
            end_rule = EndRule(
                sampling=message.sampling,
                max_new_tokens=message.max_new_tokens,
                eos_token_ids=self._eos_token_ids,
                tokenizer=self._tokenizer,
            )
            req = Req(message, end_rule)
        except InvariantError:
            raise
        except MillstreamError as error:
            if isinstance(error, OverloadError):
                error.retry_after_s = self._retry_after_s()
            self._rejected.append(admission.rejection(message.rid, error))
        except Exception as error:
            log.exception("request %s could not be taken on", message.rid)
            self._rejected.append(admission.rejection(message.rid, EngineError(f"The request could not be taken on: {error}")))
        else:
            self._live[req.rid] = req
            self._waiting.append(req)
            self._accepted.append(req.rid)
            if message.deadline is not None:
                self._deadlines.add(req.rid, message.deadline)
            if message.progress:
                self._progress.add(req.rid)

    def _abort(self, message: AbortReq) -> None:
        req = self._live.get(message.rid)
        if req is not None:
            self._end_by_abort(req, message.cause, _DRAINED if message.cause == "drain" else "The request was aborted.")

    def _end_overdue(self) -> None:
        if not self._deadlines:
            return
        for rid, deadline in self._deadlines.overdue(self._clock()):
            req = self._live[rid]
            self._end_by_abort(req, "deadline", DeadlineExceeded(deadline - req.timing.received).message)

    def _plan(self) -> StepPlan:
        while True:
            budgets = Budgets(
                step_tokens=self._limits.chunked_prefill_size,
                running=self._limits.max_running_requests,
                pages=self._pool.available,
                page_size=self._pool.page_size,
                share_prefixes=self._pool.share_prefixes,
            )
            step = plan(running=list(self._running.values()), waiting=self._waiting, budgets=budgets, match=self._match)
            if step.retract is None:
                return step
            self._retract(step.retract)

    def _match(self, req: Req) -> Match:
        return self._pool.match(req.namespace, req.token_ids)

    def _retract(self, req: Req) -> None:
        """Throw a request back to the front of the queue. Its output is kept; its KV is computed again."""
        self._num_retractions += 1
        del self._running[req.rid]
        req.move(Phase.WAITING)
        self._release(req, req.num_computed)
        self._waiting.appendleft(req)

    def _carry_out(self, step: StepPlan) -> Sequence[Work]:
        # all prefixes are pinned before anything is evicted: the plan counts on every one of them
        leases = [self._start(admitted) for admitted in step.admit]
        for lease, (req, _) in zip(leases, step.admit, strict=True):
            self._pool.grow(lease, len(req.token_ids))
        page_size = self._pool.page_size
        for req, start, end in step.work:
            if req.lease is None:
                raise InvariantError(f"{req.rid} is to run without pages")
            if end > len(req.lease.pages) * page_size:
                self._pool.grow(req.lease, end)
            row = req.row
            row.start = start
            row.end = end
            row.sample = end == len(req.token_ids)
            row.banned_token_ids = req.end_rule.banned_token_ids(req.num_output_tokens) if row.sample else ()
        return step.work

    def _start(self, admitted: Admission) -> Lease:
        req = admitted.req
        if self._waiting.popleft() is not req:
            raise InvariantError("the plan skipped the head of the queue")
        lease = self._pool.open(req.rid, req.namespace, req.token_ids)
        req.move(Phase.RUNNING)
        self._running[req.rid] = req
        req.lease = lease
        req.row.pages = lease.pages
        req.num_computed = lease.num_shared * self._pool.page_size
        req.is_prefilling = True
        if req.cached_tokens is None:
            req.cached_tokens = req.num_computed
            req.timing.admitted = self._clock()
        return lease

    def _settle(self, item: Work, output: ForwardOutput, index: int, now: float) -> None:
        """Take in what the step made of one request."""
        req = item.req
        error = output.errors.get(index)
        if error is not None:
            self._end_by_abort(req, "engine_error", error)
            return
        try:
            req.num_computed = item.end
            if not req.row.sample:
                return
            if req.is_prefilling:
                self._end_prefill(req)
            new_ids, is_last = output.token_ids[index], index in output.finished
            if new_ids or is_last:
                self._take_tokens(req, new_ids, now, is_last=is_last)
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
        req.token_ids += new_ids
        timing = req.timing
        timing.decoded = now
        if not timing.prefilled:
            timing.prefilled = now
            self._progress.discard(req.rid)
        if verdict.finish is not None:
            self._finish(req, verdict.finish, new_ids, held_back=verdict.held_back)
        elif is_last:
            self._finish(req, Stop(None), new_ids)
        else:
            self._output.add(req, new_ids, held_back=verdict.held_back)

    def _end_by_abort(self, req: Req, cause: AbortCause, message: str) -> None:
        self._finish(req, Abort(cause, message, _ABORT_STATUS[cause]))

    def _finish(self, req: Req, reason: FinishReason, new_ids: Sequence[int] = (), *, held_back: int = 0) -> None:
        """End a request: the only way into FINISHED. Gives everything back and makes its one final row."""
        if req.phase is Phase.RUNNING:
            del self._running[req.rid]
        else:
            self._waiting.remove(req)
        req.move(Phase.FINISHED)
        del self._live[req.rid]
        self._deadlines.discard(req.rid)
        self._progress.discard(req.rid)
        self._pace.note_end(req.num_output_tokens)
        failed = isinstance(reason, Abort) and reason.cause == "engine_error"
        self._release(req, 0 if failed else req.num_computed)  # after a fault nobody knows what is in the pages
        self._output.add(req, new_ids, held_back=held_back, finish=reason)

    def _release(self, req: Req, num_valid_tokens: int) -> None:
        if req.lease is not None:
            self._pool.close(req.lease, req.token_ids, num_valid_tokens)
        req.lease = None
        req.row.pages = ()
        req.num_computed = 0

    def _send(self) -> None:
        self._send_verdicts()
        batch = self._output.take()
        if batch is not None:
            self._to_detokenizer.send(batch)

    def _send_verdicts(self) -> None:
        if self._accepted or self._rejected:
            self._to_entry.send(AdmissionOutput(self._accepted, self._rejected, self._retry_after_s()))
            self._accepted, self._rejected = [], []

    def _report_progress(self) -> None:
        news = self._progress.report(self._waiting, self._running.values(), self._clock())
        if news is not None:
            self._to_entry.send(news)

    def _retry_after_s(self) -> int:
        return self._pace.retry_after_s(self._waiting, self._running.values())

    def _stats(self, request_id: int) -> StatsReply:
        return StatsReply(
            id=request_id,
            scheduler_requests=len(self._live),
            waiting=len(self._waiting),
            running=len(self._running),
            pages_total=self._pool.num_pages,
            pages_free=self._pool.available,
            pages_cached=self._pool.num_cached,
            steps=self._num_steps,
            retractions=self._num_retractions,
        )
