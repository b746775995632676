"""Log probabilities on the device against those in numpy; and a model's, however its steps are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.checkpoint.locate import resolve_model
from millstream.execution import logprobs
from millstream.execution.interface import ForwardBatch, ForwardOutput
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.torch import device_logprobs, runner
from millstream.execution.torch.device_logprobs import LogprobQuery, compute_logprobs
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.torch.families import POISON, make_poisoned_model
from tests.unit.execution.torch.steps import cuts, greedy, load, row, shuffled_pages

VOCAB = 60


def assert_close(told: Logprobs, expected: Logprobs, atol: float) -> None:
    assert told.top_ids == expected.top_ids
    for ours, theirs in zip((told.chosen, told.top, told.asked), (expected.chosen, expected.top, expected.asked), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=atol, rtol=0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_answers_are_those_of_numpy(seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    logits = random.integers(-4, 5, (9, VOCAB)).astype(np.float32)  # many are equal
    logits[logits == 0] *= random.choice([-1.0, 1.0])
    questions, expected, place = [], [], 0
    while place < len(logits):
        count = data.draw(st.integers(0, min(3, len(logits) - place)))
        asked = tuple(data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3)))
        params = LogprobParams(top=data.draw(st.sampled_from([0, 1, 5, VOCAB, VOCAB + 9])), token_ids=asked)
        ids = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count))
        questions.append(LogprobQuery(place, ids, params))
        expected.append(logprobs.compute_logprobs(logits[place : place + count], ids, params))
        place += max(1, count)
    before = logits.copy()
    for told, wanted in zip(compute_logprobs(torch.from_numpy(logits), questions), expected, strict=True):
        assert_close(told, wanted, 1e-12)
    np.testing.assert_array_equal(logits, before)


def test_many_positions_are_looked_at_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (7, VOCAB)).astype(np.float32)
    question = LogprobQuery(0, [5] * 7, LogprobParams(top=3))
    (whole,) = compute_logprobs(torch.from_numpy(logits), [question])
    monkeypatch.setattr(device_logprobs, "MAX_ELEMENTS", 2 * VOCAB)
    assert compute_logprobs(torch.from_numpy(logits), [question]) == [whole]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(bad: float) -> None:
    (told,) = compute_logprobs(torch.full((1, VOCAB), bad), [LogprobQuery(0, [3], LogprobParams(top=2))])
    assert not logprobs.is_finite(told)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TorchExecutor:
    folder = make_poisoned_model(tmp_path_factory.mktemp("mistral"))
    return load(resolve_model(str(folder)), page_size=4, max_total_tokens=512)


PARAMS = LogprobParams(top=4, token_ids=(3, 1), prompt_start=0)
PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]


def told_by(executor: TorchExecutor, ends: list[int], params: LogprobParams = PARAMS) -> Logprobs:
    """The prompt's, computed in chunks that stop at each of `ends`."""
    (pages,) = shuffled_pages(executor, len(PROMPT))
    table, start = no_logprobs(), 0
    for end in ends:
        part = row(PROMPT, pages, start, end)
        part.logprobs = params
        output = executor.forward(ForwardBatch([part]))
        assert not output.errors
        table.extend(output.prompt_logprobs.get(0, no_logprobs()))
        start = end
    return table


def test_a_prompt_is_told_position_by_position_however_it_is_cut(small: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    (pages,) = shuffled_pages(small, len(PROMPT))
    logits = small.forward_logits(ForwardBatch([row(PROMPT, pages)]))[0].numpy()
    expected = logprobs.compute_logprobs(logits[:-1], PROMPT[1:], PARAMS)
    for size in (1, 4, 12, 13):
        assert_close(told_by(small, cuts(len(PROMPT), size)), expected, 1e-4)
    assert_close(told_by(small, [13], LogprobParams(top=4, token_ids=(3, 1), prompt_start=9)), expected.part(8), 1e-4)
    monkeypatch.setattr(runner, "MAX_ELEMENTS", 3 * small.capabilities.vocab_size)
    assert_close(told_by(small, [13]), expected, 1e-4)


def test_what_is_drawn_is_told_from_the_models_own_logits(small: TorchExecutor) -> None:
    """Whatever bends the draw: temperature, penalties, bias."""
    bent = SamplingParams(temperature=1.5, top_k=3, presence_penalty=1.0, repetition_penalty=1.4, logit_bias={7: 90.0})
    first, second, third = (list(pages) for pages in shuffled_pages(small, 20, 20, 20))
    rows = [row(PROMPT, first, sampling=bent, seed=3), row(PROMPT, second), row(PROMPT, third)]
    for each, params in zip(rows, (LogprobParams(top=2), LogprobParams(token_ids=(7,)), None), strict=True):
        each.logprobs = params
    output = small.forward(ForwardBatch(rows))
    logits = small.forward_logits(ForwardBatch([rows[0]]))[0].numpy()[-1:]
    assert sorted(output.logprobs) == [0, 1]
    assert output.prompt_logprobs == {}
    for index, params in ((0, LogprobParams(top=2)), (1, LogprobParams(token_ids=(7,)))):
        assert_close(output.logprobs[index], logprobs.compute_logprobs(logits, output.token_ids[index], params), 1e-4)


def test_each_token_of_a_draft_has_its_own(small: TorchExecutor) -> None:
    tables = [list(pages) for pages in shuffled_pages(small, 32, 32, 32)]
    plain = greedy(small, PROMPT, tables[0], 6)
    expected = no_logprobs()
    for count in range(6):
        ids = PROMPT + plain[:count]
        each = row(ids, tables[1], 0 if not count else len(ids) - 1, num_prompt_tokens=len(PROMPT))
        each.logprobs = LogprobParams(top=2)
        expected.extend(small.forward(ForwardBatch([each])).logprobs[0])
    small.forward(ForwardBatch([row(PROMPT, tables[2], 0, len(PROMPT) - 1)]))
    guess = row(PROMPT, tables[2], len(PROMPT) - 1)
    guess.draft, guess.logprobs = [*plain[:3], plain[3] + 1, 7], LogprobParams(top=2)
    output: ForwardOutput = small.forward(ForwardBatch([guess]))
    assert output.token_ids == [plain[:4]]
    assert_close(output.logprobs[0], expected.part(0, 4), 1e-4)


def test_a_prompt_whose_logits_are_no_numbers_fails_its_row_alone(small: TorchExecutor) -> None:
    first, second = (list(pages) for pages in shuffled_pages(small, 16, 16))
    rows = [row([*PROMPT[:4], POISON, *PROMPT], first, 0, 12), row(PROMPT, second)]
    for each in rows:
        each.logprobs = PARAMS
    output = small.forward(ForwardBatch(rows))
    assert output.errors == {0: NOT_FINITE}
    assert [len(table.chosen) for table in output.prompt_logprobs.values()] == [12]
    assert output.logprobs[1].chosen


def test_a_prompt_may_fail_before_its_last_state_does(small: TorchExecutor) -> None:
    """Where a window hides what is wrong from the last position."""
    (pages,) = shuffled_pages(small, 40)
    prompt = [POISON, *range(10, 49)]
    asking = row(prompt, pages, 0, 39)
    asking.logprobs = PARAMS
    assert small.forward(ForwardBatch([asking])).errors == {0: NOT_FINITE}
