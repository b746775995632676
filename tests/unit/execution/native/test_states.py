"""States out of the native executor and embeddings into it: the same bits however the work is cut up, and torch agrees."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.execution.interface import ForwardBatch, ForwardRow
from millstream.execution.native.executor import NativeExecutor
from millstream.execution.sampling import NOT_FINITE
from millstream.execution.torch.runner import TorchExecutor
from tests.unit.execution.native.steps import Floats
from tests.unit.execution.native.test_invariance import PROMPT
from tests.unit.execution.torch.steps import cuts, row, shuffled_pages

HIDDEN = 576


def asking(token_ids: list[int], pages: list[int], start: int, end: int) -> ForwardRow:
    """A row of a request that only wants the state of its prompt's end."""
    made = row(token_ids, pages, start, end)
    made.sample, made.wants_hidden = False, True
    return made


def state_of(executor: NativeExecutor | TorchExecutor, ids: list[int], size: int = 1000, seed: int = 0) -> Floats:
    """The state at the end of a prompt that is computed in chunks."""
    (pages,) = shuffled_pages(executor, len(ids), seed=seed)
    start = 0
    for end in cuts(len(ids), size):
        output = executor.forward(ForwardBatch([asking(ids, pages, start, end)]))
        assert not output.errors
        assert bool(output.hidden) == (end == len(ids))
        start = end
    return output.hidden[0]


@pytest.fixture(scope="module")
def table() -> Floats:
    """The embeddings of all tokens, as the model file has them."""
    checkpoint = open_checkpoint(resolve_model("embedded"))
    values = np.empty((checkpoint.config.vocab_size, checkpoint.config.hidden_size), np.float32)
    checkpoint.read("embedding", values)
    return values


def test_the_state_is_the_same_to_the_bit_alone_in_chunks_and_in_company(native_embedded: NativeExecutor) -> None:
    alone = state_of(native_embedded, PROMPT)
    assert (alone.shape, alone.dtype, native_embedded.capabilities.hidden_size) == ((HIDDEN,), np.float32, HIDDEN)
    for size in (16, 37):
        np.testing.assert_array_equal(state_of(native_embedded, PROMPT, size, seed=size), alone)
    lengths = [300, 5, 64, 300]
    tables = shuffled_pages(native_embedded, *lengths)
    rows = [asking(PROMPT[:length], pages, 0, length) for length, pages in zip(lengths, tables, strict=True)]
    rows[1].wants_hidden = False
    rows[2] = row(PROMPT[:64], tables[2])
    output = native_embedded.forward(ForwardBatch(rows))
    assert output.hidden.keys() == {0, 3}
    assert [len(ids) for ids in output.token_ids] == [0, 0, 1, 0]
    np.testing.assert_array_equal(output.hidden[0], alone)
    np.testing.assert_array_equal(output.hidden[3], alone)


@pytest.mark.long
def test_torch_in_float32_has_nearly_the_same_states(native_embedded: NativeExecutor, embedded: TorchExecutor) -> None:
    for ids in (PROMPT[:4], PROMPT[:60], PROMPT[100:], list(range(1000, 1100))):
        ours, theirs = state_of(native_embedded, ids), state_of(embedded, ids, size=50)
        assert ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) > 0.99


@pytest.mark.parametrize("size", [1, 23, 60])
def test_the_table_s_own_rows_as_input_come_to_the_bits_of_their_ids(
    native_embedded: NativeExecutor, table: Floats, size: int
) -> None:
    prompt = PROMPT[:60]
    by_ids, by_embeds = (list(pages) for pages in shuffled_pages(native_embedded, 70, 70, seed=size))
    expected, ids, start = [], list(prompt), 0
    for end in [*cuts(60, size), *range(61, 70)]:  # the prompt, then tokens one by one, which are ids both times
        for given, pages in ((prompt, by_ids), ([0] * 60, by_embeds)):
            made = row([*given, *ids[60:]], pages, start, end, num_prompt_tokens=60)
            made.input_embeds = table[prompt] if pages is by_embeds else None
            (logits,) = native_embedded.forward_logits(ForwardBatch([made]))
            expected.append(logits)
        np.testing.assert_array_equal(expected.pop(), expected.pop())
        start = end
        if end >= 60:
            ids.append(int(logits[-1].argmax()))
    assert len(set(ids[60:])) > 1


def test_torch_takes_the_table_s_rows_as_well(embedded: TorchExecutor, table: Floats) -> None:
    prompt = PROMPT[:40]
    first, second = shuffled_pages(embedded, 40, 40)
    (expected,) = embedded.forward_logits(ForwardBatch([row(prompt, first)]))
    given = [row([0] * 40, second, start, end) for start, end in ((0, 13), (13, 40))]
    logits = []
    for part in given:
        part.input_embeds = table[prompt]
        logits += embedded.forward_logits(ForwardBatch([part]))
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=0, atol=1e-3)


def test_embeddings_that_make_nan_end_their_own_request_alone(native_embedded: NativeExecutor) -> None:
    bad_pages, pages = shuffled_pages(native_embedded, 20, 20)
    fine = state_of(native_embedded, PROMPT[:20])
    bad = asking([0] * 20, bad_pages, 0, 20)
    bad.input_embeds = np.full((20, HIDDEN), np.nan, np.float32)
    output = native_embedded.forward(ForwardBatch([bad, asking(PROMPT[:20], pages, 0, 20)]))
    assert output.errors == {0: NOT_FINITE}
    np.testing.assert_array_equal(output.hidden[1], fine)


def test_the_kernels_refuse_embeddings_of_another_shape_and_rows_that_are_not_there(native_embedded: NativeExecutor) -> None:
    model, ids = native_embedded._model, np.zeros(3, np.int32)
    rows = [(3, 0, [0], 0)]
    for embedded, kept in (
        ({0: np.zeros((4, HIDDEN), np.float32)}, []),
        ({0: np.zeros((3, HIDDEN - 1), np.float32)}, []),
        ({1: np.zeros((3, HIDDEN), np.float32)}, []),
        ({}, [1]),
        ({}, [0, 0]),
    ):
        with pytest.raises(ValueError, match="row"):
            model.forward(ids, rows, embedded, kept)
    with pytest.raises(RuntimeError):  # a copy in another type would be gone before the step
        model.forward(ids, rows, {0: np.zeros((3, HIDDEN))}, [])
