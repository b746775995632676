"""Tokens one by one: their bytes, how they are written, and where they stand in their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.text.token_bytes import token_text
from millstream.text.tokenizer import Tokenizer
from tests.support.made_tokenizers import bytes_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer

PIECES = [b"a", b"bc", b" d", "é".encode(), b"\xf0\x9f", b"\x98", b"\x80", b"\xe2", b"\x82\xac", b"x\xe2\x82", b"\xff", b"\xc3"]
BYTES = bytes_tokenizer(PIECES, special=["<|end|>"])
SENTENCEPIECE = sentencepiece_tokenizer()


def starts_of_characters(data: bytes) -> list[int]:
    """At which byte each character of `data` begins, as decoders of byte-level vocabularies make them."""
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        for size in (1, 2, 3, 4):
            try:
                data[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            try:
                data[at:].decode()
            except UnicodeDecodeError as error:
                at += error.end - error.start
    return starts


@given(st.lists(st.integers(0, len(PIECES)), max_size=12))
def test_a_token_stands_at_the_character_in_which_its_first_byte_is(ids: list[int]) -> None:
    reader = BYTES.reader(skip_special_tokens=True)
    data = b"".join(PIECES[i] for i in ids if i < len(PIECES))
    starts = starts_of_characters(data)
    assert len(BYTES.decode(ids)) == len(starts)
    at = 0
    for token_id in ids:
        offset = reader.place(token_id).offset
        if token_id < len(PIECES):
            assert offset == sum(start <= at for start in starts) - 1
            at += len(PIECES[token_id])
        else:  # hidden: where it stands, no character of its own begins
            assert offset <= sum(start < at for start in starts)


@pytest.mark.parametrize("tokenizer", [BYTES, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@given(data=st.data())
def test_the_bytes_of_tokens_joined_are_those_of_their_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    reader = tokenizer.reader(skip_special_tokens=True)
    joined = b"".join(
        tokenizer.single.of(token_id, at_start=place.at_start)
        for token_id, place in [(token_id, reader.place(token_id)) for token_id in ids]
        if not tokenizer.single.is_control(token_id)
    )
    text = tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert joined.decode() == text


def test_a_part_of_a_character_is_written_as_its_bytes() -> None:
    assert token_text(b"\xe2\x82") == "bytes:\\xe2\\x82"
    assert token_text(b" x\xf0") == "bytes: x\\xf0"
    assert token_text("é".encode()) == "é"
    assert {token_text(bytes([byte])) for byte in range(256)} >= {"bytes:\\x80", "bytes:\\xff"}
    assert len({token_text(bytes([byte])) for byte in range(256)}) == 256


def test_an_unassigned_id_has_no_bytes_and_no_place_of_its_own() -> None:
    for tokenizer in (BYTES, SENTENCEPIECE, wordpiece_tokenizer()):
        assert [tokenizer.single.of(token_id) for token_id in (-1, tokenizer.vocab_size, 10**9)] == [b"", b"", b""]
        assert tokenizer.reader().place(10**9).offset == 0


def test_a_dummy_space_at_the_start_is_no_part_of_the_first_token() -> None:
    (token_id, *rest) = SENTENCEPIECE.encode("hello hello", add_special_tokens=False)
    reader = SENTENCEPIECE.reader()
    places = [reader.place(i) for i in (token_id, *rest)]
    assert SENTENCEPIECE.single.of(token_id, at_start=places[0].at_start) == b"hello"
    assert [place.offset for place in places] == [0, 5]
    assert SENTENCEPIECE.single.of(rest[0], at_start=places[1].at_start) == b" hello"


def test_in_a_vocabulary_without_bytes_a_token_is_what_the_vocabulary_writes() -> None:
    tokenizer = wordpiece_tokenizer()
    assert not tokenizer.has_byte_table
    ids = tokenizer.encode("unaffable cats", add_special_tokens=False)
    assert b"".join(tokenizer.single.of(i) for i in ids) == b"unaffablecats"
    reader = tokenizer.reader()
    offsets = [reader.place(i).offset for i in ids]
    assert offsets == sorted(offsets)
