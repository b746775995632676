"""A whole answer: the same rows as a stream's, joined once at the end. Used by every adapter that does not stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.entry.failure import Failure, RequestFailed
from millstream.entry.generation import Generation
from millstream.messages import FinishReason, RowDetails
from millstream.messages.details import joined


class Whole(NamedTuple):
    """All that one request made."""

    text: str
    token_ids: list[int]
    finish: FinishReason
    details: RowDetails | None = None


async def collect(generation: Generation, failure: Callable[[FinishReason], Failure | None]) -> list[Whole]:
    """Wait until every request of `generation` has ended. `failure` says which ends are no success.

    Raises:
        RequestFailed: one of the requests failed.
    """
    texts: list[list[str]] = [[] for _ in generation.states]
    token_ids: list[list[int]] = [[] for _ in generation.states]
    details: list[list[RowDetails | None]] = [[] for _ in generation.states]
    finishes: dict[int, FinishReason] = {}

    def keep(index: int, text: str, new_ids: list[int]) -> bool:
        texts[index].append(text)
        token_ids[index] += new_ids
        return True

    for state in generation.states:
        state.shortcut = partial(keep, state.index)  # nobody need wake before an end
    while len(finishes) < len(generation.states):
        for index, row in await generation.receive():
            keep(index, row.text, row.token_ids)
            details[index].append(row.details)
            if row.finish is None:
                continue
            if (failed := failure(row.finish)) is not None:
                raise RequestFailed(failed)
            finishes[index] = row.finish
    return [
        Whole("".join(text), ids, finishes[index], joined(details[index]))
        for index, (text, ids) in enumerate(zip(texts, token_ids, strict=True))
    ]


def num_values(made: Sequence[Whole]) -> int:
    """How many log probabilities there are to write: each costs about what a character of a prompt does."""
    return sum(each.details.num_values for each in made if each.details is not None)
