"""ModelConfig from config.json: both spellings of rotary settings, defaults, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.checkpoint.config import ModelConfig, RopeConfig
from millstream.checkpoint.hf_config import hf_model_config
from millstream.errors import StartupError

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps({**BASE, **changes}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return hf_model_config(folder)


def test_a_plain_llama_gets_the_defaults_of_its_family(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=100,
        context_length=512,
        hidden_size=64,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        rms_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        tie_embeddings=False,
        attention_scale=0.25,
    )


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        pytest.param({"rope_theta": 5e5}, RopeConfig(theta=5e5), id="old-theta"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(theta=5e5), id="new-theta"),
        pytest.param(
            {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}},
            RopeConfig(theta=1e6, kind="linear", factor=4.0, original_context=512),
            id="old-linear",
        ),
        pytest.param(
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_context=64),
            id="old-llama3",
        ),
    ],
)
def test_both_spellings_of_rotary_settings_are_read(tmp_path: Path, changes: dict[str, Any], rope: RopeConfig) -> None:
    assert read(tmp_path, **changes).rope == rope


def test_gemma_3_in_the_old_spelling_has_two_rotations_and_a_pattern(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        architectures=["Gemma3ForCausalLM"],
        head_dim=16,
        rope_theta=1e6,
        rope_local_base_freq=10000.0,
        sliding_window=32,
        sliding_window_pattern=3,
        query_pre_attn_scalar=64,
    )
    assert config.rope == RopeConfig(theta=1e6)
    assert config.local_rope == RopeConfig(theta=10000.0)
    assert config.sliding_layers == (True, True, False, True, True, False)
    assert [config.window(layer) for layer in range(3)] == [32, 32, None]
    assert (config.attention_scale, config.embedding_scale, config.norm_offset) == (0.125, 8.0, 1.0)
    assert config.activation == "gelu_tanh"
    assert config.tie_embeddings
    assert config.post_norms
    assert config.qk_norm


def test_qwen2_slides_only_where_it_is_told_to(tmp_path: Path) -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "max_window_layers": 4}
    assert read(tmp_path, **qwen, use_sliding_window=False).sliding_window is None
    sliding = read(tmp_path, **qwen, use_sliding_window=True)
    assert sliding.sliding_layers == (False,) * 4 + (True,) * 2


def test_mistral_slides_in_every_layer_unless_its_window_is_null(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=32).sliding_layers == (True,) * 6
    assert read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None).sliding_layers == ()


def test_end_tokens_come_from_both_files(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": [3, 4]}, eos_token_id=2).eos_token_ids == {2, 3, 4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"architectures": ["SmolLM3ForCausalLM"]}, "`SmolLM3ForCausalLM`, which is not supported", id="smollm3"),
        pytest.param({"architectures": ["MixtralForCausalLM"]}, "`MixtralForCausalLM`", id="experts"),
        pytest.param({"architectures": ["Gemma3ForConditionalGeneration"]}, "ConditionalGeneration", id="with-images"),
        pytest.param({"architectures": None, "model_type": "bert"}, "`bert`", id="no-architectures"),
        pytest.param({"architectures": None}, "missing", id="nothing-named"),
        pytest.param({"quantization_config": {"bits": 4}}, "quantization_config", id="quantised"),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor", id="partial-rotary"),
        pytest.param({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping", id="attention-softcap"),
        pytest.param({"hidden_act": "relu"}, "activation `relu`", id="activation"),
        pytest.param({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "`longrope`", id="longrope"),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "factor 0.0", id="factor-0"),
        pytest.param({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale", id="mscale"),
        pytest.param({"hidden_size": None}, "`hidden_size` is missing", id="missing-size"),
        pytest.param({"hidden_size": "64"}, "`hidden_size` is `64`", id="size-as-text"),
        pytest.param({"rms_norm_eps": [1]}, "rms_norm_eps", id="eps-as-list"),
        pytest.param({"tie_word_embeddings": 1}, "tie_word_embeddings", id="flag-as-number"),
        pytest.param({"num_key_value_heads": 3}, "cannot share", id="heads"),
        pytest.param({"head_dim": 15}, "even", id="odd-head"),
        pytest.param({"num_hidden_layers": 10**9}, "at most 1024", id="absurd-layers"),
        pytest.param({"vocab_size": -1}, "vocab_size", id="negative"),
        pytest.param({"num_attention_heads": 0}, "num_heads", id="no-heads"),
        pytest.param({"sliding_window": 8, "layer_types": ["chunked_attention"]}, "chunked_attention", id="layer-type"),
        pytest.param({"sliding_window": 8, "layer_types": ["sliding_attention"]}, "1 layer types for 6", id="few-layer-types"),
        pytest.param({"sliding_window": 0, "layer_types": ["sliding_attention"] * 6}, "sliding_window is 0", id="no-window"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        read(tmp_path, **changes)


def test_an_unsupported_architecture_is_told_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as caught:
        read(tmp_path, architectures=["SmolLM3ForCausalLM"])
    assert "Llama" in str(caught.value.hint)
    assert "Gemma 3" in str(caught.value.hint)


def test_a_config_that_is_not_json_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{\xff")
    with pytest.raises(StartupError, match="cannot read"):
        hf_model_config(tmp_path)
