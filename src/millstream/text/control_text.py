"""ControlText: text of messages that reads like a control token, kept apart from the control tokens a chat template writes.

Used by `ChatPrompts`. In rendered text both look alike, and encoding would turn a user's `<|im_end|>` into the end of the turn.
So what stands in messages is hidden from the encoder before rendering; afterwards the ids are made here, where the template's
own control tokens go by names that nobody outside this object knows, and all other text is ordinary.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import tokenizers
from tokenizers import AddedToken

from millstream.errors import RequestError

DIGITS = 30  # of the random number that hidden text begins with
INDEX_DIGITS = 6


class ControlText:
    """The control tokens of one vocabulary. Nothing changes after it is made; threads may share it.

    `control_ids` are added tokens of `encoder`, whose ids are all below `num_ids`. Its model is shared, not copied. A token
    that is a word is none: it could not be told from the word.
    """

    def __init__(self, encoder: tokenizers.Tokenizer, control_ids: frozenset[int], num_ids: int) -> None:
        added = {token_id: token for token_id, token in encoder.get_added_tokens_decoder().items() if token.content}
        control = {
            token_id: added[token_id]
            for token_id in sorted(control_ids & added.keys())
            if not added[token_id].content.isalnum()
        }
        self._texts = [token.content for token in control.values()]
        self._indexes = {text: index for index, text in enumerate(self._texts)}
        # digits: no filter of a template changes them
        self._mark = f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"
        # of the names of control tokens: whoever knew it could write one, so it never leaves this object, not even in a prompt
        self._nonce = secrets.token_hex(16)
        self._written = re.compile(_longest_of(self._texts)) if control else None
        self._hidden = re.compile(f"{self._mark}([0-9]{{{INDEX_DIGITS}}})")
        self._encoder = _encoder_of_same_model(encoder)
        # new tokens are numbered from the number of tokens on: where the vocabulary has gaps, into the ids behind them
        num_gaps = num_ids - encoder.get_vocab_size(with_added_tokens=False)
        self._encoder.add_tokens([AddedToken(f"{self._nonce}g{gap}g", normalized=False) for gap in range(num_gaps)])
        named = {self._name(index): token for index, token in enumerate(control.values())}
        self._encoder.add_special_tokens(
            [AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False) for name, token in named.items()]
        )
        others = {token_id: token for token_id, token in added.items() if token_id not in control}
        self._encoder.add_tokens(list(others.values()))
        # the encoder's ids of added tokens -> those that the model knows
        self._ids = {self._encoder.token_to_id(name): token_id for name, token_id in zip(named, control, strict=True)}
        self._ids |= {self._encoder.token_to_id(token.content): token_id for token_id, token in others.items()}
        in_model = {token_id for token_id, token in control.items() if encoder.model.token_to_id(token.content) == token_id}
        self._never_text = frozenset(in_model - self._ids.keys())
        # a normalizer can make a control token of text that does not read like one
        self._hides_all = _normalizes(encoder) and any(token.normalized for token in control.values())

    def hide(self, value: Any) -> Any:
        """Copy `value`, of JSON types, with every text of a control token in it replaced by a name without meaning."""
        if isinstance(value, str):
            return self._written.sub(self._hide_one, value) if self._written is not None else value
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def is_needed(self, text: str) -> bool:
        """Whether only `encode` gives the right ids of rendered `text`: something in it was hidden."""
        return self._hides_all or self._mark in text

    def reveal(self, text: str) -> str:
        """Copy `text` with what was hidden in it as it was."""
        return self._hidden.sub(lambda match: self._texts[int(match[1])] if int(match[1]) < len(self._texts) else "", text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of rendered text: its control tokens are those of the template, what was hidden is ordinary text.

        Raises:
            RequestError: the vocabulary can write a control token's text as the control token only, or the text has a lone
                surrogate.
        """
        if self._written is not None:
            text = self._written.sub(lambda match: self._name(self._indexes[match[0]]), text)
        text = self.reveal(text)
        try:
            ids = self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise RequestError("the text has a lone surrogate; it is not valid Unicode.", param="messages") from error
        if not self._never_text.isdisjoint(ids):
            token = self._encoder.id_to_token(min(self._never_text.intersection(ids)))
            raise RequestError(
                f"messages contain `{token}`, which this model's vocabulary knows as a control token only.", param="messages"
            )
        return [self._ids.get(token_id, token_id) for token_id in ids]

    def _hide_one(self, match: re.Match[str]) -> str:
        return f"{self._mark}{self._indexes[match[0]]:0{INDEX_DIGITS}}"

    def _name(self, index: int) -> str:
        return f"{self._nonce}c{index}c"


def _longest_of(texts: list[str]) -> str:
    """A regular expression for the longest of `texts`. Each beginning is looked at once: a list of a thousand takes long, and
    `re` lets no other thread run meanwhile."""
    rests: dict[str, list[str]] = {}
    for text in filter(None, texts):
        rests.setdefault(text[0], []).append(text[1:])
    if not rests:
        return ""
    either = "|".join(re.escape(first) + _longest_of(rest) for first, rest in rests.items())
    if "" in texts:
        return f"(?:{either})?"
    return either if len(rests) == 1 else f"(?:{either})"


def _encoder_of_same_model(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """An encoder that reads text as `encoder` does, without a single added token."""
    fresh = tokenizers.Tokenizer(encoder.model)
    if encoder.normalizer is not None:
        fresh.normalizer = encoder.normalizer
    if encoder.pre_tokenizer is not None:
        fresh.pre_tokenizer = encoder.pre_tokenizer
    return fresh


def _normalizes(encoder: tokenizers.Tokenizer) -> bool:
    if encoder.normalizer is None:
        return False
    return bool(json.loads(encoder.normalizer.__getstate__()).get("normalizers", True))  # an empty sequence does nothing
