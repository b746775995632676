"""Log probabilities as SGLang's `meta_info` has them: which are wanted, and the lists they are told in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

from millstream.entry.native.json_parts import JsonList
from millstream.errors import InvariantError, RequestError
from millstream.messages import EngineInfo, LogprobParams, Logprobs, RowDetails
from millstream.messages.details import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS
from millstream.messages.sampling import verify_token_ids

SLICE = 256  # positions written at a time: others want to run between them, where a prompt's are many
Triple = tuple[float | None, int, str | None]  # log probability, token id, its text where that was asked for


class LogprobWish(NamedTuple):
    """What one prompt wants to know. `has_text`: each id is told with its text."""

    params: LogprobParams
    has_text: bool


def parse_wish(
    is_wanted: bool, *, start: int, top: int, token_ids: list[int], has_text: bool, engine: EngineInfo
) -> LogprobWish | None:
    """Check the fields of one prompt; None where nothing is wanted.

    Raises:
        RequestError: one is out of range, asks for more than the model tells, or for what `return_logprob` does not.
    """
    if start < -1:
        raise RequestError(
            f"logprob_start_len is {start}; it must be -1 (no prompt position) or the first position, from 0.",
            param="logprob_start_len",
        )
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs_num is {top}; it must be from 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs_num")
    if len(token_ids) > MAX_LOGPROB_TOKEN_IDS:
        raise RequestError(
            f"token_ids_logprob has {len(token_ids)} ids; at most {MAX_LOGPROB_TOKEN_IDS} are allowed.",
            param="token_ids_logprob",
        )
    verify_token_ids("token_ids_logprob", token_ids, engine.vocab_size)
    if not is_wanted:
        asked = {"logprob_start_len": start >= 0, "top_logprobs_num": top > 0, "token_ids_logprob": bool(token_ids)}
        for name, is_asked in asked.items():
            if is_asked:
                raise RequestError(f"{name} needs `return_logprob`: true.", param=name)
        return None
    if not engine.has_logprobs:
        raise RequestError(
            f"`return_logprob` is refused: the executor `{engine.executor}` has no log probabilities.",
            param="return_logprob",
            code="unsupported_parameter",
        )
    return LogprobWish(LogprobParams(top=top, token_ids=tuple(token_ids), prompt_start=None if start < 0 else start), has_text)


class LogprobLists:
    """The lists of one request, filled row by row. Each value is encoded once.

    Of a prompt, every position from the first wanted on has an item; the very first token has no log probability: null.
    """

    def __init__(self, wish: LogprobWish, prompt_ids: Sequence[int], text_of: Callable[[int], str]) -> None:
        self._params = wish.params
        self._text_of = text_of if wish.has_text else None
        self._prompt_ids = prompt_ids
        self._is_prompt_told = wish.params.prompt_start is None
        self._num_told = 0  # of the answer's tokens
        kinds = ["token", *(["top"] if self._params.top else []), *(["token_ids"] if self._params.token_ids else [])]
        self._lists = {f"{side}_{kind}_logprobs": JsonList() for side in ("input", "output") for kind in kinds}

    def add(self, token_ids: Sequence[int], details: RowDetails | None, *, has_prompt: bool) -> None:
        """Take what a row tells of its `token_ids`, and of the prompt. With `has_prompt` that has been computed."""
        if has_prompt and not self._is_prompt_told:
            self._is_prompt_told = True
            self._add_prompt(None if details is None else details.prompt_logprobs)
        if details is not None and details.logprobs is not None:
            self._num_told += len(details.logprobs.chosen)
            self._add("output", token_ids, details.logprobs)

    def members(self) -> bytes:
        """What `meta_info` has beside its counts, a comma before each."""
        lists = [part for name, values in self._lists.items() for part in (b',"%b":' % name.encode(), values.json())]
        return b"".join((*lists, b',"output_token_logprobs_length":%d' % self._num_told))

    def clear(self) -> None:
        """Forget the items so far: they are told."""
        for values in self._lists.values():
            values.clear()
        self._num_told = 0

    def _add_prompt(self, told: Logprobs | None) -> None:
        start = self._params.prompt_start or 0
        if start == 0:
            first = self._prompt_ids[0]
            text = None if self._text_of is None else self._text_of(first)
            self._lists["input_token_logprobs"].extend([(None, first, text)])
            for name in ("input_top_logprobs", "input_token_ids_logprobs"):
                if name in self._lists:
                    self._lists[name].extend([None])
        if told is not None:
            self._add("input", self._prompt_ids[max(1, start) :], told)

    def _add(self, side: str, token_ids: Sequence[int], told: Logprobs) -> None:
        for start in range(0, len(told.chosen), SLICE):
            end = start + SLICE
            self._add_slice(side, token_ids[start:end], told.part(start, end))

    def _add_slice(self, side: str, token_ids: Sequence[int], told: Logprobs) -> None:
        self._lists[f"{side}_token_logprobs"].extend(self._triples(told.chosen, token_ids))
        if self._params.top:
            pairs = zip(told.top, told.top_ids, strict=True)
            self._lists[f"{side}_top_logprobs"].extend([self._triples(values, ids) for values, ids in pairs])
        if self._params.token_ids:
            ids = self._params.token_ids
            self._lists[f"{side}_token_ids_logprobs"].extend([self._triples(values, ids) for values in told.asked])

    def _triples(self, values: Sequence[float], token_ids: Sequence[int]) -> list[Triple]:
        if len(values) != len(token_ids):
            raise InvariantError(f"{len(values)} log probabilities for {len(token_ids)} tokens")
        texts = repeat(None) if self._text_of is None else map(self._text_of, token_ids)
        return list(zip(values, token_ids, texts, strict=False))  # a prompt may have a million of them
