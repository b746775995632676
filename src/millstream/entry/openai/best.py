"""best_of: of the choices made for each prompt, the best by mean log probability a token, as OpenAI ranks them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from millstream.entry.openai.logprobs import finite
from millstream.entry.whole import Whole
from millstream.messages import Abort


def best_of(made: Sequence[Whole], *, width: int, n: int) -> list[int]:
    """Indices of the `n` best of each `width` neighbours, the best first, equal ones in order. All of them keep their order."""
    if width == n:
        return list(range(len(made)))
    groups = [range(start, start + width) for start in range(0, len(made), width)]
    return [index for group in groups for index in sorted(group, key=lambda index: -_score(made[index]))[:n]]


def _score(choice: Whole) -> float:
    """The mean over all its tokens, the one that ended it too; a choice that its client aborted comes last."""
    if isinstance(choice.finish, Abort):
        return -math.inf
    table = None if choice.details is None else choice.details.logprobs
    values = [finite(value) for value in table.chosen] if table is not None else []
    return sum(values) / len(values) if values else 0.0
