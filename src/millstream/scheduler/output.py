"""StepOutput: collects the rows of a step and makes the `BatchTokenIDOutput` for the detokenizer.

Filled by the scheduler as requests make tokens or end; emptied once a step. Knows nothing of why a request ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.messages import BatchTokenIDOutput, DecodeOptions, FinishReason, TokenRow
from millstream.scheduler.state import Req


class StepOutput:
    """The rows since the last `take`, in the order they were made."""

    def __init__(self) -> None:
        self._rows: list[TokenRow] = []
        self._opened: list[DecodeOptions] = []

    def add(self, req: Req, new_ids: Sequence[int], *, held_back: int = 0, finish: FinishReason | None = None) -> None:
        """Add one row of `req`; `new_ids` are in its `token_ids` already. Its first row carries its decode options along."""
        if not req.is_opened:
            req.is_opened = True
            sampling = req.sampling
            self._opened.append(
                DecodeOptions(
                    req.rid,
                    skip_special_tokens=sampling.skip_special_tokens,
                    spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                    no_stop_trim=sampling.no_stop_trim,
                )
            )
        timing = None if finish is None else req.timing
        self._rows.append(TokenRow(req.rid, list(new_ids), req.usage, held_back, finish, timing))

    def has_row(self, rid: str) -> bool:
        """Whether a row of `rid` is among those not taken."""
        return any(row.rid == rid for row in self._rows)

    def take(self) -> BatchTokenIDOutput | None:
        """The batch of all rows so far, None where there are none. Empties the collection."""
        if not self._rows:
            return None
        batch = BatchTokenIDOutput(self._rows, self._opened)
        self._rows, self._opened = [], []
        return batch
