from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models

from millstream.text import incremental
from millstream.text.incremental import MAX_PENDING_TOKENS, IncrementalDecoder, WindowDecoder
from millstream.text.tokenizer import Tokenizer
from tests.support.made_tokenizers import (
    bytes_tokenizer,
    sentencepiece_tokenizer,
    unigram_tokenizer,
    wordpiece_tokenizer,
    wrap,
)


def stream(tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> list[str]:
    """The text after each id, and at the end."""
    decoder = tokenizer.incremental(skip_special_tokens=skip_special_tokens)
    return [*[decoder.push((token_id,)) for token_id in token_ids], decoder.flush()]


@pytest.mark.parametrize(
    ("pieces", "deltas"),
    [
        pytest.param(["f09f", "98", "80"], ["", "", "😀", ""], id="emoji-over-three-tokens"),
        pytest.param(["486920", "f09f"], ["Hi ", "", "\ufffd"], id="cut-inside-a-character"),
        pytest.param(["e2", "20", "bb", "6f6b"], ["", "\ufffd ", "\ufffd", "ok", ""], id="bytes-out-of-order"),
        pytest.param(["8cb6", "21"], ["\ufffd\ufffd", "!", ""], id="rest-of-a-character-the-prompt-began"),
        pytest.param(["efbfbd", "61"], ["\ufffd", "a", ""], id="genuine-replacement-character"),
        pytest.param(["eda0", "80"], ["", "\ufffd\ufffd\ufffd", ""], id="surrogate-bytes"),
        pytest.param(["61f0", "9f98", "8062"], ["a", "", "😀b", ""], id="text-around-a-split-character"),
    ],
)
def test_byte_level_text_appears_once_it_is_certain(pieces: list[str], deltas: list[str]) -> None:
    data = [bytes.fromhex(piece) for piece in pieces]
    tokenizer = bytes_tokenizer(data)
    assert stream(tokenizer, range(len(data))) == deltas
    assert "".join(deltas) == b"".join(data).decode(errors="replace") == tokenizer.decode(range(len(data)))


@pytest.mark.parametrize(
    ("tokens", "deltas"),
    [
        pytest.param(["<0xE2>", "<0x82>", "<0xAC>"], ["", "", "€", ""], id="character-of-three-bytes"),
        pytest.param(["<0xE2>", "<0x82>", "a"], ["", "", "\ufffd\ufffda", ""], id="one-mark-for-each-bad-byte"),
        pytest.param(["<0xC3>", "<0xA9>", "<0xFF>"], ["", "é", "\ufffd", ""], id="valid-part-of-a-bad-run-is-kept"),
        pytest.param(["<0xC3>", "</s>", "<0xA9>"], ["", "", "é", ""], id="hidden-control-token-inside-a-run"),
        pytest.param(["a", "<0xE2>", "<0x82>"], ["a", "", "", "\ufffd\ufffd"], id="run-cut-by-the-end"),
        pytest.param(["<0x82>", "<0xAC>", "a"], ["\ufffd", "\ufffd", "a", ""], id="rest-of-a-character-the-prompt-began"),
        pytest.param(["<0xEF>", "<0xBF>", "<0xBD>", "a"], ["", "", "\ufffd", "a", ""], id="genuine-replacement-character"),
    ],
)
def test_byte_fallback_text_appears_once_it_is_certain(tokens: list[str], deltas: list[str]) -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = [tokenizer._encoder.token_to_id(token) for token in tokens]
    assert stream(tokenizer, ids) == deltas
    assert tokenizer.decode(ids) == "".join(deltas)


def test_an_added_token_cuts_a_started_character_and_is_its_own_text() -> None:
    encoder = tokenizers.Tokenizer(models.BPE(vocab={"Ã": 0, "©": 1, "x": 2}, merges=[]))  # the bytes C3 and A9, and an x
    encoder.decoder = decoders.ByteLevel()
    encoder.add_tokens([AddedToken("<tool>", special=False), AddedToken("Grün ", special=False)])
    tokenizer = wrap(encoder)
    assert stream(tokenizer, [3, 0, 1, 4, 0, 3, 2]) == ["<tool>", "", "é", "Grün ", "", "\ufffd<tool>", "x", ""]
    assert tokenizer.decode([3, 0, 1, 4, 0, 3, 2]) == "<tool>éGrün \ufffd<tool>x"


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "window"])
def test_a_hundred_thousand_stray_bytes_cost_a_token_what_text_costs(kind: str) -> None:
    sizes: list[int] = []

    def decode(ids: list[int]) -> str:
        sizes.append(len(ids))
        return "\ufffd" * len(ids)

    if kind == "window":
        decoder: IncrementalDecoder = WindowDecoder(decode, visible=frozenset({0}))
    else:
        tokenizer = bytes_tokenizer([b"\x80"]) if kind == "byte-level" else sentencepiece_tokenizer(["<0x80>"])
        decoder = tokenizer.incremental()
    stray = 0 if kind != "byte-fallback" else tokenizer._encoder.token_to_id("<0x80>")
    text = "".join([decoder.push((stray,)) for _ in range(100_000)]) + decoder.flush()
    assert text == "\ufffd" * 100_000
    if kind == "window":
        assert sum(sizes) < 100_000 * 2 * MAX_PENDING_TOKENS
    else:
        assert decoder._tail == b""  # type: ignore[attr-defined]  # nothing piles up


