"""Log probabilities of a response: whether they are asked for, and their JSON, which is that of chats in another form."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.entry.fields import Json, refusal
from millstream.entry.openai.choice_output import ChoiceOutput, OutputOptions
from millstream.entry.openai.logprob_options import LogprobOptions
from millstream.entry.openai.responses.protocol import LOGPROBS, ResponseRequest
from millstream.entry.state import ReqState
from millstream.entry.tokenize import check_has_logprobs
from millstream.messages import EngineInfo, FinishReason, RowDetails
from millstream.parsing.pipeline import Reading
from millstream.text.tokenizer import Tokenizer


def logprob_options(request: ResponseRequest, engine: EngineInfo) -> LogprobOptions:
    """What is asked of the engine.

    Raises:
        RequestError: it has no log probabilities.
    """
    if not request.wants_logprobs:
        return LogprobOptions()
    check_has_logprobs(engine, _field(request))
    return LogprobOptions(output=request.top_logprobs)


def check_readable(logprobs: LogprobOptions, reading: Reading | None, request: ResponseRequest) -> None:
    """Check that the tokens of an answer that is read so can be listed: only a message has a place for them.

    Raises:
        RequestError: they are asked for, and the answer may have other items.
    """
    if logprobs.output is not None and reading is not None:
        name = _field(request)
        raise refusal(
            name, "only the text of a message has log probabilities, and this answer may have tool calls or reasoning"
        )


def _field(request: ResponseRequest) -> str:
    return "include" if LOGPROBS in request.include else "top_logprobs"


class TokenList:
    """The tokens of one response, listed as its text comes; none where nobody asked."""

    def __init__(self, logprobs: LogprobOptions, tokenizer: Tokenizer, state: ReqState) -> None:
        self._output: ChoiceOutput | None = None
        if logprobs.output is not None:
            options = OutputOptions(logprobs=logprobs, is_chat=True, tokenizer=tokenizer)
            self._output = ChoiceOutput(options, state.obj.sampling, state.input_ids)

    def take(self, text: str, token_ids: list[int], details: RowDetails | None, finish: FinishReason | None) -> list[Json]:
        """The tokens to list with a row."""
        if self._output is None:
            return []
        logprobs = self._output.logprobs(self._output.take(text, token_ids, details, finish).listed)
        return [] if logprobs is None else [_entry(each) for each in logprobs["content"]]


def brief(logprobs: Sequence[Json]) -> list[Json]:
    """As events have them: without bytes."""
    return [
        {"token": each["token"], "logprob": each["logprob"], "top_logprobs": [_pair(top) for top in each["top_logprobs"]]}
        for each in logprobs
    ]


def _pair(entry: Json) -> Json:
    return {"token": entry["token"], "logprob": entry["logprob"]}


def _entry(entry: Json) -> Json:
    """A token that adds no bytes has an empty list of them here, not null."""
    tops = [{**top, "bytes": top["bytes"] or []} for top in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": tops}
