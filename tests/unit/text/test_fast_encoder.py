"""The fast encoder stands in for `tokenizers` only where it gives the same ids, and where it can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from millstream.errors import RequestError
from millstream.text import fast_encoder
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, scripted_text
from tests.support.made_tokenizers import sentencepiece_tokenizer, unigram_tokenizer, wordpiece_tokenizer

pytest.importorskip("fastokens")


@pytest.fixture
def fresh() -> Tokenizer:
    return load_scripted_tokenizer()


@pytest.fixture(scope="module")
def fast() -> Tokenizer:
    tokenizer = load_scripted_tokenizer()
    tokenizer.load_fast_encoder()
    assert tokenizer.encoder_name == "fastokens"
    return tokenizer


def test_the_embedded_models_ids_are_proven_equal(embedded: Tokenizer) -> None:
    copy = object.__new__(Tokenizer)
    copy.__dict__.update(embedded.__dict__)  # the shared one stays as it is
    copy.load_fast_encoder()
    assert copy.encoder_name == "fastokens"
    assert embedded.encoder_name == "tokenizers"
    assert copy.encode(scripted_text()) == embedded.encode(scripted_text())


@settings(deadline=None)
@given(text=st.text(), add_special_tokens=st.booleans())
def test_any_text_gets_the_ids_of_tokenizers(fast: Tokenizer, text: str, add_special_tokens: bool) -> None:
    assert fast.encode(text, add_special_tokens=add_special_tokens) == fast._library_encode(text, add_special_tokens)


@pytest.mark.parametrize("make", [sentencepiece_tokenizer, unigram_tokenizer, wordpiece_tokenizer])
def test_a_tokenizer_of_any_kind_keeps_its_ids(make: Any) -> None:
    tokenizer = make()
    before = [tokenizer.encode(line) for line in scripted_text().splitlines()]
    tokenizer.load_fast_encoder()
    assert [tokenizer.encode(line) for line in scripted_text().splitlines()] == before


def test_one_different_id_is_enough_to_keep_tokenizers(fresh: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    other = tokenizers.Tokenizer.from_str(fresh._encoder.to_str())
    other.normalizer = normalizers.Replace("\u2167", "VIII")
    assert fast_encoder.load_fast_encoder(other.to_str(), fresh._library_encode, []) is None
    assert "gives other ids" in caplog.text


def test_without_the_library_tokenizers_goes_on(fresh: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_encoder, "fastokens", None)
    fresh.load_fast_encoder()
    assert fresh.encoder_name == "tokenizers"
    assert fresh.decode(fresh.encode("still here")) == "still here"


def test_a_description_that_the_library_does_not_take_is_no_fault(fresh: Tokenizer) -> None:
    assert fast_encoder.load_fast_encoder("{}", fresh._library_encode, []) is None


def test_a_text_that_the_library_gives_up_on_is_encoded_all_the_same(fresh: Tokenizer) -> None:
    def give_up(text: str, **options: Any) -> Any:
        raise RuntimeError("match limit")

    fresh._fast = fast_encoder.FastEncoder(SimpleNamespace(encode=give_up))
    assert fresh.decode(fresh.encode("still here")) == "still here"


def test_a_lone_surrogate_is_refused_as_before(fast: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        fast.encode("\ud800")
