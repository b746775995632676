"""Log probabilities on the kernels: the summary against numpy's, and a model's values, which nothing changes by a bit."""

from __future__ import annotations

import math
import random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.checkpoint.locate import resolve_model
from millstream.execution import logprobs
from millstream.execution.interface import ForwardBatch, ForwardOutput, ForwardRow
from millstream.execution.native import executor as executor_module
from millstream.execution.native.executor import NativeExecutor
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs
from millstream.messages.sampling import SamplingParams
from millstream.text.tokenizer import load_tokenizer
from tests.unit.execution.torch.steps import cuts, greedy, row, shuffled_pages

some = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PROMPT = random.Random(5).choices(range(5, 49000), k=300)
TEXT = (
    "The river that drives the mill rises in the hills to the north of the town. In spring, when snow melts, it carries so "
    "much water that the wheel has to be stopped, and the miller spends his days mending sacks and waiting for it to pass."
)
PARAMS = LogprobParams(top=5, token_ids=(7, 49_151), prompt_start=0)


@some
@given(seed=st.integers(0, 10_000), vocab=st.integers(1, 200), top=st.integers(0, 40), spread=st.sampled_from([0, 1, 9, 1e4]))
def test_the_summary_is_that_of_numpy(native: ModuleType, isa: str, seed: int, vocab: int, top: int, spread: float) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, (3, vocab)).astype(np.float32)
    logits[1] = np.round(logits[1])  # equal ones rank by id
    logits[2, seed % vocab] = -np.inf
    top = min(top, vocab - 1)
    log_sums, ids = native.summarize_rows(logits, top, isa)
    expected = logprobs.summarize(logits, top)
    if vocab == 1:  # the third row has nothing finite
        log_sums, ids, expected = log_sums[:2], ids[:2], logprobs.Summary(expected.log_sums[:2], expected.top_ids[:2])
    np.testing.assert_allclose(log_sums, expected.log_sums, rtol=1e-14, atol=1e-12)
    np.testing.assert_array_equal(ids, expected.top_ids)


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_the_largest_are_found_in_any_order(native: ModuleType, isa: str, order: str) -> None:
    logits = {"rising": np.arange(5000), "falling": -np.arange(5000), "equal": np.zeros(5000)}[order].astype(np.float32)
    (ids,) = native.summarize_rows(logits[None], 128, isa)[1]
    wanted = range(4999, 4871, -1) if order == "rising" else range(128)
    assert ids.tolist() == list(wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 17, 99])
def test_a_logit_that_is_no_number_gives_no_number(native: ModuleType, isa: str, bad: float, place: int) -> None:
    logits = np.zeros((1, 100), np.float32)
    logits[0, place] = bad
    assert np.isnan(native.summarize_rows(logits, 3, isa)[0][0])
    assert np.isnan(native.summarize_rows(np.full((1, 5), -np.inf, np.float32), 1, isa)[0][0])


def test_both_instruction_sets_give_the_same_bits(native: ModuleType, both_isas: tuple[str, str]) -> None:
    logits = np.random.default_rng(3).normal(0, 4, (20, 49_152)).astype(np.float32)
    (ours, ids), (theirs, other_ids) = (native.summarize_rows(logits, 20, isa) for isa in both_isas)
    assert ours.tolist() == theirs.tolist()
    assert ids.tolist() == other_ids.tolist()


def asking(made: ForwardRow, params: LogprobParams | None = PARAMS) -> ForwardRow:
    made.logprobs = params
    return made


def told_in_chunks(executor: NativeExecutor, pages: list[int], ends: list[int], start: int = 0) -> Logprobs:
    """The prompt's, computed in chunks that stop at each of `ends`, and the first token's."""
    table = no_logprobs()
    for end in ends:
        output = executor.forward(ForwardBatch([asking(row(PROMPT, pages, start, end))]))
        assert not output.errors
        table.extend(output.prompt_logprobs.get(0, no_logprobs()))
        table.extend(output.logprobs.get(0, no_logprobs()))
        start = end
    return table


@pytest.fixture(scope="module")
def whole(native_embedded: NativeExecutor) -> Logprobs:
    """Those of the prompt, computed in one step, and of the first token."""
    (pages,) = shuffled_pages(native_embedded, len(PROMPT))
    return told_in_chunks(native_embedded, list(pages), [len(PROMPT)])


def test_values_are_those_of_the_logits(native_embedded: NativeExecutor, whole: Logprobs) -> None:
    (pages,) = shuffled_pages(native_embedded, len(PROMPT))
    logits = native_embedded.forward_logits(ForwardBatch([row(PROMPT, pages)]))[0]
    expected = logprobs.compute_logprobs(logits, [*PROMPT[1:], int(logits[-1].argmax())], PARAMS)
    assert whole.top_ids == expected.top_ids
    for ours, theirs in ((whole.chosen, expected.chosen), (whole.top, expected.top), (whole.asked, expected.asked)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)
    assert all(sum(map(math.exp, values)) <= 1 for values in whole.top)


