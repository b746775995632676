"""Any conversation is rendered as `transformers` renders it, by the embedded model's template, and has the same ids."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.checkpoint.locate import resolve_model
from millstream.errors import StartupError
from millstream.text.chat_prompt import ChatPrompts
from millstream.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.transformers_chat import rendered

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
        st.sampled_from(["<|im_", "end|>", "<", "\n\n", "{{ x }}", "{% if %}", "system\n", " ", "</s>", "天气", *SPECIAL]),
    ),
    max_size=6,
).map("".join)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}), min_size=1, max_size=5
)


@functools.cache
def model() -> tuple[Tokenizer, ChatPrompts]:
    try:
        tokenizer = load_tokenizer(resolve_model("embedded"))
    except StartupError as error:
        pytest.skip(f"{error} ({error.hint})")
    return tokenizer, ChatPrompts(tokenizer, tokenizer.chat_templates)


@settings(max_examples=300, deadline=None)
@given(MESSAGES, st.booleans())
def test_text_and_ids_are_those_of_transformers_and_no_message_writes_a_control_token(
    messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    tokenizer, prompts = model()
    template = prompts.template_for(has_tools=False)
    expected = rendered(str(tokenizer.chat_template), messages, add_generation_prompt=add_generation_prompt)
    assert template.render(messages, add_generation_prompt=add_generation_prompt) == expected
    text = prompts.render(template, messages, add_generation_prompt=add_generation_prompt)
    ids = prompts.encode(text) if prompts.needs_ids(text) else tokenizer.encode(text, add_special_tokens=False)
    one_way = tokenizer.encode(expected, add_special_tokens=False)  # a few rare characters have no token, in no way
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.decode(one_way, skip_special_tokens=False)
    # each turn opens and closes once, and the template says whether it begins with turns of its own
    harmless = [{**message, "content": "x"} for message in messages]
    written = tokenizer.encode(template.render(harmless, add_generation_prompt=add_generation_prompt), add_special_tokens=False)
    assert [each for each in ids if each in tokenizer._special_ids] == [
        each for each in written if each in tokenizer._special_ids
    ]
    if not any(token in message["content"] for message in messages for token in SPECIAL):
        assert ids == one_way
