"""The embedded model on the kernels beside the same model in float32: how far quantised activations move it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from millstream.checkpoint.locate import resolve_model
from millstream.execution.interface import ForwardBatch
from millstream.execution.native.executor import NativeExecutor
from millstream.execution.sampling import NOT_FINITE, sample
from millstream.execution.torch.runner import TorchExecutor
from millstream.messages.sampling import SamplingParams
from millstream.text.tokenizer import load_tokenizer
from tests.unit.execution.native.steps import native_logits
from tests.unit.execution.torch.steps import logits_of, row, shuffled_pages

TEXTS = Path(__file__).parents[4] / "benchmarks" / "accuracy" / "texts"
WINDOW = 512


def agreement(native: NativeExecutor, reference: TorchExecutor, num_tokens: int) -> tuple[float, float]:
    """Argmax agreement and mean KL divergence in nats over `num_tokens` of texts of several kinds, teacher-forced."""
    text = "\n".join(path.read_text() for path in sorted(TEXTS.glob("*.txt")))
    ids = load_tokenizer(resolve_model("embedded")).encode(text, add_special_tokens=False)[:num_tokens]
    assert len(ids) == num_tokens
    same, divergences = 0, []
    for start in range(0, num_tokens, WINDOW):
        window = ids[start : start + WINDOW]
        (pages,) = shuffled_pages(native, len(window))
        ours = torch.log_softmax(torch.from_numpy(native_logits(native, window, pages, [len(window)])).double(), dim=1)
        (pages,) = shuffled_pages(reference, len(window))
        theirs = torch.log_softmax(logits_of(reference, window, pages, [len(window)]).double(), dim=1)
        same += int((ours.argmax(dim=1) == theirs.argmax(dim=1)).sum())
        divergences += (theirs.exp() * (theirs - ours)).sum(dim=1).tolist()
    return same / num_tokens, float(np.mean(divergences))


def test_most_tokens_are_those_of_float32(native_embedded: NativeExecutor, embedded: TorchExecutor) -> None:
    same, divergence = agreement(native_embedded, embedded, 256)
    assert same >= 0.97
    assert divergence < 0.002


@pytest.mark.long
def test_98_of_100_tokens_are_those_of_float32(native_embedded: NativeExecutor, embedded: TorchExecutor) -> None:
    same, divergence = agreement(native_embedded, embedded, 2048)
    assert same >= 0.975
    assert divergence < 0.0015


def test_a_row_may_be_drawn_with_every_parameter(native_embedded: NativeExecutor) -> None:
    """The same draws as the reference sampler makes of the same logits."""
    ids = list(range(100, 140))
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.05),
        SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01),
        SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, logit_bias={77: 100.0}),
    ]
    tables = [list(pages) for pages in shuffled_pages(native_embedded, *[len(ids)] * len(params))]
    rows = [
        row(ids, pages, sampling=each, seed=11 + index, num_prompt_tokens=30)
        for index, (pages, each) in enumerate(zip(tables, params, strict=True))
    ]
    bits = np.random.default_rng(5).random((len(rows), native_embedded.capabilities.vocab_size // 32 * 32)) < 0.02
    rows += [
        replace(each, pages=list(each.pages), allowed=np.packbits(some, bitorder="little").view(np.uint32))
        for each, some in zip(rows, bits, strict=True)
    ]
    output = native_embedded.forward(ForwardBatch(rows))
    logits = np.stack([part[-1] for part in native_embedded.forward_logits(ForwardBatch(rows))])
    expected, errors = sample(logits, rows)
    assert output.errors == errors == {}
    assert output.token_ids == [[token_id] for token_id in expected]


def test_a_row_that_is_not_finite_ends_alone_and_leaves_no_trace(native_embedded: NativeExecutor) -> None:
    ids = list(range(200, 240))
    poisoned, healthy = (list(pages) for pages in shuffled_pages(native_embedded, len(ids), len(ids)))
    expected = native_logits(native_embedded, ids, healthy, [len(ids)])[-1].argmax()
    native_embedded._model.poison_page(poisoned[0])
    broken = row(ids, poisoned, 39)
    output = native_embedded.forward(ForwardBatch([broken, row(ids, healthy, 39)]))
    assert output.errors == {0: NOT_FINITE}
    assert output.token_ids == [[], [expected]]
    output = native_embedded.forward(ForwardBatch([row(ids, poisoned, 39)]))
    assert not output.errors  # what was not finite is gone from the page
