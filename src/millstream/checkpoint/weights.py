"""open_checkpoint: a model's config and its weights under one set of names, whatever the format.

Called by executors at start-up. It hands out float32 arrays and knows nothing of devices or of how a decoder lays them out.

Names: `embedding`, `final_norm`, `head` and, for layer i, `i.attention_norm`, `i.q`, `i.k`, `i.v`, `i.o`, `i.q_norm`,
`i.k_norm`, `i.post_attention_norm`, `i.ffn_norm`, `i.gate`, `i.up`, `i.down`, `i.post_ffn_norm`; a bias is `i.q.bias` and
so on.

Rotary pairs: in everything this module hands out, the two numbers that rotate together stand beside each other in each head.
GGUF's llama architecture stores queries and keys that way; all else stores first halves, then second halves, and is reordered
here. Scores stay the same, because queries and keys are reordered alike.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.gguf_config import gguf_model_config
from millstream.checkpoint.hf_config import hf_model_config
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.quant import dequantize
from millstream.checkpoint.safetensors import open_safetensors
from millstream.errors import StartupError

Floats = NDArray[np.float32]

_GGUF_TOP = {"embedding": "token_embd", "final_norm": "output_norm", "head": "output"}
_GGUF_LAYER = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}
_HF_TOP = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_HF_LAYER = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_HF_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}


class _Store(Protocol):
    """One format: tensors under the names the file uses."""

    @abstractmethod
    def shape(self, stored: str) -> tuple[int, ...] | None: ...

    @abstractmethod
    def read(self, stored: str, out: Floats) -> None: ...


class Checkpoint:
    """An open model. Every read checks the stored shape against the one the config asks for."""

    def __init__(self, *, config: ModelConfig, source: ModelSource, store: _Store, paired: bool) -> None:
        self.config = config
        self._source = source
        self._store = store
        self._paired = paired  # queries and keys are stored with rotary pairs beside each other
        self._top = _GGUF_TOP if source.kind == "gguf" else _HF_TOP
        self._layer = _GGUF_LAYER if source.kind == "gguf" else _HF_LAYER | (_HF_POST_NORMS if config.post_norms else {})

    def read(self, name: str, out: Floats) -> None:
        """Write the tensor `name` into `out`, C-contiguous and of the expected shape.

        Raises:
            StartupError: the checkpoint lacks the tensor, or has it in another shape.
        """
        stored = self._stored_name(name)
        shape = self._store.shape(stored)
        if shape != out.shape:
            what = "has no such tensor" if shape is None else f"has it in shape {shape}"
            raise StartupError(f"the model needs `{stored}` of shape {out.shape}; `{self._source.path}` {what}.")
        self._store.read(stored, out)
        part = name.rpartition(".")[2] if not name.endswith(".bias") else name.split(".")[-2]
        if part.endswith("norm") and self.config.norm_offset:
            out += self.config.norm_offset
        if not self._paired and part in ("q", "k", "q_norm", "k_norm"):
            out[...] = pair_rotary(out, self.config.head_dim)

    def _stored_name(self, name: str) -> str:
        if name in self._top:
            return f"{self._top[name]}.weight"
        layer, _, rest = name.partition(".")
        part, _, suffix = rest.partition(".")
        prefix = "blk" if self._source.kind == "gguf" else "model.layers"
        return f"{prefix}.{layer}.{self._layer[part]}.{suffix or 'weight'}"


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Open the model's files and read its config; weights are read later, one by one.

    Raises:
        StartupError: the files are broken, or the model is not one we support.
    """
    if source.kind == "gguf":
        file = GGUFFile(source.path)
        config = gguf_model_config(file)
        return Checkpoint(config=config, source=source, store=_GGUFStore(file), paired=config.architecture == "llama")
    config = hf_model_config(source.path)
    return Checkpoint(config=config, source=source, store=_SafetensorsStore(source), paired=False)


def load_model_config(source: ModelSource) -> ModelConfig:
    """Read only the config of the model.

    Raises:
        StartupError: as `open_checkpoint`.
    """
    return gguf_model_config(GGUFFile(source.path)) if source.kind == "gguf" else hf_model_config(source.path)


def pair_rotary(weights: Floats, head_dim: int) -> Floats:
    """Reorder the first axis, heads of (first half, second half), so that the numbers of each rotary pair are neighbours."""
    halves = weights.reshape(-1, 2, head_dim // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)


class _GGUFStore:
    def __init__(self, file: GGUFFile) -> None:
        self._tensors = file.tensors

    def shape(self, stored: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(stored)
        return None if tensor is None else tensor.shape

    def read(self, stored: str, out: Floats) -> None:
        dequantize(self._tensors[stored], out)


class _SafetensorsStore:
    def __init__(self, source: ModelSource) -> None:
        self._tensors = open_safetensors(source.path)

    def shape(self, stored: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(stored)
        return None if tensor is None else tensor.shape

    def read(self, stored: str, out: Floats) -> None:
        self._tensors[stored].read(out)
