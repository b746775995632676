"""Drafts on a real model: the tokens of a plain run, KV that stays right after wrong guesses, and faults in them."""

from __future__ import annotations

import pytest
import torch

from millstream.checkpoint.locate import resolve_model
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.torch.families import POISON, make_poisoned_model
from tests.unit.execution.torch.steps import greedy, load, row

PROMPT = list(range(10, 22))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> TorchExecutor:
    folder = make_poisoned_model(tmp_path_factory.mktemp("mistral"))
    return load(resolve_model(str(folder)), page_size=4, max_total_tokens=256)


def drafted(
    token_ids: list[int], pages: list[int], start: int, draft: list[int], sampling: SamplingParams | None = None
) -> ForwardRow:
    made = row(
        token_ids, pages, start, num_prompt_tokens=len(PROMPT), sampling=sampling or SamplingParams(temperature=0.0), seed=3
    )
    made.draft = draft
    return made


def generate(
    executor: TorchExecutor, pages: list[int], truth: list[int], sizes: list[int], sampling: SamplingParams | None = None
) -> list[int]:
    """Run to the length of `truth`; every third draft is right, every third wrong at its end, every third at its start."""
    ids, computed, step = list(PROMPT), 0, 0
    while len(ids) - len(PROMPT) < len(truth):
        at = len(ids) - len(PROMPT)
        draft = truth[at : at + sizes[step % len(sizes)]] if computed else []
        if draft and step % 3:
            place = 0 if step % 3 == 1 else len(draft) - 1
            draft[place] = (draft[place] + 1) % 100 + 6
        output = executor.forward(ForwardBatch([drafted(ids, pages, computed, draft, sampling)]))
        assert not output.errors
        (new,) = output.token_ids
        agreeing = next((i for i, (a, b) in enumerate(zip(new, draft, strict=False)) if a != b), min(len(new), len(draft)))
        assert len(new) == agreeing + 1
        computed = len(ids) + agreeing
        ids += new
        step += 1
    return ids[len(PROMPT) :][: len(truth)]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.5, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={POISON: -100.0}),
    ],
)
def test_drafts_right_and_wrong_leave_the_tokens_as_they_are(executor: TorchExecutor, sampling: SamplingParams) -> None:
    pages = list(range(20))
    ids = list(PROMPT)
    for _ in range(40):
        start = 0 if len(ids) == len(PROMPT) else len(ids) - 1
        output = executor.forward(ForwardBatch([drafted(ids, pages, start, [], sampling)]))
        ids += output.token_ids[0]
    truth = ids[len(PROMPT) :]
    for sizes in ([1], [3], [5, 2, 7]):
        assert generate(executor, list(range(20, 40)), truth, sizes, sampling) == truth


def test_a_draft_shares_a_step_with_chunks_and_decodes(executor: TorchExecutor) -> None:
    truth = greedy(executor, PROMPT, [0, 1, 2, 3, 4, 5], 6)
    executor.forward_logits(ForwardBatch([row(PROMPT, pages, 0, 11) for pages in ([6, 7, 8, 9, 10], [11, 12, 13])]))
    rows = [
        row(PROMPT, [14, 15, 16], 0, 7),
        drafted(PROMPT, [6, 7, 8, 9, 10], 11, truth[:5]),
        drafted(PROMPT, [11, 12, 13], 11, []),
    ]
    output = executor.forward(ForwardBatch(rows))
    assert not output.errors
    assert output.token_ids == [[], truth, truth[:1]]
    # the chunk goes on from what it wrote beside them
    assert executor.forward(ForwardBatch([row(PROMPT, [14, 15, 16], 7)])).token_ids == [truth[:1]]


def test_a_wrong_guess_that_makes_infinities_leaves_its_pages_usable(executor: TorchExecutor) -> None:
    truth = greedy(executor, PROMPT, [0, 1, 2, 3, 4], 5)
    pages, others = [5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17]
    long = [*PROMPT, *PROMPT]
    executor.forward_logits(ForwardBatch([row(PROMPT, pages, 0, 11), row(long, others, 0, 23)]))
    wrong = [(truth[0] + 1) % 100 + 6, POISON]
    executor.forward(ForwardBatch([drafted(PROMPT, pages, 11, wrong)]))
    # a longer row in its group makes padding of the pages that hold what was guessed
    rows = [row(PROMPT, pages, 11), row(long, others, 23)]
    assert all(bool(torch.isfinite(logits).all()) for logits in executor.forward_logits(ForwardBatch(rows)))
    assert greedy(executor, PROMPT, pages, 5) == truth
