"""The answers of /generate as SGLang has them: one object a request, whole, or again and again in a stream.

An event has all there is so far, or, where the client asked for it, what is new: what was sent is kept in the object or cleared
from it. A whole answer is the last event of a stream of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.entry.failure import Failure, failure_of_unasked_end
from millstream.entry.generation import Generation
from millstream.entry.native.batch import Batch
from millstream.entry.native.json_buffers import JsonList, JsonText
from millstream.entry.native.logprobs import LogprobLists, LogprobOptions
from millstream.entry.sse import DONE, error_event, event
from millstream.entry.state import ReqState
from millstream.entry.whole import Whole
from millstream.messages import FinishReason, Length, RowDetails, Stop, TextRow
from millstream.text.tokenizer import Tokenizer

_encode = msgspec.json.encode
WEIGHT_VERSION = "default"  # SGLang's word for weights that never changed since the start; ours cannot


class AnswerObject:
    """What one request has made, as JSON that grows with it."""

    def __init__(self, state: ReqState, *, options: LogprobOptions | None, shows_prompt: bool, tokenizer: Tokenizer) -> None:
        self._state = state
        self._text = JsonText()
        self._ids = JsonList()
        self._prompt_ids = JsonList() if shows_prompt else None
        if self._prompt_ids is not None:
            self._prompt_ids.extend(state.input_ids)
        self._known: tuple[int, ...] = ()  # what `_members` was made from
        self._members = b""
        self._logprobs: LogprobLists | None = None
        if options is not None:
            single = tokenizer.single
            self._logprobs = LogprobLists(
                options, state.input_ids, lambda token_id: single.of(token_id).decode("utf-8", "replace")
            )

    def add(self, text: str, token_ids: Sequence[int], details: RowDetails | None, finish: FinishReason | None) -> None:
        """Take what was made; `finish` where that is all."""
        if text:
            self._text.append(text)
        self._ids.extend(token_ids)
        if self._logprobs is not None:
            has_prompt = bool(token_ids) or isinstance(finish, Stop | Length)  # an abort may come before the prompt is read
            self._logprobs.add(token_ids, details, has_prompt=has_prompt)

    def clear(self) -> None:
        """Forget what was taken: the client has it."""
        self._text.clear()
        self._ids.clear()
        if self._prompt_ids is not None:
            self._prompt_ids.clear()
        if self._logprobs is not None:
            self._logprobs.clear()

    def json(self, finish: FinishReason | None, now: float, index: int | None = None) -> bytes:
        """The object; `finish` is how the request ended, where it has, by `now`. `index` is its place among several.

        Put together by hand: every token of every stream passes here.
        """
        state = self._state
        ended = b""
        if finish is not None:
            ended = b',"e2e_latency":%b' % _encode(now - state.obj.timing.received)
        return b"".join(
            (
                b'{"text":"',
                self._text.content,
                b'","output_ids":[',
                self._ids.items,
                b'],"meta_info":{"finish_reason":',
                b"null" if finish is None else _encode(_finish_reason(finish)),
                b',"completion_tokens":%d' % state.num_handed_on,
                self._facts(),
                ended,
                b"" if self._logprobs is None else self._logprobs.members(),
                b"}",
                b"" if self._prompt_ids is None else b',"prompt_token_ids":%b' % self._prompt_ids.json(),
                b"" if index is None else b',"index":%d' % index,
                b"}",
            )
        )

    def _facts(self) -> bytes:
        """The members of `meta_info` that stay the same from event to event, nearly always; a comma before each."""
        usage = self._state.usage
        assert usage is not None  # it came with the row
        facts = (usage.prompt_tokens, usage.cached_tokens, usage.retractions, usage.verify_steps)
        if facts != self._known:
            self._known = facts
            members: dict[str, Any] = {
                "id": self._state.rid,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "cached_tokens_details": {"device": usage.cached_tokens, "host": 0},  # there is no cache but on the device
                "num_retractions": usage.retractions,
                "weight_version": WEIGHT_VERSION,
            }
            if usage.verify_steps:
                members["spec_verify_ct"] = usage.verify_steps
            self._members = b"," + _encode(members)[1:-1]
        return self._members


def make_objects(generation: Generation, batch: Batch, *, shows_prompt: bool, tokenizer: Tokenizer) -> list[AnswerObject]:
    """One for each request of the call."""
    return [
        AnswerObject(
            state,
            options=batch.prompts[state.index // batch.n].logprobs,
            shows_prompt=shows_prompt,
            tokenizer=tokenizer,
        )
        for state in generation.states
    ]


def whole_answer(objects: Sequence[AnswerObject], made: Sequence[Whole], now: float, *, is_list: bool) -> bytes:
    """The body of an answer that is not streamed: one object, or a list of them in order."""
    encoded = []
    for answer, each in zip(objects, made, strict=True):
        answer.add(each.text, each.token_ids, each.details, each.finish)
        encoded.append(answer.json(each.finish, now))
        answer.clear()
    return b"[%b]" % b",".join(encoded) if is_list else encoded[0]


class AnswerStream:
    """The `StreamForm` of /generate: an event for each row, text or not.

    With `is_incremental` it has what is new and not all so far; with `is_list` it says whose it is.
    """

    def __init__(
        self, objects: Sequence[AnswerObject], clock: Callable[[], float], *, is_incremental: bool, is_list: bool
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._is_list = is_list
        self._is_incremental = is_incremental

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def row(self, index: int, row: TextRow) -> bytes:
        """The event, where there is one."""
        return event(data) if (data := self.json(index, row)) else b""

    def json(self, index: int, row: TextRow) -> bytes:
        """What the event says; b"" for a row that only says that the request failed."""
        failed = row.finish is not None and failure_of_unasked_end(row.finish) is not None
        if failed and not row.text and not row.token_ids:
            return b""
        answer = self._objects[index]
        answer.add(row.text, row.token_ids, row.details, row.finish)
        data = answer.json(None if failed else row.finish, self._clock(), index if self._is_list else None)
        if self._is_incremental:
            answer.clear()
        return data

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """None: every event has its counts."""

    def failure(self, finish: FinishReason) -> Failure | None:
        """A request aborted by its client has an answer, with finish type `abort`."""
        return failure_of_unasked_end(finish)

    def closing(self) -> bytes:
        """`[DONE]`."""
        return DONE

    def broken(self, failure: Failure) -> bytes:
        """An error event."""
        return error_event(failure)


def _finish_reason(finish: FinishReason) -> dict[str, Any]:
    if isinstance(finish, Stop):
        return {"type": "stop", "matched": finish.matched}
    if isinstance(finish, Length):
        return {"type": "length", "length": finish.limit}
    return {"type": "abort", "message": finish.message}
