"""What `transformers` makes of a conversation: the reference for chat templates."""

from __future__ import annotations

import functools
from typing import Any

import jinja2
import tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# what a template makes of a conversation that it is not written for
REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@functools.cache
def _tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **SPECIAL_TOKENS)


def rendered(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """The prompt text; None where the template refuses the conversation."""
    try:
        text: str = _tokenizer().apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    except REFUSALS:
        return None
    return text
