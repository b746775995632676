"""Speculation: drafts within what a step has left, requests whose guesses are wrong, and texts that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.verify import sample_with_drafts
from millstream.messages import Length
from millstream.scheduler.speculation import BALANCE, FIRST_SIZE, MAX_CREDIT, SpeculationOptions
from tests.unit.scheduler.harness import EOS, CheckingExecutor, Desk

OPTIONS = SpeculationOptions(num_draft_tokens=8)
VOCAB = 40


class NumpyModel:
    """Random logits, fixed by the last token, so that it says again what it has said; mostly one is far ahead of the rest.

    Knows what KV each page holds, and fails where a row relies on what is not there.
    """

    def __init__(self, *, num_pages: int = 64, page_size: int = 4, sharpness: float = 6.0) -> None:
        self.capabilities = Capabilities(
            vocab_size=VOCAB, context_length=256, num_pages=num_pages, page_size=page_size, eos_token_ids=frozenset({EOS})
        )
        self.num_rows = 0
        self.num_drafts = 0
        self.batches: list[list[tuple[str, int, int]]] = []
        self.not_finite_after: int | None = None  # this token
        self._sharpness = sharpness
        self._kv: dict[tuple[int, int], int] = {}

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        self.batches.append([(row.rid, row.end, row.reach) for row in batch.rows])
        output = ForwardOutput([[] for _ in batch.rows])
        sampled = [index for index, row in enumerate(batch.rows) if row.sample]
        states = {index: self._states(row) for index, row in enumerate(batch.rows)}
        if sampled:
            rows = [batch.rows[index] for index in sampled]
            drawn, errors = sample_with_drafts(np.concatenate([states[index] for index in sampled]), rows)
            for place, index in enumerate(sampled):
                output.token_ids[index] = drawn[place]
                if place in errors:
                    output.errors[index] = errors[place]
            self.num_rows += len(rows)
            self.num_drafts += sum(bool(row.draft) for row in rows)
        return output

    def close(self) -> None:
        """Nothing is held."""

    def _states(self, row: ForwardRow) -> np.ndarray:
        size = self.capabilities.page_size
        ids = [*row.token_ids[: row.end], *row.draft]
        assert row.reach <= len(row.pages) * size
        prefix = 0
        for position, token_id in enumerate(ids):
            prefix = hash((prefix, token_id))
            place = (row.pages[position // size], position % size)
            if position >= row.start:
                self._kv[place] = prefix
            assert self._kv.get(place) == prefix
        return np.stack([self._logits(ids[:end]) for end in range(row.end, row.reach + 1)])

    def _logits(self, ids: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng(ids[-1])
        logits = rng.normal(size=VOCAB).astype(np.float32)
        if rng.integers(8):
            logits[rng.integers(VOCAB)] += self._sharpness
        if ids[-1] == self.not_finite_after:
            logits[0] = np.nan
        return logits


def run(prompts: list[list[int]], speculation: SpeculationOptions | None, model: NumpyModel, **sampling: Any) -> Desk:
    max_new = sampling.pop("max_new", 60)
    desk = Desk(model, speculation=speculation)
    for number, prompt in enumerate(prompts):
        desk.submit(f"r{number}", prompt, max_new=max_new, **sampling)
    desk.run()
    return desk


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=4),
    max_new=st.integers(1, 60),
    sampling=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.6, 1.0, 2.0]),
            "top_p": st.sampled_from([1.0, 0.9]),
            "repetition_penalty": st.sampled_from([1.0, 1.0, 1.1]),
            "presence_penalty": st.sampled_from([0.0, 0.0, 0.5]),
            "frequency_penalty": st.sampled_from([0.0, 0.0, 0.1]),
            "logit_bias": st.sampled_from([{}, {7: 2.0}]),
            "min_new_tokens": st.integers(0, 30),
            "stop": st.sampled_from([(), ("%", "8")]),
            "ignore_eos": st.booleans(),
        }
    ),
    num_pages=st.integers(30, 64),
    most=st.integers(1, 12),
    shortest=st.integers(1, 3),
)
def test_a_request_says_the_same_with_drafts_and_without(
    prompts: list[list[int]], max_new: int, sampling: dict[str, Any], num_pages: int, most: int, shortest: int
) -> None:
    sampling["min_new_tokens"] = min(sampling["min_new_tokens"], max_new)
    options = SpeculationOptions(num_draft_tokens=most, shortest_match=shortest)
    plain, guessed = (
        run(prompts, speculation, NumpyModel(num_pages=num_pages), max_new=max_new, **sampling)
        for speculation in (None, options)
    )
    for number in range(len(prompts)):
        rid = f"r{number}"
        assert guessed.tokens(rid) == plain.tokens(rid)
        assert guessed.finish(rid) == plain.finish(rid)


def test_a_model_that_repeats_itself_needs_fewer_steps_and_the_counts_say_so() -> None:
    plain, model = NumpyModel(), NumpyModel()
    slow, fast = (
        run([[3, 4, 5]], options, m, temperature=0.0, ignore_eos=True) for options, m in ((None, plain), (OPTIONS, model))
    )
    assert fast.tokens("r0") == slow.tokens("r0")
    assert plain.num_rows == 60
    assert model.num_rows < 40
    stats = fast.stats()
    assert model.num_rows + stats.accepted_draft_tokens == 60
    assert stats.accepted_draft_tokens <= stats.draft_tokens
    assert fast.rows("r0")[-1].usage.verify_steps == model.num_rows - 1
    assert slow.rows("r0")[-1].usage.verify_steps == 0
    assert slow.stats().draft_tokens == 0


def periodic(desk: Desk, rid: str, max_new: int = 60, **sampling: Any) -> None:
    """A prompt that goes round in a circle: whatever the model says, there is something to guess."""
    desk.submit(rid, [5, 6, 7, 8] * 4, max_new=max_new, temperature=0.0, ignore_eos=True, **sampling)


def drafts(model: Any) -> list[int]:
    """Length of the draft of each row that had one."""
    return [reach - end for batch in model.batches for _, end, reach in batch if reach > end]


def test_a_draft_never_reaches_beyond_the_last_token_that_is_allowed() -> None:
    for max_new in range(1, 12):
        model = NumpyModel()
        desk = run([[5, 6, 7, 8] * 4], OPTIONS, model, max_new=max_new, temperature=0.0, ignore_eos=True)
        assert desk.finish("r0") == Length(max_new)
        assert max(reach for batch in model.batches for _, _, reach in batch) <= 16 + max_new - 1


def test_a_step_with_drafts_keeps_its_budget_of_tokens() -> None:
    model = NumpyModel()
    desk = Desk(model, speculation=OPTIONS, chunked_prefill_size=9, max_running_requests=8)
    for number in range(3):
        periodic(desk, f"r{number}")
    desk.run()
    assert any(len(batch) == 3 and sum(1 + reach - end for _, end, reach in batch) == 9 for batch in model.batches)
    assert all(sum(1 + reach - end for _, end, reach in batch) <= 9 for batch in model.batches)


def test_no_draft_takes_a_page_from_anybody() -> None:
    """A pool that the requests fill to the last page: drafts shrink, and nobody is thrown back."""
    model = NumpyModel(num_pages=12, page_size=4)
    desk = Desk(model, speculation=OPTIONS)
    periodic(desk, "a", max_new=8)
    periodic(desk, "b", max_new=8)
    retracted = 0
    while desk.step():
        held = {req.rid: len(req.lease.pages) for req in desk.scheduler._live.values() if req.lease is not None}
        computed = {req.rid: -(-max(req.num_computed, 16) // 4) for req in desk.scheduler._live.values()}
        assert held == {rid: computed[rid] for rid in held}  # as without drafts
        retracted = desk.stats().retractions
    assert drafts(model)
    assert retracted == 0
    assert desk.stats().pages_free == 12


def test_a_draft_makes_do_with_the_pages_that_are_left() -> None:
    model = NumpyModel(num_pages=5, page_size=4)
    desk = Desk(model, speculation=OPTIONS)
    periodic(desk, "a", max_new=4)
    desk.run()
    assert desk.finish("a") == Length(4)
    assert all(reach <= 20 for batch in model.batches for _, _, reach in batch)


def test_many_requests_in_one_batch_get_no_drafts() -> None:
    model = NumpyModel()
    desk = Desk(model, speculation=SpeculationOptions(num_draft_tokens=8, max_batch_size=2))
    for number, max_new in enumerate((40, 40, 10)):
        periodic(desk, f"r{number}", max_new=max_new)
    desk.run()
    with_drafts = [len(batch) for batch in model.batches if any(reach > end for _, end, reach in batch)]
    assert with_drafts
    assert max(with_drafts) == 2


def test_a_request_whose_guesses_are_wrong_rests_longer_and_longer() -> None:
    model = CheckingExecutor(num_pages=200, page_size=4)  # what it says depends on how much it has said
    desk = Desk(model, speculation=OPTIONS)
    desk.submit("r", [5, 6, 7, 8] * 4, max_new=600, ignore_eos=True)

    class Wrong:
        def __init__(self, ids: list[int], **_: int) -> None: ...

        def propose(self, count: int) -> list[int]:
            return [3] * count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.scheduler.speculation.NgramIndex", Wrong)
        desk.run()
    wrong = desk.stats().draft_tokens
    assert desk.stats().accepted_draft_tokens == 0
    price = 1 / (1 + BALANCE)  # it runs alone
    assert MAX_CREDIT / price < wrong < MAX_CREDIT / price + 2 * FIRST_SIZE + 6


def test_a_request_whose_guesses_are_right_gets_drafts_of_full_length() -> None:
    model = NumpyModel()
    desk = Desk(model, speculation=OPTIONS)
    periodic(desk, "r", max_new=60, logit_bias={5: 100.0})  # says nothing but 5
    desk.run()
    assert max(drafts(model)) == 8
    assert desk.stats().steps < 14


def test_an_end_within_a_draft_cuts_it_and_what_was_computed_beyond_is_not_shared() -> None:
    ids = [5, 6, EOS, 7] * 3
    model = CheckingExecutor(num_pages=32, page_size=1)
    desk = Desk(model, speculation=OPTIONS)

    class Knows:
        def __init__(self, token_ids: list[int], **_: int) -> None:
            self._ids = token_ids

        def propose(self, count: int) -> list[int]:
            made = desk_alone.tokens("r")
            at = len(self._ids) - len(ids)
            return (made[at:] + [9] * count)[:count]

    desk_alone = Desk(CheckingExecutor(num_pages=32, page_size=1))
    desk_alone.submit("r", ids, max_new=10)
    desk_alone.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.scheduler.speculation.NgramIndex", Knows)
        desk.submit("r", ids, max_new=10)
        desk.run()
    assert desk.tokens("r") == desk_alone.tokens("r")
    assert desk.finish("r") == desk_alone.finish("r")
    assert desk.stats().pages_cached == desk_alone.stats().pages_cached
    assert desk.stats().accepted_draft_tokens > 0


def test_what_fails_with_a_draft_is_run_again_without_it() -> None:
    class Strict(NumpyModel):
        """Fails as a whole where a draft is longer than two, and the row alone where it is two."""

        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            longest = max(len(row.draft) for row in batch.rows)
            if longest > 2:
                raise RuntimeError("too long")
            output = super().forward(batch)
            for index, row in enumerate(batch.rows):
                if len(row.draft) == 2:
                    output.token_ids[index], output.errors[index] = [], "too long"
            return output

    plain = Desk(NumpyModel())
    desk = Desk(Strict(), speculation=OPTIONS)
    for each in (plain, desk):
        periodic(each, "a")
        periodic(each, "b", max_new=30)
        each.run()
    for rid in ("a", "b"):
        assert desk.tokens(rid) == plain.tokens(rid)
        assert desk.finish(rid) == plain.finish(rid)


def test_a_token_that_makes_nan_ends_its_request_whether_it_was_guessed_or_not() -> None:
    plain = run([[3, 4, 5]], None, NumpyModel(), temperature=0.0, ignore_eos=True)
    made = plain.tokens("r0")
    for token_id in sorted(set(made) - {3, 4, 5})[:6]:
        ends = []
        for options in (None, OPTIONS):
            model = NumpyModel()
            model.not_finite_after = token_id
            desk = run([[3, 4, 5]], options, model, temperature=0.0, ignore_eos=True)
            ends.append((desk.tokens("r0"), desk.finish("r0")))
        assert ends[0] == ends[1]
        assert ends[0][0] == made[: made.index(token_id) + 1]


def test_a_stop_id_within_a_draft_ends_the_request_there() -> None:
    full = run([[3, 4, 5]], None, NumpyModel(), temperature=0.0, ignore_eos=True).tokens("r0")
    for stop in sorted(set(full)):
        # its second time at the earliest: the first could not be guessed
        sampling = {"temperature": 0.0, "ignore_eos": True, "stop_token_ids": (stop,), "min_new_tokens": full.index(stop) + 1}
        plain, guessed = (run([[3, 4, 5]], options, NumpyModel(), **sampling) for options in (None, OPTIONS))
        assert guessed.tokens("r0") == plain.tokens("r0")
        assert guessed.finish("r0") == plain.finish("r0")
