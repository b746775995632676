"""llama.cpp's logits for given ids, as `benchmarks.accuracy.logits` writes ours. Needs only `llama-cpp-python` and numpy.

PYTHON benchmarks/accuracy/llama_cpp_logits.py MODEL.gguf IDS.json DIRECTORY [--chunk 256]
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path


def main() -> None:
    """Load, compute, write."""
    import llama_cpp
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("ids", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--chunk", type=int, default=256, help="positions a step; 1 is decode")
    options = parser.parse_args()
    texts: list[list[int]] = json.loads(options.ids.read_text())
    llama_cpp.llama_backend_init()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    model = llama_cpp.llama_model_load_from_file(options.file.encode(), llama_cpp.llama_model_default_params())
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = -(-max(map(len, texts)) // 256) * 256
    params.n_batch = params.n_ubatch = options.chunk
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(options.chunk, 0, 1)
    for number, ids in enumerate(texts):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        result = np.empty((len(ids), vocab_size), dtype=np.float32)
        for start in range(0, len(ids), options.chunk):
            batch.n_tokens = min(options.chunk, len(ids) - start)
            for at in range(batch.n_tokens):
                batch.token[at], batch.pos[at], batch.logits[at] = ids[start + at], start + at, True
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            if code := llama_cpp.llama_decode(context, batch):
                raise SystemExit(f"llama_decode failed: {code}")
            first = ctypes.addressof(llama_cpp.llama_get_logits(context).contents)
            count = batch.n_tokens * vocab_size
            memory = (ctypes.c_float * count).from_address(first)
            result[start : start + batch.n_tokens] = np.ctypeslib.as_array(memory).reshape(batch.n_tokens, vocab_size)
        np.save(options.directory / f"{number}.npy", result)


if __name__ == "__main__":
    main()
