"""Log probabilities through the scheduler: each token's and each prompt position's once, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.errors import EngineError
from millstream.messages import Abort, BatchTokenIDOutput, Length, RowDetails
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs
from millstream.scheduler import output as output_module
from millstream.scheduler.logprobs import PromptLogprobs
from millstream.scheduler.speculation import SpeculationOptions
from tests.unit.scheduler.harness import CheckingExecutor, Desk, assert_nothing_held, desk, told_of

PROMPT = [*range(300, 330)]
TOP = LogprobParams(top=2, token_ids=(5,))
ALL = LogprobParams(top=2, prompt_start=0)


def of_output(at: Desk, rid: str, prompt: Sequence[int], params: LogprobParams) -> Logprobs:
    """What must have been told about the tokens that `rid` has."""
    tokens = at.tokens(rid)
    return told_of([*prompt, *tokens], range(len(prompt), len(prompt) + len(tokens)), params)


def of_prompt(prompt: Sequence[int], params: LogprobParams) -> Logprobs:
    """What must be told about a prompt."""
    return told_of(prompt, range(max(1, params.prompt_start or 0), len(prompt)), params)


def assert_told(at: Desk, rid: str, prompt: Sequence[int], params: LogprobParams) -> None:
    """All of it is there, once, and with the right rows."""
    rows = at.rows(rid)
    assert at.details(rid) == RowDetails(
        logprobs=of_output(at, rid, prompt, params),
        prompt_logprobs=None if params.prompt_start is None else of_prompt(prompt, params),
    )
    for row in rows:
        assert row.details is not None
        assert row.details.logprobs is not None
        assert len(row.details.logprobs.chosen) == len(row.token_ids)
        assert row is rows[0] or row.details.prompt_logprobs is None


def test_every_token_has_its_own_and_rows_with_them_are_full_ones() -> None:
    at, _ = desk()
    at.submit("asks", PROMPT, max_new=5, logprobs=TOP, ignore_eos=True)
    at.submit("plain", [7, 8], max_new=5, ignore_eos=True)
    at.run()
    assert_told(at, "asks", PROMPT, TOP)
    assert at.details("plain") is None
    batches = [message for message in at.to_detokenizer.sent if isinstance(message, BatchTokenIDOutput)]
    assert sum(row.rid == "asks" for batch in batches for row in batch.rows) == 5
    assert_nothing_held(at)


@pytest.mark.parametrize("chunk", [1, 2, 7, 29, 30, 64])
@pytest.mark.parametrize("prompt_start", [0, 1, 2, 15, 29, 30])
def test_a_prompt_in_chunks_is_told_once_with_the_first_row(chunk: int, prompt_start: int) -> None:
    at, executor = desk(chunked_prefill_size=chunk)
    params = LogprobParams(top=1, prompt_start=prompt_start)
    at.submit("a", PROMPT, logprobs=params)
    at.run()
    assert_told(at, "a", PROMPT, params)
    assert executor.told_positions["a"] == [*range(max(1, prompt_start), 30)]


def test_tokens_past_the_end_of_a_request_are_told_to_nobody() -> None:
    executor = CheckingExecutor(num_pages=64, page_size=4, burst=lambda position: 4)
    at = Desk(executor)
    at.submit("a", PROMPT, max_new=6, logprobs=TOP, ignore_eos=True)
    at.run()
    assert len(at.tokens("a")) == 6
    assert_told(at, "a", PROMPT, TOP)


def test_tokens_of_drafts_have_their_own() -> None:
    executor = CheckingExecutor(num_pages=64, page_size=4)
    at = Desk(executor, speculation=SpeculationOptions(num_draft_tokens=4, shortest_match=1))
    at.submit("a", [*PROMPT, *PROMPT], max_new=40, logprobs=ALL, ignore_eos=True)
    at.run()
    assert_told(at, "a", [*PROMPT, *PROMPT], ALL)


@pytest.mark.parametrize(
    ("prompt_start", "cached"), [(None, 28), (0, 0), (1, 0), (5, 4), (12, 8), (13, 12), (29, 28), (30, 28)]
)
def test_a_known_prefix_is_taken_over_up_to_where_logits_are_needed(prompt_start: int | None, cached: int) -> None:
    at, _ = desk()
    at.submit("first", PROMPT)
    at.run()
    params = LogprobParams(top=1, prompt_start=prompt_start)
    at.submit("second", PROMPT, logprobs=params)
    at.run()
    assert_told(at, "second", PROMPT, params)
    assert at.rows("second")[-1].usage.cached_tokens == cached
    assert at.rows("second")[-1].usage.prompt_tokens == 30
    at.submit("third", PROMPT)
    at.run()
    assert at.rows("third")[-1].usage.cached_tokens == 28  # what the second computed again took nothing away
    assert_nothing_held(at)


def test_who_can_take_nothing_over_does_not_wait_for_it() -> None:
    at, executor = desk(chunked_prefill_size=20)
    at.submit("leader", PROMPT)
    at.submit("asks", PROMPT, logprobs=ALL)
    at.step()
    at.step()
    assert {rid for rid, _, _ in executor.batches[1]} == {"leader", "asks"}
    at.run()
    assert_told(at, "asks", PROMPT, ALL)


def test_a_retraction_repeats_and_loses_nothing() -> None:
    at, executor = desk(num_pages=24)
    prompts = {f"r{number}": [300 + number] * 20 for number in range(4)}
    for rid, prompt in prompts.items():
        at.submit(rid, prompt, max_new=16, logprobs=ALL, ignore_eos=True)
    at.run()
    assert at.stats().retractions > 0
    for rid, prompt in prompts.items():
        assert_told(at, rid, prompt, ALL)
        assert executor.told_positions[rid] == [*range(1, 20)]


def test_a_request_that_loses_its_pages_amid_its_prompt_is_told_the_rest() -> None:
    at, executor = desk(num_pages=10, chunked_prefill_size=11, max_running_requests=2)
    at.submit("paused", PROMPT, logprobs=ALL)
    at.step()
    at.pause("paused")
    at.submit("other", [7] * 35, max_new=2)  # takes the pages of who sleeps
    at.run()
    assert at.stats().retractions == 1
    at.resume("paused")
    at.run()
    assert_told(at, "paused", PROMPT, ALL)
    assert executor.told_positions["paused"] == [*range(1, 30)]


def test_an_abort_before_the_prompt_is_all_told_tells_nothing_of_it() -> None:
    at, _ = desk(chunked_prefill_size=11)
    at.submit("a", PROMPT, logprobs=ALL)
    at.step()
    at.abort("a")
    at.run()
    assert at.details("a") is None
    assert isinstance(at.finish("a"), Abort)
    at.submit("b", PROMPT, max_new=9, logprobs=ALL, ignore_eos=True)
    for _ in range(4):
        at.step()
    at.abort("b")
    at.run()
    assert at.details("b") == RowDetails(of_output(at, "b", PROMPT, ALL), of_prompt(PROMPT, ALL))


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_choices_share_what_is_told_about_their_prompt(share_prefixes: bool) -> None:
    at, executor = desk(share_prefixes=share_prefixes)
    for choice in range(3):
        at.submit(f"c{choice}", PROMPT, call="c", seed=1 + choice, logprobs=ALL, ignore_eos=True)
    at.run()
    for choice in range(3):
        assert_told(at, f"c{choice}", PROMPT, ALL)
    assert [at.rows(f"c{choice}")[-1].usage.cached_tokens for choice in range(3)] == [0, 29, 29]
    assert {rid: len(positions) for rid, positions in executor.told_positions.items()} == {"c0": 29}


def test_a_choice_goes_on_with_a_prompt_where_another_was_aborted() -> None:
    at, executor = desk(chunked_prefill_size=11)
    for choice in range(2):
        at.submit(f"c{choice}", PROMPT, call="c", seed=1 + choice, logprobs=ALL)
    at.step()
    at.abort("c0")
    at.run()
    assert_told(at, "c1", PROMPT, ALL)
    assert at.rows("c1")[-1].usage.cached_tokens == 8  # two pages of eleven tokens
    assert executor.told_positions["c1"] == [*range(12, 30)]


def test_choices_that_ask_for_something_else_are_told_that() -> None:
    at, _ = desk()
    asked = [ALL, LogprobParams(top=1, prompt_start=20), TOP, None]
    for choice, params in enumerate(asked):
        at.submit(f"c{choice}", PROMPT, call="c", seed=1 + choice, logprobs=params, ignore_eos=True)
    at.run()
    for choice, params in enumerate(asked):
        if params is not None:
            assert_told(at, f"c{choice}", PROMPT, params)
    assert [at.rows(f"c{choice}")[-1].usage.cached_tokens for choice in range(4)] == [0, 19, 29, 29]


def test_a_step_that_fails_as_a_whole_and_is_run_row_by_row_is_told_all(caplog: pytest.LogCaptureFixture) -> None:
    at, executor = desk()
    for rid in ("a", "b"):
        at.submit(rid, PROMPT, logprobs=ALL, namespace=rid)
    executor.fail_with = RuntimeError("once")
    at.run()
    for rid in ("a", "b"):
        assert_told(at, rid, PROMPT, ALL)


@pytest.mark.parametrize("params", [TOP, ALL])
def test_who_is_not_told_what_was_asked_fails_alone(params: LogprobParams, caplog: pytest.LogCaptureFixture) -> None:
    at, executor = desk()
    executor.mute_rids = {"mute"}
    at.submit("mute", PROMPT, logprobs=params)
    at.submit("fine", [7, 8, 9], logprobs=ALL)
    at.run()
    finish = at.finish("mute")
    assert isinstance(finish, Abort)
    assert finish.cause == "engine_error"
    assert_told(at, "fine", [7, 8, 9], ALL)
    assert_nothing_held(at)


def test_a_gap_in_what_is_told_is_an_error() -> None:
    table = PromptLogprobs(ALL, 10)
    table.add(1, told_of(PROMPT, range(1, 4), ALL))
    table.add(2, told_of(PROMPT, range(2, 6), ALL))  # computed twice
    assert table.values == told_of(PROMPT, range(1, 6), ALL)
    with pytest.raises(EngineError, match="6 to 7"):
        table.add(8, told_of(PROMPT, range(8, 10), ALL))
    assert table.missing_from == 6


def test_large_details_travel_in_messages_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "MAX_VALUES", 100)
    at, _ = desk()
    for choice in range(4):
        at.submit(f"c{choice}", PROMPT, max_new=2, call="c", seed=1 + choice, logprobs=ALL, ignore_eos=True)
    at.submit("plain", [7], max_new=2, ignore_eos=True)
    at.run()
    batches = [message for message in at.to_detokenizer.sent if isinstance(message, BatchTokenIDOutput)]
    assert all(sum(row.details is not None and row.details.num_values > 100 for row in batch.rows) <= 1 for batch in batches)
    for choice in range(4):
        assert_told(at, f"c{choice}", PROMPT, ALL)
        assert at.finish(f"c{choice}") == Length(2)
    assert len(at.tokens("plain")) == 2


def test_an_empty_table_has_no_values() -> None:
    assert no_logprobs().num_values == 0
    assert of_prompt(PROMPT, LogprobParams(top=3, token_ids=(1,), prompt_start=28)).num_values == 2 * 8


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_prompt_that_is_only_computed_is_told_of_with_its_one_row(chunk: int) -> None:
    at, executor = desk(chunked_prefill_size=chunk)
    at.submit("a", PROMPT, max_new=0, logprobs=ALL)
    for choice in range(2):
        at.submit(f"c{choice}", [*PROMPT, 5], max_new=0, call="c", logprobs=ALL)
    at.run()
    for rid, prompt in (("a", PROMPT), ("c0", [*PROMPT, 5]), ("c1", [*PROMPT, 5])):
        (row,) = at.rows(rid)
        assert (row.finish, row.token_ids) == (Length(0), [])
        assert row.details == RowDetails(prompt_logprobs=of_prompt(prompt, ALL))
    assert executor.told_positions["a"] == [*range(1, 30)]
    assert_nothing_held(at)
