"""LogprobOptions: which log probabilities an OpenAI call shows, within what is allowed and what the executor can give."""

from __future__ import annotations

from typing import NamedTuple

from millstream.entry.fields import check_range
from millstream.entry.tokenize import check_has_logprobs
from millstream.errors import RequestError
from millstream.messages import EngineInfo, LogprobParams

MAX_TOP = 20  # alternatives at one position: OpenAI's for chats and vLLM's for completions


class LogprobOptions(NamedTuple):
    """`output`: alternatives for each token of `logprobs`; `prompt`: likewise of `prompt_logprobs`. None: not asked for."""

    output: int | None = None
    prompt: int | None = None
    echo: bool = False  # the prompt's tokens stand in `logprobs` before the answer's
    ranks: bool = False  # the choices are compared by their log probabilities

    def params(self) -> LogprobParams | None:
        """What the scheduler is asked for: one number of alternatives, the larger, for prompt and answer."""
        if self.output is None and self.prompt is None and not self.ranks:
            return None
        has_prompt = self.prompt is not None or (self.echo and self.output is not None)
        return LogprobParams(top=max(self.output or 0, self.prompt or 0), prompt_start=0 if has_prompt else None)

    def check(self, names: dict[str, int | None], *, stream: bool, engine: EngineInfo) -> None:
        """Check the fields called `names`, as the client sent them.

        Raises:
            RequestError: a number is out of range, prompt log probabilities are to be streamed, or the executor has none.
        """
        for name, value in names.items():
            if value is not None:
                check_range(name, value, 0, MAX_TOP)
        if self.prompt is not None and stream:
            raise RequestError("prompt_logprobs cannot be streamed; leave out stream, or it.", param="prompt_logprobs")
        if self.params() is not None:
            name = "best_of" if self.ranks else "logprobs" if self.output is not None else "prompt_logprobs"
            check_has_logprobs(engine, name)
