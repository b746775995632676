"""ModelConfig from GGUF metadata. Called by `load_model_config` only."""

from __future__ import annotations

from millstream.checkpoint.config import (
    MAX_LAYERS,
    Activation,
    Facts,
    ModelConfig,
    RopeConfig,
    refuse_architecture,
    yarn_attention_factor,
)
from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.quant import dequantize
from millstream.errors import StartupError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
DEFAULT_THETA = 10000.0
GEMMA3_LOCAL_THETA = 10000.0
GEMMA3_PATTERN = 6  # every sixth layer sees everything
GEMMA3_27B_LAYERS = 62  # the one size whose attention scale is not 1 / sqrt(head_dim); GGUF does not store it


def gguf_model_config(file: GGUFFile) -> ModelConfig:
    """Read the config of a GGUF file.

    Raises:
        StartupError: an architecture or a feature that is not supported, or a missing fact.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise refuse_architecture(architecture, f"`{file.path}`")
    facts = Facts(file.metadata, f"`{file.path}`", f"{architecture}.")
    if facts.integer("expert_count", 0) > 0:
        raise refuse_architecture(f"{architecture} with experts", f"`{file.path}`")
    gemma = architecture == "gemma3"
    hidden, heads = facts.integer("embedding_length"), facts.integer("attention.head_count")
    head_dim = facts.integer("attention.key_length", hidden // max(heads, 1))
    if facts.integer("attention.value_length", head_dim) != head_dim:
        raise StartupError(f"`{file.path}` has keys and values of different sizes, which is not supported.")
    if facts.integer("rope.dimension_count", head_dim) != head_dim:
        raise StartupError(f"`{file.path}` rotates only a part of each head, which is not supported.")
    layers = facts.integer("block_count", most=MAX_LAYERS)
    window = facts.integer("attention.sliding_window", 0) or None
    scale_dim = hidden // max(heads, 1) if gemma and layers == GEMMA3_27B_LAYERS else head_dim
    activation: Activation = "gelu_tanh" if gemma else "silu"
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(file),
        context_length=facts.integer("context_length"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=facts.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_size=facts.integer("feed_forward_length"),
        rms_eps=facts.number("attention.layer_norm_rms_epsilon"),
        activation=activation,
        rope=_rope(file, facts, head_dim),
        local_rope=RopeConfig(theta=facts.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)) if gemma and window else None,
        sliding_window=window,
        sliding_layers=_sliding_layers(layers, gemma) if window else (),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        ffn_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        attention_scale=max(scale_dim, 1) ** -0.5,
        logit_softcap=facts.number("final_logit_softcapping", 0.0) or None,
        eos_token_ids=_eos_token_ids(file),
    )


def _sliding_layers(layers: int, gemma: bool) -> tuple[bool, ...]:
    return tuple(not gemma or (index + 1) % GEMMA3_PATTERN != 0 for index in range(max(layers, 0)))


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise StartupError(f"`{file.path}` has no matrix `token_embd.weight`.")
    return embedding.shape[0]


def _rope(file: GGUFFile, facts: Facts, head_dim: int) -> RopeConfig:
    theta = facts.number("rope.freq_base", DEFAULT_THETA)
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        if divisors.shape != (head_dim // 2,):
            raise StartupError(f"`{file.path}`: `rope_freqs.weight` has shape {divisors.shape}, not ({head_dim // 2},).")
        return RopeConfig(theta=theta, divisors=tuple(dequantize(divisors).tolist()))
    kind = facts.text("rope.scaling.type", "none")
    factor = facts.number("rope.scaling.factor", facts.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        original = facts.integer("rope.scaling.original_context_length")
        return RopeConfig(
            theta=theta,
            kind="yarn",
            factor=factor,
            original_context=original,
            attention_factor=yarn_attention_factor(factor) * facts.number("rope.scaling.attn_factor", 1.0),
        )
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    if kind != "none":
        raise StartupError(f"`{file.path}` stretches positions by `{kind}`; none, linear and yarn are supported.")
    return RopeConfig(theta=theta)


def _eos_token_ids(file: GGUFFile) -> frozenset[int]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return frozenset(value for key in keys if isinstance(value := file.metadata.get(key), int))
