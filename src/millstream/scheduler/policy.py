"""What the next step does: `plan`, a pure function of the queues and budgets. The scheduler does what the plan says.

First come, first served. Both queues are in order of arrival. Decodes go first; then prompts are prefilled in chunks, oldest
first. When pages run out, the request that came last goes back to the queue: the oldest one always gets on, so everybody ends.

A paused request has no slot and no part in a step. Its pages are the first to go when a running or a waiting request needs
some: nobody waits for another one's client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.errors import InvariantError
from millstream.kv.radix_cache import Match
from millstream.scheduler.state import Req


class Budgets(NamedTuple):
    """What one step may use."""

    step_tokens: int  # decode included
    running: int  # requests
    pages: int  # free or evictable
    page_size: int  # tokens


class Known(NamedTuple):
    """What a waiting request need not compute: `num_tokens`, in the pages of `match` and, where those end earlier, in the
    page behind them, of which `source` has one to copy.
    """

    match: Match
    num_tokens: int
    source: Req | None = None


class Admission(NamedTuple):
    """Start `req`: pin what is `known` of it, and give it pages for all the others."""

    req: Req
    known: Known


class Work(NamedTuple):
    """Compute positions `start`..`end - 1` of `req`, oldest request first within decodes and within prefills."""

    req: Req
    start: int
    end: int


@dataclass(slots=True)
class StepPlan:
    """One step. With `retract`, of a running or a paused request, nothing else is planned: pages change hands, then a new
    plan is made.
    """

    retract: Req | None = None
    admit: list[Admission] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def plan(
    *,
    running: Sequence[Req],
    waiting: Iterable[Req],
    sleeping: Sequence[Req] = (),
    budgets: Budgets,
    find: Callable[[Req], Known],
) -> StepPlan:
    """Decide one step. Changes nothing; `find` must not either.

    Args:
        running: in order of arrival; each holds the pages of the positions it has computed and, prefilling, of all it has.
        waiting: in order of arrival.
        sleeping: those of the paused that hold pages, longest paused first.
        find: finds the reusable prefix of a waiting request.

    Decodes always run, and prefill gets the tokens they leave of the step. At least one: steps of several tokens a request
    may fill the budget for long, and nobody is kept out for good.
    """
    decodes: list[Work] = []
    prefills: list[Req] = []
    pages_left = budgets.pages
    page_size = budgets.page_size
    decode_tokens = 0
    for req in running:
        if req.is_prefilling:
            prefills.append(req)
            continue
        end = len(req.token_ids)
        start = min(req.num_computed, end - 1)  # nothing came of the last step: its last position is computed again
        decode_tokens += end - start
        pages_left -= max(0, -(-end // page_size) - len(req.row.pages))
        decodes.append(Work(req, start, end))
    if pages_left < 0:
        if sleeping:
            return StepPlan(retract=sleeping[0])
        if len(running) == 1:
            raise InvariantError("a request that runs alone does not fit the pool")  # admission refuses those
        return StepPlan(retract=running[-1])
    prefill_tokens = max(budgets.step_tokens - decode_tokens, 1)
    spare = budgets._replace(
        step_tokens=prefill_tokens - sum(len(req.token_ids) - req.num_computed for req in prefills),
        running=budgets.running - len(running),
        pages=pages_left - len(running),  # a page each to grow into: else the next step's retraction undoes the admission
    )
    admit, is_short_of_pages = _admit(prefills, waiting, spare, find)
    if is_short_of_pages and sleeping:
        return StepPlan(retract=sleeping[0])
    return StepPlan(admit=admit, work=decodes + _chunks(prefills, admit, prefill_tokens))


def _admit(
    prefills: Sequence[Req], waiting: Iterable[Req], spare: Budgets, find: Callable[[Req], Known]
) -> tuple[list[Admission], bool]:
    """Take requests from the front while slots, pages and prefill tokens last; never skip one to reach a smaller one.

    A request gets pages for all its tokens at once, so only decodes can run out of them. Also returns whether the next one
    could start if there were more pages.
    """
    admitted: list[Admission] = []
    tokens_left, slots, pages_left, page_size = spare
    leaders = list(prefills)
    for req in waiting:
        if tokens_left <= 0 or slots <= 0:
            break
        known = find(req)
        need = -(-len(req.token_ids) // page_size) - len(known.match.pages) + known.match.num_unpinned
        if any(_is_computing_more(leader, req, known.num_tokens, page_size) for leader in leaders):
            # its prefix is in the making, and computing it twice costs more than waiting. Those behind wait too, which keeps
            # the order; the wait ends with the leader's prefill.
            break
        if need > pages_left:
            return admitted, True
        admitted.append(Admission(req, known))
        leaders.append(req)
        tokens_left -= len(req.token_ids) - known.num_tokens
        pages_left -= need + 1
        slots -= 1
    return admitted, False


def _is_computing_more(leader: Req, req: Req, num_known: int, page_size: int) -> bool:
    """Whether `leader`'s prefill will make more of `req`'s prefix known than is now: a page, or what a fork takes over."""
    if req.family is not None and leader.family is req.family:
        return num_known < req.num_forkable
    num_tokens = (num_known // page_size + 1) * page_size
    if (
        req.namespace is None
        or leader.namespace != req.namespace
        or num_tokens >= len(req.token_ids)
        or num_tokens >= len(leader.token_ids)
    ):
        return False
    return leader.token_ids[:num_tokens] == req.token_ids[:num_tokens]


def _chunks(prefills: Sequence[Req], admitted: Sequence[Admission], tokens_left: int) -> list[Work]:
    starts = [(req, req.num_computed) for req in prefills]
    starts += [(req, known.num_tokens) for req, known in admitted]
    chunks: list[Work] = []
    for req, start in starts:
        if tokens_left <= 0:
            break
        end = min(len(req.token_ids), start + tokens_left)
        tokens_left -= end - start
        chunks.append(Work(req, start, end))
    return chunks
