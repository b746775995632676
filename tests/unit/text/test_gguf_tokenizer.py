from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import StartupError
from millstream.text.byte_table import BYTE_LEVEL_ALPHABET
from millstream.text.gguf_tokenizer import CONTROL, NORMAL, PRE_TOKENIZERS, UNUSED, USER_DEFINED, read_gguf_tokenizer
from millstream.text.tokenizer import Tokenizer
from tests.support.made_tokenizers import sentencepiece_metadata, sentencepiece_pieces, sentencepiece_tokenizer


def byte_level_metadata(
    *, merges: tuple[str, ...] = (), extra: tuple[tuple[str, int], ...] = (), **more: Any
) -> dict[str, Any]:
    """All single bytes, the results of `merges`, then `extra` tokens with their types."""
    tokens = [*BYTE_LEVEL_ALPHABET, *[merge.replace(" ", "") for merge in merges]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, *[token for token, _ in extra]],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [kind for _, kind in extra],
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def pieces(metadata: dict[str, Any], text: str, *, add_special_tokens: bool = False) -> list[str]:
    tokenizer = Tokenizer(read_gguf_tokenizer(metadata))
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]


PAIRS = ("1 2", "12 3", "3 4", "a b", "Ġ a", "Ġ 1", "! Ċ", "' S", "Ġ Ġ")


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        pytest.param("gpt-2", "1234", ["123", "4"], id="gpt2-keeps-digits-together"),
        pytest.param("gpt-2", "x 1", ["x", " 1"], id="gpt2-joins-space-and-digit"),
        pytest.param("smollm", "x 1", ["x", " ", "1"], id="smollm-splits-digits-first"),
        pytest.param("llama-bpe", "1234", ["123", "4"], id="llama3-three-digits"),
        pytest.param("llama-bpe", "121234", ["12", "1", "2", "34"], id="llama3-threes-from-the-left"),
        pytest.param("qwen2", "1234", ["1", "2", "3", "4"], id="qwen2-one-digit"),
        pytest.param("qwen2", "ab!\n", ["ab", "!\n"], id="qwen2-line-break-goes-with-punctuation"),
        pytest.param("gpt-2", "ab!\n", ["ab", "!", "\n"], id="gpt2-line-break-alone"),
        pytest.param("qwen2", "'S", ["'S"], id="contractions-in-any-case"),
        pytest.param("gpt-2", "'S", ["'", "S"], id="gpt2-contractions-in-lower-case"),
        pytest.param("gpt-2", "   a", ["  ", " a"], id="last-space-goes-with-the-word"),
    ],
)
def test_the_named_pre_tokenizer_cuts_the_text(pre: str, text: str, words: list[str]) -> None:
    assert pieces(byte_level_metadata(merges=PAIRS, pre=pre), text) == words


