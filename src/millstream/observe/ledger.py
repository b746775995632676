"""Ledger: the books of one process: what it holds for which request, of what kind, how much, since when.

Made once a process and written into where an owner takes something and gives it back: `Ledger.open` makes an account for one
request (or one job of one), `Account.acquire` and `release` follow the owner's table, and `Account.settle` proves at the end
that nothing is left. It owns nothing and frees nothing. Since an owner could forget to write something down, its own counts
are compared (`watch`): the ledger never calls clean what an owner still has. Everything happens in one thread.

An account and not the rid is the key: a rid may be used again while the first request's text is still on its way to its client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millstream.errors import InvariantError
from millstream.messages import Book, LedgerQuery
from millstream.messages.finish import EndCause
from millstream.messages.ledger import MAX_HELD, Held

log = logging.getLogger(__name__)

Kind = Literal[
    # entry
    "state",  # a ReqState: the request's rid is taken
    "generation",  # a call's rid is taken
    "reader",  # somebody is to take the rows of a call
    "stream",  # bytes that the client of a stream has not taken yet; 0 where it keeps up
    "encoding",  # characters of a job in a worker thread, which goes on to its next step when its client has left
    "input_embeds",  # bytes of embeddings that came in place of a prompt's ids; in the scheduler, too
    # scheduler
    "waiting_grammar",  # for its grammar to compile
    "waiting",  # a place in the queue
    "running",  # a slot in the batch
    "paused",  # a place among those whose clients do not read
    "pages",  # KV pages of its own
    "prefix_pin",  # a pinned node of the prefix tree
    # detokenizer
    "decode_status",
]
ReleaseCause = (
    EndCause | Literal["admitted", "compiled", "retracted", "preempted", "paused", "resumed", "shared", "draft", "done"]
)


@dataclass(slots=True)
class Holding:
    """One entry of an account."""

    amount: int
    since: float  # seconds, by the ledger's clock
    measure: Callable[[], int] | None = None  # where the amount changes too often to be written down


class Account:
    """What is held for one request in this process. Made by `Ledger.open`, kept beside what it describes."""

    __slots__ = ("_holdings", "_is_settled", "_ledger", "rid")

    def __init__(self, ledger: Ledger, rid: str) -> None:
        self.rid = rid
        self._ledger = ledger
        self._holdings: dict[Kind, Holding] = {}
        self._is_settled = False

    def acquire(self, kind: Kind, amount: int = 1, *, measure: Callable[[], int] | None = None) -> None:
        """Write down that `amount` more of `kind` is held; `measure` says the amount whenever somebody looks, in its place."""
        if self._is_settled:
            self._ledger.take_back(self)
            self._ledger.mismatch(f"{self.rid} took {kind} after its end")
        holding = self._holdings.get(kind)
        if holding is None:
            self._holdings[kind] = Holding(amount, self._ledger.clock(), measure)
        else:
            holding.amount += amount

    def release(self, kind: Kind, cause: ReleaseCause, amount: int | None = None) -> None:
        """Write down that `amount` of `kind`, or all of it, was given back, and why."""
        holding = self._holdings.get(kind)
        held = 0 if holding is None else holding.amount
        if amount is None or amount >= held:
            self._holdings.pop(kind, None)
        elif holding is not None:
            holding.amount -= amount
        if holding is None or (amount is not None and amount > held):
            self._ledger.mismatch(f"{self.rid} gave back {amount or 'all'} of {kind} ({cause}) and held {held}")
        self._ledger.note_release(kind, cause, held if amount is None else amount)
        if self._is_settled and not self._holdings:
            self._ledger.drop(self)

    def settle(self, cause: EndCause | Literal["done"]) -> None:
        """The end: nothing may be held any more. What is stays in the books."""
        if self._is_settled:
            self._ledger.mismatch(f"{self.rid} ended twice, the second time by {cause}")
        elif self._holdings:
            self._ledger.mismatch(f"{self.rid} ended ({cause}) and still holds {', '.join(self._holdings)}")
        else:
            self._ledger.drop(self)
        self._is_settled = True

    @property
    def holdings(self) -> dict[Kind, Holding]:
        """What is held now, by kind; not to be changed."""
        return self._holdings


class Ledger:
    """The open accounts of one process. A mismatch is logged and counted; with `strict` it also raises, for tests."""

    def __init__(self, process: str, *, strict: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.process = process
        self.clock = clock
        self.mismatches = 0
        self._strict = strict
        self._accounts: dict[Account, None] = {}  # in order of opening
        self._owners: dict[Kind, Callable[[], int]] = {}
        self._differences: dict[Kind, int] = {}  # as found by the last look
        self._released: dict[str, dict[str, int]] = {}

    def open(self, rid: str) -> Account:
        """Make an account for a request, or for a job with an end of its own. It must be settled."""
        account = Account(self, rid)
        self._accounts[account] = None
        return account

    def watch(self, kind: Kind, count: Callable[[], int]) -> None:
        """Compare the total of `kind` with `count`, the owner's own, at every `reconcile`."""
        self._owners[kind] = count

    def reconcile(self) -> int:
        """Compare with the owners' counts; returns all mismatches so far. A difference that stays counts once.

        Raises:
            InvariantError: the ledger is strict and something differs.
        """
        totals = self.totals()
        for kind, count in self._owners.items():
            difference = count() - totals.get(kind, 0)
            if difference != self._differences.get(kind, 0):
                self._differences[kind] = difference
                if difference:
                    self.mismatch(f"the owner of {kind} has {difference:+d} of what is written down, {totals.get(kind, 0)}")
        return self.mismatches

    def totals(self) -> dict[str, int]:
        """What is held, by kind."""
        totals: dict[str, int] = {}
        for account in self._accounts:
            for kind, holding in account.holdings.items():
                totals[kind] = totals.get(kind, 0) + _amount(holding)
        return totals

    def book(self, query: LedgerQuery) -> Book:
        """What is held, entry by entry, the oldest accounts first.

        Raises:
            InvariantError: as `reconcile`.
        """
        self.reconcile()
        now = self.clock()
        held: list[Held] = []
        left_out = 0
        for account in self._accounts:
            if query.rid and account.rid != query.rid:
                continue
            for kind, holding in account.holdings.items():
                if len(held) == MAX_HELD:
                    left_out += 1
                else:
                    held.append(Held(account.rid, self.process, kind, _amount(holding), round(now - holding.since, 3)))
        return Book(self.process, held, left_out, self.totals(), self._released)

    def mismatch(self, message: str) -> None:
        """Count a broken rule of the books.

        Raises:
            InvariantError: the ledger is strict.
        """
        self.mismatches += 1
        log.error("the ledger does not balance: %s. This is a bug, please report it", message)
        if self._strict:
            raise InvariantError(f"the ledger does not balance: {message}")

    def note_release(self, kind: Kind, cause: ReleaseCause, amount: int) -> None:
        """Count what an account gave back."""
        causes = self._released.get(kind)
        if causes is None:
            causes = self._released[kind] = {}
        causes[cause] = causes.get(cause, 0) + amount

    def drop(self, account: Account) -> None:
        """Forget an account that is settled."""
        self._accounts.pop(account, None)

    def take_back(self, account: Account) -> None:
        """Show an account that took something after its end."""
        self._accounts[account] = None


def _amount(holding: Holding) -> int:
    return holding.amount if holding.measure is None else holding.measure()
