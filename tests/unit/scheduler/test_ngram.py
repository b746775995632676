"""NgramIndex against a search of everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.scheduler.ngram import MAX_INDEXED, MAX_LOOKS, NgramIndex


def naive(ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """The longest end that stood before, the latest place of it, and what followed there, round and round."""
    for size in range(min(longest, len(ids) - 1), shortest - 1, -1):
        for place in range(len(ids) - size - 1, -1, -1):
            if ids[place : place + size] == ids[-size:]:
                made = list(ids)
                for _ in range(count):
                    made.append(made[len(made) - (len(ids) - place - size)])
                return made[len(ids) :]
    return []


@given(
    prompt=st.lists(st.integers(0, 3), max_size=MAX_LOOKS // 2),
    output=st.lists(st.integers(0, 3), max_size=MAX_LOOKS // 2),
    shortest=st.integers(1, 4),
    more=st.integers(0, 5),
    count=st.integers(1, 9),
    asks_at=st.sets(st.integers(0, MAX_LOOKS // 2)),
)
def test_a_guess_is_what_a_search_of_everything_finds(
    prompt: list[int], output: list[int], shortest: int, more: int, count: int, asks_at: set[int]
) -> None:
    ids = list(prompt)
    index = NgramIndex(ids, shortest=shortest, longest=shortest + more)
    for position, token_id in enumerate(output):
        ids.append(token_id)
        if position in asks_at:
            assert index.propose(count) == naive(ids, shortest, shortest + more, count)
    assert index.propose(count) == naive(ids, shortest, shortest + more, count)
    assert ids == prompt + output


def test_a_longer_match_beats_a_later_one() -> None:
    ids = [1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4]
    assert NgramIndex(ids, shortest=2, longest=4).propose(1) == [50]
    assert NgramIndex(ids, shortest=2, longest=2).propose(1) == [60]


def test_nothing_is_guessed_where_the_end_is_new_or_too_short() -> None:
    for ids in ([], [1], [1, 1], [1, 2, 3, 4]):
        assert NgramIndex(ids, shortest=2, longest=3).propose(4) == []


def test_what_repeats_itself_is_guessed_round_and_round() -> None:
    assert NgramIndex([1, 7, 8, 7, 8, 7], shortest=2, longest=3).propose(5) == [8, 7, 8, 7, 8]


def test_a_long_prompt_is_taken_in_by_and_by_and_found_in_the_end() -> None:
    ids = [*range(10 * MAX_INDEXED), 0, 1, 2]
    index = NgramIndex(ids, shortest=3, longest=3)
    assert index.propose(3) == [3, 4, 5]  # the beginning is known first
    ids += [5 * MAX_INDEXED, 5 * MAX_INDEXED + 1, 5 * MAX_INDEXED + 2]
    calls = 1
    while not (draft := index.propose(2)):
        calls += 1
    assert draft == [5 * MAX_INDEXED + 3, 5 * MAX_INDEXED + 4]
    assert calls == 5


def test_a_search_looks_at_so_many_places_at_most() -> None:
    looks = 0

    class Counted(list[int]):
        def __getitem__(self, key: object) -> object:  # type: ignore[override]
            nonlocal looks
            looks += isinstance(key, slice)
            return super().__getitem__(key)  # type: ignore[index]

    ids = Counted([1, 2, *[3, 1, 2] * MAX_LOOKS * 4])
    index = NgramIndex(ids, shortest=2, longest=2 + 3 * MAX_LOOKS * 8)  # no match is long enough to end the search
    while True:
        before, looks = looks, 0
        assert index.propose(2) == [3, 1]
        if looks == before:
            break
    assert looks <= MAX_LOOKS + 2  # the end of the sequence, the places, the source