def test_values_of_a_text_are_close_to_those_of_float32(native_embedded: NativeExecutor, embedded: TorchExecutor) -> None:
    ids = load_tokenizer(resolve_model("embedded")).encode(TEXT, add_special_tokens=False)
    assert len(ids) > 40
    ours, theirs = (told_of_text(executor, ids) for executor in (native_embedded, embedded))
    differences = np.abs(np.array(ours.chosen) - np.array(theirs.chosen))
    assert np.mean(differences) < 0.05  # nats
    assert np.mean([len({*a} & {*b}) for a, b in zip(ours.top_ids, theirs.top_ids, strict=True)]) > 4.5
    assert all(sum(map(math.exp, values)) <= 1 for values in theirs.top)


def told_of_text(executor: NativeExecutor | TorchExecutor, ids: list[int]) -> Logprobs:
    (pages,) = shuffled_pages(executor, len(ids))  # type: ignore[arg-type]
    return executor.forward(ForwardBatch([asking(row(ids, pages))])).prompt_logprobs[0]


@pytest.mark.parametrize("size", [1, 37, 256])
def test_chunks_change_no_bit(native_embedded: NativeExecutor, whole: Logprobs, size: int) -> None:
    (pages,) = shuffled_pages(native_embedded, len(PROMPT), seed=size)
    assert told_in_chunks(native_embedded, list(pages), cuts(len(PROMPT), size)) == whole


@pytest.mark.parametrize("most", [1, 7, 64])
def test_a_step_with_no_room_for_all_logits_changes_no_bit(
    native_embedded: NativeExecutor, whole: Logprobs, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(executor_module, "MAX_LOGITS", most * native_embedded.capabilities.vocab_size)
    first, second, third = (list(pages) for pages in shuffled_pages(native_embedded, 300, 300, 300))
    rows = [asking(row(PROMPT, first)), asking(row(PROMPT, second)), row(PROMPT, third, 0, 20)]
    output = native_embedded.forward(ForwardBatch(rows))
    for index in (0, 1):
        output.prompt_logprobs[index].extend(output.logprobs[index])
        assert output.prompt_logprobs[index] == whole
    assert sorted(output.prompt_logprobs) == [0, 1]


def test_company_and_a_prefix_of_anothers_change_no_bit(native_embedded: NativeExecutor, whole: Logprobs) -> None:
    tables = [list(pages) for pages in shuffled_pages(native_embedded, 300, 300, 64, 50)]
    told_in_chunks(native_embedded, tables[0], [200])
    shared = tables[0][: 192 // 16] + tables[1][192 // 16 :]
    bent = SamplingParams(temperature=1.0, presence_penalty=1.0)
    rows = [
        asking(row(PROMPT[:50], tables[3], sampling=bent), LogprobParams(top=50)),
        asking(row(PROMPT, shared, 192)),
        row(PROMPT[:64], tables[2]),
    ]
    output = native_embedded.forward(ForwardBatch(rows))
    assert output.prompt_logprobs == {1: whole.part(192, 299)}
    assert output.logprobs[1] == whole.part(299)


def test_what_bends_a_draw_does_not_bend_what_is_told(native_embedded: NativeExecutor, whole: Logprobs) -> None:
    (pages,) = (list(pages) for pages in shuffled_pages(native_embedded, len(PROMPT)))
    bent = SamplingParams(temperature=2.0, repetition_penalty=1.5, logit_bias={49_151: 100.0})
    output = native_embedded.forward(ForwardBatch([asking(row(PROMPT, pages, sampling=bent))]))
    assert output.token_ids == [[49_151]]
    assert output.logprobs[0].top == whole.top[-1:]
    assert output.logprobs[0].chosen == [whole.asked[-1][1]]


def test_each_token_of_a_draft_has_its_own(native_embedded: NativeExecutor) -> None:
    tables = [list(pages) for pages in shuffled_pages(native_embedded, 64, 64, 64)]
    prompt = PROMPT[:40]
    plain = greedy(native_embedded, prompt, tables[0], 6)
    expected = no_logprobs()
    for count in range(6):
        ids = prompt + plain[:count]
        each = asking(row(ids, tables[1], 0 if not count else len(ids) - 1, num_prompt_tokens=40), LogprobParams(top=2))
        expected.extend(native_embedded.forward(ForwardBatch([each])).logprobs[0])
    native_embedded.forward(ForwardBatch([row(prompt, tables[2], 0, 39)]))
    bent = SamplingParams(temperature=0.0, logit_bias={7: -5.0})
    guess = asking(row(prompt, tables[2], 39, sampling=bent), LogprobParams(top=2))
    guess.draft = [*plain[:3], plain[3] + 1, 7]
    output: ForwardOutput = native_embedded.forward(ForwardBatch([guess]))
    assert output.token_ids == [plain[:4]]
    assert output.logprobs == {0: expected.part(0, 4)}


def test_a_prompt_whose_logits_are_no_numbers_fails_its_row_alone(native_embedded: NativeExecutor, whole: Logprobs) -> None:
    poisoned, healthy = (list(pages) for pages in shuffled_pages(native_embedded, 300, 300))
    native_embedded._model.poison_page(poisoned[0])
    rows = [asking(row(PROMPT, poisoned, 20, 100)), asking(row(PROMPT, healthy))]
    output = native_embedded.forward(ForwardBatch(rows))
    assert output.errors == {0: NOT_FINITE}
    assert output.prompt_logprobs == {1: whole.part(0, 299)}
