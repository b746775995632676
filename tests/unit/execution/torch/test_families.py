"""Every supported architecture against transformers, on small models with random weights saved as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from millstream.checkpoint.locate import ModelSource, resolve_model
from millstream.execution.interface import ForwardBatch
from millstream.execution.torch.runner import TorchExecutor
from tests.unit.execution.torch.families import FAMILIES, make_model
from tests.unit.execution.torch.steps import cuts, load, logits_of, row, shuffled_pages

TOKENS = 53
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


class Made(NamedTuple):
    executor: TorchExecutor
    ids: list[int]
    expected: torch.Tensor  # logits [TOKENS, vocab]


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    model = make_model(request.param, folder)
    ids = torch.randint(3, 128, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    return Made(load(resolve_model(str(folder)), page_size=4), ids, expected)


@pytest.mark.parametrize("size", [TOKENS, 7, 1], ids=["whole", "chunks", "token-by-token"])
def test_logits_equal_those_of_transformers(made: Made, size: int) -> None:
    (pages,) = shuffled_pages(made.executor, TOKENS, seed=size)
    logits = logits_of(made.executor, made.ids, pages, cuts(TOKENS, size))
    torch.testing.assert_close(logits, made.expected, **CLOSE)


def test_prefill_and_decode_rows_in_one_batch_equal_those_of_transformers(made: Made) -> None:
    executor, ids = made.executor, made.ids
    lengths = [3, 50, 20, 9, 31, TOKENS]
    pages = shuffled_pages(executor, *lengths)
    starts = [2, 49, 8, 8, 30, 0]  # decodes of unlike length, a later chunk, a whole prompt
    rows = []
    for length, start, own in zip(lengths, starts, pages, strict=True):
        if start:
            logits_of(executor, ids, own, [start])
        rows.append(row(ids, own, start, length))
    for part, logits in zip(rows, executor.forward_logits(ForwardBatch(rows)), strict=True):
        torch.testing.assert_close(logits, made.expected[part.start : part.end], **CLOSE)


def test_end_tokens_and_limits_come_from_the_config(made: Made) -> None:
    assert made.executor.capabilities.eos_token_ids == {2}
    assert made.executor.capabilities.context_length == 256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_weights_are_computed_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_model("qwen3", tmp_path, dtype)
    ids = list(range(10, 30))
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    executor = load(ModelSource("huggingface", tmp_path, ("m",)))
    torch.testing.assert_close(logits_of(executor, ids, [0, 1], [len(ids)]), expected, **CLOSE)
