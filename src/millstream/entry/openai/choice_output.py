"""ChoiceOutput: what a client sees of one choice, part by part: its text, after the prompt where it is echoed, and `logprobs`.

A stream takes a part for each row, a whole answer one for all of it, and both come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream.entry.fields import Json
from millstream.entry.openai.listing import Listed, Listing, listed_prompt
from millstream.entry.openai.logprob_options import LogprobOptions
from millstream.entry.openai.logprobs import TokenNames, chat_logprobs, completion_logprobs, prompt_logprobs
from millstream.messages import Abort, FinishReason, Logprobs, RowDetails, SamplingParams
from millstream.text.tokenizer import Tokenizer


class OutputPart(NamedTuple):
    """Text, and the tokens that are listed with it."""

    text: str
    listed: list[Listed]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How all choices of a call are seen."""

    logprobs: LogprobOptions
    is_chat: bool
    as_ids: bool = False  # tokens go by their ids
    tokenizer: Tokenizer


class ChoiceOutput:
    """One choice. `prompt` has its ids; `echo` is the prompt's text, where that comes first."""

    def __init__(self, options: OutputOptions, sampling: SamplingParams, prompt: list[int], echo: str | None = None) -> None:
        self._options = options
        self._prompt = prompt
        self._skip = sampling.skip_special_tokens
        self._echo = echo  # until it has been given
        self._base = len(echo or "")  # where the answer begins, in characters
        self._listing: Listing | None = None
        if options.logprobs.output is not None:
            self._listing = Listing(
                options.tokenizer.reader(skip_special_tokens=self._skip), no_stop_trim=sampling.no_stop_trim
            )

    def opening(self) -> str:
        """The text that need not wait for the first row: an echoed prompt whose tokens are not listed."""
        if self._listing is not None or self._echo is None:
            return ""
        text, self._echo = self._echo, None
        return text

    def take(self, text: str, token_ids: list[int], details: RowDetails | None, finish: FinishReason | None) -> OutputPart:
        """The part that a row adds."""
        details = details or RowDetails()
        echo, self._echo = self._echo, None
        listed: list[Listed] = []
        if self._listing is not None:
            if echo is not None:
                listed += _within(self._listed_prompt(details.prompt_logprobs, finish), len(echo))
            listed += _behind(self._listing.take(text, token_ids, details.logprobs, finish), self._base)
        return OutputPart((echo or "") + text, listed)

    def logprobs(self, listed: Sequence[Listed]) -> Json | None:
        """The member `logprobs`; None where it was not asked for."""
        top = self._options.logprobs.output
        if top is None:
            return None
        if self._options.is_chat:
            return chat_logprobs(listed, self._names, top)
        return completion_logprobs(listed, self._names, top)

    def prompt_logprobs(self, details: RowDetails | None, finish: FinishReason) -> list[Json | None] | None:
        """The member `prompt_logprobs`; None where it was not asked for."""
        top = self._options.logprobs.prompt
        if top is None:
            return None
        table = None if details is None else details.prompt_logprobs
        return prompt_logprobs(self._listed_prompt(table, finish), self._names, top)

    @property
    def _names(self) -> TokenNames:
        return TokenNames(self._options.tokenizer.single, skip_special_tokens=self._skip, as_ids=self._options.as_ids)

    def _listed_prompt(self, logprobs: Logprobs | None, finish: FinishReason | None) -> list[Listed]:
        if logprobs is None and isinstance(finish, Abort):
            return []  # it ended before its prompt was read
        return listed_prompt(self._options.tokenizer.reader(skip_special_tokens=self._skip), self._prompt, logprobs)


def _within(listed: Sequence[Listed], num_chars: int) -> list[Listed]:
    """Tokens of a text whose decoded form may be longer than it: some encoders change a text before they read it."""
    return [token._replace(place=token.place._replace(offset=min(token.place.offset, num_chars))) for token in listed]


def _behind(listed: Sequence[Listed], num_chars: int) -> list[Listed]:
    """The same tokens with `num_chars` characters before their text."""
    return [token._replace(place=token.place._replace(offset=token.place.offset + num_chars)) for token in listed]