def test_a_genuine_replacement_character_leaves_the_window_with_the_next_token_or_the_end() -> None:
    texts = {0: "a", 1: "\ufffd"}
    decoder = WindowDecoder(lambda ids: "".join(texts[token_id] for token_id in ids), visible=frozenset(texts))
    assert [decoder.push((token_id,)) for token_id in (0, 1, 1, 0, 1)] == ["a", "", "", "\ufffd\ufffda", ""]
    assert decoder.flush() == "\ufffd"


def test_exactly_one_dummy_space_is_stripped_at_the_start() -> None:
    tokenizer = sentencepiece_tokenizer(["▁", "▁leading", "▁x"])
    ids = [tokenizer._encoder.token_to_id(token) for token in ("▁", "▁leading", "▁x")]
    assert stream(tokenizer, ids) == ["", " leading", " x", ""]


def test_no_space_is_stripped_where_the_encoder_adds_none() -> None:
    tokenizer = sentencepiece_tokenizer(["▁x"], add_space_prefix=False)
    assert tokenizer.decode([tokenizer._encoder.token_to_id("▁x")] * 2) == " x x"


@pytest.mark.parametrize(
    ("skip_special_tokens", "text"),
    [pytest.param(False, "<|channel|>analysis a", id="shown"), pytest.param(True, "analysis a", id="hidden")],
)
def test_the_dummy_space_after_a_control_token_is_not_content(skip_special_tokens: bool, text: str) -> None:
    tokenizer = sentencepiece_tokenizer(["▁analysis", "▁a"], special=["<|channel|>"], bos_token_id=0, eos_token_id=0)
    ids = [tokenizer._encoder.token_to_id(token) for token in ("<|channel|>", "▁analysis", "▁a")]
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip_special_tokens)) == text


def test_hidden_control_tokens_do_not_eat_the_space_between_words() -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = [tokenizer._encoder.token_to_id(token) for token in ("▁hello", "</s>", "▁world")]
    assert tokenizer.decode(ids) == "hello world"


def test_a_control_token_that_ends_generation_never_shows() -> None:
    tokenizer = bytes_tokenizer([b"Hello", b" there"], special=["<|eot|>"])
    assert stream(tokenizer, [0, 1, 2]) == ["Hello", " there", "", ""]
    assert stream(tokenizer, [0, 1, 2], skip_special_tokens=False) == ["Hello", " there", "<|eot|>", ""]


