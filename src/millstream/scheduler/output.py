"""StepOutput: collects the rows of a step and makes the `BatchTokenIDOutput` for the detokenizer.

Filled by the scheduler as requests make tokens or end; emptied once a step. Knows nothing of why a request ended.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from millstream.messages import BatchTokenIDOutput, DecodeOptions, FinishReason, TokenColumns, TokenRow
from millstream.scheduler.state import Req


class StepOutput:
    """The rows since the last `take`, at most one a request."""

    def __init__(self) -> None:
        self._rows: list[TokenRow] = []
        self._opened: list[DecodeOptions] = []
        self._columns: dict[int, tuple[array[int], array[int]]] = {}  # tokens a row -> slots, ids

    def add(self, req: Req, new_ids: Sequence[int], *, held_back: int = 0, finish: FinishReason | None = None) -> None:
        """Add one row of `req`; `new_ids` are in its `token_ids` already. Its first row carries its decode options along.

        Raises:
            OverflowError: one of `new_ids` is no int32; nothing was added.
        """
        if req.is_opened and finish is None and not held_back:
            ids = array("i", new_ids)
            columns = self._columns.get(len(ids))
            if columns is None:
                columns = self._columns[len(ids)] = array("I"), array("i")
            columns[0].append(req.slot)
            columns[1].extend(ids)
            return
        if not req.is_opened:
            req.is_opened = True
            sampling = req.sampling
            self._opened.append(
                DecodeOptions(
                    req.rid,
                    req.slot,
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
        if not self._rows and not self._columns:
            return None
        columns = [TokenColumns(slots.tobytes(), ids.tobytes(), width) for width, (slots, ids) in self._columns.items()]
        batch = BatchTokenIDOutput(self._rows, self._opened, columns)
        self._rows, self._opened, self._columns = [], [], {}
        return batch
