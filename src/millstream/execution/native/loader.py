"""load_native_model: from a checkpoint to a model that the kernels run. Called once by `load_native_executor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.config import ModelConfig, RopeConfig
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.weights import Checkpoint
from millstream.errors import StartupError
from millstream.execution.native.availability import native_module
from millstream.execution.native.packed_cache import Bytes, PackedCache, packed_in_memory
from millstream.execution.native.packing import BLOCK_ROWS, pack_matrices, plan_matrices, total_bytes
from millstream.execution.rope import rotary_frequencies

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}  # as in kernels/kernels.h
KV_TYPES = {"fp16": 0, "fp32": 1, "int8": 2}  # as in kernels/layout.h

Floats = NDArray[np.float32]


def load_native_model(
    checkpoint: Checkpoint,
    source: ModelSource,
    *,
    cache_dir: Path | None,
    kv_type: str,
    num_pages: int,
    page_size: int,
    threads: int,
    isa: str = "",
) -> Any:
    """Pack or map the weights and make a `_native.Model` with room for `num_pages` of KV.

    Args:
        cache_dir: where packed weights are kept; None: nowhere.
        kv_type: a name of `KV_TYPES`.
        isa: the kernels to use; the best of the machine's where empty.

    Raises:
        StartupError: the checkpoint lacks a weight, or has one in another shape, or one that is not finite.
    """
    plans = plan_matrices(checkpoint)
    size = total_bytes(plans)

    def pack(out: Bytes) -> None:
        pack_matrices(checkpoint, plans, out, threads)

    if cache_dir is not None and source.kind == "gguf":
        packed = PackedCache(cache_dir).load(source.path, size, pack)
    else:  # a directory of safetensors is many files; only a single one has a name by its content
        packed = packed_in_memory(size, pack)
    matrices = {
        plan.name: (plan.format, plan.rows, plan.inputs, packed[plan.offset : plan.offset + plan.size]) for plan in plans
    }
    return native_module().Model(
        config=_numbers(checkpoint.config),
        matrices=matrices,
        vectors=_vectors(checkpoint),
        tied=checkpoint.config.tie_embeddings,
        kv_type=KV_TYPES[kv_type],
        num_pages=num_pages,
        page_size=page_size,
        threads=threads,
        isa=isa,
    )


def kv_bytes_per_token(config: ModelConfig, kv_type: str) -> int:
    """Return the KV bytes a token takes in all layers."""
    per_head = {"fp16": 2 * config.head_dim, "fp32": 4 * config.head_dim, "int8": config.head_dim + 4}[kv_type]
    return config.num_layers * 2 * config.num_kv_heads * per_head


def _numbers(config: ModelConfig) -> dict[str, object]:
    local = config.local_rope
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "ffn_size": config.ffn_size,
        "rms_eps": config.rms_eps,
        "activation": ACTIVATIONS[config.activation],
        "attention_scale": config.attention_scale,
        "attention_softcap": 0.0,
        "embedding_scale": config.embedding_scale,
        "logit_softcap": config.logit_softcap or 0.0,
        "windows": [config.window(layer) or 0 for layer in range(config.num_layers)],
        "frequencies": _frequencies(config.rope, config.head_dim),
        "rotary_factor": config.rope.attention_factor,
        "local_frequencies": [] if local is None else _frequencies(local, config.head_dim),
        "local_rotary_factor": 1.0 if local is None else local.attention_factor,
    }


def _frequencies(rope: RopeConfig, head_dim: int) -> list[float]:
    return [float(angle) for angle in rotary_frequencies(rope, head_dim)]


def _vectors(checkpoint: Checkpoint) -> dict[str, Floats]:
    """Norm weights and biases, by name; those the model does not have are absent."""
    config = checkpoint.config
    hidden, head_dim = config.hidden_size, config.head_dim
    sizes: dict[str, int] = {"final_norm": hidden}
    for layer in range(config.num_layers):
        sizes[f"{layer}.attention_norm"] = sizes[f"{layer}.ffn_norm"] = hidden
        if config.qk_norm:
            sizes[f"{layer}.q_norm"] = sizes[f"{layer}.k_norm"] = head_dim
        if config.post_norms:
            sizes[f"{layer}.post_attention_norm"] = sizes[f"{layer}.post_ffn_norm"] = hidden
        if config.qkv_bias:
            sizes[f"{layer}.q.bias"] = config.num_heads * head_dim
            sizes[f"{layer}.k.bias"] = sizes[f"{layer}.v.bias"] = config.num_kv_heads * head_dim
        if config.output_bias:
            sizes[f"{layer}.o.bias"] = hidden
        if config.ffn_bias:
            sizes[f"{layer}.gate.bias"] = sizes[f"{layer}.up.bias"] = config.ffn_size
            sizes[f"{layer}.down.bias"] = hidden
    return {name: _read(checkpoint, name, size) for name, size in sizes.items()}


def _read(checkpoint: Checkpoint, name: str, size: int) -> Floats:
    """Read a vector; a bias is followed by zeros up to a whole block of rows, like its matrix."""
    padded = -(-size // BLOCK_ROWS) * BLOCK_ROWS if name.endswith(".bias") else size
    values = np.zeros(padded, dtype=np.float32)
    checkpoint.read(name, values[:size])
    if not np.isfinite(values).all():
        raise StartupError(f"`{name}` of the model has numbers that are not finite.")
    return values
