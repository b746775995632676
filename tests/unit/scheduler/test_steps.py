"""Who gets on in a step, with a token, with a part of its prompt or not at all."""

from __future__ import annotations

from tests.unit.scheduler.harness import desk


def test_a_row_with_nothing_yet_runs_again_and_loses_nothing() -> None:
    at, executor = desk()
    at.submit("r", range(300, 308), max_new=2, ignore_eos=True)
    executor.nothing_for = {"r"}
    at.step()
    at.step()
    executor.nothing_for = set()
    at.run()
    assert executor.batches[:3] == [[("r", 0, 8)], [("r", 7, 8)], [("r", 7, 8)]]
    assert len(at.rows("r")) == 2


def test_a_prompt_whose_leader_has_no_token_yet_starts_all_the_same() -> None:
    at, executor = desk()
    at.submit("slow", range(300, 320), max_new=2)
    at.submit("next", range(300, 320), max_new=2)
    executor.nothing_for = {"slow"}
    at.step()
    at.step()
    assert len(at.rows("next")) == 1


def test_a_step_that_gets_nobody_on_is_no_progress() -> None:
    at, executor = desk(chunked_prefill_size=10)
    assert not at.scheduler.got_on
    at.submit("r", list(range(300, 320)), max_new=2)
    executor.nothing_for = {"r"}
    progress = []
    for _ in range(5):
        at.step()
        progress.append(at.scheduler.got_on)
    assert progress == [True, False, False, False, False]  # a chunk of the prompt, the rest of it without a token, then nothing
    executor.nothing_for = set()
    at.step()
    assert at.scheduler.got_on
    at.run()
    at.step()
    assert not at.scheduler.got_on


def test_a_long_prompt_among_many_short_requests_gets_on_in_every_step_and_so_do_they() -> None:
    at, executor = desk(chunked_prefill_size=32, num_pages=256)
    for number in range(5):
        at.submit(f"s{number}", [40 + number] * 4, max_new=40, ignore_eos=True)
    at.step()
    at.submit("long", range(100, 500), max_new=3, ignore_eos=True)
    for number in range(5, 12):
        at.submit(f"s{number}", [40 + number] * 4, max_new=4, ignore_eos=True)
    while at.rows("long") == []:
        before = {rid: len(at.tokens(rid)) for rid in ("s0", "s1", "s2", "s3", "s4")}
        at.step()
        assert {rid: len(at.tokens(rid)) for rid in before} == {rid: count + 1 for rid, count in before.items()}
        assert executor.batches[-1][5][0] == "long"
        assert sum(end - start for _, start, end in executor.batches[-1]) <= 32
    assert len(executor.batches) - 1 == -(-400 // 27)
    at.run()
    assert all(at.finish(f"s{number}") is not None for number in range(12))
