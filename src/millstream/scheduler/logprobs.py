"""RequestLogprobs: the log probabilities of one request on their way from the executor to its rows. Owned by its `Req`.

The scheduler adds the values of each step; `output` takes those that go into a row, and all of them again for a replay. The
value of each prompt position is reported once, whatever is computed again. So a step must compute the positions that are still
missing, and `num_skippable` limits the prefix that may be taken over from other requests.
"""

from __future__ import annotations

import msgspec

from millstream.errors import EngineError
from millstream.execution.interface import ForwardOutput, ForwardRow
from millstream.execution.logprobs import prompt_positions
from millstream.messages import RowDetails
from millstream.messages.details import LogprobParams, Logprobs, no_logprobs


class PromptLogprobs:
    """The values of one prompt. The choices of a call that ask for the same share it: whoever computes a position adds it."""

    def __init__(self, params: LogprobParams, num_prompt_tokens: int) -> None:
        self.values = no_logprobs()
        self._next = max(1, params.prompt_start or 0)  # the first position that is missing
        self._end = num_prompt_tokens
        self._params = params
        self.next_params = params  # what the next step is asked for

    @property
    def missing_from(self) -> int | None:
        """The first position that is missing; None: none is."""
        return self._next if self._next < self._end else None

    def add(self, start: int, table: Logprobs) -> None:
        """Take those from position `start` on; what is known already is left out.

        Raises:
            EngineError: there is a gap.
        """
        if start > self._next:
            raise EngineError(f"log probabilities of prompt positions {self._next} to {start - 1} are missing")
        new = table.part(self._next - start)
        self.values.extend(new)
        self._next += len(new.chosen)
        self.next_params = msgspec.structs.replace(self._params, prompt_start=self.missing_from)


class RequestLogprobs:
    """See the module. `prompt` is None where no prompt position is asked for."""

    def __init__(self, params: LogprobParams, num_prompt_tokens: int) -> None:
        self.params = params
        self.prompt = None if params.prompt_start is None else PromptLogprobs(params, num_prompt_tokens)
        self._is_prompt_sent = self.prompt is None
        self._new = no_logprobs()  # of tokens that are in no row yet
        self._sent: list[bytes] = []  # of those that are, encoded: lists of numbers take five times as much memory

    @property
    def next_params(self) -> LogprobParams:
        """What the next step is asked for."""
        return self.params if self.prompt is None else self.prompt.next_params

    def num_skippable(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` positions need not be computed: none whose logits are still needed."""
        missing = None if self.prompt is None else self.prompt.missing_from
        return num_tokens if missing is None else min(num_tokens, missing - 1)

    def take(self, row: ForwardRow, output: ForwardOutput, index: int) -> None:
        """Take in the values of a step of `row`, which is still as it was for that step.

        Raises:
            EngineError: values that were asked for are missing.
        """
        if self.prompt is not None and (positions := prompt_positions(row)):
            table = output.prompt_logprobs.get(index)
            if table is None or len(table.chosen) != len(positions):
                raise EngineError("the executor gave no log probabilities of the prompt")
            self.prompt.add(positions.start, table)
        if token_ids := output.token_ids[index]:
            self._new = output.logprobs.get(index) or no_logprobs()
            if len(self._new.chosen) != len(token_ids):
                raise EngineError(f"the executor gave log probabilities of {len(self._new.chosen)} tokens of {len(token_ids)}")

    def next_row(self, num_tokens: int) -> RowDetails | None:
        """The details of a row with the first `num_tokens` tokens of the last step; later ones were cut off. Mutates."""
        details = RowDetails(prompt_logprobs=self._prompt_now())
        if num_tokens:
            details.logprobs = self._new.part(0, num_tokens)
            self._sent.append(msgspec.msgpack.encode(details.logprobs))
        self._new = no_logprobs()
        return details if num_tokens or details.prompt_logprobs is not None else None

    def all_rows(self) -> RowDetails:
        """The details of all rows so far, joined."""
        output = no_logprobs()
        for encoded in self._sent:
            output.extend(msgspec.msgpack.decode(encoded, type=Logprobs))
        prompt = self.prompt.values if self.prompt is not None and self._is_prompt_sent else None
        return RowDetails(logprobs=output if self._sent else None, prompt_logprobs=prompt)

    def _prompt_now(self) -> Logprobs | None:
        """The values of the prompt, once they are complete and in no row yet. Mutates."""
        if self._is_prompt_sent or self.prompt is None or self.prompt.missing_from is not None:
            return None
        self._is_prompt_sent = True
        return self.prompt.values
