"""A whole answer: the same rows as a stream's, joined once at the end. Used by every adapter that does not stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.generation import Generation
from millstream.messages import FinishReason, TextRow


class Whole(NamedTuple):
    """All that one request made."""

    text: str
    token_ids: list[int]
    finish: FinishReason


async def collect(generation: Generation, failure: Callable[[FinishReason], Failure | None]) -> list[Whole]:
    """Wait until every request of `generation` has ended. `failure` says which ends are no success.

    Raises:
        RequestFailed: one of the requests failed.
    """
    texts: list[list[str]] = [[] for _ in generation.states]
    token_ids: list[list[int]] = [[] for _ in generation.states]
    finishes: dict[int, FinishReason] = {}

    def keep(index: int, row: TextRow) -> bool:
        texts[index].append(row.text)
        token_ids[index] += row.token_ids
        return True

    generation.shortcut = keep  # nobody need wake before an end
    while len(finishes) < len(generation.states):
        for index, row in await generation.receive():
            keep(index, row)
            if row.finish is None:
                continue
            if (failed := failure(row.finish)) is not None:
                raise RequestFailed(failed)
            finishes[index] = row.finish
    return [Whole("".join(texts[index]), token_ids[index], finishes[index]) for index in range(len(finishes))]
