"""What is asked: the same for the same seed, in the shape that was ordered."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.bench.workload import Kind, Range, Shape, make_sessions, parse_range, read_sessions
from millstream.errors import StartupError


def shape(kind: Kind, **more: Any) -> Shape:
    told = {"prompt_words": Range(5, 9), "max_tokens": Range(2, 4), "prefix_words": 30, "prefixes": 2, "turns": 3, **more}
    return Shape(kind=kind, **told)


@pytest.mark.parametrize("kind", ["random", "shared-prefix", "multi-turn"])
def test_the_seed_decides_everything(kind: Kind) -> None:
    once, again, other = (list(make_sessions(shape(kind), 12, seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert sum(len(session.turns) for session in once) == 12
    endless = make_sessions(shape(kind), None, 1)
    assert list(itertools.islice(endless, len(once))) == once


def test_lengths_are_within_their_ranges_and_reach_their_ends() -> None:
    turns = [turn for session in make_sessions(shape("random"), 200, 0) for turn in session.turns]
    assert {turn.max_tokens for turn in turns} == {2, 3, 4}
    assert {len(turn.messages[0]["content"].split("\n")[0].split()) for turn in turns} == {5, 6, 7, 8, 9}


def test_few_prefixes_are_shared_by_many_questions() -> None:
    sessions = list(make_sessions(shape("shared-prefix"), 10, 0))
    prefixes = [session.turns[0].messages[0] for session in sessions]
    assert {each["role"] for each in prefixes} == {"system"}
    assert len({each["content"] for each in prefixes}) == 2
    assert len({session.turns[0].messages[1]["content"] for session in sessions}) == 10


def test_a_conversation_has_its_turns_whole() -> None:
    assert [len(session.turns) for session in make_sessions(shape("multi-turn"), 7, 0)] == [3, 3, 3]


@pytest.mark.parametrize(("text", "found"), [("64", (64, 64)), ("16-128", (16, 128)), ("1-1", (1, 1))])
def test_a_range_is_one_number_or_two(text: str, found: tuple[int, int]) -> None:
    assert parse_range(text, "x") == found


@pytest.mark.parametrize("text", ["", "x", "0", "5-2", "-3", "1-", "1-2-3", "1.5"])
def test_what_is_no_range_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(StartupError, match="--max-tokens"):
        parse_range(text, "max-tokens")


def test_a_file_has_a_question_a_line_and_begins_again(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text('"one"\n\n{"prompt": "two", "max_tokens": 3}\n{"messages": [{"role": "user", "content": "three"}]}\n')
    assert len(read_sessions(file, None, 9)) == 3
    turns = [session.turns[0] for session in read_sessions(file, 4, 9)]
    assert [turn.messages[0]["content"] for turn in turns] == ["one", "two", "three", "one"]
    assert [turn.max_tokens for turn in turns] == [9, 3, 9, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no line"),
        ('"ok"\n{x', "line 2"),
        ("{}", "line 1"),
        ('{"prompt": "a", "messages": []}', "not both"),
        ("[1]", "line 1"),
    ],
)
def test_a_file_that_is_wrong_says_where(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(content)
    with pytest.raises(StartupError, match=message):
        read_sessions(file, None, None)
    with pytest.raises(StartupError, match="cannot be read"):
        read_sessions(tmp_path / "none", None, None)
