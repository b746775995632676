"""Captured decodes, run without a GPU: sizes, buffers and padding rows, against the same steps run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from millstream.checkpoint.locate import resolve_model
from millstream.checkpoint.weights import open_checkpoint
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardRow
from millstream.execution.torch.decode_buffers import DecodeBuffers
from millstream.execution.torch.decode_graphs import Compute, DecodeGraphs, decode_step, graph_sizes
from millstream.execution.torch.decoder import Decoder
from millstream.execution.torch.device_sampler import Judged
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.loader import load_weights
from millstream.execution.torch.paged_attention import PagedAttention
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.details import LogprobParams
from millstream.messages.sampling import SamplingParams
from tests.unit.execution.torch import paged_emulation
from tests.unit.execution.torch.families import make_model
from tests.unit.execution.torch.steps import row

PAGE_SIZE = 4
NUM_PAGES = 40
CPU = torch.device("cpu")


class Captures:
    """A `Capture` that records nothing: it notes what was captured and replayed, and runs it again."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, compute: Compute) -> Compute:
        compute()  # as a real one does, to warm up
        self.captured += 1

        def replay() -> Judged:
            self.replayed += 1
            return compute()

        return replay


class Rig:
    """One model twice over the same weights: with captured decodes, and without. Each has a KV store of its own."""

    def __init__(self, folder: Path, max_rows: int) -> None:
        torch.set_num_threads(1)
        checkpoint = open_checkpoint(resolve_model(str(folder)))
        model = checkpoint.config
        self.decoder = Decoder(model, load_weights(checkpoint, CPU, torch.float32))
        attention = PagedAttention(
            model, kernel=paged_emulation.attend, page_size=PAGE_SIZE, programs=4, context_length=128, device=CPU
        )
        capabilities = Capabilities(model.vocab_size, 128, NUM_PAGES, PAGE_SIZE, model.eos_token_ids)
        make_store = partial(KVStore, model, num_pages=NUM_PAGES + 1, page_size=PAGE_SIZE, device=CPU, dtype=torch.float32)
        make: Callable[..., TorchExecutor] = partial(
            TorchExecutor, decoder=self.decoder, capabilities=capabilities, attention=attention, device=CPU
        )
        self.captures = Captures()
        self.store, self.plain_store = make_store(), make_store()
        self.buffers = DecodeBuffers(max_rows=max_rows, max_pages=32, page_size=PAGE_SIZE, scratch_page=NUM_PAGES, device=CPU)
        with torch.inference_mode():
            self.graphs = DecodeGraphs(
                sizes=graph_sizes(max_rows),
                buffers=self.buffers,
                compute=partial(decode_step, self.decoder, self.store, attention),
                capture=self.captures,
            )
        self.executor = make(store=self.store, graphs=self.graphs)
        self.plain = make(store=self.plain_store)

    def prefill(self, sequences: Sequence[tuple[list[int], list[int]]]) -> None:
        """Compute all but the last token of each (ids, pages) in both."""
        for executor in (self.executor, self.plain):
            executor.forward_logits(ForwardBatch([row(ids, pages, 0, len(ids) - 1) for ids, pages in sequences]))


