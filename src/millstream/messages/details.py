"""What few requests ask for beside their tokens, and how it travels: log probabilities and embeddings, with a row of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

MAX_TOP_LOGPROBS = 128  # alternatives told at one position
MAX_LOGPROB_TOKEN_IDS = 1024  # ids told at every position


class LogprobParams(Struct, frozen=True, omit_defaults=True):
    """Which log probabilities are told at each position, besides that of the token that stands there.

    They are natural logarithms under the model's own distribution: the softmax of its logits, before temperature, penalties,
    bias and filters.
    """

    top: int = 0  # so many of the most likely
    token_ids: tuple[int, ...] = ()  # of these
    prompt_start: int | None = None  # the first prompt position told; the very first token has none. None: no prompt position


class Logprobs(Struct, array_like=True, gc=False):
    """Log probabilities of consecutive tokens, a column each; all columns are as long as there are tokens.

    `top_ids` and `top` are ordered, the most likely first (equal ones by id); `asked` follows `LogprobParams.token_ids`.
    """

    chosen: list[float]
    top_ids: list[list[int]]
    top: list[list[float]]
    asked: list[list[float]]

    def extend(self, more: Logprobs) -> None:
        """Append those of the tokens that follow."""
        self.chosen += more.chosen
        self.top_ids += more.top_ids
        self.top += more.top
        self.asked += more.asked

    def part(self, start: int, end: int | None = None) -> Logprobs:
        """Those of tokens `start` to `end` - 1."""
        return Logprobs(self.chosen[start:end], self.top_ids[start:end], self.top[start:end], self.asked[start:end])


def no_logprobs() -> Logprobs:
    """Those of no token."""
    return Logprobs([], [], [], [])


class RowDetails(Struct, array_like=True, omit_defaults=True, gc=False):
    """What a row says beyond its tokens. Only rows of requests that asked have one.

    `logprobs` are aligned with the row's `token_ids`. `prompt_logprobs` come once, with the first row: those of the prompt
    positions from `max(1, prompt_start)` on. `embedding` comes with the final row: float32 in this machine's byte order.
    """

    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    embedding: bytes | None = None

    @property
    def num_values(self) -> int:
        """How many numbers these are, about."""
        tables = [table for table in (self.logprobs, self.prompt_logprobs) if table is not None]
        return sum(len(table.chosen) + sum(2 * len(ids) for ids in table.top_ids) for table in tables)


def joined(rows: Sequence[RowDetails | None]) -> RowDetails | None:
    """The details of consecutive rows of one request as those of one row; None where no row has any. Changes none of them."""
    made: RowDetails | None = None
    for row in rows:
        if row is None:
            continue
        made = made or RowDetails()
        if row.logprobs is not None:
            if made.logprobs is None:
                made.logprobs = no_logprobs()
            made.logprobs.extend(row.logprobs)
        made.prompt_logprobs = row.prompt_logprobs or made.prompt_logprobs
        made.embedding = row.embedding or made.embedding
    return made
