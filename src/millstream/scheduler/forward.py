"""run_step: one step of the executor, in which nobody fails for another's sake. Called by the scheduler once a step."""

from __future__ import annotations

import logging

from millstream.errors import EngineError
from millstream.execution.interface import Executor, ForwardBatch, ForwardOutput, ForwardRow

log = logging.getLogger(__name__)


def run_step(executor: Executor, rows: list[ForwardRow]) -> ForwardOutput:
    """Run the rows as one step. Where that fails as a whole, run each alone: only those fail that fail alone too.

    A row may be computed again as often as one likes: it writes the same, and what it draws depends on itself alone. One that
    failed with a draft is run again without it: a wrong guess is nobody's fault.
    """
    try:
        output = _run(executor, rows)
    except Exception as error:
        log.exception("a step of %d requests failed", len(rows))
        if len(rows) == 1 and not rows[0].draft:
            return ForwardOutput([[]], errors={0: _message(error)})
        output = ForwardOutput([[] for _ in rows])
        again = list(range(len(rows)))
    else:
        again = [index for index in output.errors if rows[index].draft]
    for index in again:
        rows[index].draft = ()
        _run_alone(executor, rows[index], index, output)
    return output


def _run_alone(executor: Executor, row: ForwardRow, index: int, output: ForwardOutput) -> None:
    """Run one row; what comes of it takes its place in `output`."""
    output.errors.pop(index, None)
    for values in (output.logprobs, output.prompt_logprobs, output.hidden):
        values.pop(index, None)
    try:
        alone = _run(executor, [row])
    except Exception as error:
        log.exception("request %s failed alone, too", row.rid)
        output.errors[index] = _message(error)
        return
    output.token_ids[index] = alone.token_ids[0]
    if 0 in alone.errors:
        output.errors[index] = alone.errors[0]
    if 0 in alone.finished:
        output.finished.add(index)
    if 0 in alone.logprobs:
        output.logprobs[index] = alone.logprobs[0]
    if 0 in alone.prompt_logprobs:
        output.prompt_logprobs[index] = alone.prompt_logprobs[0]
    if 0 in alone.hidden:
        output.hidden[index] = alone.hidden[0]


def _run(executor: Executor, rows: list[ForwardRow]) -> ForwardOutput:
    output = executor.forward(ForwardBatch(rows))
    if len(output.token_ids) != len(rows):
        raise EngineError(f"the executor answered {len(output.token_ids)} rows of {len(rows)}")
    return output


def _message(error: Exception) -> str:
    return f"The engine failed: {error}"
