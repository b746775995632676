"""Ways to cut a text, and what a pipeline makes of each."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, Event, Parsed, join
from millstream.parsing.pipeline import Pipeline, Reading


def cuts(text: str, *, draws: int = 8) -> Iterator[list[str]]:
    """The whole text, its characters, pieces of several lengths, and random pieces; few of them with few draws."""
    yield [text]
    for size in (1, 2, 3, 5, 7, 16) if draws > 2 else (1, 3):
        yield [text[at : at + size] for at in range(0, len(text), size)]
    drawn = random.Random(len(text))
    for _ in range(draws):
        places = sorted(drawn.randrange(len(text) + 1) for _ in range(drawn.randrange(1, 6)))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def events_of(pieces: Iterable[str], reading: Reading) -> list[Event]:
    """All events of a text in pieces, whose order has been checked: a call begins, gets arguments, ends, and then the next."""
    pipeline = Pipeline(reading)
    events = [event for piece in pieces for event in pipeline.feed(piece)] + pipeline.finish()
    under_way, num_calls = None, 0
    for event in events:
        if isinstance(event, CallBegin):
            assert under_way is None and event.call == num_calls
            under_way, num_calls = event.call, num_calls + 1
        elif isinstance(event, ArgumentsDelta):
            assert event.call == under_way and event.text
        elif isinstance(event, CallEnd):
            assert event.call == under_way
            under_way = None
        else:
            assert under_way is None and event.text
    assert under_way is None
    return events


def parsed_in_any_cut(text: str, reading: Reading, *, draws: int = 8) -> Parsed:
    """What the text comes to, which is the same for every way to cut it."""
    whole = join(events_of([text], reading))
    for pieces in cuts(text, draws=draws):
        assert join(events_of(pieces, reading)) == whole, pieces
    return whole
