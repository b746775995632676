"""ByteTable: the bytes each token id stands for, computed once when a tokenizer is loaded.

Made by `Tokenizer`, read by its incremental decoders. Covers the two decoders that are a plain join of bytes: byte-level BPE
and SentencePiece with byte fallback. It never decodes UTF-8 itself.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character

Joins = dict[tuple[bytes, int], tuple[str, bytes]]

REPLACE_SEQUENCE = "replace"  # one U+FFFD for each maximal invalid sequence: what byte-level tokenizers do
REPLACE_BYTE = "millstream.replace-byte"  # one U+FFFD for each invalid byte: what byte-fallback tokenizers do


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(REPLACE_BYTE, _replace_each_byte)


def _byte_level_alphabet() -> str:
    """The 256 characters GPT-2's vocabulary writes bytes as: printable Latin-1 as itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + n) for n in range(256))
    return "".join(chr(byte) if byte in printable else next(others) for byte in range(256))


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


@dataclass(frozen=True, slots=True)
class ByteTable:
    """Bytes by token id. An id that is absent contributes nothing.

    `strip_leading`: one space at the very start of the text is the encoder's dummy prefix, not content.
    `strip_after_special`: so is one right after a control token, where control tokens are shown; this holds for tokenizers
    whose encoder puts a dummy prefix after each control token.
    """

    shown: dict[int, bytes]  # with control tokens
    hidden: dict[int, bytes]  # without them
    special_ids: frozenset[int]
    errors: str  # name of the codec error handler that replaces invalid bytes
    strip_leading: bool = False
    strip_after_special: bool = False
    # text of ids that end where a character ends, filled by the decoders as they meet them: most tokens take this way
    shown_texts: dict[int, str] = field(default_factory=dict)
    hidden_texts: dict[int, str] = field(default_factory=dict)
    # the same for an id behind the start of a character: (that start, id) -> (text, start of the next character)
    shown_joins: Joins = field(default_factory=dict)
    hidden_joins: Joins = field(default_factory=dict)


def build_byte_table(
    decoder: dict[str, Any] | None, tokens: Sequence[str | None], special_ids: frozenset[int], *, strip_after_special: bool
) -> ByteTable | None:
    """Make the table for a tokenizer with this `decoder` (its `tokenizer.json` form), or None where bytes do not suffice.

    `tokens` holds each id's text as the vocabulary writes it, None where the id is unassigned.
    """
    steps = _flatten(decoder)
    if [step["type"] for step in steps] == ["ByteLevel"]:
        shown = _byte_level_bytes(tokens)
        return ByteTable(shown=shown, hidden=_without(shown, special_ids), special_ids=special_ids, errors=REPLACE_SEQUENCE)
    if not _is_sentencepiece(steps):
        return None
    shown = _sentencepiece_bytes(tokens)
    return ByteTable(
        shown=shown,
        hidden=_without(shown, special_ids),
        special_ids=special_ids,
        errors=REPLACE_BYTE,
        strip_leading=steps[-1]["type"] == "Strip",
        strip_after_special=strip_after_special,
    )


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    types = [step["type"] for step in steps]
    if types[:3] != ["Replace", "ByteFallback", "Fuse"] or types[3:] not in ([], ["Strip"]):
        return False
    replace, strip = steps[0], steps[-1]
    if replace.get("pattern") != {"String": SPACE_MARK} or replace.get("content") != " ":
        return False
    return strip["type"] == "Fuse" or (strip.get("content"), strip.get("start"), strip.get("stop")) == (" ", 1, 0)


def _byte_level_bytes(tokens: Sequence[str | None]) -> dict[int, bytes]:
    encoding = codecs.charmap_build(BYTE_LEVEL_ALPHABET)
    table: dict[int, bytes] = {}
    for token_id, token in enumerate(tokens):
        if token:
            try:
                table[token_id] = codecs.charmap_encode(token, "strict", encoding)[0]
            except UnicodeEncodeError:  # an added token, written as itself
                table[token_id] = token.encode()
    return table


def _sentencepiece_bytes(tokens: Sequence[str | None]) -> dict[int, bytes]:
    table: dict[int, bytes] = {}
    for token_id, token in enumerate(tokens):
        if token:
            table[token_id] = byte_of(token) or token.replace(SPACE_MARK, " ").encode()
    return table


def byte_of(token: str) -> bytes | None:
    """The single byte that a fallback token such as `<0x0A>` stands for, else None."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    try:
        return bytes.fromhex(token[3:5])
    except ValueError:
        return None


def _without(table: dict[int, bytes], ids: Iterable[int]) -> dict[int, bytes]:
    rest = dict(table)
    for token_id in ids:
        rest.pop(token_id, None)
    return rest
