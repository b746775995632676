from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from millstream.text.byte_table import BYTE_LEVEL_ALPHABET, ByteTable, build_byte_table, byte_of

SENTENCEPIECE: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def build(
    decoder: dict[str, Any] | None, tokens: list[str | None], special_ids: frozenset[int] = frozenset()
) -> ByteTable | None:
    return build_byte_table(decoder, tokens, special_ids, strip_after_special=False)


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(steps)}


def test_the_alphabet_is_the_librarys() -> None:
    assert sorted(BYTE_LEVEL_ALPHABET) == sorted(pre_tokenizers.ByteLevel.alphabet())
    encoded = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("\x00é \x7f\u00ad")[0][0]
    assert encoded == "".join(BYTE_LEVEL_ALPHABET[byte] for byte in "\x00é \x7f\u00ad".encode())


def test_a_byte_level_token_is_its_bytes_and_an_added_one_its_text() -> None:
    table = build({"type": "ByteLevel"}, ["Ġa", "Ã©", "two words", None, "<s>"], frozenset({4}))
    assert table is not None
    assert table.shown == {0: b" a", 1: "é".encode(), 2: b"two words", 4: b"<s>"}
    assert table.hidden == {0: b" a", 1: "é".encode(), 2: b"two words"}


def test_a_sentencepiece_token_has_spaces_for_marks_and_a_byte_token_is_one_byte() -> None:
    table = build(sequence(*SENTENCEPIECE, STRIP), ["▁a▁", "<0xE2>", "<0xZZ>", "<0x+2>"])
    assert table is not None
    assert table.shown == {0: b" a ", 1: b"\xe2", 2: b"<0xZZ>", 3: b"<0x+2>"}
    assert table.strip_leading


@pytest.mark.parametrize(
    "decoder",
    [
        pytest.param(None, id="none"),
        pytest.param({"type": "WordPiece", "prefix": "##", "cleanup": True}, id="wordpiece"),
        pytest.param({"type": "Metaspace", "replacement": "▁"}, id="metaspace"),
        pytest.param(sequence(*SENTENCEPIECE[:2]), id="no-fuse"),
        pytest.param(sequence(*SENTENCEPIECE, {**STRIP, "stop": 1}), id="strips-the-end"),
        pytest.param(sequence(*SENTENCEPIECE, {**STRIP, "start": 2}), id="strips-two"),
        pytest.param(sequence({**SENTENCEPIECE[0], "content": "_"}, *SENTENCEPIECE[1:]), id="other-mark"),
        pytest.param(sequence({"type": "ByteLevel"}, {"type": "Fuse"}), id="byte-level-and-more"),
    ],
)
def test_a_decoder_that_is_more_than_a_join_gets_no_table(decoder: dict[str, Any] | None) -> None:
    assert build(decoder, ["a"]) is None


@pytest.mark.parametrize(
    ("token", "byte"), [("<0x0A>", b"\n"), ("<0xff>", b"\xff"), ("<0xGG>", None), ("<0x A>", None), ("a", None)]
)
def test_byte_tokens_are_told_from_others(token: str, byte: bytes | None) -> None:
    assert byte_of(token) == byte
