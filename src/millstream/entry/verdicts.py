"""OverdueVerdicts: verdicts of the scheduler that are still to come on requests that have ended. Owned by the TokenizerManager.

Verdicts and rows come over different sockets. A final row may overtake the verdict on its request, and by the time the verdict
comes the rid may be in use again, or have been used and ended again: so it is counted, for each rid, how many to let pass.
"""

from __future__ import annotations

from millstream.observe.ledger import Account, Ledger


class OverdueVerdicts:
    """By rid, an account for each verdict that is due. Verdicts on one rid come in the order of its requests."""

    def __init__(self, ledger: Ledger) -> None:
        self._due: dict[str, list[Account]] = {}
        self._ledger = ledger
        ledger.watch("verdict", self.__len__)

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))

    def expect(self, rid: str) -> None:
        """The request `rid` has ended without its verdict."""
        account = self._ledger.open(rid)
        account.acquire("verdict")
        self._due.setdefault(rid, []).append(account)

    def take(self, rid: str) -> bool:
        """A verdict on `rid` has come: whether it was one of those due."""
        due = self._due.get(rid)
        if due is None:
            return False
        account = due.pop()
        if not due:
            del self._due[rid]
        account.release("verdict", "done")
        account.settle("done")
        return True

    def forget(self) -> None:
        """The scheduler has died: none of them will come."""
        while self._due:
            self.take(next(iter(self._due)))
