"""ModelConfig from GGUF metadata, and what is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.checkpoint.config import ModelConfig, RopeConfig
from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.gguf_config import gguf_model_config
from millstream.errors import StartupError
from tests.unit.checkpoint.gguf_files import write_gguf

BASE: dict[str, Any] = {
    ".block_count": 6,
    ".context_length": 512,
    ".embedding_length": 64,
    ".feed_forward_length": 128,
    ".attention.head_count": 4,
    ".attention.head_count_kv": 2,
    ".attention.layer_norm_rms_epsilon": 0.5,
    "tokenizer.ggml.eos_token_id": 2,
}
EMBEDDING = {"token_embd.weight": np.zeros((10, 64))}


def read(
    folder: Path, architecture: str = "llama", tensors: dict[str, np.ndarray] | None = None, /, **changes: Any
) -> ModelConfig:
    metadata = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return gguf_model_config(GGUFFile(write_gguf(folder / "m.gguf", architecture, metadata, EMBEDDING | (tensors or {}))))


def test_a_llama_without_an_output_matrix_ties_its_embedding(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=10,
        context_length=512,
        hidden_size=64,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        rms_eps=0.5,
        rope=RopeConfig(theta=10000.0),
        tie_embeddings=True,
        attention_scale=0.25,
        eos_token_ids=frozenset({2}),
    )
    assert not read(tmp_path, "llama", {"output.weight": np.zeros((10, 64))}).tie_embeddings


def test_biases_are_there_where_their_tensors_are(tmp_path: Path) -> None:
    config = read(tmp_path, "qwen2", {"blk.0.attn_q.bias": np.zeros(64)})
    assert config.qkv_bias
    assert not config.output_bias


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        pytest.param({".rope.freq_base": 5e5}, RopeConfig(theta=5e5), id="theta"),
        pytest.param(
            {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0},
            RopeConfig(theta=1e4, kind="linear", factor=4.0),
            id="linear",
        ),
        pytest.param({".rope.scale_linear": 2.0}, RopeConfig(theta=1e4, kind="linear", factor=2.0), id="old-linear"),
        pytest.param(
            {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 128},
            RopeConfig(theta=1e4, kind="yarn", factor=4.0, original_context=128, attention_factor=0.1 * math.log(4) + 1),
            id="yarn",
        ),
    ],
)
def test_rotary_settings_are_read(tmp_path: Path, changes: dict[str, Any], rope: RopeConfig) -> None:
    assert read(tmp_path, **changes).rope == rope


def test_llama_3_stretching_is_read_from_its_tensor(tmp_path: Path) -> None:
    divisors = np.array([1, 1, 1, 2, 4, 8, 8, 8])
    assert read(tmp_path, "llama", {"rope_freqs.weight": divisors}).rope.divisors == tuple(map(float, divisors))


def test_gemma_3_sees_everything_in_every_sixth_layer(tmp_path: Path) -> None:
    config = read(
        tmp_path, "gemma3", **{".attention.key_length": 32, ".attention.value_length": 32, ".attention.sliding_window": 8}
    )
    assert config.sliding_layers == (True,) * 5 + (False,)
    assert config.local_rope == RopeConfig(theta=10000.0)
    assert (config.embedding_scale, config.attention_scale, config.norm_offset) == (8.0, 32**-0.5, 0.0)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        pytest.param("smollm3", {}, "`smollm3`, which is not supported", id="smollm3"),
        pytest.param("llama", {".expert_count": 8}, "llama with experts", id="experts"),
        pytest.param("llama", {".rope.dimension_count": 8}, "part of each head", id="partial-rotary"),
        pytest.param("llama", {".attention.value_length": 8}, "different sizes", id="value-size"),
        pytest.param("llama", {".rope.scaling.type": "longrope"}, "`longrope`", id="longrope"),
        pytest.param("llama", {".block_count": None}, "`llama.block_count` is missing", id="missing"),
        pytest.param("llama", {".embedding_length": "x"}, "`llama.embedding_length` is `x`", id="text"),
        pytest.param("llama", {".attention.head_count": 0}, "num_heads", id="no-heads"),
        pytest.param("llama", {".attention.head_count_kv": 3}, "cannot share", id="heads"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        read(tmp_path, architecture, **changes)


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", BASE, {})
    with pytest.raises(StartupError, match="token_embd"):
        gguf_model_config(GGUFFile(path))
