"""Exact text: for any ids in any groups, the stream is the one-shot decode, and that is what the definition says."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.checkpoint.locate import resolve_model
from millstream.errors import StartupError
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, load_tokenizer, scripted_text
from tests.support.made_tokenizers import library_decode, sentencepiece_tokenizer, unigram_tokenizer, wordpiece_tokenizer


@functools.cache
def embedded() -> Tokenizer:
    try:
        return load_tokenizer(resolve_model("embedded"))
    except StartupError as error:
        pytest.skip(f"{error} ({error.hint})")


byte_level = pytest.mark.parametrize("make", [functools.cache(load_scripted_tokenizer), embedded], ids=["scripted", "embedded"])
sentencepiece = functools.cache(sentencepiece_tokenizer)
windowed = pytest.mark.parametrize(
    "make", [functools.cache(wordpiece_tokenizer), functools.cache(unigram_tokenizer)], ids=["wordpiece", "unigram"]
)
every = pytest.mark.parametrize(
    "make",
    [
        functools.cache(load_scripted_tokenizer),
        embedded,
        sentencepiece,
        functools.cache(wordpiece_tokenizer),
        functools.cache(unigram_tokenizer),
    ],
    ids=["scripted", "embedded", "sentencepiece", "wordpiece", "unigram"],
)
Make = Callable[[], Tokenizer]


def draw_ids(data: st.DataObject, tokenizer: Tokenizer) -> list[int]:
    """Any ids, or those of real text with some lost: byte sequences that are whole, cut and broken."""
    any_ids = st.lists(st.integers(-1, tokenizer.vocab_size + 1), max_size=30)
    text = scripted_text()
    start = data.draw(st.integers(0, len(text) - 20))
    ids = tokenizer.encode(text[start : start + 20], add_special_tokens=False)
    some_lost = st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)).map(
        lambda kept: [token_id for token_id, keep in zip(ids, kept, strict=True) if keep]
    )
    return data.draw(st.one_of(any_ids, st.just(ids), some_lost))


def draw_stream(data: st.DataObject, tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> list[str]:
    decoder = tokenizer.incremental(skip_special_tokens=skip_special_tokens)
    deltas, rest = [], ids
    while rest:
        size = data.draw(st.sampled_from([1, 1, 1, 2, 4]))
        deltas.append(decoder.push(rest[:size]))
        rest = rest[size:]
    return [*deltas, decoder.flush()]


def known(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token_id for token_id in ids if 0 <= token_id < tokenizer.vocab_size]


@every
@settings(deadline=None)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_any_grouping_of_any_ids_joins_to_the_one_shot_decode(
    make: Make, data: st.DataObject, skip_special_tokens: bool
) -> None:
    tokenizer = make()
    ids = draw_ids(data, tokenizer)
    deltas = draw_stream(data, tokenizer, ids, skip_special_tokens)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@byte_level
@settings(deadline=None)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_byte_level_text_is_the_librarys(make: Make, data: st.DataObject, skip_special_tokens: bool) -> None:
    tokenizer = make()
    ids = draw_ids(data, tokenizer)
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    assert text == library_decode(tokenizer, known(tokenizer, ids), skip_special_tokens=skip_special_tokens)


@windowed
@settings(deadline=None)
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_windowed_text_is_the_librarys(make: Make, data: st.DataObject, skip_special_tokens: bool) -> None:
    tokenizer = make()
    ids = draw_ids(data, tokenizer)
    text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    assert text == library_decode(tokenizer, known(tokenizer, ids), skip_special_tokens=skip_special_tokens)


def valid_prefix_or_byte(data: bytes) -> str:
    """UTF-8 decoding by its definition: whole characters as they are, any other byte as U+FFFD."""
    text, at = "", 0
    while at < len(data):
        for size in range(1, 5):
            try:
                text += data[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            text += "\ufffd"
            at += 1
    return text


@settings(deadline=None)
@given(data=st.data())
def test_byte_fallback_shows_whole_characters_and_one_mark_for_each_other_byte(data: st.DataObject) -> None:
    tokenizer = sentencepiece()
    ids = known(tokenizer, draw_ids(data, tokenizer))
    raw = b"".join(tokenizer._table.hidden.get(token_id, b"") for token_id in ids)  # type: ignore[union-attr]
    assert tokenizer.decode(ids) == valid_prefix_or_byte(raw.removeprefix(b" "))


@settings(deadline=None)
@given(text=st.text())
def test_byte_fallback_text_is_the_librarys_where_characters_are_whole(text: str) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == library_decode(tokenizer, ids)


@byte_level
@settings(deadline=None)
@given(data=st.data())
def test_no_delta_ends_inside_a_character(make: Make, data: st.DataObject) -> None:
    tokenizer = make()
    text = scripted_text()
    start = data.draw(st.integers(0, len(text) - 30))
    ids = tokenizer.encode(text[start : start + 30])
    shown = b""
    for delta in draw_stream(data, tokenizer, ids, True):
        assert "\ufffd" not in delta
        shown += delta.encode()
    assert shown == text[start : start + 30].encode()


@settings(deadline=None)
@given(text=st.text())
def test_sentencepiece_gives_any_text_back(text: str) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


@byte_level
@settings(deadline=None)
@given(text=st.text())
def test_byte_level_gives_back_every_byte_the_vocabulary_has(make: Make, text: str) -> None:
    tokenizer = make()
    # the embedded model's vocabulary lacks a few bytes that no text in use needs, such as 0xF1: its encoder drops them
    single = {piece for piece in tokenizer._table.shown.values() if len(piece) == 1}  # type: ignore[union-attr]
    kept = bytes(byte for byte in text.encode() if bytes([byte]) in single)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == kept.decode(errors="replace")
