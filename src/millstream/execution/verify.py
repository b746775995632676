"""verify: from logits to the tokens of a step whose rows may have drafts. Called by executors in place of `sample`.

Speculative decoding without a rejection rule. What a row draws depends on its logits, seed and output index alone, so the token
of each position is drawn as if the step were its own, and the draft is good as far as it says the same. The outcome is, token
for token, that of as many steps without drafts, greedy or sampled, with penalties and bans. (Leviathan et al., "Fast Inference
from Transformers via Speculative Decoding", 2023, accept at random because their draws are not reproducible.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from millstream.execution.interface import ForwardOutput, ForwardRow
from millstream.execution.sampling import Floats, sample

# (places, rows, made) -> ids and errors, as `sample` gives them, from the logits at `places` of all positions that may draw
Draw = Callable[[Sequence[int], Sequence[ForwardRow], Sequence[Sequence[int]]], tuple[list[int], dict[int, str]]]


def sample_with_drafts(logits: Floats, rows: Sequence[ForwardRow]) -> tuple[list[list[int]], dict[int, str]]:
    """Draw from logits `[sum of 1 + len(row.draft), vocab]`, which are not changed, in numpy. See `draw_with_drafts`."""

    def draw(
        places: Sequence[int], some: Sequence[ForwardRow], made: Sequence[Sequence[int]]
    ) -> tuple[list[int], dict[int, str]]:
        # a copy of the logits only where some are left out
        return sample(logits if len(places) == len(logits) else logits[list(places)], some, made)

    return draw_with_drafts(rows, draw)


def draw_with_drafts(rows: Sequence[ForwardRow], draw: Draw) -> tuple[list[list[int]], dict[int, str]]:
    """Draw the next tokens of every row: one, and one more for each token of its draft that was drawn, too.

    Args:
        rows: those that sample. Each may draw at its last 1 + len(row.draft) positions, rows behind one another.
        draw: draws the next token of some rows; asked about each place once.

    Returns:
        The ids of each row, and a message for every row whose first logits allow none (it then has no ids). Where later ones
        allow none, the row ends before them: the next step finds them as its first.
    """
    firsts = [0, *accumulate(1 + len(row.draft) for row in rows)]
    made: list[list[int]] = [[] for _ in rows]
    first_errors: dict[int, str] = {}
    going_on = list(range(len(rows)))
    depth = 0
    while going_on:
        drawn, errors = draw(
            [firsts[index] + depth for index in going_on],
            [rows[index] for index in going_on],
            [made[index] for index in going_on],
        )
        still: list[int] = []
        for place, index in enumerate(going_on):
            if place in errors:
                if depth == 0:
                    first_errors[index] = errors[place]
                continue
            made[index].append(drawn[place])
            draft = rows[index].draft
            if depth < len(draft) and draft[depth] == drawn[place]:
                still.append(index)
        going_on = still
        depth += 1
    return made, first_errors


def note_drawn(
    output: ForwardOutput, indices: Sequence[int], drawn: Sequence[list[int]], errors: Mapping[int, str]
) -> list[int]:
    """Put what was drawn for the rows at `indices` of a batch, and their errors, into `output`. Return the rows that failed."""
    for place, index in enumerate(indices):
        output.token_ids[index] = drawn[place]
    failed = [indices[place] for place in errors]
    output.errors.update(zip(failed, errors.values(), strict=True))
    return failed


def num_agreeing(token_ids: Sequence[int], draft: Sequence[int]) -> int:
    """How many of the first `token_ids` are those of the draft."""
    count = 0
    for token_id, guess in zip(token_ids, draft, strict=False):
        if token_id != guess:
            break
        count += 1
    return count
