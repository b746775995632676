"""The same small models written as GGUF, the way its converters lay weights out, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from millstream.checkpoint.locate import resolve_model
from tests.unit.checkpoint.gguf_files import write_gguf
from tests.unit.execution.torch.families import SIZES, make_model
from tests.unit.execution.torch.steps import cuts, load, logits_of, shuffled_pages

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def as_gguf(model: transformers.PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    tensors = {}
    names = NAMES | (GEMMA_NAMES if architecture == "gemma3" else {})
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        values = parameter.detach().numpy()
        if architecture == "gemma3" and stem.endswith("norm"):
            values = values + 1
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")):
            head_dim = SIZES["hidden_size"] // SIZES["num_attention_heads"]
            values = values.reshape(-1, 2, head_dim // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if stem.startswith("model.layers."):
            _, _, layer, rest = stem.split(".", 3)
            tensors[f"blk.{layer}.{names[rest]}.{suffix}"] = values
        else:
            tensors[f"{names[stem]}.{suffix}"] = values
    return tensors


def metadata(config: Any, rope_theta: float) -> dict[str, Any]:
    return {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        ".attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        ".attention.value_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        ".rope.freq_base": rope_theta,
    }


@pytest.mark.parametrize("family", ["llama-untied-llama3-rope", "llama-biases-linear-rope", "qwen2", "qwen3", "gemma3-gguf"])
def test_logits_of_a_gguf_file_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = make_model(family, tmp_path / "hf")
    architecture = family.split("-")[0]
    tensors = as_gguf(model, architecture)
    parameters = model.config.rope_parameters
    facts = metadata(model.config, parameters.get("full_attention", parameters)["rope_theta"])
    if "linear" in family:
        facts |= {".rope.scaling.type": "linear", ".rope.scaling.factor": parameters["factor"]}
    if "llama3" in family:  # converters write each frequency's divisor
        half = SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2
        plain = parameters["rope_theta"] ** -(torch.arange(half).double() / half)
        tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq.double()).numpy()
    if architecture == "gemma3":
        facts |= {".attention.sliding_window": model.config.sliding_window}
    path = write_gguf(tmp_path / "model.gguf", architecture, facts, tensors)
    ids = list(range(20, 70))
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    executor = load(resolve_model(str(path)), page_size=4)
    (pages,) = shuffled_pages(executor, len(ids))
    torch.testing.assert_close(logits_of(executor, ids, pages, cuts(len(ids), 11)), expected, rtol=1e-4, atol=1e-4)
