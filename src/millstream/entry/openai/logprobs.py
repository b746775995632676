"""The JSON of log probabilities: OpenAI's for chats and for completions, and vLLM's `prompt_logprobs`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.entry.fields import Json
from millstream.entry.openai.listing import Listed
from millstream.text.token_bytes import TokenBytes, token_text

LEAST = -9999.0  # OpenAI's word for a token that cannot be: JSON has no minus infinity


class TokenNames:
    """How tokens are written in an answer: by their text or, where the client wants that or there is none, as `token_id:N`."""

    def __init__(self, tokens: TokenBytes, *, skip_special_tokens: bool, as_ids: bool) -> None:
        self._tokens = tokens
        self._skip_special_tokens = skip_special_tokens
        self._as_ids = as_ids

    def text(self, token_id: int, *, at_start: bool = False) -> str:
        """The token's name; never empty."""
        data = b"" if self._as_ids else self._tokens.of(token_id, at_start=at_start) or self._tokens.of(token_id)
        return token_text(data) if data else f"token_id:{token_id}"

    def bytes(self, token_id: int, *, at_start: bool = False) -> list[int] | None:
        """The bytes that the token adds to a text; None where it adds none, as a control token that the text leaves out."""
        if self._skip_special_tokens and self._tokens.is_control(token_id):
            return None
        return list(self._tokens.of(token_id, at_start=at_start)) or None


def chat_logprobs(listed: Sequence[Listed], names: TokenNames, top: int) -> Json:
    """`logprobs` of a chat choice, or of a part of it, with `top` alternatives each."""
    content = []
    for token in listed:
        at_start = token.place.at_start
        others = zip(token.top_ids[:top], token.top, strict=False)
        content.append(
            {
                **_entry(names, token.token_id, token.logprob, at_start=at_start),
                "top_logprobs": [_entry(names, token_id, value, at_start=at_start) for token_id, value in others],
            }
        )
    return {"content": content, "refusal": None}


def _entry(names: TokenNames, token_id: int, logprob: float | None, *, at_start: bool) -> Json:
    return {
        "token": names.text(token_id, at_start=at_start),
        "logprob": _finite_or_none(logprob),
        "bytes": names.bytes(token_id, at_start=at_start),
    }


def completion_logprobs(listed: Sequence[Listed], names: TokenNames, top: int) -> Json:
    """`logprobs` of a completions choice, or of a part of it. With `top` 0 there are no alternatives.

    The token that stands there is always among the alternatives. Two ids may be written alike; the likelier one is given.
    """
    return {
        "tokens": [names.text(token.token_id, at_start=token.place.at_start) for token in listed],
        "token_logprobs": [_finite_or_none(token.logprob) for token in listed],
        "top_logprobs": [_alternatives(token, names, top) for token in listed] if top else None,
        "text_offset": [token.place.offset for token in listed],
    }


def _alternatives(token: Listed, names: TokenNames, top: int) -> Json | None:
    if token.logprob is None:
        return None
    alternatives: Json = {}
    pairs = [*zip(token.top_ids[:top], token.top, strict=False), (token.token_id, token.logprob)]
    for token_id, value in pairs:
        alternatives.setdefault(names.text(token_id, at_start=token.place.at_start), finite(value))
    return alternatives


def prompt_logprobs(listed: Sequence[Listed], names: TokenNames, top: int) -> list[Json | None]:
    """vLLM's list over the positions of a prompt: for each the likeliest ids and the one that stands there; none for the first.

    The rank is given for those among the likeliest, which are known by it.
    """
    return [None if token.logprob is None else _ranked(token, names, top) for token in listed]


def _ranked(token: Listed, names: TokenNames, top: int) -> Json:
    alternatives: Json = {}
    pairs = zip(token.top_ids[:top], token.top, strict=False)
    for rank, (token_id, value) in enumerate(pairs, start=1):
        alternatives[str(token_id)] = {"logprob": finite(value), "rank": rank, "decoded_token": names.text(token_id)}
    own = {"logprob": _finite_or_none(token.logprob), "decoded_token": names.text(token.token_id)}
    alternatives.setdefault(str(token.token_id), own)
    return alternatives


def finite(value: float) -> float:
    """A log probability as JSON can say it."""
    return value if value > LEAST else LEAST  # NaN compares false


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None else finite(value)
