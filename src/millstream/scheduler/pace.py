"""Pace: how fast the scheduler works lately, and from that when somebody who was refused should come back.

Fed by the scheduler with each step and each end; asked when it has verdicts to send. An estimate for a header, nothing more: no
decision depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from millstream.scheduler.state import Req
from millstream.scheduler.waiting import WaitingQueue

MIN_RETRY_S = 1
MAX_RETRY_S = 60  # clients such as OpenAI's do not honour more
MEMORY_S = 10.0  # busy seconds that count fully; what is older counts half, a quarter, and so on
_OUTPUT_WEIGHT = 1 / 16  # of the newest answer in their mean length


def retry_after_s(tokens_ahead: float, tokens_per_s: float) -> int:
    """Whole seconds until `tokens_ahead` are done, within the bounds; the least where the pace is not known yet."""
    if tokens_per_s <= 0:
        return MIN_RETRY_S
    return max(MIN_RETRY_S, math.ceil(min(tokens_ahead / tokens_per_s, MAX_RETRY_S)))


class Pace:
    """Tokens a busy second, and the length of an answer."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._busy_s = 0.0
        self._mean_output = 0.0

    def note_step(self, num_tokens: int, seconds: float) -> None:
        """Count a step: prompt and output tokens computed, and how long it took."""
        if self._busy_s > MEMORY_S:
            self._tokens /= 2
            self._busy_s /= 2
        self._tokens += num_tokens
        self._busy_s += seconds

    def note_end(self, num_output_tokens: int) -> None:
        """Count the answer of a request that ended."""
        weight = _OUTPUT_WEIGHT if self._mean_output else 1.0
        self._mean_output += (num_output_tokens - self._mean_output) * weight

    @property
    def tokens_per_s(self) -> float:
        """Tokens computed in a busy second, lately; 0 before the first step."""
        return self._tokens / self._busy_s if self._busy_s > 0 else 0.0

    def retry_after_s(self, waiting: WaitingQueue, running: Iterable[Req]) -> int:
        """When all that is here now should be done: the prompts as far as they are missing, and answers of the usual length."""
        ahead = waiting.num_tokens + len(waiting) * self._mean_output
        for req in running:
            ahead += max(0.0, self._mean_output - req.num_output_tokens)
            if req.is_prefilling:
                ahead += len(req.token_ids) - req.num_computed
        return retry_after_s(ahead, self.tokens_per_s)
