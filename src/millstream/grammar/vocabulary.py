"""Vocabulary: the bytes of every token id, in the form in which grammars are compiled against it. Made once a process."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer, TokenizerWrapper
from msgspec import Struct

from millstream.text.tokenizer import Tokenizer


class Vocabulary(Struct, frozen=True):
    """What a grammar needs to know of a tokenizer. An id without bytes is never allowed, and no control token but an end."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]

    @property
    def num_words(self) -> int:
        """32-bit words in a mask."""
        return -(-len(self.tokens) // 32)

    def specials(self) -> dict[str, int]:
        """The ids of special tokens by their text."""
        return {self.tokens[token_id].decode(errors="replace"): token_id for token_id in reversed(self.special_ids)}

    def compiled(self) -> LLTokenizer:
        """The library's own form: a tree of all tokens, about 16 MB for 49,152."""
        return LLTokenizer(TokenizerWrapper(_Splitter(self)), n_vocab=len(self.tokens), eos_token=self.eos_ids)


def vocabulary_of(tokenizer: Tokenizer, eos_ids: Iterable[int]) -> Vocabulary:
    """The vocabulary of a tokenizer with a byte table."""
    size = tokenizer.vocab_size
    return Vocabulary(
        tokens=[tokenizer.single.of(token_id) for token_id in range(size)],
        special_ids=[token_id for token_id in range(size) if tokenizer.single.is_control(token_id)],
        eos_ids=sorted(token_id for token_id in eos_ids if token_id < size),
    )


class _Splitter:
    """What the library asks when a grammar leaves one text only: how to write it in tokens. The longest token first.

    This does not follow the merges of the tokenizer: it needs no tokenizer, so that the process that proves a grammar and the
    one that runs it see the same.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        special = frozenset(vocabulary.special_ids)
        self._ids: dict[bytes, int] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in special:
                self._ids.setdefault(token, token_id)
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        made: list[int] = []
        start = 0
        while start < len(text):
            for end in range(min(start + self._longest, len(text)), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    made.append(token_id)
                    start = end
                    break
            else:
                break  # no token begins like this: the library goes on from here by itself
        return made