def test_only_a_tokenizer_that_composes_text_changes_it() -> None:
    decomposed = "e\u0301"
    for pre, expected in (("qwen2", "\u00e9"), ("gpt-2", decomposed)):
        tokenizer = Tokenizer(read_gguf_tokenizer(byte_level_metadata(pre=pre)))
        assert tokenizer.decode(tokenizer.encode(decomposed)) == expected


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_loses_no_text(pre: str) -> None:
    text = "It's 12,345 o'clock!\r\n\n\t  Größe — 字 ❤️\u200d🔥 'LL x\n 12 345 foo_bar();  "
    tokenizer = Tokenizer(read_gguf_tokenizer(byte_level_metadata(pre=pre)))
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        pytest.param(byte_level_metadata(pre="brand-new"), "brand-new", id="pre-tokenizer"),
        pytest.param({**byte_level_metadata(), "tokenizer.ggml.model": "t5"}, "t5", id="kind"),
        pytest.param({}, "tokenizer.ggml.model", id="no-tokenizer"),
        pytest.param({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.tokens", id="no-tokens"),
        pytest.param({**byte_level_metadata(), "tokenizer.ggml.merges": ["a zz"]}, "merges", id="merge-outside-the-vocabulary"),
        pytest.param({**byte_level_metadata(), "tokenizer.ggml.merges": ["ab"]}, "ab", id="merge-of-one"),
        pytest.param({**byte_level_metadata(), "tokenizer.ggml.token_type": [1]}, "token types", id="types-do-not-fit"),
        pytest.param({**sentencepiece_metadata(["a"]), "tokenizer.ggml.scores": [0.0]}, "scores", id="scores-do-not-fit"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        read_gguf_tokenizer(metadata)


def test_control_tokens_are_hidden_and_user_defined_ones_are_text() -> None:
    extra = (("<|end|>", CONTROL), ("<think>", USER_DEFINED), ("two words", USER_DEFINED), ("[PAD]", UNUSED))
    metadata = byte_level_metadata(extra=extra)
    tokenizer = Tokenizer(read_gguf_tokenizer(metadata))
    assert pieces(metadata, "a<think>b<|end|>two words") == ["a", "<think>", "b", "<|end|>", "two words"]
    assert tokenizer.decode(tokenizer.encode("<think>a<|end|>two words")) == "<think>atwo words"
    assert tokenizer.decode([tokenizer.vocab_size - 1], skip_special_tokens=False) == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, ["a"]),
        ({"add_bos_token": True}, ["<s>", "a"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "a", "</s>"]),
        ({"pre": "llama-bpe"}, ["<s>", "a"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
    ],
)
def test_the_ends_of_a_text_are_added_where_the_file_says_so(flags: dict[str, Any], words: list[str]) -> None:
    extra = (("<s>", CONTROL), ("</s>", CONTROL))
    metadata = byte_level_metadata(extra=extra, bos_token_id=256, eos_token_id=257, **flags)
    assert pieces(metadata, "a", add_special_tokens=True) == words
    assert pieces(metadata, "a") == ["a"]


def test_the_end_of_turn_and_of_message_end_a_generation() -> None:
    extra = (("<eos>", CONTROL), ("<eot>", CONTROL), ("<eom>", CONTROL))
    metadata = byte_level_metadata(extra=extra, eos_token_id=256, eot_token_id=257, eom_token_id=258)
    assert Tokenizer(read_gguf_tokenizer(metadata)).eos_token_ids == {256, 257, 258}


def test_two_ids_with_the_same_token_both_decode() -> None:
    metadata = byte_level_metadata(extra=(("a", NORMAL), ("z", NORMAL)))
    assert Tokenizer(read_gguf_tokenizer(metadata)).decode([256, 257]) == "az"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("hello world", ["▁hello", "▁world"], id="words"),
        pytest.param("hell", ["▁", "hell"], id="best-score-first"),
        pytest.param("a  a", ["▁a", "▁", "▁a"], id="spaces"),
        pytest.param("é😀", ["▁", "é", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"], id="unknown-character-as-bytes"),
        pytest.param("</s>hello", ["</s>", "▁hello"], id="prefix-after-a-control-token"),
        pytest.param("a\n", ["▁a", "<0x0A>"], id="line-break"),
    ],
)
def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(text: str, tokens: list[str]) -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer._encoder.id_to_token(token_id) for token_id in ids] == tokens
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_better_score_wins_over_an_earlier_pair() -> None:
    pieces = ["bc", "ab", "abc", "a", "b", "c", "▁"]
    tokenizer = sentencepiece_tokenizer(pieces, add_space_prefix=False)
    assert [tokenizer.decode([token_id]) for token_id in tokenizer.encode("abc", add_special_tokens=False)] == ["abc"]
    tokenizer = sentencepiece_tokenizer([piece for piece in pieces if piece != "abc"], add_space_prefix=False)
    assert [tokenizer.decode([token_id]) for token_id in tokenizer.encode("abc", add_special_tokens=False)] == ["a", "bc"]


def merge_by_score(text: str, rank: dict[str, int]) -> list[str]:
    """SentencePiece BPE by its definition: join the adjacent pair that makes the best piece until none does."""
    symbols = list(text)
    while True:
        pairs = [(rank[a + b], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in rank]
        if not pairs:
            return symbols
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@settings(deadline=None)
@given(text=st.lists(st.sampled_from(["hello", " world", "hell", "wo", "lld", "h", "e", "l", " ", " a", "or"])).map("".join))
def test_sentencepiece_merges_as_its_definition_says(text: str) -> None:
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    rank = {piece: index for index, piece in enumerate(sentencepiece_pieces())}
    tokens = [tokenizer._encoder.id_to_token(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]
    assert tokens == merge_by_score(text.replace(" ", "▁"), rank)


def test_sentencepiece_puts_bos_before_text_unless_the_file_says_no() -> None:
    assert sentencepiece_tokenizer().encode("a")[0] == 1
    assert 1 not in sentencepiece_tokenizer(add_bos_token=False).encode("a")
    assert sentencepiece_tokenizer(add_eos_token=True).encode("a")[-1] == 2


def test_every_id_of_a_sentencepiece_vocabulary_decodes() -> None:
    tokenizer = sentencepiece_tokenizer()
    assert tokenizer.vocab_size == 3 + 256 + len(sentencepiece_pieces())
    for token_id in range(tokenizer.vocab_size):
        tokenizer.decode([token_id], skip_special_tokens=False)
