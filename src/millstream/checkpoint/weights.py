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
from dataclasses import dataclass
from typing import Protocol, TypeVar

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
Number = TypeVar("Number", bound=np.generic)

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


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in the blocks the file has it in: `data`, row after row. Row i of the model's is stored row `row_order[i]`."""

    type: str  # a name of `BLOCK_TYPES`
    data: NDArray[np.uint8]
    row_order: NDArray[np.int32] | None  # None: as stored


class _Store(Protocol):
    """One format: tensors under the names the file uses."""

    @abstractmethod
    def shape(self, stored: str) -> tuple[int, ...] | None: ...

    @abstractmethod
    def blocks(self, stored: str) -> tuple[str, NDArray[np.uint8]] | None:
        """The tensor's block type and bytes, where the format has such a thing."""
        ...

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
        stored = self._check(name, out.shape)
        self._store.read(stored, out)
        if _part(name).endswith("norm") and self.config.norm_offset:
            out += self.config.norm_offset
        if self._is_reordered(name):
            out[...] = pair_rotary(out, self.config.head_dim)

    def stored_matrix(self, name: str, rows: int, inputs: int) -> StoredMatrix | None:
        """Return the matrix as the file has it, or None where the format does not store blocks.

        Raises:
            StartupError: the checkpoint lacks the tensor, or has it in another shape.
        """
        blocks = self._store.blocks(self._check(name, (rows, inputs)))
        if blocks is None:
            return None
        order = None
        if self._is_reordered(name):
            order = pair_rotary(np.arange(rows, dtype=np.int32), self.config.head_dim)
        return StoredMatrix(*blocks, order)

    def _check(self, name: str, wanted: tuple[int, ...]) -> str:
        """Return the name the file uses for `name`."""
        stored = self._stored_name(name)
        shape = self._store.shape(stored)
        if shape != wanted:
            what = "has no such tensor" if shape is None else f"has it in shape {shape}"
            raise StartupError(f"the model needs `{stored}` of shape {wanted}; `{self._source.path}` {what}.")
        return stored

    def _is_reordered(self, name: str) -> bool:
        return not self._paired and _part(name) in ("q", "k", "q_norm", "k_norm")

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


def _part(name: str) -> str:
    """What a weight is, whichever layer's: `i.q.bias` belongs to `q`."""
    return name.removesuffix(".bias").rpartition(".")[2]


def pair_rotary(weights: NDArray[Number], head_dim: int) -> NDArray[Number]:
    """Reorder the first axis, heads of (first half, second half), so that the numbers of each rotary pair are neighbours."""
    halves = weights.reshape(-1, 2, head_dim // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weights.shape)


class _GGUFStore:
    def __init__(self, file: GGUFFile) -> None:
        self._tensors = file.tensors

    def shape(self, stored: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(stored)
        return None if tensor is None else tensor.shape

    def blocks(self, stored: str) -> tuple[str, NDArray[np.uint8]]:
        tensor = self._tensors[stored]
        return tensor.type, tensor.data

    def read(self, stored: str, out: Floats) -> None:
        dequantize(self._tensors[stored], out)


class _SafetensorsStore:
    def __init__(self, source: ModelSource) -> None:
        self._tensors = open_safetensors(source.path)

    def shape(self, stored: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(stored)
        return None if tensor is None else tensor.shape

    def blocks(self, stored: str) -> None:
        return None

    def read(self, stored: str, out: Floats) -> None:
        self._tensors[stored].read(out)
