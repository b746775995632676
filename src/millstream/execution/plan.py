"""ExecutorPlan: what loading a model would take, from its headers and the options. For `millstream serve --dry-run`."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.checkpoint.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class ExecutorPlan:
    """What an executor would be and hold. Sizes are in bytes."""

    name: str
    what: str
    """What would compute, in a few words."""
    threads: int
    context_length: int
    """Tokens a request may have, before the pool's own size is looked at."""
    num_pages: int
    page_size: int
    kv_dtype: str
    kv_bytes_per_token: int
    weight_bytes: int
    on_gpu: bool = False
    """Weights and KV are in a GPU's memory."""
    why_not_native: str | None = None
    """Where `auto` would have had the native executor."""


def count_weights(model: ModelConfig) -> int:
    """The numbers in the matrices of a model, a tied embedding once."""
    heads = model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)  # queries and output, keys and values
    layer = model.hidden_size * (heads + 3 * model.ffn_size)
    return model.num_layers * layer + model.vocab_size * model.hidden_size * (1 if model.tie_embeddings else 2)
