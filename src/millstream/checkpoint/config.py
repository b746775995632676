"""ModelConfig: the facts of a model that its decoder is driven by, whatever the checkpoint's format.

Made by `load_model_config`, read by every executor. Nothing behind it looks at an architecture's name again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from millstream.errors import StartupError

Activation = Literal["silu", "gelu_tanh", "gelu"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]

SUPPORTED = "Llama (SmolLM2 too), Qwen2, Qwen3, Mistral and Gemma 3 text"
MAX_LAYERS = 1024
MAX_INTEGER = 1 << 62
MAX_SIZE = 1 << 24  # hidden, feed-forward, vocabulary: a larger number is a broken file


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: the base and how its frequencies are stretched. `execution.rope` turns it into numbers."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0  # tokens the model was first trained on; llama3 and yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: whole dimensions as borders
    attention_factor: float = 1.0  # multiplies cosine and sine; yarn
    divisors: tuple[float, ...] = ()  # one a frequency, as GGUF stores llama3's stretching


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: RMS norms, rotary attention with grouped heads, gated feed-forward."""

    architecture: str
    vocab_size: int
    context_length: int  # tokens
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rms_eps: float
    activation: Activation = "silu"
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # for sliding layers, where they rotate differently
    sliding_window: int | None = None  # tokens a sliding layer sees, its own included
    sliding_layers: tuple[bool, ...] = ()  # one a layer; empty: none
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # Gemma: also a norm after attention and after feed-forward
    norm_offset: float = 0.0  # added to stored norm weights: 1 where a checkpoint stores Gemma's w of (1 + w)
    embedding_scale: float = 1.0
    attention_scale: float  # multiplies q k
    logit_softcap: float | None = None
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size"):
            if not 0 < getattr(self, name) <= MAX_SIZE:
                raise StartupError(f"the model's config gives {name} as {getattr(self, name)}.")
        if not 0 < self.num_layers <= MAX_LAYERS:
            raise StartupError(f"the model's config gives num_layers as {self.num_layers}.")
        if self.num_heads % self.num_kv_heads:
            raise StartupError(f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads.")
        if self.head_dim % 2:
            raise StartupError(f"the head size is {self.head_dim}; rotary embedding needs an even one.")
        if self.sliding_layers and len(self.sliding_layers) != self.num_layers:
            raise StartupError(f"the model's config names {len(self.sliding_layers)} layer types for {self.num_layers} layers.")
        if any(self.sliding_layers) and not (self.sliding_window and self.sliding_window > 0):
            raise StartupError(f"the model has sliding layers, but its sliding_window is {self.sliding_window}.")

    def window(self, layer: int) -> int | None:
        """Return how many tokens the layer sees (its own included), or None for all."""
        return self.sliding_window if self.sliding_layers and self.sliding_layers[layer] else None


class Facts:
    """Typed look-ups in untrusted metadata. `where` and the key are named in every error."""

    def __init__(self, values: dict[str, object], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def get(self, key: str) -> object:
        """Return the raw value, or None where it is absent or null."""
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None, *, most: int = MAX_INTEGER) -> int:
        """Return a whole number.

        Raises:
            StartupError: it is absent without a default, larger than `most`, or something else.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise StartupError(f"{self.where}: `{self.prefix}{key}` is {_shown(value)}; a whole number is needed.")
        if value > most:
            raise StartupError(f"{self.where}: `{self.prefix}{key}` is {value}; at most {most} is possible.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number.

        Raises:
            StartupError: it is absent without a default, or something else.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise StartupError(f"{self.where}: `{self.prefix}{key}` is {_shown(value)}; a number is needed.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Raises:
            StartupError: it is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise StartupError(f"{self.where}: `{self.prefix}{key}` is {_shown(value)}; true or false is needed.")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a string.

        Raises:
            StartupError: it is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise StartupError(f"{self.where}: `{self.prefix}{key}` is {_shown(value)}; a string is needed.")
        return value


def refuse_architecture(name: object, where: str) -> StartupError:
    """Make the error for an architecture outside `SUPPORTED`."""
    return StartupError(
        f"{where} holds a model of architecture {_shown(name)}, which is not supported.", hint=f"supported: {SUPPORTED}"
    )


def yarn_attention_factor(factor: float) -> float:
    """Return YaRN's factor for cosine and sine (Peng et al. 2023, equation 22: 0.1 ln(s) + 1)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _shown(value: object) -> str:
    return "missing" if value is None else f"`{str(value)[:80]}`"
