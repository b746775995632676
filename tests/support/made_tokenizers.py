"""Small tokenizers made on the spot, one of each kind we claim to decode exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from millstream.text.byte_table import BYTE_LEVEL_ALPHABET, SPACE_MARK
from millstream.text.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, read_gguf_tokenizer
from millstream.text.huggingface_tokenizer import special_ids, token_list
from millstream.text.tokenizer import Tokenizer, scripted_text
from millstream.text.tokenizer_data import TokenizerData

SPECIAL_TOKENS = ["[UNK]", "[CLS]", "[SEP]"]


def bytes_tokenizer(pieces: Sequence[bytes], *, special: Sequence[str] = ()) -> Tokenizer:
    """Byte-level: id i stands for `pieces[i]`; the ids after them are the control tokens `special`."""
    tokens = ["".join(BYTE_LEVEL_ALPHABET[byte] for byte in piece) for piece in pieces]
    return Tokenizer(
        read_gguf_tokenizer(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.tokens": [*tokens, *special],
                "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [CONTROL] * len(special),
                "tokenizer.ggml.merges": [],
            }
        )
    )


def sentencepiece_metadata(pieces: Sequence[str], *, special: Sequence[str] = ("<s>", "</s>"), **more: Any) -> dict[str, Any]:
    """GGUF metadata: `<unk>`, the control tokens, 256 byte tokens, then `pieces`, the best first."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", *special, *byte_tokens, *pieces]
    types = [UNKNOWN, *[CONTROL] * len(special), *[BYTE] * 256, *[NORMAL] * len(pieces)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * (len(tokens) - len(pieces)) + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def sentencepiece_pieces() -> list[str]:
    """Pieces with merges two and three levels deep, a character of two and one of three bytes, and the space mark."""
    words = [
        "he",
        "ll",
        "hell",
        "hello",
        f"{SPACE_MARK}hello",
        "wo",
        "wor",
        "ld",
        "world",
        f"{SPACE_MARK}world",
        f"{SPACE_MARK}a",
    ]
    return [*words, SPACE_MARK, f"{SPACE_MARK * 2}", *"abcdefghijklmnopqrstuvwxyz.,é€"]


def sentencepiece_tokenizer(pieces: Sequence[str] | None = None, **more: Any) -> Tokenizer:
    """SentencePiece BPE with byte fallback, as a GGUF file would give it."""
    return Tokenizer(read_gguf_tokenizer(sentencepiece_metadata(sentencepiece_pieces() if pieces is None else pieces, **more)))


def wordpiece_tokenizer() -> Tokenizer:
    """BERT's kind, trained on the scripted text: decoding puts spaces between words."""
    encoder = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    encoder.normalizer = normalizers.BertNormalizer(lowercase=False)
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    encoder.decoder = decoders.WordPiece()
    encoder.train_from_iterator(
        scripted_text().splitlines(),
        trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL_TOKENS, show_progress=False),
    )
    return wrap(encoder)


def unigram_tokenizer() -> Tokenizer:
    """T5's kind, trained on the scripted text: decoding drops the first token's dummy space."""
    encoder = tokenizers.Tokenizer(models.Unigram())
    encoder.pre_tokenizer = pre_tokenizers.Metaspace()
    encoder.decoder = decoders.Metaspace()
    encoder.train_from_iterator(
        scripted_text().splitlines(),
        trainers.UnigramTrainer(vocab_size=700, special_tokens=SPECIAL_TOKENS, unk_token="[UNK]", show_progress=False),
    )
    return wrap(encoder)


def wrap(encoder: tokenizers.Tokenizer, **facts: Any) -> Tokenizer:
    """A `Tokenizer` around a library tokenizer."""
    return Tokenizer(
        TokenizerData(
            encoder=encoder, tokens=token_list(encoder), special_ids=special_ids(encoder), eos_token_ids=frozenset(), **facts
        )
    )


def library_decode(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """What the `tokenizers` library itself makes of the ids."""
    return str(tokenizer._encoder.decode(token_ids, skip_special_tokens=skip_special_tokens))