@pytest.fixture(scope="module", params=["llama-tied", "mistral", "gemma3"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = tmp_path_factory.mktemp(request.param)
    make_model(request.param, folder)
    return Rig(folder, max_rows=6)


def sequences_of(*lengths: int) -> list[tuple[list[int], list[int]]]:
    pages = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(sum(lengths))).tolist()
    return [(list(range(5, 5 + length)), [pages.pop() for _ in range(-(-(length + 8) // PAGE_SIZE))]) for length in lengths]


def decode(ids: list[int], pages: list[int], **options: object) -> ForwardRow:
    return row(ids, pages, len(ids) - 1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("max_rows", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])])
def test_sizes_double_up_to_the_largest(max_rows: int, sizes: list[int]) -> None:
    assert graph_sizes(max_rows) == sizes


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_a_captured_step_makes_the_logits_of_an_eager_one(rig: Rig, count: int) -> None:
    sequences = sequences_of(*[9, 2, 17, 4, 12, 5][:count])
    rig.prefill(sequences)
    rows = [decode(ids, pages) for ids, pages in sequences]
    with torch.inference_mode():
        logits, best, is_finite = rig.graphs.run(rows)
    # the eager step with as many rows: those that fill it up are row 0 again
    size = next(size for size in graph_sizes(6) if size >= count)
    expected = torch.cat(rig.plain.forward_logits(ForwardBatch(rows + [rows[0]] * (size - count))))[:count]
    assert torch.equal(logits, expected)
    assert torch.equal(best, expected.argmax(1))
    assert bool(is_finite.all())


def test_tokens_are_those_of_a_plain_run_while_rows_come_and_go(rig: Rig) -> None:
    sampling = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.5), SamplingParams(temperature=1.0, top_p=0.8)]
    lengths = [9, 2, 17, 4, 12]
    said = []
    for executor in (rig.executor, rig.plain):
        sequences = sequences_of(*lengths)
        rig.prefill(sequences)
        before = rig.captures.replayed
        for members in ([0, 1, 2], [0, 1, 2], [0, 2, 3, 4, 1], [4, 2, 0], [2], [0, 1, 2, 3, 4]):
            rows = [
                decode(*sequences[index], sampling=sampling[index % 3], seed=index, num_prompt_tokens=lengths[index])
                for index in members
            ]
            output = executor.forward(ForwardBatch(rows))
            assert not output.errors
            for index, ids in zip(members, output.token_ids, strict=True):
                sequences[index][0].extend(ids)
        assert rig.captures.replayed - before == (6 if executor is rig.executor else 0)
        said.append([ids for ids, _ in sequences])
    assert said[0] == said[1]


def test_a_captured_step_writes_the_keys_and_values_of_its_rows_and_the_scratch_page_only(rig: Rig) -> None:
    sequences = sequences_of(9, 2, 17)
    rig.prefill(sequences)
    before = [layer.clone() for layer in rig.store.layers]
    rig.executor.forward(ForwardBatch([decode(ids, pages) for ids, pages in sequences]))
    for old, new in zip(before, rig.store.layers, strict=True):
        changed = (old != new).flatten(2).any(2).nonzero().tolist()
        own = [[pages[(len(ids) - 1) // PAGE_SIZE], (len(ids) - 1) % PAGE_SIZE] for ids, pages in sequences]
        assert all(slot in [*own, [NUM_PAGES, 0]] for slot in changed)


def test_what_stood_in_the_buffers_and_elsewhere_in_the_store_means_nothing(rig: Rig) -> None:
    sequences = sequences_of(9, 2, 17)
    others = sequences_of(30, 31, 22, 6)
    rig.prefill(sequences)
    rows = [decode(ids, pages) for ids, pages in sequences]
    with torch.inference_mode():
        expected = rig.graphs.run(rows).logits.clone()
        rig.graphs.run([decode(ids, [(page + 1) % NUM_PAGES for page in pages]) for ids, pages in others])
        rig.prefill(sequences)
        used = {page for _, pages in sequences for page in pages} | {NUM_PAGES}
        kept = [layer.clone() for layer in rig.store.layers]
        for layer in rig.store.layers:
            layer[sorted(set(range(NUM_PAGES)) - used)] = float("nan")
        assert torch.equal(rig.graphs.run(rows).logits, expected)
        for layer, old in zip(rig.store.layers, kept, strict=True):
            layer.copy_(old)


def test_a_request_that_comes_back_on_other_pages_is_read_from_there(rig: Rig) -> None:
    (ids, pages), (other_ids, others) = sequences_of(13, 29)
    for own in (pages, others, pages):
        rig.prefill([(ids, own)])
        rows = [decode(ids, own)]
        with torch.inference_mode():
            logits = rig.graphs.run(rows).logits
        assert torch.equal(logits, torch.cat(rig.plain.forward_logits(ForwardBatch(rows))))


def test_only_decodes_that_draw_are_replayed(rig: Rig) -> None:
    (ids, pages), (other_ids, others) = sequences_of(9, 6)
    drafted = decode(ids, pages)
    drafted.draft = [7]
    chunk_of_one = row(ids, pages, 3, 4)
    embedded = decode(ids, pages)
    embedded.input_embeds = np.zeros((len(ids), 64), np.float32)
    assert rig.graphs.takes([decode(ids, pages)] * 6)
    assert not rig.graphs.takes([])
    assert not rig.graphs.takes([decode(ids, pages)] * 7)
    assert not rig.graphs.takes([decode(ids, pages), drafted])
    assert not rig.graphs.takes([decode(ids, pages), chunk_of_one])
    assert not rig.graphs.takes([embedded])
    embedded.num_prompt_tokens -= 1  # its last position is a token that it made
    assert rig.graphs.takes([embedded])
    assert not rig.graphs.takes([decode(ids, pages), row(other_ids, others, 2)])


def test_the_scratch_page_is_not_among_those_the_scheduler_lends(rig: Rig) -> None:
    assert rig.store.num_pages == rig.executor.capabilities.num_pages + 1
    rig.buffers.fill((), 4)
    inputs = rig.buffers.inputs(4)
    assert inputs.slots.tolist() == [NUM_PAGES * PAGE_SIZE] * 4
    assert inputs.rows.tables[:4, 0].tolist() == [NUM_PAGES] * 4
    assert inputs.rows.lengths.tolist() == [1] * 4


def test_a_row_that_is_not_finite_fails_alone_in_a_captured_step(rig: Rig) -> None:
    sequences = sequences_of(9, 6, 12)
    rig.prefill(sequences)
    expected = rig.executor.forward(ForwardBatch([decode(ids, pages) for ids, pages in sequences])).token_ids
    with torch.inference_mode():
        rig.store.layers[0][sequences[1][1][0]] = float("nan")
    output = rig.executor.forward(ForwardBatch([decode(ids, pages) for ids, pages in sequences]))
    assert list(output.errors) == [1]
    assert output.token_ids == [expected[0], [], expected[2]]
    assert all(bool(torch.isfinite(layer).all()) for layer in rig.store.layers)


def test_log_probabilities_of_a_replayed_step_are_those_of_an_eager_one(rig: Rig) -> None:
    sequences = sequences_of(9, 2, 17)
    rig.prefill(sequences)
    params = [LogprobParams(top=3, token_ids=(7,)), None, LogprobParams(prompt_start=0)]
    bent = SamplingParams(temperature=1.4, frequency_penalty=1.0, logit_bias={9: 4.0})
    rows = [decode(ids, pages, num_prompt_tokens=1, sampling=bent, seed=5) for ids, pages in sequences]
    for each, asked in zip(rows, params, strict=True):
        each.logprobs = asked
    replayed = rig.captures.replayed
    ours, plain = rig.executor.forward(ForwardBatch(rows)), rig.plain.forward(ForwardBatch(rows))
    assert rig.captures.replayed == replayed + 1
    assert ours.token_ids == plain.token_ids
    assert sorted(ours.logprobs) == sorted(plain.logprobs) == [0, 2]
    for index, table in plain.logprobs.items():
        assert ours.logprobs[index].top_ids == table.top_ids
        assert ours.logprobs[index].chosen == pytest.approx(table.chosen, abs=1e-4)
        assert ours.logprobs[index].asked == [pytest.approx(values, abs=1e-4) for values in table.asked]
