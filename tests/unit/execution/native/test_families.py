"""Every supported architecture on the kernels, against transformers in float32, on small models with random weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from millstream.checkpoint.locate import ModelSource, resolve_model
from tests.unit.execution.native.steps import Floats, load_native, native_logits
from tests.unit.execution.torch.families import SIZES, families, model_of
from tests.unit.execution.torch.steps import cuts, shuffled_pages

# nothing is a multiple of what kernels take at once: 2.5 groups of inputs, 4.5 blocks of feed-forward rows, 7.5 of tokens
NATIVE_SIZES = SIZES | {
    "hidden_size": 80,
    "intermediate_size": 72,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "vocab_size": 120,
}
GROUPED = NATIVE_SIZES | {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}
FAMILIES = families(NATIVE_SIZES)
TOKENS = 53
STD = 0.1  # of weights: small enough that layers do not magnify rounding, large enough that attention is far from even


def relative_error(logits: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.mean((logits - expected) ** 2)) / np.sqrt(np.mean(expected**2)))


def check(config: object, folder: Path, most: float, **options: object) -> None:
    model = model_of(config, folder, std=STD)
    ids = torch.randint(3, 120, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    executor = load_native(resolve_model(str(folder)), **options)
    for size in (TOKENS, 7, 1):
        (pages,) = shuffled_pages(executor, TOKENS, seed=size)
        logits = native_logits(executor, ids, pages, cuts(TOKENS, size))
        assert relative_error(logits, expected) < most
        assert np.mean(logits.argmax(axis=1) == expected.argmax(axis=1)) > 0.9
    executor.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_but_for_rounding_to_8_bits(native: ModuleType, tmp_path: Path, family: str) -> None:
    check(FAMILIES[family], tmp_path, 0.05)


def test_heads_may_share_keys_in_groups(native: ModuleType, tmp_path: Path) -> None:
    check(families(GROUPED)["llama-tied"], tmp_path, 0.07)


@pytest.mark.parametrize("kv_type", ["fp32", "fp16", "int8"])
def test_keys_and_values_may_be_kept_in_fewer_bits(native: ModuleType, tmp_path: Path, kv_type: str) -> None:
    check(FAMILIES["mistral"], tmp_path, 0.05 if kv_type != "int8" else 0.06, kv_cache_dtype=kv_type)


def test_half_precision_weights_are_read(native: ModuleType, tmp_path: Path) -> None:
    model = model_of(FAMILIES["qwen3"], tmp_path, torch.bfloat16, std=STD)
    ids = list(range(10, 30))
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    executor = load_native(ModelSource("huggingface", tmp_path, ("m",)))
    assert relative_error(native_logits(executor, ids, [0, 1], [len(ids)]), expected) < 0.05
