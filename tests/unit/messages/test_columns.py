"""Columns: what goes in comes out, and what does not fit together is no message of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.messages import TextColumns, TokenColumns
from millstream.messages.columns import SLOTS, pack_ids, pack_slots

SLOT = st.integers(0, SLOTS - 1)
TOKEN = st.integers(-(2**31), 2**31 - 1)


@given(st.data(), st.integers(1, 5))
def test_rows_come_back_as_they_were(data: st.DataObject, width: int) -> None:
    rows = data.draw(st.lists(st.tuples(SLOT, st.text(), st.lists(TOKEN, min_size=width, max_size=width))))
    slots = pack_slots(slot for slot, _, _ in rows)
    ids = pack_ids(token_id for _, _, token_ids in rows for token_id in token_ids)
    assert list(TokenColumns(slots, ids, width).rows()) == [(slot, token_ids) for slot, _, token_ids in rows]
    assert list(TextColumns(slots, ids, width, [text for _, text, _ in rows]).rows()) == rows


@pytest.mark.parametrize(
    ("slots", "ids", "width", "texts"),
    [
        pytest.param(b"123", bytes(4), 1, ["a"], id="half-a-slot"),
        pytest.param(bytes(4), b"12345", 1, ["a"], id="half-an-id"),
        pytest.param(bytes(4), bytes(8), 1, ["a"], id="more-ids-than-rows"),
        pytest.param(bytes(8), bytes(8), 2, ["a", "b"], id="fewer-ids-than-rows"),
        pytest.param(bytes(4), bytes(4), 0, ["a"], id="no-width"),
        pytest.param(bytes(4), bytes(4), 1, [], id="no-text"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(slots: bytes, ids: bytes, width: int, texts: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)):
        list(TextColumns(slots, ids, width, texts).rows())
