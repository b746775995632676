"""Ledger: what is held is listed, what does not balance is a mismatch, and an owner's own count is believed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvariantError
from millstream.messages import LedgerQuery
from millstream.messages.ledger import MAX_HELD, Held
from millstream.observe.ledger import Ledger


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_held_is_listed_with_its_age_and_what_came_back_with_its_cause() -> None:
    clock = Clock()
    ledger = Ledger("scheduler", clock=clock)
    account = ledger.open("r")
    account.acquire("running")
    clock.now = 101.5
    account.acquire("pages", 3)
    account.acquire("pages", 2)
    clock.now = 103.0
    account.release("pages", "shared", 4)
    book = ledger.book(LedgerQuery())
    assert book.held == [Held("r", "scheduler", "running", 1, 3.0), Held("r", "scheduler", "pages", 1, 1.5)]
    assert (book.totals, book.released) == ({"running": 1, "pages": 1}, {"pages": {"shared": 4}})
    account.release("pages", "stop")
    account.release("running", "stop")
    account.settle("stop")
    assert ledger.book(LedgerQuery()).held == []
    assert ledger.book(LedgerQuery()).released == {"pages": {"shared": 4, "stop": 1}, "running": {"stop": 1}}
    assert ledger.mismatches == 0


def test_an_amount_may_be_asked_for_when_somebody_looks() -> None:
    ledger = Ledger("entry")
    waiting = ["x"] * 7
    account = ledger.open("r")
    account.acquire("stream", measure=lambda: len(waiting))
    assert ledger.totals() == {"stream": 7}
    waiting.clear()
    assert [held.amount for held in ledger.book(LedgerQuery()).held] == [0]
    account.release("stream", "client_gone")
    account.settle("client_gone")
    assert ledger.mismatches == 0


def test_one_request_can_be_asked_for_and_the_totals_stay_those_of_all() -> None:
    ledger = Ledger("entry")
    for rid in ("r1", "r10", "r1"):
        ledger.open(rid).acquire("state")
    book = ledger.book(LedgerQuery("r1"))
    assert ([held.rid for held in book.held], book.totals) == (["r1", "r1"], {"state": 3})


def test_the_list_is_bounded_and_says_what_it_leaves_out() -> None:
    ledger = Ledger("entry")
    for number in range(MAX_HELD + 5):
        ledger.open(str(number)).acquire("state")
    book = ledger.book(LedgerQuery())
    assert (len(book.held), book.left_out, book.totals) == (MAX_HELD, 5, {"state": MAX_HELD + 5})


def still_held(ledger: Ledger) -> None:
    account = ledger.open("r")
    account.acquire("pages", 2)
    account.settle("stop")


def gave_back_too_much(ledger: Ledger) -> None:
    account = ledger.open("r")
    account.acquire("pages", 2)
    account.release("pages", "stop", 3)


def gave_back_what_it_never_had(ledger: Ledger) -> None:
    ledger.open("r").release("state", "stop")


def ended_twice(ledger: Ledger) -> None:
    account = ledger.open("r")
    account.settle("stop")
    account.settle("length")


def took_after_its_end(ledger: Ledger) -> None:
    account = ledger.open("r")
    account.settle("stop")
    account.acquire("state")


def the_owner_has_more(ledger: Ledger) -> None:
    ledger.watch("state", lambda: 1)
    ledger.reconcile()


def the_owner_has_less(ledger: Ledger) -> None:
    ledger.watch("state", lambda: 0)
    ledger.open("r").acquire("state")
    ledger.reconcile()


MISTAKES = [
    still_held,
    gave_back_too_much,
    gave_back_what_it_never_had,
    ended_twice,
    took_after_its_end,
    the_owner_has_more,
    the_owner_has_less,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_counted_and_logged_and_fatal_where_the_ledger_is_strict(
    mistake: Callable[[Ledger], None], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger("entry")
    with caplog.at_level(logging.ERROR):
        mistake(ledger)
    assert ledger.mismatches == 1
    assert sum("the ledger does not balance" in record.message for record in caplog.records) == 1
    with pytest.raises(InvariantError):
        mistake(Ledger("entry", strict=True))


def test_what_is_left_of_a_request_that_has_ended_stays_in_the_books_until_it_is_given_back() -> None:
    ledger = Ledger("entry")
    account = ledger.open("r")
    account.acquire("pages")
    account.settle("stop")
    account.acquire("running")
    assert [held.kind for held in ledger.book(LedgerQuery()).held] == ["pages", "running"]
    account.release("pages", "drain")
    account.release("running", "drain")
    assert ledger.book(LedgerQuery()).held == []
    assert ledger.mismatches == 2


def test_a_difference_that_stays_counts_once_and_a_new_one_again() -> None:
    ledger = Ledger("entry")
    owned = 1
    ledger.watch("state", lambda: owned)
    assert [ledger.reconcile(), ledger.reconcile()] == [1, 1]
    owned = 0
    assert ledger.reconcile() == 1
    owned = 2
    assert ledger.reconcile() == 2


KINDS = ("state", "pages", "running")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS), st.integers(-3, 3))))
def test_totals_are_the_sum_of_all_that_was_taken_and_not_given_back(moves: list[tuple[int, str, int]]) -> None:
    ledger = Ledger("test", strict=True)
    accounts = [ledger.open(str(number)) for number in range(4)]
    naive: dict[tuple[int, str], int] = {}
    for number, kind, amount in moves:
        held = naive.get((number, kind), 0)
        if amount > 0:
            accounts[number].acquire(kind, amount)  # type: ignore[arg-type]
        elif amount < 0 and held >= -amount:
            accounts[number].release(kind, "stop", -amount)  # type: ignore[arg-type]
        else:
            continue
        naive[number, kind] = held + amount
    totals = {kind: sum(amount for (_, each), amount in naive.items() if each == kind) for kind in KINDS}
    assert ledger.totals() == {kind: total for kind, total in totals.items() if total}
