"""The floor: what a step cannot be faster than, from what it must read and multiply and from the machine's ceilings.

    floor = max(weight bytes / bandwidth, operations / rate) + KV bytes / bandwidth

Reading weights and multiplying can overlap; KV is read by attention, between the products. Attention's own arithmetic and
everything small is left out, so the floor is a little lower than any program could reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.checkpoint.config import ModelConfig
from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.locate import ModelSource
from millstream.checkpoint.safetensors import open_safetensors
from millstream.checkpoint.weights import load_model_config


@dataclass(frozen=True)
class Work:
    """What a model asks of a step, with an engine's widths."""

    weight_bytes: int  # read once a step
    body_weights: int  # multiplied for every position
    head_weights: int  # multiplied for every position that is sampled
    kv_bytes: int  # a token of context, all layers
    is_int8: bool  # which rate of multiplication counts


def matrix_weights(model: ModelConfig) -> tuple[int, int]:
    """How many weights multiply every position, and how many only those that are sampled."""
    attention = model.hidden_size * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
    return model.num_layers * (attention + 3 * model.hidden_size * model.ffn_size), model.vocab_size * model.hidden_size


def kv_values(model: ModelConfig) -> int:
    """Numbers in the KV of a token, all layers."""
    return model.num_layers * 2 * model.num_kv_heads * model.head_dim


def work_of(source: ModelSource, executor: str) -> Work:
    """The model in `source` as `executor` computes it: float32 throughout, or the file's own bytes and KV in fp16."""
    model = load_model_config(source)
    body, head = matrix_weights(model)
    is_fp32 = executor == "torch"
    weight_bytes = 4 * (body + head) if is_fp32 else _stored_bytes(source, model)
    return Work(weight_bytes, body, head, kv_values(model) * (4 if is_fp32 else 2), not is_fp32)


def floor_ms(work: Work, ceilings: dict[str, float], *, tokens: int, sampled: int, context: int) -> float:
    """Milliseconds of a step of `tokens` positions, `sampled` of them drawn, that reads the KV of `context` tokens in all."""
    bandwidth = ceilings["read_gb_s"] * 1e9
    rate = (ceilings["int8_gops"] if work.is_int8 else ceilings["fp32_gflops"]) * 1e9
    operations = 2 * (work.body_weights * tokens + work.head_weights * sampled)
    seconds = max(work.weight_bytes / bandwidth, operations / rate) + context * work.kv_bytes / bandwidth
    return seconds * 1000


def _stored_bytes(source: ModelSource, model: ModelConfig) -> int:
    """Bytes of the matrices a step multiplies with: the file's, without an embedding that is only looked up in."""
    if source.kind == "gguf":
        sizes = {name: tensor.data.nbytes for name, tensor in GGUFFile(source.path).tensors.items() if len(tensor.shape) == 2}
        return sum(sizes.values()) - (0 if model.tie_embeddings else sizes["token_embd.weight"])
    weights = [tensor.shape for name, tensor in open_safetensors(source.path).items() if len(tensor.shape) == 2]
    count = sum(rows * columns for rows, columns in weights)
    # quantised at load: 8 bits a weight, and a scale of 16 bits for each 32 of them
    return (count - (0 if model.tie_embeddings else model.vocab_size * model.hidden_size)) * 34 // 32
