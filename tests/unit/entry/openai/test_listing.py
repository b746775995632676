"""Which tokens are listed, and with which part of the text: the same in all, however rows are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.entry.openai.listing import Listed, Listing
from millstream.errors import InvariantError
from millstream.messages import Abort, FinishReason, Length, Logprobs, Stop
from tests.support.made_tokenizers import bytes_tokenizer

PIECES = [b"a", b"bS", b"TOP", b"S", b"T", b"OP", b"\xf0\x9f", b"\x98", b"\x80", "é".encode(), b"\xff", b"zz"]
TOKENIZER = bytes_tokenizer(PIECES, special=["<|end|>"])
END = len(PIECES)
STOP = "STOP"


def told(ids: list[int]) -> Logprobs:
    return Logprobs([-float(i) for i in ids], [[i] for i in ids], [[-float(i)] for i in ids], [[] for _ in ids])


def data_of(listed: list[Listed]) -> bytes:
    return b"".join(TOKENIZER.single.of(token.token_id) for token in listed if token.token_id != END)


def rows_of(ids: list[int], cuts: list[int], finish: FinishReason) -> list[tuple[str, list[int], FinishReason | None]]:
    """Rows as the detokenizer makes them: text that may become a stop string is held back, and what one matched is cut."""
    decoder = TOKENIZER.incremental()
    rows: list[tuple[str, list[int], FinishReason | None]] = []
    text, sent, start = "", 0, 0
    for end in sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)}):
        last = end == len(ids)
        text += decoder.push(ids[start:end]) + (decoder.flush() if last else "")
        visible = len(text)
        if isinstance(finish, Stop) and finish.matched == STOP:
            visible = text.find(STOP) if STOP in text else visible
        if not last:
            visible = min(visible, *(visible - k if text[:visible].endswith(STOP[:k]) else visible for k in (1, 2, 3)))
        rows.append((text[sent : max(sent, visible)], ids[start:end], finish if last else None))
        sent, start = max(sent, visible), end
    return rows


def listed_by(rows: list[Any], *, no_stop_trim: bool = False) -> list[Listed]:
    listing = Listing(TOKENIZER.reader(), no_stop_trim=no_stop_trim)
    return [token for text, ids, finish in rows for token in listing.take(text, ids, told(ids), finish)]


@given(
    ids=st.lists(st.integers(0, END), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 12), max_size=6),
    kind=st.sampled_from(["length", "eos", "stop"]),
)
def test_however_rows_are_cut_the_same_tokens_are_listed_and_their_bytes_are_the_text(
    ids: list[int], cuts: list[int], kind: str
) -> None:
    finish: FinishReason = {"length": Length(9), "eos": Stop(END), "stop": Stop(STOP)}[kind]
    ids = {"length": ids, "eos": [*ids, END], "stop": [*ids, 3, 4, 5]}[kind]
    if kind == "stop":
        while STOP in TOKENIZER.decode(ids[:-1]):
            ids = ids[:-1]
    rows = rows_of(ids, cuts, finish)
    listed = listed_by(rows)
    assert listed == listed_by(rows_of(ids, [], finish))
    assert [token.token_id for token in listed] == ids[: len(listed)]
    text = "".join(row[0] for row in rows)
    if kind == "stop":
        assert data_of(listed).decode(errors="replace").startswith(text)
        assert all(token.place.offset < len(text) for token in listed)
    else:
        assert len(listed) == len(ids) - (kind == "eos")
        assert data_of(listed).decode(errors="replace") == text


def test_no_token_is_listed_before_its_text() -> None:
    listing = Listing(TOKENIZER.reader(), no_stop_trim=False)
    seen = [
        [token.token_id for token in listing.take(text, [i], told([i]), finish)]
        for text, i, finish in [("", 6, None), ("", 7, None), ("😀", 8, None), ("", 3, None), ("Sa", 0, Length(5))]
    ]
    assert seen == [[], [], [6, 7, 8], [], [3, 0]]


def test_tokens_of_a_trimmed_stop_are_left_out_but_the_one_it_begins_in() -> None:
    rows = [("a", [0], None), ("b", [1], None), ("", [2], Stop(STOP))]
    assert [token.token_id for token in listed_by(rows)] == [0, 1]
    shown = [("a", [0], None), ("b", [1], None), (STOP, [2], Stop(STOP))]
    assert [token.token_id for token in listed_by(shown, no_stop_trim=True)] == [0, 1, 2]


def test_the_token_that_ended_the_answer_is_listed_only_with_no_stop_trim() -> None:
    rows = [("a", [0, END], Stop(END))]
    assert [token.token_id for token in listed_by(rows)] == [0]
    assert [token.token_id for token in listed_by(rows, no_stop_trim=True)] == [0, END]


def test_of_an_answer_that_was_aborted_those_tokens_are_listed_whose_text_was_sent() -> None:
    rows = [("a", [0, 3], None), ("", [], Abort("aborted", "by its client"))]
    listing = Listing(TOKENIZER.reader(), no_stop_trim=False)
    ids = [t.token_id for text, ids, finish in rows for t in listing.take(text, ids, told(ids) if ids else None, finish)]
    assert ids == [0]


def test_tokens_without_their_log_probabilities_are_our_fault() -> None:
    listing = Listing(TOKENIZER.reader(), no_stop_trim=False)
    with pytest.raises(InvariantError):
        listing.take("a", [0], None, None)
