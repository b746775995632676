"""EndRule: decides, token by token, where one request ends. The scheduler asks it once a step; nobody else decides ends.

A step may bring several tokens. They are taken in order and cut at the first end, so that one step of n tokens and n steps of
one token agree. It never touches the token list, pages or queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.messages import FinishReason, Length, SamplingParams, Stop
from millstream.text.regex import compile_patterns
from millstream.text.stop import StopMatcher
from millstream.text.stop_regex import RegexMatcher
from millstream.text.tokenizer import Tokenizer


class Verdict(NamedTuple):
    """`num_kept` tokens of the step count; `finish` says whether, and why, the last of them is the request's last.

    `held_back` is what `TokenRow.held_back` says: characters, counted from the end of all text pushed through a decoder.
    """

    num_kept: int
    finish: FinishReason | None
    held_back: int


class EndRule:
    """One request's end. For each token, in this order: EOS and stop ids, stop strings and regexes, the limit of new tokens.

    Before `min_new_tokens` are made no stop counts: ids are banned from sampling and, should an executor bring one all
    the same, ignored; a stop string or regex that completes earlier is ignored for good.
    """

    def __init__(
        self, *, sampling: SamplingParams, max_new_tokens: int, eos_token_ids: frozenset[int], tokenizer: Tokenizer
    ) -> None:
        self._stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
        self._banned = tuple(sorted(self._stop_ids))
        self._min = sampling.min_new_tokens
        self._max = max_new_tokens
        self._stop_text = _StopText(sampling, tokenizer) if sampling.stop or sampling.stop_regex else None

    def banned_token_ids(self, num_output_tokens: int) -> tuple[int, ...]:
        """Ids that the next token may not be, `num_output_tokens` being made."""
        return self._banned if num_output_tokens < self._min else ()

    def settle(self, new_ids: Sequence[int], num_output_tokens: int) -> Verdict:
        """Judge the tokens of one step, `num_output_tokens` having been made before it. Mutates the text state."""
        stop_text = self._stop_text
        for index, token_id in enumerate(new_ids):
            count = num_output_tokens + index + 1
            if token_id in self._stop_ids and count > self._min:
                return Verdict(index + 1, Stop(token_id), 0)
            if stop_text is not None:
                matched = stop_text.push(token_id, armed=count >= self._min)
                if matched is not None:
                    return Verdict(index + 1, Stop(matched), stop_text.held_back)
            if count >= self._max:
                return Verdict(index + 1, Length(self._max), 0)
        return Verdict(len(new_ids), None, 0 if stop_text is None else stop_text.held_back)


class _StopText:
    """The text of one request, as its client will see it, searched for stop strings and regexes as it grows."""

    def __init__(self, sampling: SamplingParams, tokenizer: Tokenizer) -> None:
        self._decoder = tokenizer.incremental(
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
        )
        self._matchers: list[StopMatcher | RegexMatcher] = []
        if sampling.stop:
            self._matchers.append(StopMatcher(sampling.stop))
        if sampling.stop_regex:
            self._matchers.append(RegexMatcher(compile_patterns(sampling.stop_regex)))
        self._no_stop_trim = sampling.no_stop_trim
        self.held_back = 0

    def push(self, token_id: int, *, armed: bool) -> str | None:
        """Add one token; returns the text that is the stop it completes, if it does."""
        text = self._decoder.push((token_id,))
        matches = [match for matcher in self._matchers if (match := matcher.feed(text, armed=armed)) is not None]
        if not matches:
            self.held_back = max(matcher.held_back for matcher in self._matchers)
            return None
        match = min(matches, key=lambda each: (each.end, each.start))  # the first to complete; of several, the longest
        self.held_back = self._matchers[0].num_chars - (match.end if self._no_stop_trim else match.start)
        return match.stop
