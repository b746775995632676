"""Watch: no heartbeat, or no progress with work to do; and what does not count."""

from __future__ import annotations

from millstream.launch.watch import Watch
from millstream.messages import Heartbeat

BUSY = Heartbeat(progress=7, is_busy=True)


def make() -> Watch:
    return Watch(0.0, wedge_timeout_s=10, step_timeout_s=100)


def test_a_process_that_beats_and_gets_on_is_well() -> None:
    watch = make()
    for second in range(1000):
        watch.note(Heartbeat(progress=second // 50, is_busy=True), second)
        assert watch.verdict(second + 1) is None


def test_silence_is_a_wedge() -> None:
    watch = make()
    watch.note(BUSY, 5)
    assert watch.verdict(14.9) is None
    assert watch.verdict(15) == "no sign of life for 10 s"


def test_a_process_that_never_beats_is_wedged_too() -> None:
    assert make().verdict(10) is not None


def test_work_without_progress_is_a_wedge_after_far_longer() -> None:
    watch = make()
    for second in range(1, 101):
        watch.note(BUSY, second)
        assert watch.verdict(second) is None
    watch.note(BUSY, 101)
    assert watch.verdict(101) == "it has work and got nothing done for 100 s"


def test_having_nothing_to_do_is_as_good_as_progress() -> None:
    watch = make()
    for second in range(1, 1000):
        watch.note(Heartbeat(progress=7, is_busy=second % 90 != 0), second)
        assert watch.verdict(second) is None


def test_what_was_not_heard_while_nobody_listened_does_not_count() -> None:
    watch = make()
    watch.note(BUSY, 5)
    watch.forgive(1000, 1005)
    assert watch.verdict(1005 + 9.9) is None
    assert watch.verdict(1005 + 10) is not None


def test_a_pause_is_not_forgiven_twice() -> None:
    watch = make()
    watch.note(BUSY, 1005)  # what had been sent before the pause is read first
    watch.forgive(1000, 1005)
    assert watch.verdict(1015) is not None
