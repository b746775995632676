"""TokenizerData: what a model's files say about its tokenizer, before any rule of ours is applied.

Made by the two readers (`gguf_tokenizer`, `huggingface_tokenizer`), consumed by `Tokenizer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True, kw_only=True)
class TokenizerData:
    """`tokens[i]` is the vocabulary's own writing of id i, None where the id is unassigned."""

    encoder: tokenizers.Tokenizer
    tokens: list[str | None]
    special_ids: frozenset[int]  # control tokens: hidden unless a request asks for them
    eos_token_ids: frozenset[int]  # from metadata, config and generation config
    special_tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token, ...: variables of the template
    chat_templates: dict[str, str] = field(default_factory=dict)  # by name; the one for any conversation is `default`
