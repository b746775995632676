"""ThoughtCount: how many of the tokens that a client was given are thought. One for each answer; every API's usage has it."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.grammar.thought import ThoughtMeter
from millstream.text.token_bytes import TokenBytes


class ThoughtCount:
    """Counts by `meter`; None: nothing of the answer is thought. `tokens` knows the bytes of each."""

    def __init__(self, meter: ThoughtMeter | None, tokens: TokenBytes) -> None:
        self._meter = meter
        self._tokens = tokens

    @property
    def tokens(self) -> int:
        """How many they are so far."""
        return 0 if self._meter is None else self._meter.count

    def take(self, token_ids: Iterable[int]) -> None:
        """These tokens were handed on."""
        if self._meter is not None and not self._meter.is_over:
            for token_id in token_ids:
                self._meter.take(self._tokens.of(token_id))
