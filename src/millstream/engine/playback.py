"""Playback: an executor that says again what a recording's executor said, row for row and in the same order.

Made by `replay`. A next row is said only when the answer has taken the last one, so nothing merges that did not then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from millstream.entry.tape import Row
from millstream.execution.interface import Capabilities, ForwardBatch, ForwardOutput, ForwardRow
from millstream.messages import Abort, EngineInfo, Stop

WAIT_S = 0.01  # an abort must be seen soon


def says_something(row: Row) -> bool:
    """Whether it is the executor's turn: a row without ids that ends by a limit follows by itself."""
    return bool(row.token_ids) or isinstance(row.finish, Stop | Abort)


def _parts(row: Row) -> list[Row]:
    """The row, or its ids and its end where those were two: an abort comes alone, and the answer may take both at once."""
    if isinstance(row.finish, Abort) and row.token_ids:
        return [Row(row.number, row.token_ids, None, row.details), Row(row.number, [], row.finish)]
    return [row]


class Playback:
    """The rows of a recording by the numbers of their requests. `on_cut` is called, once a request, where no row goes on."""

    def __init__(self, info: EngineInfo, rows: Sequence[Row], on_cut: Callable[[int, Abort | None], None]) -> None:
        self.capabilities = Capabilities(
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            num_pages=info.num_pages,
            page_size=info.page_size,
            eos_token_ids=frozenset(info.eos_token_ids),
            executor=info.executor,
            hidden_size=info.hidden_size,
            has_logprobs=info.has_logprobs,
            has_masks=info.has_grammars,
        )
        self._rows = [part for row in rows for part in _parts(row) if says_something(part)]
        self._hidden = {row.number: row.details.embedding for row in rows if row.details is not None and row.details.embedding}
        self._on_cut = on_cut
        self._cut: set[int] = set()
        self._numbers: dict[str, int] = {}
        self._said = 0
        self._taken = 0
        self._news = threading.Condition()

    def opened(self, rid: str, number: int) -> None:
        """The request `number` has this rid now."""
        with self._news:
            self._numbers[rid] = number

    def took(self) -> None:
        """The answer has taken a row."""
        with self._news:
            self._taken += 1
            self._news.notify()

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """Say the next row, if its request is here and the last one was taken."""
        output = ForwardOutput([[] for _ in batch.rows])
        with self._news:
            for index, row in enumerate(batch.rows):
                state = self._hidden.get(self._numbers[row.rid])
                if row.gives_hidden and state is not None:
                    output.hidden[index] = np.frombuffer(state, np.float32)
            if self._said > self._taken:
                self._news.wait(WAIT_S)
            if self._said <= self._taken:
                self._say(batch.rows, output)
        return output

    def close(self) -> None:
        """Nothing is held."""

    def _say(self, rows: Sequence[ForwardRow], output: ForwardOutput) -> None:
        drawing = {self._numbers[row.rid]: index for index, row in enumerate(rows) if row.sample}
        if self._said == len(self._rows):
            for number in drawing:
                self._cut_off(number, None)
            return
        told = self._rows[self._said]
        index = drawing.get(told.number)
        if index is None:
            return
        finish = told.finish
        output.token_ids[index] = list(told.token_ids)
        if told.details is not None and told.details.logprobs is not None and told.token_ids:
            output.logprobs[index] = told.details.logprobs
        if isinstance(finish, Abort):
            if finish.cause == "engine_error":
                output.errors[index] = finish.message
            else:
                self._cut_off(told.number, finish)
                return
        elif finish == Stop(None):
            output.finished.add(index)
        self._said += 1

    def _cut_off(self, number: int, finish: Abort | None) -> None:
        if number not in self._cut:
            self._cut.add(number)
            self._on_cut(number, finish)
