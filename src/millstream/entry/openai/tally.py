"""Tally: what the requests of one call have made so far, counted and joined. One for streamed and whole answers."""

from __future__ import annotations

from typing import Any

from millstream.entry.generation import Generation
from millstream.messages import FinishReason, TextRow, Usage


class Tally:
    """Counts per choice; texts and ids only with `keep` (a whole answer). Choices of one prompt are neighbours, `n` of them."""

    def __init__(self, generation: Generation, n: int, *, keep: bool) -> None:
        count = len(generation.states)
        self._prompts = [state.input_ids for state in generation.states[::n]]
        self._n = n
        self._usages: list[Usage | None] = [None] * count
        self.finishes: list[FinishReason | None] = [None] * count
        self._texts: list[list[str]] | None = [[] for _ in range(count)] if keep else None
        self.token_ids: list[list[int]] = [[] for _ in range(count)]
        self._open = count

    def add(self, index: int, row: TextRow) -> None:
        """Take a row of choice `index`."""
        self._usages[index] = row.usage
        if self._texts is not None:
            self._texts[index].append(row.text)
            self.token_ids[index] += row.token_ids
        if row.finish is not None:
            self.finishes[index] = row.finish
            self._open -= 1

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    def text(self, index: int) -> str:
        """All text of one choice."""
        return "".join(self._texts[index]) if self._texts is not None else ""

    def prompt_token_ids(self, *, several: bool) -> Any:
        """The ids of the prompt, or of each prompt where the client sent a list of `several`."""
        return self._prompts if several else self._prompts[0]

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object so far: each prompt once, whatever n is; completions summed; cache hits of first choices."""
        prompt = sum(map(len, self._prompts))
        completion = sum(usage.completion_tokens for usage in self._usages if usage is not None)
        cached = sum(usage.cached_tokens for usage in self._usages[:: self._n] if usage is not None)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
