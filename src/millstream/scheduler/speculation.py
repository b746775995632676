"""Speculation: guesses what requests say next, so that one step brings several of their tokens. Owned by the scheduler.

Called once a step with the planned work, and with each row's answer. A draft lasts one step: it takes the tokens and pages that
the plan left, costs nobody else anything, and what was not accepted is given back before the next plan. What a request says
does not depend on it (`execution.verify`), so all that is here may be lost or wrong and nothing but speed changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.execution.verify import num_agreeing
from millstream.kv.pool import KVPool
from millstream.scheduler.ngram import NgramIndex
from millstream.scheduler.policy import Work
from millstream.scheduler.state import Req

FIRST_SIZE = 4  # tokens of a request's first draft
BALANCE = 8  # requests in a batch whose step takes twice as long as that of one: 4 to 18 on CPUs, by kernels
MAX_CREDIT = 4.0  # tokens that guesses may cost a request, beyond what they brought, before it rests
FIRST_REST = 16  # tokens it then makes without drafts; twice as many the next time, up to
MAX_REST = 256


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """How to guess. With `num_draft_tokens` 0, not at all."""

    num_draft_tokens: int = 0  # in one draft, at most
    shortest_match: int = 2  # tokens
    longest_match: int = 8
    max_batch_size: int = 1 << 30  # requests that decode in one step; with more, none has a draft


class Speculation:
    """The drafts of all requests, and how many of their tokens were right."""

    def __init__(self, options: SpeculationOptions, pool: KVPool, step_tokens: int) -> None:
        self.is_on = options.num_draft_tokens > 0
        self.num_drafted = 0
        self.num_accepted = 0
        self._options = options
        self._pool = pool
        self._step_tokens = step_tokens
        self._price = 0.0  # of a guess in this step, in tokens that the time it takes would have brought
        self._drafters: dict[str, _Drafter] = {}

    def __len__(self) -> int:
        """Requests it knows something about."""
        return len(self._drafters)

    def draft(self, work: Sequence[Work]) -> None:
        """Give drafts to rows that decode, oldest request first, within what the step has left of tokens and pages."""
        decodes: list[Work] = []
        tokens_left = self._step_tokens
        for item in work:
            item.req.row.draft = ()
            tokens_left -= item.end - item.start
            if item.req.row.sample and not item.req.is_prefilling and item.req.matcher is None:
                decodes.append(item)
        if len(decodes) > self._options.max_batch_size:
            return
        self._price = len(decodes) / (len(decodes) + BALANCE)
        for req, _, end in decodes:
            lease = req.lease
            if tokens_left <= 0 or lease is None:
                return
            pages = len(lease.pages) + self._pool.available
            # a step brings one token more than its draft has
            room = min(tokens_left, req.max_new_tokens - req.num_output_tokens - 1, pages * self._pool.page_size - end)
            draft = self._drafter(req).propose(room)
            if draft:
                self._pool.grow(lease, end + len(draft))
                req.row.draft = draft
                tokens_left -= len(draft)

    def settle(self, req: Req, new_ids: Sequence[int]) -> int:
        """Count what a step brought: `new_ids`, at the end of `req.token_ids` already.

        Returns:
            How many positions behind those planned have their KV.
        """
        if req.num_output_tokens > len(new_ids):
            req.num_verify_steps += 1
        draft = req.row.draft
        if not draft:
            return 0
        num_accepted = num_agreeing(new_ids, draft)
        self.num_drafted += len(draft)
        self.num_accepted += num_accepted
        self._drafter(req).learn(len(draft), num_accepted, self._price)
        return min(num_accepted, max(len(new_ids) - 1, 0))  # the last token's KV is computed when it is the last no more

    def give_back(self, req: Req) -> None:
        """Free pages beyond what is computed: the lease is then as it would be without the draft."""
        if req.lease is not None:
            self._pool.shrink(req.lease, req.num_computed)

    def forget(self, rid: str) -> None:
        """The request has ended."""
        self._drafters.pop(rid, None)

    def _drafter(self, req: Req) -> _Drafter:
        drafter = self._drafters.get(req.rid)
        if drafter is None:
            drafter = self._drafters[req.rid] = _Drafter(req.token_ids, self._options)
        return drafter


class _Drafter:
    """One request's guesses: longer ones while they are right, none for a while when too many were wrong."""

    def __init__(self, token_ids: Sequence[int], options: SpeculationOptions) -> None:
        self._ids = token_ids
        self._index = NgramIndex(token_ids, shortest=options.shortest_match, longest=options.longest_match)
        self._max_size = options.num_draft_tokens
        self._size = min(FIRST_SIZE, self._max_size)
        self._credit = MAX_CREDIT
        self._rest = FIRST_REST
        self._rests_until = 0  # tokens of the sequence

    def propose(self, room: int) -> list[int]:
        """Guess up to `room` tokens."""
        if room <= 0 or len(self._ids) < self._rests_until:
            return []
        return self._index.propose(min(self._size, room))

    def learn(self, num_drafted: int, num_accepted: int, price: float) -> None:
        """A draft was right so far, and after that wrong."""
        self._size = min(2 * self._size if num_accepted == num_drafted else num_accepted + 1, self._max_size)
        self._credit = min(self._credit + num_accepted - price * num_drafted, MAX_CREDIT)
        if self._credit < 0:
            self._rests_until = len(self._ids) + self._rest
            self._rest = min(2 * self._rest, MAX_REST)
            self._credit = 0.0
        elif self._credit == MAX_CREDIT:
            self._rest = FIRST_REST
