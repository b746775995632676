"""Large prompts: whatever the text, one that fits is accepted, and its ids are those of the tokenizer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.entry import prompt_encoder
from millstream.entry.prompt_encoder import MAX_CHARS_PER_TOKEN, PromptEncoder
from millstream.text.tokenizer import Tokenizer, load_scripted_tokenizer, scripted_text
from tests.support.made_tokenizers import sentencepiece_tokenizer, unigram_tokenizer, wordpiece_tokenizer

WORDS = scripted_text().split()
fragments = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(
        [" ", "  ", "\n", "\n\n", "\t", "a", "aaaa", "0", "…", "é", "e\u0301", "🙂", "[UNK]", "<|im_end|>", "</s>"]
    ),
    st.text(max_size=8),
)
texts = st.lists(st.tuples(fragments, st.integers(1, 400)), min_size=1, max_size=12).map(
    lambda runs: "".join(fragment * count for fragment, count in runs)
)


@pytest.mark.parametrize(
    "make",
    [
        functools.cache(load_scripted_tokenizer),
        functools.cache(sentencepiece_tokenizer),
        functools.cache(wordpiece_tokenizer),
        functools.cache(unigram_tokenizer),
    ],
    ids=["scripted", "sentencepiece", "wordpiece", "unigram"],
)
@settings(max_examples=30)
@given(texts, st.booleans())
@example("\x1f " * 1500, False)  # words that some tokenizers drop
@example("a\x1f" * 1500, False)  # one word, or many
def test_a_large_prompt_that_fits_is_accepted_with_its_own_ids(make: Callable[[], Tokenizer], text: str, special: bool) -> None:
    tokenizer = make()
    expected = tokenizer.encode(text, add_special_tokens=special)
    context = max(len(expected) + 1, -(-len(text) // MAX_CHARS_PER_TOKEN))
    # slices 64 times smaller than the real ones, so the cuts weigh 64 times as much
    with patch.object(prompt_encoder, "LARGE_CHARS", 2000), patch.object(prompt_encoder, "SLICE_CHARS", 1024):
        encoder = PromptEncoder(tokenizer, context)
        try:
            assert asyncio.run(encoder.encode(text, add_special_tokens=special, param="prompt")) == expected
        finally:
            encoder.close()
