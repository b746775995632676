"""Decoder: the one transformer, driven by `ModelConfig`. Called by the runner; knows positions and pages, never requests.

Differences between model families (biases, query and key norms, extra norms, windows, scales) are weights or numbers that are
present or absent, not classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from millstream.checkpoint.config import Activation, ModelConfig, RopeConfig
from millstream.execution.rope import rotary_frequencies
from millstream.execution.torch.attention import AttentionPlan
from millstream.execution.torch.kv_store import KVStore
from millstream.execution.torch.loader import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step's tokens, all rows behind one another, and how they attend: a plan for each window the layers have."""

    token_ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    slots: Tensor  # [tokens], where each token's KV goes
    plans: Mapping[int | None, AttentionPlan]
    embedded: tuple[Tensor, Tensor] | None = None  # places among the tokens, and what enters the first layer there: [n, hidden]


class Decoder:
    """Weights and config together. Stateless between calls but for the KV store it is given."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self._weights = weights
        self._rotary = _Rotary(config.rope, config.head_dim, weights.embedding.device)
        self._local_rotary = (
            self._rotary if config.local_rope is None else _Rotary(config.local_rope, config.head_dim, weights.embedding.device)
        )
        self.windows = frozenset(config.window(layer) for layer in range(config.num_layers))

    def hidden(self, step: StepInput, store: KVStore) -> Tensor:
        """Run all layers; return the normed last hidden state `[tokens, hidden]`. Writes the KV of every token."""
        config, weights = self.config, self._weights
        states = F.embedding(step.token_ids, weights.embedding)
        if config.embedding_scale != 1.0:
            states = states * config.embedding_scale
        if step.embedded is not None:
            places, embeddings = step.embedded
            states = states.index_copy(0, places, embeddings.to(states.dtype))
        rotation = self._rotary.rotation(step.positions)
        local = rotation if config.local_rope is None else self._local_rotary.rotation(step.positions)
        for index, layer in enumerate(weights.layers):
            window = config.window(index)
            attended = self._attention(
                index, layer, self._norm(states, layer.attention_norm), local if window is not None else rotation, step, store
            )
            states = self._add(states, attended, layer.post_attention_norm)
            fed = self._feed_forward(layer, self._norm(states, layer.ffn_norm))
            states = self._add(states, fed, layer.post_ffn_norm)
        return self._norm(states, weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits `[rows, vocab]` of the rows of `hidden`."""
        logits = self._weights.head(hidden).float()
        cap = self.config.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self, index: int, layer: LayerWeights, states: Tensor, rotation: Tensor, step: StepInput, store: KVStore
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        projected = layer.qkv(states).view(-1, heads + 2 * kv_heads, config.head_dim)
        rotated = projected[:, : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            rotated[:, :heads] = self._norm(rotated[:, :heads], layer.q_norm)
            rotated[:, heads:] = self._norm(rotated[:, heads:], layer.k_norm)
        rotate_(rotated, rotation)
        store.write(index, step.slots, projected[:, heads:].view(-1, 2, kv_heads, config.head_dim))
        attended = step.plans[config.window(index)].attend(projected[:, :heads], store, index, config.attention_scale)
        return layer.o(attended.flatten(1))

    def _feed_forward(self, layer: LayerWeights, states: Tensor) -> Tensor:
        gate, up = layer.gate_up(states).chunk(2, dim=-1)
        return layer.down(_activate(gate, self.config.activation).mul_(up))

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(states, weight.shape, weight, self.config.rms_eps)

    def _add(self, states: Tensor, update: Tensor, norm: Tensor | None) -> Tensor:
        return states + (update if norm is None else self._norm(update, norm))


class _Rotary:
    """Rotations of a position as complex numbers: each pair of neighbours in a head is one, turned by one product."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = torch.from_numpy(rotary_frequencies(rope, head_dim)).to(device)
        self._length = rope.attention_factor

    def rotation(self, positions: Tensor) -> Tensor:
        """Return `[tokens, 1, head_dim / 2]` complex numbers."""
        # in float64: an angle of 100,000 radians keeps its fraction
        angles = torch.outer(positions.double(), self._frequencies).remainder_(2 * math.pi).float()
        return torch.polar(torch.full_like(angles, self._length), angles).unsqueeze(1)


def rotate_(heads: Tensor, rotation: Tensor) -> None:
    """Turn `[tokens, heads, head_dim]` in place, pairs of neighbours by `rotation`."""
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
    if heads.dtype == torch.float32:
        pairs.mul_(rotation)  # a view of `heads`
    else:
        heads.copy_(torch.view_as_real(pairs * rotation).flatten(-2))


def _activate(gate: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(gate)
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")
