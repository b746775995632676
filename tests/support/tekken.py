"""A `tekken.json` (Mistral's own format: byte strings by rank) as a tokenizer, by way of what a GGUF file of the model says."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from millstream.text.byte_table import BYTE_LEVEL_ALPHABET
from millstream.text.gguf_tokenizer import CONTROL, NORMAL, read_gguf_tokenizer
from millstream.text.tokenizer import Tokenizer

END_TOKENS = ["<unk>", "<s>", "</s>"]


def tekken_pieces(path: Path) -> tuple[list[str], list[bytes]]:
    """The control tokens, which have the first ids, and the bytes of the ids after them."""
    content = msgspec.json.decode(path.read_bytes())
    num_special = content["config"]["default_num_special_tokens"]
    num_pieces = content["config"]["default_vocab_size"] - num_special
    special = [*END_TOKENS, *(f"<SPECIAL_{number}>" for number in range(len(END_TOKENS), num_special))]
    return special, [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][:num_pieces]]


def tekken_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, built as it would be of a GGUF file."""
    special, pieces = tekken_pieces(path)
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    merges = [" ".join(map(_written, _halves(piece, ranks))) for piece in pieces if len(piece) > 1]
    return Tokenizer(
        read_gguf_tokenizer(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "tekken",
                "tokenizer.ggml.tokens": [*special, *map(_written, pieces)],
                "tokenizer.ggml.token_type": [CONTROL] * len(special) + [NORMAL] * len(pieces),
                "tokenizer.ggml.merges": merges,
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
            }
        )
    )


def _halves(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two parts that the last merge joins: what the pieces of lower rank make of it."""
    parts = [piece[at : at + 1] for at in range(len(piece))]
    while len(parts) > 2:
        joined = (ranks.get(parts[at] + parts[at + 1], len(ranks)) for at in range(len(parts) - 1))
        at = min(enumerate(joined), key=lambda each: each[1])[0]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _written(piece: bytes) -> str:
    return "".join([BYTE_LEVEL_ALPHABET[byte] for byte in piece])
