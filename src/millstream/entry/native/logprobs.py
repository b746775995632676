"""Log probabilities as SGLang's `meta_info` has them: which are asked for, and the lists that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

from millstream.entry.fields import check_count, check_range
from millstream.entry.native.json_buffers import JsonList
from millstream.entry.tokenize import check_has_logprobs
from millstream.errors import InvariantError, RequestError
from millstream.messages import EngineInfo, LogprobParams, Logprobs, RowDetails
from millstream.messages.details import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS
from millstream.messages.sampling import verify_token_ids

SLICE = 256  # positions written at a time: others want to run between them, where a prompt's are many
Triple = tuple[float | None, int, str | None]  # log probability, token id, its text where that was asked for


class LogprobOptions(NamedTuple):
    """What is asked for one prompt. `has_text`: each id is given with its text."""

    params: LogprobParams
    has_text: bool


def parse_logprob_options(
    is_wanted: bool, *, start: int, top: int, token_ids: list[int], has_text: bool, engine: EngineInfo
) -> LogprobOptions | None:
    """Check the fields of one prompt; None where nothing is asked for.

    Raises:
        RequestError: one is out of range, asks for more than the executor gives, or for what `return_logprob` does not.
    """
    if start < -1:
        raise RequestError(
            f"logprob_start_len is {start}; it must be -1 (no prompt position) or the first position, from 0.",
            param="logprob_start_len",
        )
    check_range("top_logprobs_num", top, 0, MAX_TOP_LOGPROBS)
    check_count("token_ids_logprob", len(token_ids), MAX_LOGPROB_TOKEN_IDS, "ids")
    verify_token_ids("token_ids_logprob", token_ids, engine.vocab_size)
    if not is_wanted:
        asked = {"logprob_start_len": start >= 0, "top_logprobs_num": top > 0, "token_ids_logprob": bool(token_ids)}
        for name, is_asked in asked.items():
            if is_asked:
                raise RequestError(f"{name} needs `return_logprob`: true.", param=name)
        return None
    check_has_logprobs(engine, "return_logprob")
    return LogprobOptions(
        LogprobParams(top=top, token_ids=tuple(token_ids), prompt_start=None if start < 0 else start), has_text
    )


class LogprobLists:
    """The lists of one request, filled row by row. Each value is encoded once.

    Of a prompt, every position from the first wanted on has an item; the very first token has no log probability: null.
    """

    def __init__(self, options: LogprobOptions, prompt_ids: Sequence[int], text_of: Callable[[int], str]) -> None:
        self._params = options.params
        self._text_of = text_of if options.has_text else None
        self._prompt_ids = prompt_ids
        self._is_prompt_added = options.params.prompt_start is None
        self._num_output = 0  # of the answer's tokens
        kinds = ["token", *(["top"] if self._params.top else []), *(["token_ids"] if self._params.token_ids else [])]
        self._lists = {f"{side}_{kind}_logprobs": JsonList() for side in ("input", "output") for kind in kinds}

    def add(self, token_ids: Sequence[int], details: RowDetails | None, *, has_prompt: bool) -> None:
        """Take the values of a row, of its `token_ids` and of the prompt, which has been computed where `has_prompt`."""
        if has_prompt and not self._is_prompt_added:
            self._is_prompt_added = True
            self._add_prompt(None if details is None else details.prompt_logprobs)
        if details is not None and details.logprobs is not None:
            self._num_output += len(details.logprobs.chosen)
            self._add("output", token_ids, details.logprobs)

    def members(self) -> bytes:
        """What `meta_info` has beside its counts, a comma before each."""
        lists = [part for name, values in self._lists.items() for part in (b',"%b":' % name.encode(), values.json())]
        return b"".join((*lists, b',"output_token_logprobs_length":%d' % self._num_output))

    def clear(self) -> None:
        """Forget the items so far: the client has them."""
        for values in self._lists.values():
            values.clear()
        self._num_output = 0

    def _add_prompt(self, logprobs: Logprobs | None) -> None:
        start = self._params.prompt_start or 0
        if start == 0:
            first = self._prompt_ids[0]
            text = None if self._text_of is None else self._text_of(first)
            self._lists["input_token_logprobs"].extend([(None, first, text)])
            for name in ("input_top_logprobs", "input_token_ids_logprobs"):
                if name in self._lists:
                    self._lists[name].extend([None])
        if logprobs is not None:
            self._add("input", self._prompt_ids[max(1, start) :], logprobs)

    def _add(self, side: str, token_ids: Sequence[int], logprobs: Logprobs) -> None:
        for start in range(0, len(logprobs.chosen), SLICE):
            end = start + SLICE
            self._add_slice(side, token_ids[start:end], logprobs.part(start, end))

    def _add_slice(self, side: str, token_ids: Sequence[int], logprobs: Logprobs) -> None:
        self._lists[f"{side}_token_logprobs"].extend(self._triples(logprobs.chosen, token_ids))
        if self._params.top:
            pairs = zip(logprobs.top, logprobs.top_ids, strict=True)
            self._lists[f"{side}_top_logprobs"].extend([self._triples(values, ids) for values, ids in pairs])
        if self._params.token_ids:
            ids = self._params.token_ids
            self._lists[f"{side}_token_ids_logprobs"].extend([self._triples(values, ids) for values in logprobs.asked])

    def _triples(self, values: Sequence[float], token_ids: Sequence[int]) -> list[Triple]:
        if len(values) != len(token_ids):
            raise InvariantError(f"{len(values)} log probabilities for {len(token_ids)} tokens")
        texts = repeat(None) if self._text_of is None else map(self._text_of, token_ids)
        return list(zip(values, token_ids, texts, strict=False))  # a prompt may have a million of them
