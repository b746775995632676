"""What the next step does: `plan`, a pure function of the queues and budgets. The scheduler does what the plan says.

Decodes go first; then prompts are prefilled in chunks, by rank: by priority and then by arrival. When pages run out, the
running request of the lowest rank goes back to the queue: the highest one always gets on. Who is next of those that wait
says their order (`order`), which also sees to it that everybody comes to the top.

A waiting request for which there is no slot, or not the pages, takes them from running ones of lower priority.

A paused request has no slot and no part in a step. Its pages are the first to go when a running or a waiting request needs
some: nobody waits for another one's client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.errors import InvariantError
from millstream.kv.radix_cache import Match
from millstream.messages.journey import Lack
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


class Start(NamedTuple):
    """Where the prefill of `req` goes on."""

    req: Req
    start: int


class Admission(NamedTuple):
    """Start `req`: pin what is `known` of it, and give it pages for all the others."""

    req: Req
    known: Known


class Work(NamedTuple):
    """Compute positions `start`..`end - 1` of `req`, by rank within decodes and within prefills."""

    req: Req
    start: int
    end: int


@dataclass(slots=True)
class StepPlan:
    """One step. With `retract`, of a running or a paused request, nothing else is planned: pages change hands, then a new
    plan is made, in which `favoured`, if room is made for somebody of higher priority, comes first.
    """

    retract: Req | None = None
    favoured: Req | None = None
    lack: Lack | None = None  # what the next of those that wait is not admitted for; None: all are
    admit: list[Admission] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


def plan(
    *,
    running: Sequence[Req],
    waiting: Iterable[Req],
    urgent: Req | None,
    sleeping: Sequence[Req] = (),
    budgets: Budgets,
    find: Callable[[Req], Known],
    num_freed: Callable[[Sequence[Req]], int],
    prefill_beside: Callable[[int], int],
) -> StepPlan:
    """Decide one step. Changes nothing; what it is given to call must not either.

    Args:
        running: by rank; each holds the pages of the positions it has computed and, prefilling, of all it has.
        waiting: in the order in which they are to be admitted.
        urgent: of those that wait, for whom others may be retracted: the first of the highest priority.
        sleeping: those of the paused that hold pages, longest paused first.
        find: finds the reusable prefix of a waiting request.
        num_freed: the pages that come free, or can be evicted, when these running requests are retracted.
        prefill_beside: how many prompt tokens a step has time for beside so many tokens of decodes.

    Decodes always run, and prefill gets the tokens they leave of the step. At least one: steps of several tokens a request
    may fill the budget for long, and nobody is kept out for good.
    """
    decodes: list[Work] = []
    prefills: list[Start] = []
    pages_left = budgets.pages
    page_size = budgets.page_size
    decode_tokens = 0
    for req in running:
        if req.is_prefilling:
            prefills.append(Start(req, req.num_computed))
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
    prefill_tokens = max(min(budgets.step_tokens - decode_tokens, prefill_beside(decode_tokens)), 1)
    spare = budgets._replace(
        step_tokens=prefill_tokens,
        running=budgets.running - len(running),
        pages=pages_left - len(running),  # a page each to grow into: else the next step's retraction undoes the admission
    )
    admit, lack = _admit(prefills, waiting, spare, find)
    if lack == "pages" and sleeping:
        return StepPlan(retract=sleeping[0])
    if lack in ("slots", "pages") and urgent is not None and all(req is not urgent for req, _ in admit):
        victim = _victim(running, urgent, spare, find, num_freed)
        if victim is not None:
            return StepPlan(retract=victim, favoured=urgent)
    return StepPlan(lack=lack, admit=admit, work=decodes + _chunks(prefills, prefill_tokens))


def _admit(
    prefills: list[Start], waiting: Iterable[Req], spare: Budgets, find: Callable[[Req], Known]
) -> tuple[list[Admission], Lack | None]:
    """Take requests from the front while slots, pages and prefill tokens last; never skip one to reach a smaller one.

    A request gets pages for all its tokens at once, so only decodes can run out of them. Each goes into `prefills` before those
    it outranks, but behind all that were admitted before it, so that everybody admitted computes something in this step. Also
    returns what the next one lacks.
    """
    admitted: list[Admission] = []
    tokens_left, slots, pages_left, page_size = spare
    if slots <= 0:
        return admitted, "slots"  # before the first is asked for: what comes first may cost something to know
    place = 0
    for req in waiting:
        if slots <= 0:
            return admitted, "slots"
        place, tokens_left = _place(prefills, place, req, tokens_left)
        if tokens_left <= 0:
            return admitted, "tokens"
        known = find(req)
        if any(_is_computing_more(leader, req, known.num_tokens, page_size) for leader, _ in prefills):
            # its prefix is in the making, and computing it twice costs more than waiting. Those behind wait too, which keeps
            # the order; the wait ends with the leader's prefill.
            return admitted, "prefix"
        need = _num_pages_needed(req, known, page_size)
        if need > pages_left:
            return admitted, "pages"
        admitted.append(Admission(req, known))
        prefills.insert(place, Start(req, known.num_tokens))
        place += 1
        tokens_left -= len(req.token_ids) - known.num_tokens
        pages_left -= need + 1
        slots -= 1
    return admitted, None


def _place(prefills: Sequence[Start], place: int, req: Req, tokens_left: int) -> tuple[int, int]:
    """The first place from `place` on that is not behind somebody whom `req` outranks, and the tokens left there."""
    while place < len(prefills) and prefills[place].req.rank < req.rank:
        tokens_left -= len(prefills[place].req.token_ids) - prefills[place].start
        place += 1
    return place, tokens_left


def _victim(
    running: Sequence[Req],
    urgent: Req,
    spare: Budgets,
    find: Callable[[Req], Known],
    num_freed: Callable[[Sequence[Req]], int],
) -> Req | None:
    """The first to be thrown back so that `urgent` can begin: the lowest in rank, if those of lower priority hold enough."""
    victims = [req for req in reversed(running) if req.priority < urgent.priority and not req.is_promoted]
    if not victims:
        return None
    known = find(urgent)
    prefills = [Start(req, req.num_computed) for req in running if req.is_prefilling]
    _, tokens_left = _place(prefills, 0, urgent, spare.step_tokens)
    if tokens_left <= 0 or any(_is_computing_more(leader, urgent, known.num_tokens, spare.page_size) for leader, _ in prefills):
        return None  # it could not begin all the same
    missing = _num_pages_needed(urgent, known, spare.page_size) - spare.pages
    is_enough = any(missing <= count + num_freed(victims[:count]) for count in range(1, len(victims) + 1))
    return victims[0] if is_enough else None


def _num_pages_needed(req: Req, known: Known, page_size: int) -> int:
    return -(-len(req.token_ids) // page_size) - len(known.match.pages) + known.match.num_unpinned


def _is_computing_more(leader: Req, req: Req, num_known: int, page_size: int) -> bool:
    """Whether `leader`'s prefill will make more of `req`'s prefix known than is now: a page, or what a fork takes over.

    Nobody forks from a prompt that is only computed: once it is, it has ended, and whole pages are what is left of it.
    """
    if req.family is not None and leader.family is req.family and not leader.is_prompt_only:
        return num_known < req.num_forkable
    num_tokens = (num_known // page_size + 1) * page_size
    if (
        req.namespace is None
        or leader.namespace != req.namespace
        or num_tokens > req.num_skippable
        or num_tokens >= len(leader.token_ids)
    ):
        return False
    return leader.token_ids[:num_tokens] == req.token_ids[:num_tokens]


def _chunks(prefills: Sequence[Start], tokens_left: int) -> list[Work]:
    chunks: list[Work] = []
    for req, start in prefills:
        if tokens_left <= 0:
            break
        end = min(len(req.token_ids), start + tokens_left)
        tokens_left -= end - start
        chunks.append(Work(req, start, end))
    return chunks
