"""Backoff: at once, then ever more slowly, anew after a good while, and not for ever."""

from __future__ import annotations

import pytest

from millstream.launch.restart import FIRST_DELAY_S, MAX_DELAY_S, SETTLED_S, WINDOW_S, Backoff


def delays(backoff: Backoff, now: float, count: int) -> list[float | None]:
    """The delays after `count` deaths, each at the moment its predecessor's successor was started."""
    found: list[float | None] = []
    for _ in range(count):
        restart_at = backoff.died(now)
        found.append(None if restart_at is None else restart_at - now)
        if restart_at is None:
            break
        now = restart_at
    return found


def test_the_first_restart_comes_at_once_and_the_next_ones_ever_later() -> None:
    assert delays(Backoff(100), 0.0, 10) == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert (FIRST_DELAY_S, MAX_DELAY_S) == (0.5, 30.0)


@pytest.mark.parametrize(("ready_for_s", "delay"), [(SETTLED_S, 0.0), (SETTLED_S - 1, 4.0)])
def test_a_process_that_was_ready_for_long_enough_begins_anew(ready_for_s: float, delay: float) -> None:
    backoff = Backoff(100)
    delays(backoff, 0.0, 4)
    backoff.ready(100.0)
    now = 100.0 + ready_for_s
    assert backoff.died(now) == now + delay


def test_readiness_counts_for_the_process_that_was_ready_only() -> None:
    backoff = Backoff(100)
    backoff.ready(0.0)
    assert backoff.died(SETTLED_S) == SETTLED_S
    assert backoff.died(3 * SETTLED_S) == 3 * SETTLED_S + FIRST_DELAY_S  # its successor was never ready


def test_one_death_too_many_within_the_window_is_not_answered() -> None:
    assert delays(Backoff(0), 0.0, 1) == [None]
    assert delays(Backoff(3), 0.0, 10) == [0, 0.5, 1, None]


def test_deaths_are_forgotten_after_the_window() -> None:
    backoff = Backoff(2)
    assert backoff.died(0.0) is not None
    assert backoff.died(1.0) is not None
    assert backoff.died(WINDOW_S - 1) is None
    assert backoff.died(WINDOW_S) is not None  # that of the start is forgotten
    assert backoff.died(WINDOW_S + 0.5) is None
