"""Recorder: what an entry worker counts of its requests. Told once at each request's end, and of each row's gap."""

from __future__ import annotations

from millstream.messages import Timing
from millstream.observe import families
from millstream.observe.log import RequestEnd
from millstream.observe.tally import Tally
from millstream.observe.timeline import first_token


class Recorder:
    """The entry's families. `row_gap` is filled by who takes the rows, all else by the methods."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.row_gap = tally.histogram(families.ROW_GAP)
        self._requests = tally.counter(families.REQUESTS)
        self._http_errors = tally.counter(families.HTTP_ERRORS)
        self._grammars = tally.counter(families.GRAMMAR_CHECKS)
        self._grammar_seconds = tally.histogram(families.GRAMMAR_SECONDS)
        self._first_token = tally.histogram(families.FIRST_TOKEN)
        self._token_time = tally.histogram(families.TOKEN_TIME)
        self._latency = tally.histogram(families.LATENCY)
        self._queue = tally.histogram(families.QUEUE)
        self._prefill = tally.histogram(families.PREFILL)
        self._decode = tally.histogram(families.DECODE)
        self._inference = tally.histogram(families.INFERENCE)
        self._prompt = tally.histogram(families.REQUEST_PROMPT)
        self._completion = tally.histogram(families.REQUEST_COMPLETION)

    def record(self, end: RequestEnd) -> None:
        """A request has ended and nobody reads its answer any more."""
        self._requests.add(1, end.cause, end.api, end.model)
        timing = end.timing
        if not timing.admitted:  # it never ran
            return
        self._queue.observe(_between(timing.queued, timing.admitted))
        self._prompt.observe(end.prompt_tokens)
        self._completion.observe(end.completion_tokens)
        self._latency.observe(_between(timing.received, timing.written or end.ended))
        if timing.prefilled:
            self._record_tokens(timing, end.completion_tokens)

    def refused(self, route: str, status: int) -> None:
        """A call was answered by an HTTP error."""
        self._http_errors.add(1, route, str(status))

    def grammar(self, result: str, seconds: float) -> None:
        """A request's grammar was checked."""
        self._grammars.add(1, result)
        self._grammar_seconds.observe(seconds)

    def _record_tokens(self, timing: Timing, num_tokens: int) -> None:
        first = timing.first_written or timing.prefilled  # a plain answer is written only once
        self._first_token.observe(_between(timing.received, first))
        for part, milliseconds in first_token(timing).items():
            self._tally.histogram(families.FIRST_TOKEN_PART, part).observe(milliseconds / 1000)
        self._prefill.observe(_between(timing.admitted, timing.prefilled))
        decode_s = _between(timing.prefilled, timing.decoded)
        self._decode.observe(decode_s)
        self._inference.observe(_between(timing.admitted, timing.decoded))
        if num_tokens > 1:
            self._token_time.observe(decode_s / (num_tokens - 1))


def _between(start: float, end: float) -> float:
    """Seconds; 0 where a stage was not come by, or began beside the one before it."""
    return max(0.0, end - start) if start else 0.0
