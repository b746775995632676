"""Scheduler: owner of every live request and of its pages, and the one who decides that a request ends.

Called by the loop in `process`: `handle` for each message, then `step`. Synchronous, one thread. Never sees text, HTTP or
sockets, and never judges by itself what a step does (`policy`), who may join (`admission`) or where a request ends (`finish`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from millstream.errors import EngineError, InvariantError, MillstreamError
from millstream.execution.interface import Executor, ForwardBatch, ForwardOutput
from millstream.ipc.channel import Sender
from millstream.kv.pool import KVPool, Lease
from millstream.kv.radix_cache import Match
from millstream.messages import (
    Abort,
    AbortOthersReply,
    AbortOthersReq,
    AbortReq,
    AdmissionOutput,
    Delivered,
    FinishReason,
    ReplayReq,
    StatsReply,
    StatsReq,
    Stop,
    TokenizedGenerateReqInput,
    ToScheduler,
)
from millstream.messages.finish import AbortCause
from millstream.scheduler import admission
from millstream.scheduler.admission import Limits
from millstream.scheduler.finish import EndRule
from millstream.scheduler.output import StepOutput, ToDetokenizer
from millstream.scheduler.policy import Admission, Budgets, StepPlan, Work, plan
from millstream.scheduler.state import Phase, Req
from millstream.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# HTTP status of an end from outside, for where nothing was sent yet
_ABORT_STATUS: dict[AbortCause, int] = {"client_gone": 499, "aborted": 500, "deadline": 504, "engine_error": 500, "drain": 503}


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
        to_detokenizer: ToDetokenizer,
        to_entry: Callable[[int], Sender],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._tokenizer = tokenizer
        self._pool = pool
        self._eos_token_ids = eos_token_ids
        self._limits = limits
        self._to_entry = to_entry  # by the number of the worker
        self._clock = clock
        self._live: dict[str, Req] = {}
        self._waiting: deque[Req] = deque()  # in order of arrival; all of it came after everybody running
        self._running: dict[str, Req] = {}  # in order of arrival
        self._verdicts: dict[int, AdmissionOutput] = {}  # by entry, not sent yet
        self._output = StepOutput(to_detokenizer)
        self.got_on = False  # the last step made a token or computed a part of a prompt
        self._num_steps = 0
        self._num_retractions = 0

    @property
    def has_work(self) -> bool:
        """Whether another `step` would get somebody on."""
        return bool(self._live)

    def handle(self, message: ToScheduler) -> None:
        """Take one message. A fault here is logged and ends at most the message's own request."""
        try:
            match message:
                case TokenizedGenerateReqInput():
                    self._receive(message)
                case AbortReq():
                    self._abort(message)
                case AbortOthersReq():
                    self._abort_others(message)
                case Delivered():
                    self._output.confirm(message)
                case StatsReq():
                    self._send_verdicts()
                    self._output.pass_on(self._stats(message))
                case ReplayReq():
                    self._output.replay(message, self._live)
        except InvariantError:
            raise
        except Exception:
            log.exception("a message could not be handled: %s", type(message).__name__)

    def step(self) -> bool:
        """Run one step: admit, compute, settle, send. Returns whether there is more work."""
        self._send_verdicts()  # before the forward: a client learns at once that it was accepted
        self.got_on = False
        if self._live:
            work = self._carry_out(self._plan())
            output = self._forward(work)
            if output is not None:
                self.got_on = any(output.token_ids) or not all(item.req.row.sample for item in work)
                now = self._clock()
                for index, item in enumerate(work):
                    self._settle(item, output, index, now)
        self._send()
        if not self._live:
            self._pool.audit_counts(idle=True)
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
        self._verdicts.pop(entry, None)
        return len(orphans)

    def close(self) -> None:
        """End every request: the server is going down."""
        for req in list(self._live.values()):
            self._end_by_abort(req, "drain", "The server is shutting down.")
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
        message.timing.queued = self._clock()
        try:
            admission.check(
                message,
                live=self._live,
                num_waiting=len(self._waiting),
                num_running=len(self._running),
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
            self._reject(message, error)
        except Exception as error:
            log.exception("request %s could not be taken on", message.rid)
            self._reject(message, EngineError(f"The request could not be taken on: {error}"))
        else:
            self._live[req.rid] = req
            self._waiting.append(req)
            self._verdicts_for(req.entry).accepted.append(req.rid)

    def _reject(self, message: TokenizedGenerateReqInput, error: MillstreamError) -> None:
        self._verdicts_for(message.entry).rejected.append(admission.rejection(message.rid, error))

    def _verdicts_for(self, entry: int) -> AdmissionOutput:
        return self._verdicts.setdefault(entry, AdmissionOutput([], []))

    def _abort(self, message: AbortReq) -> None:
        req = self._live.get(message.rid)
        if req is not None:
            self._end_by_abort(req, message.cause, "The request was aborted.")

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
        self._to_entry(message.entry).send(AbortOthersReply(message.id, [req.rid for req in found]))

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

    def _forward(self, work: Sequence[Work]) -> ForwardOutput | None:
        """Run the executor; None where there is nothing to settle, because the step failed and its requests are ended."""
        if not work:
            return None
        self._num_steps += 1
        try:
            output = self._executor.forward(ForwardBatch([item.req.row for item in work]))
            if len(output.token_ids) != len(work):
                raise EngineError(f"the executor answered {len(output.token_ids)} rows of {len(work)}")
        except Exception as error:
            log.exception("a step of %d requests failed", len(work))
            for item in work:
                self._end_by_abort(item.req, "engine_error", f"The engine failed: {error}")
            return None
        return output

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
        self._output.send()

    def _send_verdicts(self) -> None:
        if self._verdicts:
            for entry, verdicts in self._verdicts.items():
                self._to_entry(entry).send(verdicts)
            self._verdicts = {}

    def _stats(self, asked: StatsReq) -> StatsReply:
        return StatsReply(
            id=asked.id,
            entry=asked.entry,
            scheduler_requests=len(self._live),
            waiting=len(self._waiting),
            running=len(self._running),
            pages_total=self._pool.num_pages,
            pages_free=self._pool.available,
            pages_cached=self._pool.num_cached,
            steps=self._num_steps,
            retractions=self._num_retractions,
            undelivered=self._output.num_undelivered,
        )
