"""SamplingParams: how one request wants its tokens drawn, where it stops and how its text is shown; checked normal form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from msgspec import Struct

from millstream.errors import RequestError
from millstream.messages.grammar import GrammarSpec

MAX_STOP_STRINGS = 32
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_REGEXES = 32
MAX_STOP_REGEX_BYTES = 256
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_COUNT = 2**31 - 1  # of tokens: what any executor can count to
GREEDY_BELOW = 1e-5  # temperatures under this are 0: dividing by them overflows float32


class Range(NamedTuple):
    """What a number may be, ends included; with `excludes_low` not the lower one."""

    low: float
    high: float
    excludes_low: bool = False


RANGES = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0, excludes_low=True),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(0.0, 10.0, excludes_low=True),
    "logit_bias": Range(-100.0, 100.0),  # of each id
}
_NUMBERS = [name for name in RANGES if name != "logit_bias"]


class SamplingParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request's sampling, stop and display rules, with the defaults of the OpenAI API.

    `verify` raises `RequestError` naming the field; nothing behind it meets an unchecked value.
    """

    max_new_tokens: int | None = None  # None: up to the context limit; 0: the prompt is computed and nothing is made
    min_new_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output; 1 is off
    logit_bias: dict[int, float] = {}
    seed: int | None = None  # None: the entry draws one before dispatch
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()  # checked where they are compiled: `text.regex.compile_patterns`
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # ignores EOS only; stop, stop_token_ids and limits still hold
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    grammar: GrammarSpec | None = None  # what the text must look like; the entry has it checked before dispatch

    def verify(self, vocab_size: int) -> None:
        """Check every field against its range.

        Raises:
            RequestError: the first field out of range, with its value and the limit.
        """
        for name in _NUMBERS:
            _between(name, getattr(self, name))
        if self.top_k != -1 and not 1 <= self.top_k <= MAX_COUNT:
            _refuse("top_k", self.top_k, f"-1 (off) or from 1 to {MAX_COUNT}")
        if self.max_new_tokens is not None and not 0 <= self.max_new_tokens <= MAX_COUNT:
            _refuse("max_tokens", self.max_new_tokens, f"from 0 to {MAX_COUNT}")
        if not 0 <= self.min_new_tokens <= MAX_COUNT:
            _refuse("min_tokens", self.min_new_tokens, f"from 0 to {MAX_COUNT}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            _refuse("min_tokens", self.min_new_tokens, f"at most max_tokens, {self.max_new_tokens}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            _refuse("seed", self.seed, "an integer of 64 bits")
        self._verify_stops(vocab_size)
        self._verify_logit_bias(vocab_size)

    def _verify_stops(self, vocab_size: int) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
        for text in self.stop:
            if not text:
                raise RequestError("stop must not contain an empty string.", param="stop")
            if len(text) > MAX_STOP_LENGTH:
                raise RequestError(
                    f"a stop string has {len(text)} characters; at most {MAX_STOP_LENGTH} are allowed.", param="stop"
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise RequestError(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} are allowed.",
                param="stop_token_ids",
            )
        verify_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)

    def _verify_logit_bias(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS} are allowed.", param="logit_bias"
            )
        verify_token_ids("logit_bias", self.logit_bias, vocab_size)
        for value in self.logit_bias.values():
            _between("logit_bias", value)


def verify_token_ids(param: str, ids: Any, vocab_size: int) -> None:
    """Check that every id of an id list from a client lies in the vocabulary: the one validator for all of them.

    Raises:
        RequestError: the first id outside 0..vocab_size - 1.
    """
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):  # at C speed: a prompt may have a hundred thousand
        return
    wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
    _refuse(param, wrong, f"token ids from 0 to {vocab_size - 1}")


def _between(param: str, value: float) -> None:
    low, high, excludes_low = RANGES[param]
    # written so that NaN, which fails every comparison, is refused
    if math.isfinite(value) and low <= value <= high and not (excludes_low and value == low):
        return
    _refuse(
        param, value, f"{'greater than' if excludes_low else 'from'} {low:g} {'and at most' if excludes_low else 'to'} {high:g}"
    )


def _refuse(param: str, value: object, limit: str) -> None:
    raise RequestError(f"{param} is {value}; it must be {limit}.", param=param)
