"""load_weights: from a checkpoint to the tensors that the decoder multiplies with.

Called once by the runner. Queries, keys and values become one matrix, gate and up another: fewer and larger products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.weights import Checkpoint, Floats
from millstream.execution.torch.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Biases are part of their matrices; None where the model has no such weight."""

    attention_norm: Tensor
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    post_attention_norm: Tensor | None
    ffn_norm: Tensor
    gate_up: Linear  # hidden -> 2 * ffn
    down: Linear
    post_ffn_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a model."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear  # hidden -> vocab


def load_weights(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Read every weight to `device` as `dtype`. On CPU a tied embedding is held twice: to look up and to multiply.

    Raises:
        StartupError: the checkpoint lacks a weight, or has one in another shape.
    """
    config = checkpoint.config
    load = _Loader(checkpoint, device, dtype)
    embedding = load.one("embedding", config.vocab_size, config.hidden_size)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_layer(load, config, f"{index}.") for index in range(config.num_layers)),
        final_norm=load.one("final_norm", config.hidden_size),
        head=Linear(embedding) if config.tie_embeddings else load.linear({"head": config.vocab_size}, config.hidden_size),
    )


def _layer(load: _Loader, config: ModelConfig, at: str) -> LayerWeights:
    hidden, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    qkv = {at + "q": q_size, at + "k": kv_size, at + "v": kv_size}
    gate_up = {at + "gate": ffn, at + "up": ffn}
    return LayerWeights(
        attention_norm=load.one(at + "attention_norm", hidden),
        qkv=load.linear(qkv, hidden, bias=config.qkv_bias),
        q_norm=load.one(at + "q_norm", head_dim) if config.qk_norm else None,
        k_norm=load.one(at + "k_norm", head_dim) if config.qk_norm else None,
        o=load.linear({at + "o": hidden}, q_size, bias=config.output_bias),
        post_attention_norm=load.one(at + "post_attention_norm", hidden) if config.post_norms else None,
        ffn_norm=load.one(at + "ffn_norm", hidden),
        gate_up=load.linear(gate_up, hidden, bias=config.ffn_bias),
        down=load.linear({at + "down": hidden}, ffn, bias=config.ffn_bias),
        post_ffn_norm=load.one(at + "post_ffn_norm", hidden) if config.post_norms else None,
    )


class _Loader:
    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype

    def one(self, name: str, *shape: int) -> Tensor:
        return self._merged({name: shape[0]}, *shape[1:])

    def linear(self, parts: dict[str, int], inputs: int, *, bias: bool = False) -> Linear:
        """Read matrices below one another as one: `parts` gives each one's rows."""
        biases = self._merged({f"{name}.bias": rows for name, rows in parts.items()}) if bias else None
        return Linear(self._merged(parts, inputs), biases)

    def _merged(self, parts: dict[str, int], *rest: int) -> Tensor:
        # numpy's memory asks the kernel for huge pages, torch's does not
        array: Floats = np.empty((sum(parts.values()), *rest), dtype=np.float32)
        begin = 0
        for name, rows in parts.items():
            self._checkpoint.read(name, array[begin : begin + rows])
            begin += rows
        return torch.from_numpy(array).to(self._device, self._dtype)
