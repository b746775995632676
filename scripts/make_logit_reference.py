"""Make tests/data/logits_embedded.npz: what transformers says about the embedded model, for the torch executor's tests.

Run by hand: `python scripts/make_logit_reference.py`. It needs the development dependencies. Nothing of our loader is used: the
file is read and dequantised by the `gguf` package and computed by transformers' Llama in float32. The dequantised weights are
compared with ours on the way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from millstream.checkpoint import quant
from millstream.checkpoint.gguf import GGUFFile
from millstream.checkpoint.locate import resolve_model
from millstream.text.tokenizer import load_tokenizer

OUTPUT = Path(__file__).parent.parent / "tests" / "data" / "logits_embedded.npz"
TOP = 10
PROMPTS = (
    "The capital of France is Paris, and the capital of Italy is",
    "<|im_start|>user\nWrite a haiku about a river in winter. Grüße, 世界! 🌍<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\n"
    "for i in range(10):\n    print(i, fibonacci(i))\n\n"
    "# The numbers that it prints are 0, 1, 1, 2, 3, 5, 8, 13, 21 and 34. Each number is the sum of",
)
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def main() -> None:
    """Compute and store the top log-probabilities at every position of every prompt."""
    source = resolve_model("embedded")
    model = _reference_model(GGUFReader(source.path), GGUFFile(source.path))
    tokenizer = load_tokenizer(source)
    arrays: dict[str, Any] = {}
    for index, prompt in enumerate(PROMPTS):
        ids = tokenizer.encode(prompt)
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
        values, tokens = logprobs.topk(TOP, dim=-1)
        arrays[f"ids_{index}"] = np.array(ids, dtype=np.int32)
        arrays[f"tokens_{index}"] = tokens.numpy().astype(np.int32)
        arrays[f"logprobs_{index}"] = values.numpy().astype(np.float32)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUTPUT, **arrays)
    print(f"wrote {OUTPUT} ({OUTPUT.stat().st_size} bytes)")


def _reference_model(reader: GGUFReader, ours: GGUFFile) -> LlamaForCausalLM:
    def fact(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=fact("vocab_size"),
        hidden_size=fact("embedding_length"),
        intermediate_size=fact("feed_forward_length"),
        num_hidden_layers=fact("block_count"),
        num_attention_heads=fact("attention.head_count"),
        num_key_value_heads=fact("attention.head_count_kv"),
        max_position_embeddings=fact("context_length"),
        rms_norm_eps=fact("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": fact("rope.freq_base")},
        tie_word_embeddings=True,
    )
    head_dim = config.hidden_size // config.num_attention_heads
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if not np.array_equal(values, quant.dequantize(ours.tensors[tensor.name])):
            raise SystemExit(f"our dequantiser disagrees on {tensor.name}")
        part = tensor.name.split(".")[-2]
        if part in ("attn_q", "attn_k"):  # rotary pairs stand beside each other in GGUF, in halves in transformers
            values = values.reshape(-1, head_dim // 2, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        prefix = f"model.layers.{tensor.name.split('.')[1]}." if tensor.name.startswith("blk.") else ""
        state[f"{prefix}{NAMES[part]}.weight"] = torch.from_numpy(values.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.float().eval()


if __name__ == "__main__":
    main()
