"""Queues: every live request in the one queue that its phase names. The only place where a request changes phase.

Filled and moved by the scheduler; the policy reads them. Decides nothing, and knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from millstream.errors import InvariantError
from millstream.observe.ledger import Kind, Ledger, ReleaseCause
from millstream.scheduler.state import Phase, Req
from millstream.scheduler.stays import StayBook
from millstream.scheduler.waiting import WaitingQueue

_arrival, _rank = attrgetter("arrival"), attrgetter("rank")
_PLACES: dict[Phase, Kind] = {
    Phase.WAITING_GRAMMAR: "waiting_grammar",
    Phase.WAITING: "waiting",
    Phase.RUNNING: "running",
    Phase.PAUSED: "paused",
}


class Queues:
    """Waiting and running requests by rank, paused ones in the order of their pauses, those without a grammar as they came."""

    def __init__(self, stays: StayBook) -> None:
        self._stays = stays
        self.compiling: dict[str, Req] = {}
        self.waiting = WaitingQueue()
        self.running: dict[str, Req] = {}
        self.paused: dict[str, Req] = {}

    def add(self, req: Req) -> None:
        """Take in a new request."""
        if req.phase is Phase.WAITING_GRAMMAR:
            self.compiling[req.rid] = req
            self._stays.waits(req, "waiting_grammar", "arrived")
        else:
            self._stays.waits(req, "waiting", "arrived", self.waiting.num_before(req))
            self.waiting.add(req)
        req.account.acquire(_PLACES[req.phase])

    def move(self, req: Req, phase: Phase, cause: ReleaseCause) -> None:
        """Move a request to the queue of `phase`; out of all of them where that is FINISHED. `cause` is why it leaves.

        Raises:
            InvariantError: the move is not allowed.
        """
        self._leave(req, cause)
        self._stays.goes_on(req)
        req.move(phase)
        if phase is not Phase.FINISHED:
            req.account.acquire(_PLACES[phase])
        match phase:
            case Phase.RUNNING:
                self._run(req)
            case Phase.WAITING:
                self._stays.waits(req, "waiting", cause, self.waiting.num_before(req))
                self.waiting.add(req)
            case Phase.PAUSED:
                self._stays.waits(req, "paused", cause)
                self.paused[req.rid] = req

    def audit(self, live: Iterable[Req]) -> None:
        """Check the queues against `live`, which is in order of arrival. O(requests).

        Raises:
            InvariantError: a request is in no queue, in two, in the wrong one, or out of order.
        """
        running, waiting, paused = list(self.running.values()), list(self.waiting), list(self.paused.values())
        compiling = list(self.compiling.values())
        if sorted([*running, *waiting, *paused, *compiling], key=_arrival) != list(live):
            raise InvariantError("a live request is in no queue, or in two")
        if running != sorted(running, key=_rank) or waiting != sorted(waiting, key=_rank):
            raise InvariantError("a queue is not in order of rank")
        if list(self.waiting.by_arrival) != sorted(waiting, key=_arrival):
            raise InvariantError("the waiting are not in order of arrival")
        places = {
            Phase.RUNNING: running,
            Phase.WAITING: waiting,
            Phase.PAUSED: paused,
            Phase.WAITING_GRAMMAR: compiling,
        }
        for phase, queue in places.items():
            for req in queue:
                if req.phase is not phase:
                    raise InvariantError(f"{req.rid} is {req.phase.value} in the queue of the {phase.value}")

    def watch(self, ledger: Ledger) -> None:
        """Have `ledger` compare what is written down of places with the queues."""
        ledger.watch("waiting_grammar", lambda: len(self.compiling))
        ledger.watch("waiting", lambda: len(self.waiting))
        ledger.watch("running", lambda: len(self.running))
        ledger.watch("paused", lambda: len(self.paused))

    def _leave(self, req: Req, cause: ReleaseCause) -> None:
        req.account.release(_PLACES[req.phase], cause)
        match req.phase:
            case Phase.RUNNING:
                del self.running[req.rid]
            case Phase.WAITING:
                self.waiting.remove(req)
            case Phase.WAITING_GRAMMAR:
                del self.compiling[req.rid]
            case Phase.PAUSED:
                del self.paused[req.rid]

    def _run(self, req: Req) -> None:
        is_last = all(other.rank < req.rank for other in self.running.values())
        self.running[req.rid] = req
        if not is_last:
            self.running = {other.rid: other for other in sorted(self.running.values(), key=_rank)}
