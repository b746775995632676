"""StopMatcher against a search that looks at the whole text after every character."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.text.stop import StopMatch, StopMatcher

texts = st.text("ab🙂", max_size=40)
stop_sets = st.lists(st.text("ab🙂", min_size=1, max_size=5), max_size=6)


def first_match(text: str, stops: list[str], armed: list[bool]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete and armed[end - 1]:
            stop = max(complete, key=len)
            return StopMatch(stop=stop, start=end - len(stop), end=end)
    return None


def held(text: str, stops: list[str]) -> int:
    return max((n for stop in stops for n in range(len(stop)) if n == 0 or text.endswith(stop[:n])), default=0)


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(deadline=None)
@given(text=texts, stops=stop_sets, data=st.data())
def test_any_cut_finds_what_a_naive_search_finds(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, fed = StopMatcher(stops), ""
    armed: list[bool] = []
    for piece in pieces_of(data, text):
        arm = data.draw(st.booleans())
        fed += piece
        armed += [arm] * len(piece)
        match = matcher.feed(piece, armed=arm)
        assert match == first_match(fed, stops, armed)
        assert matcher.num_chars == len(fed)
        if match:
            assert matcher.held_back == 0
            return
        assert matcher.held_back == held(fed, stops)


@settings(deadline=None)
@given(text=texts, stops=stop_sets, data=st.data())
def test_nothing_shown_is_ever_taken_back(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, fed, sent = StopMatcher(stops), "", 0
    for piece in pieces_of(data, text):
        fed += piece
        match = matcher.feed(piece)
        end = match.start if match else len(fed) - matcher.held_back
        assert end >= sent
        sent = end
        if match:
            return
        assert not any(stop in fed[:sent] for stop in stops)
