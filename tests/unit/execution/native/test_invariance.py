"""What a request gets does not depend on what shares its steps, bit for bit, whatever differs between two runs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.native.executor import NativeExecutor
from millstream.execution.native.loader import load_native_model
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.native.steps import Floats, native_logits
from tests.unit.execution.torch.steps import cuts, greedy, row, shuffled_pages

PROMPT = random.Random(5).choices(range(5, 49000), k=300)  # more than one partition of attention


@pytest.fixture(scope="module")
def whole(native_embedded: NativeExecutor) -> Floats:
    """The prompt's logits, computed in one step."""
    (pages,) = shuffled_pages(native_embedded, len(PROMPT))
    return native_logits(native_embedded, PROMPT, pages, [len(PROMPT)])


@pytest.mark.parametrize("size", [1, 3, 16, 37, 256])
def test_chunks_change_no_bit(native_embedded: NativeExecutor, whole: Floats, size: int) -> None:
    (pages,) = shuffled_pages(native_embedded, len(PROMPT), seed=size)
    np.testing.assert_array_equal(native_logits(native_embedded, PROMPT, pages, cuts(len(PROMPT), size)), whole)


def test_company_changes_no_bit(native_embedded: NativeExecutor, whole: Floats) -> None:
    lengths = [1, 2, 17, 64, 200, 257, 300, 300, 5, 11, 290, 299]
    tables = [list(pages) for pages in shuffled_pages(native_embedded, *lengths)]
    starts = [0, 1, 0, 63, 100, 256, 299, 0, 4, 3, 289, 280]
    for start, pages in zip(starts, tables, strict=True):
        if start:
            native_logits(native_embedded, PROMPT, pages, [start])
    rows = [row(PROMPT, pages, start, length) for length, start, pages in zip(lengths, starts, tables, strict=True)]
    for part, logits in zip(rows, native_embedded.forward_logits(ForwardBatch(rows)), strict=True):
        np.testing.assert_array_equal(logits, whole[part.start : part.end])


def test_a_prefix_that_another_request_computed_changes_no_bit(native_embedded: NativeExecutor, whole: Floats) -> None:
    first, second = (list(pages) for pages in shuffled_pages(native_embedded, len(PROMPT), len(PROMPT)))
    native_logits(native_embedded, PROMPT, first, [200])
    shared = first[: 192 // 16] + second[192 // 16 :]
    logits = native_embedded.forward_logits(ForwardBatch([row(PROMPT, shared, 192, len(PROMPT))]))[0]
    np.testing.assert_array_equal(logits, whole[192:])


@pytest.mark.parametrize(("threads", "isa"), [(1, ""), (3, ""), (2, "avx2")])
def test_threads_and_instructions_change_no_bit(native_embedded: NativeExecutor, whole: Floats, threads: int, isa: str) -> None:
    source = resolve_model("embedded")
    checkpoint = open_checkpoint(source)
    model = load_native_model(
        checkpoint, source, cache_dir=None, kv_type="fp16", num_pages=32, page_size=16, threads=threads, isa=isa
    )
    other = NativeExecutor(model, native_embedded.capabilities)
    np.testing.assert_array_equal(native_logits(other, PROMPT, list(range(20)), [100, 300]), whole)


def test_drafts_change_how_many_tokens_a_step_brings_and_never_which(native_embedded: NativeExecutor) -> None:
    pages = [list(table) for table in shuffled_pages(native_embedded, 64, 64)]
    prompt = PROMPT[:40]
    plain = greedy(native_embedded, prompt, pages[0], 12)
    native_logits(native_embedded, prompt, pages[1], [39])
    guess = row(prompt, pages[1], 39)
    guess.draft = [*plain[:3], plain[3] + 1, 7]
    assert native_embedded.forward(ForwardBatch([guess])).token_ids == [plain[:4]]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_p=0.9)], ids=["greedy", "drawn"]
)
def test_a_request_computed_again_after_a_retraction_draws_the_same(
    native_embedded: NativeExecutor, sampling: SamplingParams
) -> None:
    first, again = (list(pages) for pages in shuffled_pages(native_embedded, 100, 100))
    prompt, ids, start = PROMPT[:50], list(PROMPT[:50]), 0
    for _ in range(10):
        ids += _step(native_embedded, row(ids, first, start, num_prompt_tokens=50, sampling=sampling, seed=3))
        start = len(ids) - 1
    assert (
        _step(native_embedded, row(ids[:56], again, 0, num_prompt_tokens=len(prompt), sampling=sampling, seed=3)) == ids[56:57]
    )


def _step(executor: NativeExecutor, only: ForwardRow) -> list[int]:
    return executor.forward(ForwardBatch([only])).token_ids[0]


def test_a_fork_goes_on_from_a_copy_of_the_last_page(native_embedded: NativeExecutor, whole: Floats) -> None:
    first, second = (list(pages) for pages in shuffled_pages(native_embedded, 40, 40))
    native_logits(native_embedded, PROMPT, first, [40])
    fork = row(PROMPT, [*first[:2], second[2]], 39, 40)
    fork.copies = [(first[2], second[2])]
    np.testing.assert_array_equal(native_embedded.forward_logits(ForwardBatch([fork]))[0], whole[39:40])
