"""TokenBytes and TokenReader: what a token stands for by itself, in bytes and as text, and where it stands in its text.

Made by `Tokenizer`, read by those who list tokens one by one. Decoders join tokens; nothing here does.

In vocabularies with a byte table (byte-level, SentencePiece with byte fallback) a token's bytes are those that it adds to the
text, so the bytes of a text's tokens, joined, are the text's. In all others (WordPiece, Unigram without byte fallback) the text
of a token depends on its neighbours; there its bytes are the UTF-8 of what the vocabulary writes, the mark of a space as a
space and without the mark of a word's continuation.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from millstream.text.byte_table import SPACE_MARK, ByteTable, byte_of
from millstream.text.incremental import IncrementalDecoder


class Place(NamedTuple):
    """Where a token stands."""

    offset: int  # characters of the text before the one in which the token begins
    at_start: bool = False  # a space at the token's front would be the encoder's dummy prefix, and no part of the text


class TokenReader(Protocol):
    """Reads the tokens of one text in order."""

    def place(self, token_id: int) -> Place:
        """Where the next token stands."""
        ...


class TokenBytes:
    """The bytes and the written form of each id of one vocabulary."""

    def __init__(
        self,
        tokens: Sequence[str | None],
        special_ids: frozenset[int],
        table: ByteTable | None,
        *,
        continuation_mark: str = "",
    ) -> None:
        self._continuation_mark = continuation_mark  # what WordPiece writes before the later parts of a word
        self._tokens = tokens
        self._special_ids = special_ids
        self._table = table

    def is_control(self, token_id: int) -> bool:
        """Whether the token is left out of texts, unless a request asks for it."""
        return token_id in self._special_ids

    def of(self, token_id: int, *, at_start: bool = False) -> bytes:
        """The token's bytes, a control token's too; none where the id is unassigned."""
        if self._table is not None:
            data = self._table.shown.get(token_id, b"")
        else:
            data = self._written(self._tokens[token_id] if 0 <= token_id < len(self._tokens) else None)
        return data[1:] if at_start and data.startswith(b" ") else data

    def _written(self, token: str | None) -> bytes:
        if not token:
            return b""
        return byte_of(token) or token.removeprefix(self._continuation_mark).replace(SPACE_MARK, " ").encode()


def token_text(data: bytes) -> str:
    r"""A token's bytes as text. A part of a character is shown as OpenAI shows it, such as `bytes:\xe2\x82`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")


class ByteReader:
    """Counts characters as `ByteDecoder` makes them. Also knows in which character a token begins."""

    __slots__ = ("_errors", "_get", "_num_chars", "_strip", "_strip_after", "_tail")

    def __init__(self, table: ByteTable, *, skip_special_tokens: bool) -> None:
        self._get = (table.hidden if skip_special_tokens else table.shown).get
        self._errors = table.errors
        self._strip = table.strip_leading
        self._strip_after = table.special_ids if table.strip_after_special and not skip_special_tokens else frozenset()
        self._num_chars = 0  # complete ones
        self._tail = b""  # start of a character

    def place(self, token_id: int) -> Place:
        """Where the next token stands."""
        at_start = self._strip
        piece = self._get(token_id)
        if piece is None:
            return Place(self._num_chars, at_start)
        if at_start and piece.startswith(b" "):
            piece = piece[1:]
        self._strip = token_id in self._strip_after
        offset = self._num_chars
        if self._tail and piece and not _goes_on(self._tail, piece[:1]):
            offset += len(utf_8_decode(self._tail, self._errors, True)[0])
        data = self._tail + piece
        text, num_used = utf_8_decode(data, self._errors, False)
        self._num_chars += len(text)
        self._tail = data[num_used:]
        return Place(offset, at_start)


def _goes_on(tail: bytes, byte: bytes) -> bool:
    """Whether `byte` belongs to the character that `tail` begins."""
    try:
        utf_8_decode(tail + byte, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class WindowReader:
    """Where bytes do not suffice: a token begins where the text that was certain before it ends."""

    def __init__(self, decoder: IncrementalDecoder) -> None:
        self._decoder = decoder
        self._num_chars = 0

    def place(self, token_id: int) -> Place:
        """Where the next token stands."""
        place = Place(self._num_chars)
        self._num_chars += len(self._decoder.push((token_id,)))
        return place