@pytest.mark.parametrize("make", [bytes_tokenizer, wordpiece_tokenizer], ids=["table", "window"])
def test_ids_outside_the_vocabulary_contribute_nothing(make: object) -> None:
    tokenizer = bytes_tokenizer([b"a", b"b"]) if make is bytes_tokenizer else wordpiece_tokenizer()
    assert tokenizer.decode([-1, tokenizer.vocab_size, 2**40]) == ""
    word = next(
        i for i, text in enumerate(tokenizer._encoder.id_to_token(i) for i in range(tokenizer.vocab_size)) if text == "a"
    )
    assert tokenizer.decode([-1, word, 2**40, word]) == tokenizer.decode([word, word])


def test_requests_that_show_and_hide_control_tokens_do_not_disturb_each_other() -> None:
    tokenizer = bytes_tokenizer([b"a", b"\xc3", b"\xa9"], special=["<|eot|>"])
    for _ in range(2):
        for ids, shown, hidden in (
            ([3, 0], "<|eot|>a", "a"),
            ([1, 2, 2], "é\ufffd", "é\ufffd"),
            ([99, 0, 1], "a\ufffd", "a\ufffd"),
        ):
            assert "".join(stream(tokenizer, ids, skip_special_tokens=False)) == shown
            assert "".join(stream(tokenizer, ids)) == hidden


def test_the_decoder_keeps_at_most_a_started_character() -> None:
    tokenizer = bytes_tokenizer([b"\x80", b"a", b"\xf0\x9f\x98"])
    decoder = tokenizer.incremental()
    for token_id in [0] * 1000 + [1] * 1000 + [2]:
        decoder.push((token_id,))
        assert len(decoder._tail) <= 3  # type: ignore[attr-defined]


def test_what_is_remembered_of_split_characters_is_bounded_and_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incremental, "MAX_JOINS", 10)
    pieces = [bytes([byte]) for byte in range(256)]
    tokenizer = bytes_tokenizer(pieces)
    data = "".join(chr(0x400 + 37 * n) for n in range(500)).encode() + bytes(range(255, 127, -1))
    for _ in range(2):
        assert "".join(stream(tokenizer, data)) == data.decode(errors="replace")
    assert len(tokenizer._table.hidden_joins) == 10  # type: ignore[union-attr]


def test_the_window_stays_short_however_long_the_output() -> None:
    lengths: list[int] = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return "".join("\ufffd" if token_id else "a" for token_id in ids)

    decoder = WindowDecoder(decode, visible=frozenset({0, 1}))
    ids = [1] * 5000 + [0, 1] * 500 + [0] * 1000
    text = "".join(decoder.push((token_id,)) for token_id in ids) + decoder.flush()
    assert text == "\ufffd" * 5000 + "a\ufffd" * 500 + "a" * 1000
    assert max(lengths) <= 2 * MAX_PENDING_TOKENS


def test_wordpiece_streams_its_spaces_and_joins_its_pieces() -> None:
    tokenizer = wordpiece_tokenizer()
    ids = tokenizer.encode("The mill, the stream")
    assert "".join(stream(tokenizer, ids)) == tokenizer._encoder.decode(ids) == "The mill, the stream"


def test_unigram_drops_the_first_dummy_space_only() -> None:
    tokenizer = unigram_tokenizer()
    ids = tokenizer.encode("the mill the stream")
    assert "".join(stream(tokenizer, ids)) == tokenizer._encoder.decode(ids) == "the mill the stream"


def test_hidden_ids_never_become_the_context_of_a_window() -> None:
    tokenizer = wordpiece_tokenizer()
    words = tokenizer.encode("the mill")
    special = tokenizer._encoder.token_to_id("[SEP]")
    ids = [special, *words[:1], special, special, *words[1:]]
    assert "".join(stream(tokenizer, ids)) == "the mill"
