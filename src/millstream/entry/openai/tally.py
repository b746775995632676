"""Tally: what the requests of one call count, in OpenAI's terms. One for streamed and whole answers."""

from __future__ import annotations

from typing import Any

from millstream.entry.generation import Generation

# OpenAI's parts of a completion that none of ours has: its typed clients read them without asking
_NO_DETAILS = {"accepted_prediction_tokens": 0, "audio_tokens": 0, "rejected_prediction_tokens": 0}


class Tally:
    """Reads the states of a call in which choices of one prompt are neighbours, `n` of them."""

    def __init__(self, generation: Generation, n: int) -> None:
        self._states = generation.states
        self._n = n
        self._prompt_tokens = sum(len(state.input_ids) for state in self._states[::n])

    def prompt_token_ids(self, *, several: bool) -> Any:
        """The ids of the prompt, or of each prompt where the client sent a list of `several`."""
        prompts = [state.input_ids for state in self._states[:: self._n]]
        return prompts if several else prompts[0]

    def usage(self, reasoning_tokens: int = 0) -> dict[str, Any]:
        """OpenAI's usage of what was handed on: each prompt and its cache hits once, whatever n is; completions summed.

        So many of all tokens are reasoning.
        """
        completion = sum(state.num_handed_on for state in self._states)
        cached = sum(state.usage.cached_tokens for state in self._states[:: self._n] if state.usage is not None)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
            "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": cached},
            "completion_tokens_details": {**_NO_DETAILS, "reasoning_tokens": reasoning_tokens},
        }
