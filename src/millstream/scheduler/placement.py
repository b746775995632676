"""Placement: which live requests compute in the next step, with which pages. Owned by the scheduler.

Does what `policy.plan` says: slots, pages and the prefix tree change hands here. Decides nothing by itself, and ends nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.errors import InvariantError
from millstream.kv.pool import KVPool, Lease
from millstream.observe.ledger import ReleaseCause
from millstream.scheduler.admission import Limits
from millstream.scheduler.order import Order
from millstream.scheduler.policy import Admission, Budgets, Known, StepPlan, Work, plan
from millstream.scheduler.queues import Queues
from millstream.scheduler.state import Phase, Req
from millstream.scheduler.stays import StayBook
from millstream.scheduler.step_cost import StepCost

MAX_PREEMPTIONS = 4  # of one request: after them it ranks above all priorities


class Placement:
    """Slots and pages of the requests in `queues`."""

    def __init__(
        self,
        *,
        queues: Queues,
        order: Order,
        pool: KVPool,
        limits: Limits,
        step_cost: StepCost,
        stays: StayBook,
        clock: Callable[[], float],
    ) -> None:
        self._step_cost = step_cost
        self._queues = queues
        self._order = order
        self._pool = pool
        self._limits = limits
        self._stays = stays
        self._clock = clock
        self.num_retractions = 0
        self.num_preemptions = 0  # of those
        self.num_prompt_tokens = 0  # of requests when they were first admitted
        self.num_cached_tokens = 0  # of those, known ones

    def next_work(self) -> Sequence[Work]:
        """Plan the next step and make ready for it: everybody in it has a slot, pages and a forward row."""
        step = self._plan()
        work = self._carry_out(step)
        self._stays.note_line(step.lack if self._queues.waiting else None, self._clock())
        return work

    def pause(self, req: Req) -> None:
        """Take a request out of the steps until `resume`. Its pages stay with it until others need them; its slot is free."""
        if req.phase not in (Phase.PAUSED, Phase.WAITING_GRAMMAR):  # what has no grammar yet says nothing yet
            self._queues.move(req, Phase.PAUSED, "paused")

    def resume(self, req: Req) -> None:
        """Let a paused request go on: at once with its pages and a free slot, else from its place in the queue."""
        if req.phase is not Phase.PAUSED:
            return
        if req.lease is not None and len(self._queues.running) < self._limits.max_running_requests:
            self._queues.move(req, Phase.RUNNING, "resumed")
        else:
            self.release(req, req.num_computed, "resumed")  # who waits holds nothing
            self._queues.move(req, Phase.WAITING, "resumed")

    def release(self, req: Req, num_valid_tokens: int, cause: ReleaseCause) -> None:
        """Take back what a request holds; the first `num_valid_tokens` positions stay known for others."""
        if req.lease is not None:
            self._pool.close(req.lease, req.token_ids, num_valid_tokens, cause)
        req.lease = None
        req.row.pages = ()
        req.num_computed = 0

    def _plan(self) -> StepPlan:
        waiting = self._queues.waiting
        favoured: Req | None = None
        while True:
            budgets = Budgets(
                step_tokens=self._limits.chunked_prefill_size,
                running=self._limits.max_running_requests,
                pages=self._pool.available,
                page_size=self._pool.page_size,
            )
            step = plan(
                running=list(self._queues.running.values()),
                waiting=self._order.line(waiting, self._find, favoured, version=self._pool.tree_version),
                urgent=waiting.urgent,
                sleeping=[req for req in self._queues.paused.values() if req.lease is not None],
                budgets=budgets,
                find=self._find,
                num_freed=self._num_freed,
                prefill_beside=self._step_cost.prefill_tokens,
            )
            if step.retract is None:
                return step
            favoured = step.favoured or favoured
            self._retract(step.retract, is_preempted=step.favoured is not None)

    def _find(self, req: Req) -> Known:
        most = req.num_skippable
        match = self._pool.match(req.namespace, req.token_ids, most)
        num_tokens = len(match.pages) * self._pool.page_size
        if (
            req.family is not None
            and num_tokens < (num_forked := min(req.num_forkable, most)) <= num_tokens + self._pool.page_size
        ):
            source = req.family.holder(num_forked)
            if source is not None:
                return Known(match, num_forked, source)
        return Known(match, num_tokens)

    def _num_freed(self, reqs: Sequence[Req]) -> int:
        return self._pool.num_freed([req.lease for req in reqs if req.lease is not None])

    def _retract(self, req: Req, *, is_preempted: bool) -> None:
        """Take a request's pages; a running one goes back to the queue. Its output is kept; its KV is computed again."""
        self.num_retractions += 1
        req.num_retracted += 1
        if is_preempted:
            self.num_preemptions += 1
            req.num_preempted += 1
            if req.num_preempted == MAX_PREEMPTIONS:
                req.promote()  # before it is put in its place in the queue
        if req.phase is Phase.RUNNING:
            self._queues.move(req, Phase.WAITING, "preempted" if is_preempted else "retracted")
        self.release(req, req.num_computed, "retracted")

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
            row.sample = end == len(req.token_ids) and not req.is_prompt_only
            row.banned_token_ids = req.end_rule.banned_token_ids(req.num_output_tokens) if row.sample else ()
            row.copies = ()
            if req.logprobs is not None:
                row.logprobs = req.logprobs.next_params
        for (req, known), lease in zip(step.admit, leases, strict=True):
            if known.source is not None:
                req.row.copies = ((known.source.row.pages[lease.num_shared], lease.pages[lease.num_shared]),)
        return step.work

    def _start(self, admitted: Admission) -> Lease:
        req = admitted.req
        if req.cached_tokens is None:  # before its pin changes the tree
            num_known = admitted.known.num_tokens
            req.stays.cache = self._pool.diverged(req.namespace, req.token_ids, num_known, req.num_skippable)
        lease = self._pool.open(req.account, req.namespace, req.token_ids, req.num_skippable)
        self._order.took(req, self._queues.waiting)
        self._queues.move(req, Phase.RUNNING, "admitted")
        req.lease = lease
        req.row.pages = lease.pages
        req.num_computed = admitted.known.num_tokens
        req.is_prefilling = True
        if req.cached_tokens is None:
            req.cached_tokens = req.num_computed
            self.num_prompt_tokens += req.num_prompt_tokens
            self.num_cached_tokens += req.num_computed
            req.timing.admitted = self._clock()
        return lease
