"""Small models with random weights, made and saved by transformers."""

from __future__ import annotations

import math
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # noqa: TID251  read when transformers is imported: no test may reach the network

import torch
import transformers
from safetensors.torch import load_file, save_file

POISON = 5  # the id whose embedding is infinite in a poisoned model
SIZES = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


def families(sizes: dict[str, int]) -> dict[str, transformers.PreTrainedConfig]:
    """A config of each supported family, with these sizes."""
    return {
        "llama-tied": transformers.LlamaConfig(**sizes, tie_word_embeddings=True),
        "llama-untied-llama3-rope": transformers.LlamaConfig(**sizes, tie_word_embeddings=False, rope_parameters=LLAMA3),
        "llama-biases-linear-rope": transformers.LlamaConfig(
            **sizes, attention_bias=True, mlp_bias=True, rope_parameters=LINEAR
        ),
        "llama-yarn-rope": transformers.LlamaConfig(**sizes, rope_parameters=YARN),
        "qwen2": transformers.Qwen2Config(**sizes),
        "qwen2-sliding": transformers.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=9, max_window_layers=2),
        "qwen3": transformers.Qwen3Config(**{"head_dim": 16, **sizes}, tie_word_embeddings=True),
        "mistral": transformers.MistralConfig(**sizes, sliding_window=13),
        "gemma3": transformers.Gemma3TextConfig(
            **{"head_dim": 16, **sizes},
            sliding_window=11,
            query_pre_attn_scalar=24,
            layer_types=GEMMA_LAYERS,
            rope_parameters=GEMMA_ROPES,
        ),
    }


FAMILIES = families(SIZES)

# as GGUF can say it: every sixth layer sees everything, and the scale follows the head size
GGUF_FAMILIES = {
    "gemma3-gguf": transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 7},
        head_dim=16,
        sliding_window=11,
        query_pre_attn_scalar=16,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}


def make_model(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Make the model, save it into `folder` as `dtype`, and return it in float32."""
    return model_of((FAMILIES | GGUF_FAMILIES)[family], folder, dtype)


def make_poisoned_model(folder: Path) -> Path:
    """Make a model in `folder` that computes infinities of the id POISON; returns the folder."""
    make_model("mistral", folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][POISON] = math.inf
    save_file(weights, path, {"format": "pt"})
    return folder


def model_of(
    config: transformers.PreTrainedConfig, folder: Path, dtype: torch.dtype = torch.float32, *, std: float = 0.2
) -> transformers.PreTrainedModel:
    """Make a model with this config, save it into `folder` as `dtype`, and return it in float32."""
    torch.manual_seed(7)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.normal_(std=std)
        for parameter in model.parameters():  # not `model.to`: that would round the rotary frequencies as well
            parameter.data = parameter.to(dtype)
    model.save_pretrained(folder)
    return model.float()
