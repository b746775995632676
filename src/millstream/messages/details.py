"""What few requests ask for beside their tokens, and how it travels: log probabilities and embeddings, with a row of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from millstream.errors import RequestError
from millstream.messages.sampling import verify_token_ids

MAX_TOP_LOGPROBS = 128  # alternatives given at one position
MAX_LOGPROB_TOKEN_IDS = 1024  # ids asked for at every position
MAX_PROMPT_VALUES = 1 << 20  # numbers about the prompts of one call: those of a prompt travel in one piece, and hold up others
MAX_OUTPUT_VALUES = 1 << 24  # numbers about the new tokens of one request: they are kept up to its end


class LogprobParams(Struct, frozen=True, omit_defaults=True):
    """Which log probabilities are given at each position, besides that of the token that stands there.

    They are natural logarithms under the model's own distribution: the softmax of its logits, before temperature, penalties,
    bias and filters.
    """

    top: int = 0  # so many of the most likely
    token_ids: tuple[int, ...] = ()  # of these
    prompt_start: int | None = None  # the first prompt position given; the very first token has none. None: no prompt position

    def verify(self, vocab_size: int) -> None:
        """Check all that can be checked without the prompt.

        Raises:
            RequestError: a field out of range, by the name that clients know it by, with its value and the limit.
        """
        if not 0 <= self.top <= MAX_TOP_LOGPROBS:
            raise RequestError(f"top_logprobs is {self.top}; it must be from 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs")
        if len(self.token_ids) > MAX_LOGPROB_TOKEN_IDS:
            raise RequestError(
                f"token_ids_logprob has {len(self.token_ids)} ids; at most {MAX_LOGPROB_TOKEN_IDS} are allowed.",
                param="token_ids_logprob",
            )
        verify_token_ids("token_ids_logprob", self.token_ids, vocab_size)

    def verify_lengths(self, num_prompt_tokens: int, max_new_tokens: int) -> None:
        """Check what depends on how many tokens there are or may be.

        Raises:
            RequestError: `prompt_start` is not within the prompt, or it is too much.
        """
        if self.prompt_start is not None and not 0 <= self.prompt_start <= num_prompt_tokens:
            raise RequestError(
                f"logprob_start_len is {self.prompt_start}; it must be from 0 to {num_prompt_tokens}, the prompt's tokens.",
                param="logprob_start_len",
            )
        verify_prompt_values(self.num_prompt_values(num_prompt_tokens))
        num_values = max_new_tokens * self._values_a_token
        if num_values > MAX_OUTPUT_VALUES:
            raise RequestError(
                f"logprobs of {max_new_tokens} new tokens are {num_values} numbers; at most {MAX_OUTPUT_VALUES} are given.",
                param="logprobs",
            )

    def num_prompt_values(self, num_prompt_tokens: int) -> int:
        """How many numbers are given about a prompt."""
        if self.prompt_start is None:
            return 0
        return max(0, num_prompt_tokens - max(self.prompt_start, 1)) * self._values_a_token

    @property
    def _values_a_token(self) -> int:
        return 1 + 2 * self.top + len(self.token_ids)


def verify_prompt_values(count: int) -> None:
    """Check how many numbers a call asks for about its prompts.

    Raises:
        RequestError: too many.
    """
    if count > MAX_PROMPT_VALUES:
        raise RequestError(
            f"logprobs of the prompts would be {count} numbers; at most {MAX_PROMPT_VALUES} are given in one call.",
            param="logprobs",
        )


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

    @property
    def num_values(self) -> int:
        """How many numbers these are."""
        if not self.chosen:
            return 0
        return len(self.chosen) * (1 + 2 * len(self.top[0]) + len(self.asked[0]))

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
        return sum(table.num_values for table in tables)


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
