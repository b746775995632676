"""The events of a streamed response, in OpenAI's order, each with its number. The fixed part of a delta is encoded once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millstream.entry.failure import Failure, failure_of_unasked_end
from millstream.entry.fields import Json
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
    """The `StreamForm` of /v1/responses: items one after another, a plain message opened at once. No `[DONE]`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._number = 0  # of the next event
        self._finish: FinishReason | None = None
        self._delta_head = b""  # of the one message of a plain output

    def opening(self) -> bytes:
        """The response, still empty, and its message, where it is known to be but one."""
        begun, output = self._job.draft.body("in_progress"), self._job.output
        events = [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._events(output.opening()),
        ]
        if output.is_plain:
            self._delta_head = _encode({"type": _DELTA, **output.place})[:-1] + b',"sequence_number":'
        return b"".join(events)

    def row(self, index: int, row: TextRow) -> bytes:
        """Deltas, where there is text, or a token to list."""
        self._finish = row.finish
        output = self._job.output
        listed = self._job.tokens.take(row.text, row.token_ids, row.details, row.finish)
        output.thought.take(row.token_ids)
        if not output.is_plain:
            return self._events(output.take(row.text, listed, is_last=row.finish is not None))
        if not row.text and not listed:
            return b""
        output.add(row.text, listed)
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
        """The end of the last item, and the response, complete."""
        if self._finish is None:
            raise InvariantError("a stream was closed before its response had ended")
        return self._events(self._job.close(self._finish)) + self._last(self._job.end(self._finish))

    def broken(self, failure: Failure) -> bytes:
        """The response, failed, with what it has."""
        return self._last(self._job.end(failure))

    def _last(self, body: Json) -> bytes:
        return self._event(_LAST[body["status"]], response=body)

    def _events(self, events: Iterable[Json]) -> bytes:
        return b"".join([self._event(**event) for event in events])

    def _event(self, type: str, **members: Any) -> bytes:
        return named_event(type.encode(), _encode({"type": type, "sequence_number": self._take_number(), **members}))

    def _take_number(self) -> int:
        number = self._number
        self._number += 1
        return number
