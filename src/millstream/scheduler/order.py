"""Order: who is next of those that wait. Owned by placement; the policy takes them in this order.

By priority, then by arrival or, where the option says so, by the longest prefix that is known already (SGLang's `lpm`). Either
could keep somebody waiting for ever, so one admission in `oldest_every` goes to whoever came first, and that one is
promoted: from then on it ranks above all priorities, in the queue, for pages and for the tokens of a step. A request
with m older ones before it begins after (m + 1) * `oldest_every` admissions at most, those aside for which somebody was
preempted: they take nothing that was free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Literal

from millstream.scheduler.policy import Known
from millstream.scheduler.state import Req
from millstream.scheduler.waiting import WaitingQueue

SchedulePolicy = Literal["fcfs", "lpm"]
LPM_WINDOW = 128  # requests whose prefixes are compared: each is a walk through the prefix tree


class Order:
    """The order of admissions, and how many have passed over the oldest one that waits."""

    def __init__(self, policy: SchedulePolicy = "fcfs", *, oldest_every: int = 8) -> None:
        self._policy = policy
        self._oldest_every = oldest_every
        self._num_passed = 0
        self._known: dict[int, int] = {}  # `lpm`: tokens known, by arrival
        self._known_at = -1  # the version of the prefix tree then

    def line(
        self, waiting: WaitingQueue, find: Callable[[Req], Known], favoured: Req | None = None, *, version: int = 0
    ) -> Iterator[Req]:
        """All that wait, as if each were admitted in its turn; `favoured`, for whom room was made, goes before them.

        Lazy: what `lpm` costs is spent when somebody asks for the first, and spent again when `version`, of the tree in which
        `find` finds prefixes, is another.
        """
        ranked = iter(self._ranked(waiting, find, version))
        by_arrival, oldest, num_passed = waiting.by_arrival, 0, self._num_passed
        taken: set[Req] = set()
        while len(taken) < len(by_arrival):
            while by_arrival[oldest] in taken:
                oldest += 1
            if favoured is not None:
                req, favoured = favoured, None
            elif num_passed + 1 >= self._oldest_every:
                req = by_arrival[oldest]
            else:
                req = next(each for each in ranked if each not in taken)
            num_passed = 0 if req is by_arrival[oldest] else num_passed + 1
            taken.add(req)
            yield req

    def took(self, req: Req, waiting: WaitingQueue) -> None:
        """`req`, which still is in `waiting`, is admitted."""
        if waiting.by_arrival[0] is not req:
            self._num_passed += 1
            return
        if self._num_passed + 1 >= self._oldest_every:
            req.promote()
        self._num_passed = 0

    def _ranked(self, waiting: WaitingQueue, find: Callable[[Req], Known], version: int) -> Iterable[Req]:
        if self._policy == "fcfs":
            return waiting
        if version != self._known_at:
            self._known, self._known_at = {}, version
        known = self._known
        for req in islice(waiting, LPM_WINDOW):
            if req.arrival not in known:
                known[req.arrival] = find(req).num_tokens
        front = sorted(islice(waiting, LPM_WINDOW), key=lambda req: (req.rank[:2], -known[req.arrival], req.arrival))
        return chain(front, islice(waiting, LPM_WINDOW, None))
