"""ModelConfig from a Hugging Face directory: config.json and generation_config.json. Called by `load_model_config` only.

Both spellings of rotary settings are read: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from millstream.checkpoint.config import (
    MAX_LAYERS,
    Activation,
    Facts,
    ModelConfig,
    RopeConfig,
    RopeKind,
    refuse_architecture,
    yarn_attention_factor,
)
from millstream.errors import StartupError

DEFAULT_THETA = 10000.0
GEMMA3_LOCAL_THETA = 10000.0
GEMMA3_PATTERN = 6
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# settings that would change the output and that we do not compute: key -> values that mean "off"
_REFUSED: dict[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "use_bidirectional_attention": (None, False),
    "num_local_experts": (None, 0, 1),
}


def hf_model_config(folder: Path) -> ModelConfig:
    """Read the config of a Hugging Face directory.

    Raises:
        StartupError: an architecture or a feature that is not supported, or a missing fact.
    """
    path = folder / "config.json"
    facts = Facts(_read_json(path), f"`{path}`")
    names = facts.get("architectures")
    name = names[0] if isinstance(names, list) and names else facts.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise refuse_architecture(name, f"`{path}`")
    for key, harmless in _REFUSED.items():
        if facts.get(key) not in harmless:
            raise StartupError(f"`{path}` sets `{key}`, which is not supported.")
    return _build(ARCHITECTURES[name], facts, _eos_token_ids(folder, facts))


def _build(architecture: str, facts: Facts, eos_token_ids: frozenset[int]) -> ModelConfig:
    gemma = architecture == "gemma3"
    hidden, heads = facts.integer("hidden_size"), facts.integer("num_attention_heads")
    layers = facts.integer("num_hidden_layers", most=MAX_LAYERS)
    head_dim = facts.integer("head_dim", 256 if gemma else hidden // max(heads, 1))
    context = facts.integer("max_position_embeddings")
    attention_bias = facts.flag("attention_bias", False)
    sliding = _sliding_layers(architecture, facts, layers)
    rope, local_rope = _ropes(facts, context, gemma)
    return ModelConfig(
        architecture=architecture,
        vocab_size=facts.integer("vocab_size"),
        context_length=context,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=facts.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn_size=facts.integer("intermediate_size"),
        rms_eps=facts.number("rms_norm_eps", 1e-6),
        activation=_activation(facts, gemma),
        rope=rope,
        local_rope=local_rope if any(sliding) else None,
        sliding_window=facts.integer("sliding_window") if any(sliding) else None,
        sliding_layers=sliding if any(sliding) else (),
        tie_embeddings=facts.flag("tie_word_embeddings", gemma),
        qkv_bias=architecture == "qwen2" or attention_bias,
        output_bias=architecture != "qwen2" and attention_bias,
        ffn_bias=facts.flag("mlp_bias", False),
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        attention_scale=max(facts.number("query_pre_attn_scalar", 256.0) if gemma else float(head_dim), 1.0) ** -0.5,
        logit_softcap=facts.number("final_logit_softcapping", 0.0) or None,
        eos_token_ids=eos_token_ids,
    )


def _activation(facts: Facts, gemma: bool) -> Activation:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    name = facts.text(key, default)
    if name not in ACTIVATIONS:
        raise StartupError(f"{facts.where}: activation `{name}` is not supported.", hint=f"supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _sliding_layers(architecture: str, facts: Facts, layers: int) -> tuple[bool, ...]:
    types = facts.get("layer_types")
    optional = architecture in ("qwen2", "qwen3")
    if facts.get("sliding_window") is None or (optional and not facts.flag("use_sliding_window", False)):
        return (False,) * max(layers, 0)
    if isinstance(types, list):
        unknown = set(types) - {"full_attention", "sliding_attention"}
        if unknown:
            raise StartupError(f"{facts.where}: layer types {sorted(map(str, unknown))} are not supported.")
        return tuple(kind == "sliding_attention" for kind in types)
    if architecture == "gemma3":
        pattern = max(facts.integer("sliding_window_pattern", GEMMA3_PATTERN), 1)
        return tuple((index + 1) % pattern != 0 for index in range(layers))
    if optional:
        first = facts.integer("max_window_layers")
        return tuple(index >= first for index in range(layers))
    return (architecture == "mistral",) * layers


def _ropes(facts: Facts, context: int, gemma: bool) -> tuple[RopeConfig, RopeConfig | None]:
    """Return the rotary settings of full layers and, where they differ, of sliding ones."""
    parameters = facts.get("rope_parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("full_attention"), dict):
        local = parameters.get("sliding_attention")
        return (
            _rope(parameters["full_attention"], facts, context),
            _rope(local, facts, context) if isinstance(local, dict) else None,
        )
    if not isinstance(parameters, dict):
        scaling = facts.get("rope_scaling")
        parameters = scaling if isinstance(scaling, dict) else {}
    local = RopeConfig(theta=facts.number("rope_local_base_freq", GEMMA3_LOCAL_THETA)) if gemma else None
    return _rope(parameters, facts, context), local


def _rope(parameters: dict[str, Any], facts: Facts, context: int) -> RopeConfig:
    given = Facts(parameters, f"{facts.where}: rotary settings")
    theta = given.number("rope_theta", facts.number("rope_theta", DEFAULT_THETA))
    kind = given.text("rope_type", given.text("type", "default"))
    if given.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise StartupError(f"{facts.where}: partial rotary embedding is not supported.")
    if kind == "default":
        return RopeConfig(theta=theta)
    kinds: dict[str, RopeKind] = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}
    if kind not in kinds:
        raise StartupError(f"{facts.where}: rotary scaling `{kind}` is not supported.", hint=f"supported: {', '.join(kinds)}")
    if given.get("mscale") is not None or given.get("mscale_all_dim") is not None:
        raise StartupError(f"{facts.where}: rotary scaling with `mscale` is not supported.")
    factor = given.number("factor")
    if not math.isfinite(factor) or factor < 1.0:
        raise StartupError(f"{facts.where}: rotary scaling has factor {factor}; it must be at least 1.")
    return RopeConfig(
        theta=theta,
        kind=kinds[kind],
        factor=factor,
        original_context=given.integer("original_max_position_embeddings", context),
        low_freq_factor=given.number("low_freq_factor", 1.0),
        high_freq_factor=given.number("high_freq_factor", 4.0),
        beta_fast=given.number("beta_fast", 32.0),
        beta_slow=given.number("beta_slow", 1.0),
        truncate=given.flag("truncate", True),
        attention_factor=given.number("attention_factor", yarn_attention_factor(factor)) if kind == "yarn" else 1.0,
    )


def _eos_token_ids(folder: Path, facts: Facts) -> frozenset[int]:
    found: set[int] = set()
    generation = folder / "generation_config.json"
    sources = [facts.get("eos_token_id")]
    if generation.is_file():
        sources.append(_read_json(generation).get("eos_token_id"))
    for value in sources:
        found.update(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int))
    return frozenset(found)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"cannot read `{path}`: {error}") from error
