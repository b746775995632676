"""Every format over its own examples, over their beginnings, and over what is nearly one of them, cut in every way."""

from __future__ import annotations

import json
import random

import pytest

from millstream.parsing.draft import Tools
from millstream.parsing.events import Parsed
from millstream.parsing.pipeline import Reading
from millstream.parsing.reasoning import ReasoningFormat, Thought
from millstream.parsing.registry import REASONING_FORMATS, TOOL_FORMATS
from millstream.parsing.stage import Example, ToolFormat
from tests.support.cuts import parsed_in_any_cut

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": ["boolean", "null"]}},
}
TOOLS = Tools({"get_weather": WEATHER, "ping": {"type": "object"}})
EXAMPLES = [pytest.param(f, e, id=f"{f.name}-{n}") for f in TOOL_FORMATS for n, e in enumerate(f.examples)]
THOUGHTS = [pytest.param(f, t, id=f"{f.name}-{n}") for f in REASONING_FORMATS for n, t in enumerate(f.examples)]


def read(format_: ToolFormat, text: str, draws: int = 8) -> Parsed:
    parsed = parsed_in_any_cut(text, Reading(tool_format=format_, tools=TOOLS), draws=draws)
    for call in parsed.calls:
        if call.is_complete:
            assert isinstance(json.loads(call.arguments), dict)
    return parsed


@pytest.mark.parametrize(("format_", "example"), EXAMPLES)
def test_an_example_means_what_its_format_says(format_: ToolFormat, example: Example) -> None:
    parsed = read(format_, example.text, draws=30)
    assert parsed.content == example.content
    assert [(call.name, call.arguments) for call in parsed.calls] == list(example.calls)
    assert all(call.is_complete for call in parsed.calls)
    if example.ids:
        assert [call.id for call in parsed.calls] == list(example.ids)


@pytest.mark.parametrize(("format_", "example"), EXAMPLES)
def test_a_text_that_breaks_off_loses_nothing_and_never_completes_what_is_not_complete(
    format_: ToolFormat, example: Example
) -> None:
    whole = read(format_, example.text, draws=1)
    for end in range(len(example.text)):
        part = read(format_, example.text[:end], draws=2)
        for index, call in enumerate(part.calls):
            assert call.name == whole.calls[index].name
            if call.is_complete:
                assert call.arguments == whole.calls[index].arguments
            else:
                assert index == len(part.calls) - 1
                assert _is_beginning(call.arguments, whole.calls[index].arguments, example.text[:end])
        if not part.calls:
            assert part.content.rstrip() in (example.text[:end].rstrip(), whole.content)


def _is_beginning(part: str, whole: str, text: str) -> bool:
    """Whether `part` begins as `whole`, but for the end of `text`: a half of a word or a tag is told as it stands."""
    common = next((n for n, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b), min(len(part), len(whole)))
    rest = part[common:].replace("\\n", "\n").rstrip()
    return text.rstrip().endswith(rest) and len(rest) < 64


@pytest.mark.parametrize("format_", TOOL_FORMATS, ids=lambda f: f.name)
def test_text_that_is_nearly_a_call_comes_to_the_same_in_every_cut(format_: ToolFormat) -> None:
    drawn = random.Random(7)
    texts = [example.text for example in format_.examples]
    for _ in range(150):
        text = drawn.choice(texts)
        for _ in range(drawn.randrange(1, 4)):
            at = drawn.randrange(len(text) + 1)
            other = drawn.choice(texts)
            text = drawn.choice(
                (
                    text[:at] + drawn.choice('{}[]",:\\ \n<>|x0(=)') + text[at:],
                    text[:at] + text[at + drawn.randrange(1, 9) :],
                    text[:at] + other + text[at:],
                    text[:at] + other[drawn.randrange(len(other)) :],
                )
            )
        read(format_, text, draws=2)


@pytest.mark.parametrize(("format_", "thought"), THOUGHTS)
def test_an_example_of_reasoning_means_what_its_format_says(format_: ReasoningFormat, thought: Thought) -> None:
    reading = Reading(reasoning=format_, is_open=thought.is_open)
    parsed = parsed_in_any_cut(thought.text, reading, draws=30)
    assert (parsed.reasoning, parsed.content) == (thought.reasoning, thought.content)
    for end in range(len(thought.text)):
        text = thought.text[:end]
        part = parsed_in_any_cut(text, reading, draws=2)
        assert _is_beginning(part.reasoning, thought.reasoning, text)
        assert _is_beginning(part.content, thought.content, text)
