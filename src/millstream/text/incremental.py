"""IncrementalDecoder: token ids of one output to text, a few at a time, in time linear in the ids.

One per request, made by `Tokenizer.incremental`, owned by whoever turns that request's ids into text. Both decoders take ids
one by one, so the text does not depend on how the ids were grouped. They are never seeded with the prompt.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from millstream.text.byte_table import ByteTable

REPLACEMENT = "\ufffd"
MAX_JOINS = 16_384  # remembered of a table, about 3 MB: text that means something has a few hundred
MAX_PENDING_TOKENS = 8  # tokens a window may hold without showing them; a character takes at most 4 byte tokens


class IncrementalDecoder(Protocol):
    """Text of one output, as far as it can no longer change."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the newly stable text. It never ends inside a character."""
        ...

    def flush(self) -> str:
        """Return the rest at the end of generation. All text returned, joined, is `Tokenizer.decode` of all ids."""
        ...


class ByteDecoder:
    """Append each id's bytes, decode what is complete UTF-8, keep at most 3 bytes. Exact by construction."""

    __slots__ = ("_errors", "_get", "_joins", "_strip", "_strip_after", "_stripping", "_tail", "_texts")

    def __init__(self, table: ByteTable, *, skip_special_tokens: bool) -> None:
        self._get = (table.hidden if skip_special_tokens else table.shown).get
        self._texts = table.hidden_texts if skip_special_tokens else table.shown_texts
        self._joins = table.hidden_joins if skip_special_tokens else table.shown_joins
        self._errors = table.errors
        self._strip = table.strip_leading  # the next byte, if it is a space, is a dummy prefix
        self._strip_after = table.special_ids if table.strip_after_special and not skip_special_tokens else frozenset()
        self._stripping = self._strip or bool(self._strip_after)
        self._tail = b""  # start of a character

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the newly stable text."""
        if len(token_ids) != 1 or self._stripping:
            return self._decode(token_ids)
        token_id = token_ids[0]
        if self._tail:
            return self._push_behind_tail(token_id)
        text = self._texts.get(token_id)
        if text is None:
            text = self._decode(token_ids)
            if not self._tail and self._get(token_id) is not None:
                self._texts[token_id] = text
        return text

    def _push_behind_tail(self, token_id: int) -> str:
        key = (self._tail, token_id)
        join = self._joins.get(key)
        if join is None:
            join = (self._decode((token_id,)), self._tail)
            if len(self._joins) < MAX_JOINS:
                self._joins[key] = join
        text, self._tail = join
        return text

    def flush(self) -> str:
        """Return what an unfinished character at the end is shown as."""
        text = utf_8_decode(self._tail, self._errors, True)[0]
        self._tail = b""
        return text

    def _decode(self, token_ids: Sequence[int]) -> str:
        if self._stripping:
            data = self._join_stripped(token_ids)
        else:
            get = self._get
            data = b"".join([get(token_id, b"") for token_id in token_ids])
        if self._tail:
            data = self._tail + data
        text, num_used = utf_8_decode(data, self._errors, False)
        self._tail = data[num_used:]
        return text

    def _join_stripped(self, token_ids: Sequence[int]) -> bytes:
        pieces = []
        for token_id in token_ids:
            piece = self._get(token_id)
            if piece is None:
                continue
            pieces.append(piece[1:] if self._strip and piece.startswith(b" ") else piece)
            self._strip = token_id in self._strip_after
        self._stripping = self._strip or bool(self._strip_after)
        return b"".join(pieces)


class WindowDecoder:
    """Decode a short window of ids after each one and return what it adds: for decoders that look at neighbouring tokens.

    The window is `context` (ids whose text was returned, kept because the text of the next id may depend on them) and pending
    ids. Text that ends in U+FFFD is held, as it may be an unfinished character, but no longer than `MAX_PENDING_TOKENS` ids:
    then the window moves on, so its length and the cost of an id stay bounded on undecodable output.
    """

    __slots__ = ("_decode", "_ids", "_read_offset", "_sent_offset", "_visible")

    def __init__(self, decode: Callable[[list[int]], str], *, visible: Container[int]) -> None:
        self._decode = decode
        self._visible = visible  # ids that have text: others must not end up as a context that decodes to nothing
        self._ids: list[int] = []  # the window
        self._read_offset = 0  # tokens of the window that are context
        self._sent_offset = 0  # characters of the window's text already returned

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next ids; return the newly stable text."""
        return "".join([self._push_one(token_id) for token_id in token_ids if token_id in self._visible])

    def flush(self) -> str:
        """Return the text that was held."""
        text = self._decode(self._ids)[self._sent_offset :]
        self._ids, self._read_offset, self._sent_offset = [], 0, 0
        return text

    def _push_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        num_pending = len(self._ids) - self._read_offset
        if text.endswith(REPLACEMENT) and num_pending < MAX_PENDING_TOKENS:
            return ""
        delta = text[self._sent_offset :]
        del self._ids[: self._read_offset]
        self._read_offset = len(self._ids)
        self._sent_offset = len(self._decode(self._ids))
        return delta
