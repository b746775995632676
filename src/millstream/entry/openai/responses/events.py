"""The events of a streamed response, in OpenAI's order, each with its number. The fixed part of a delta is encoded once."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.entry.failure import Failure, failure_of_unasked_end
from millstream.entry.fields import Json
from millstream.entry.openai.responses.body import Output, text_part
from millstream.entry.openai.responses.ids import output_id
from millstream.entry.openai.responses.job import Job
from millstream.entry.openai.responses.tokens import brief
from millstream.entry.sse import named_event
from millstream.errors import InvariantError
from millstream.messages import FinishReason, TextRow

_encode = msgspec.json.encode
_DELTA = "response.output_text.delta"
# the last event by status; OpenAI has none of its own for a response that was cancelled
_LAST = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


class ResponseStream:
    """The `StreamForm` of /v1/responses: one message with one text, opened at once and closed at the end. No `[DONE]`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._number = 0  # of the next event
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._finish: FinishReason | None = None
        self._item = {"item_id": output_id(job.draft.id), "output_index": 0, "content_index": 0}
        self._delta_head = _encode({"type": _DELTA, **self._item})[:-1] + b',"sequence_number":'

    def opening(self) -> bytes:
        """The response, its message and its text, all of them still empty."""
        draft = self._job.draft
        begun = draft.body("in_progress")
        return b"".join(
            [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=draft.message("in_progress", None)),
                self._event("response.content_part.added", **self._item, part=text_part(Output())),
            ]
        )

    def row(self, index: int, row: TextRow) -> bytes:
        """A delta, where there is text, or a token to list."""
        self._finish = row.finish
        listed = self._job.tokens.take(row.text, row.token_ids, row.details, row.finish)
        if not row.text and not listed:
            return b""
        self._texts.append(row.text)
        self._logprobs += listed
        text, logprobs = _encode(row.text), _encode(brief(listed))
        number = b"%d" % self._take_number()
        return named_event(
            _DELTA.encode(), b"".join((self._delta_head, number, b',"delta":', text, b',"logprobs":', logprobs, b"}"))
        )

    def text_event(self, index: int) -> tuple[bytes, bytes] | None:
        """None: every event has its number."""

    def failure(self, finish: FinishReason) -> Failure | None:
        """A response that was cancelled has not failed."""
        return failure_of_unasked_end(finish)

    def closing(self) -> bytes:
        """The whole text, its message and the response, complete."""
        if self._finish is None:
            raise InvariantError("a stream was closed before its response had ended")
        made = self._made()
        body = self._job.end(self._finish, made)
        done = "completed" if body["status"] == "completed" else "incomplete"
        return b"".join(
            [
                self._event("response.output_text.done", **self._item, text=made.text, logprobs=brief(self._logprobs)),
                self._event("response.content_part.done", **self._item, part=text_part(made)),
                self._event("response.output_item.done", output_index=0, item=self._job.draft.message(done, made)),
                self._last(body),
            ]
        )

    def broken(self, failure: Failure) -> bytes:
        """The response, failed, with the text it has."""
        return self._last(self._job.end(failure, self._made()))

    def _made(self) -> Output:
        return Output("".join(self._texts), self._logprobs)

    def _last(self, body: Json) -> bytes:
        return self._event(_LAST[body["status"]], response=body)

    def _event(self, kind: str, **members: Any) -> bytes:
        return named_event(kind.encode(), _encode({"type": kind, "sequence_number": self._take_number(), **members}))

    def _take_number(self) -> int:
        number = self._number
        self._number += 1
        return number
