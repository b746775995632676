"""Steps cut into runs: every position once, every prompt position told once, and never too many logits at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.execution.interface import ForwardRow
from millstream.execution.logprobs import prompt_positions
from millstream.execution.native.row_parts import RowPart, cut, prompt_query
from millstream.messages.details import LogprobParams
from millstream.messages.sampling import SamplingParams


@st.composite
def forward_rows(draw: st.DrawFn) -> ForwardRow:
    num_prompt = draw(st.integers(1, 40))
    length = num_prompt + draw(st.integers(0, 5))
    start = draw(st.integers(0, length - 1))
    end = draw(st.integers(start + 1, length))
    draft = [7] * draw(st.integers(0, 3)) if end == length else []
    asked = draw(st.sampled_from([None, LogprobParams(), LogprobParams(prompt_start=draw(st.integers(0, num_prompt)))]))
    ids = list(range(1000, 1000 + length))
    return ForwardRow("r", ids, num_prompt, start, end, (), SamplingParams(), 0, end == length, (), draft, logprobs=asked)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(forward_rows(), min_size=1, max_size=4), most=st.integers(1, 12))
def test_all_is_computed_once_and_told_once_within_the_limit(rows: list[ForwardRow], most: int) -> None:
    before, step = cut(rows, most)
    assert [part.row for part in step] == rows
    for index, row in enumerate(rows):
        parts = [part for at, part in before if at == index] + [step[index]]
        ends = [row.start, *(part.end for part in parts)]
        assert [part.start for part in parts] == ends[:-1]
        assert ends[-1] == row.reach
        assert parts[-1].start < row.end
        assert [i for part in parts for i in part.token_ids] == [*row.token_ids[row.start : row.end], *row.draft]
        assert not row.sample or parts[-1].num_outputs >= 1 + len(row.draft)
        told = [token_id for part in parts for token_id in asked(part)]
        assert told == [row.token_ids[position] for position in prompt_positions(row)]
    assert all(part.num_outputs <= most for _, part in before)
    assert sum(len(asked(part)) for part in step) <= most + len(rows)


def asked(part: RowPart) -> list[int]:
    """The tokens asked about, once it is sure that their logits are there."""
    question = prompt_query(part, 100)
    if question is None:
        return []
    last = question.output - 100 + len(question.token_ids)
    assert 0 <= question.output - 100 < last <= part.num_outputs
    first = part.end - part.num_outputs + question.output - 100 + 1  # the position of the first token asked about
    assert list(question.token_ids) == list(part.row.token_ids[first : first + len(question.token_ids)])
    return list(question.token_ids)
