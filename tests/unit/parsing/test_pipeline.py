"""The pipeline: reported failures of other servers' parsers, what is streamed when, and what a text can do at worst."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from unittest.mock import patch

import pytest

from millstream.errors import StartupError
from millstream.parsing.draft import Tools
from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, ContentDelta, Parsed, ReasoningDelta, join
from millstream.parsing.pipeline import Pipeline, Reading, parse
from millstream.parsing.reader import Markers
from millstream.parsing.registry import (
    reasoning_format,
    reasoning_format_names,
    tool_format,
    tool_format_names,
)
from tests.support.cuts import cuts, events_of, parsed_in_any_cut

ANY = Tools()


def called(name: str, text: str, tools: Tools = ANY, **more: object) -> Parsed:
    return parsed_in_any_cut(text, Reading(tool_format=tool_format(name), tools=tools, **more))  # type: ignore[arg-type]


def calls_of(parsed: Parsed) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in parsed.calls]


def test_two_calls_in_one_delta_are_both_there() -> None:
    text = (
        '<tool_call>{"name":"w","arguments":{"c":"A"}}</tool_call>\n<tool_call>{"name":"w","arguments":{"c":"B"}}</tool_call>'
    )
    parsed = called("hermes", text)
    assert calls_of(parsed) == [("w", {"c": "A"}), ("w", {"c": "B"})]
    assert parsed.content == ""


def test_braces_in_strings_are_text() -> None:
    text = '[{"name":"run","parameters":{"code":"if (a) { b(\\"}\\") } \\\\"}}]'
    assert calls_of(called("llama3", text)) == [("run", {"code": 'if (a) { b("}") } \\'})]


def test_nested_objects_end_where_they_end() -> None:
    text = '<tool_call>{"name":"s","arguments":{"q":"x","f":{"a":{"b":[{"c":1}]}},"z":true}}</tool_call>'
    parsed = called("hermes", text)
    assert parsed.calls[0].arguments == '{"q":"x","f":{"a":{"b":[{"c":1}]}},"z":true}'
    assert parsed.content == ""


def test_arguments_are_streamed_as_they_come_and_lose_no_first_piece() -> None:
    pipeline = Pipeline(Reading(tool_format=tool_format("hermes"), tools=ANY))
    assert pipeline.feed('Hm <tool_call>{"name":"w","argu') == [ContentDelta("Hm"), CallBegin(0, "w", None)]
    assert pipeline.feed('ments":{"c": "x') == [ArgumentsDelta(0, '{"c": "x')]
    for _ in range(50):
        assert pipeline.feed("yy") == [ArgumentsDelta(0, "yy")]
    assert pipeline.feed('"}}</tool_c') == [ArgumentsDelta(0, '"}'), CallEnd(0, is_complete=True)]
    assert pipeline.feed("all> end ") == [ContentDelta("end")]
    assert pipeline.finish() == [ContentDelta(" ")]


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("qwen3_coder", "<tool_call>\n<function=w>\n<parameter=s>\n"),
        ("glm45", "<tool_call>w\n<arg_key>s</arg_key>\n<arg_value>"),
        ("pythonic", '[w(s="'),
    ],
)
def test_long_strings_are_streamed_in_tagged_and_pythonic_calls_too(name: str, begin: str) -> None:
    tools = Tools({"w": {"properties": {"s": {"type": "string"}}}})
    pipeline = Pipeline(Reading(tool_format=tool_format(name), tools=tools))
    first = pipeline.feed(begin)
    assert first[0] == CallBegin(0, "w", None)
    for _ in range(20):
        assert pipeline.feed("line ") == [ArgumentsDelta(0, "line ")]


@pytest.mark.parametrize(
    ("name", "begin", "close", "end"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=w>\n<parameter=o>\n",
            "</parameter>",
            "\n</parameter>\n</function>\n</tool_call>",
        ),
        ("glm45", "<tool_call>w\n<arg_key>o</arg_key>\n<arg_value>", "</arg_value>", "</arg_value>\n</tool_call>"),
    ],
)
def test_a_closing_tag_within_a_string_of_json_is_text_of_it(name: str, begin: str, close: str, end: str) -> None:
    for type_, value in (("object", {"a": f'\\"{close}', "b": [close * 2, "\\"]}), ("array", [f"x{close}\n", 1, close])):
        reading = Reading(tool_format=tool_format(name), tools=Tools({"w": {"properties": {"o": {"type": type_}}}}))
        text = begin + json.dumps(value) + end
        for pieces in cuts(text):
            parsed = join(events_of(pieces, reading))
            assert calls_of(parsed) == [("w", {"o": value})] and parsed.ends_in_calls
    broken = join(events_of([f'{begin}["x{end}'], reading))
    assert not broken.ends_in_calls


def test_what_only_looks_like_a_marker_goes_on_as_soon_as_it_fails() -> None:
    pipeline = Pipeline(Reading(tool_format=tool_format("hermes"), tools=ANY))
    assert pipeline.feed("a <tool") == [ContentDelta("a")]
    assert pipeline.feed("s>") == [ContentDelta(" <tools>")]
    assert pipeline.feed("<tool_call>") == []
    assert pipeline.feed("x") == [ContentDelta("<tool_call>x")]
    assert pipeline.feed("<tool_c") == []
    assert pipeline.finish() == [ContentDelta("<tool_c")]


def test_an_answer_in_json_is_no_call() -> None:
    tools = Tools({"w": None})
    for text in (
        '{"city": "A", "name": "w"}',
        '{"name": "Bob", "parameters": {"x": 1}}',
        '[1, {"name": "w"}]',
        '{"name": ["w"]}',
    ):
        parsed = called("llama3", text, tools)
        assert (parsed.content, parsed.calls) == (text, [])


def test_a_call_of_an_unknown_tool_is_content_and_what_is_quoted_in_it_is_no_call() -> None:
    inner = '<tool_call>{\\"name\\": \\"w\\", \\"arguments\\": {}}</tool_call>'
    text = f'So. <tool_call>{{"name": "other", "arguments": {{"s": "{inner}"}}}}</tool_call>'
    parsed = called("hermes", text, Tools({"w": None}))
    assert (parsed.content, parsed.calls) == (text, [])
    xml = "<tool_call>\n<function=other>\n<parameter=s>\n<function=w>\n</function>\n</parameter>\n</function>\n</tool_call>"
    parsed = called("qwen3_coder", xml, Tools({"w": None}))
    assert (parsed.content, parsed.calls) == (xml, [])


def test_a_call_that_breaks_after_its_name_ends_incomplete_and_the_rest_is_content() -> None:
    parsed = called("hermes", '<tool_call>{"name": "w", "arguments": {"a": 1 oops}}</tool_call>')
    assert (parsed.content, parsed.ends_in_calls) == ("oops}}</tool_call>", False)
    assert (parsed.calls[0].arguments, parsed.calls[0].is_complete) == ('{"a": 1 ', False)


def test_raw_control_characters_in_strings_become_escapes() -> None:
    parsed = called("hermes", '<tool_call>{"name": "w", "arguments": {"code": "a\n\tb\x00"}}</tool_call>')
    assert calls_of(parsed) == [("w", {"code": "a\n\tb\x00"})]


def test_nesting_is_bounded_and_numbers_are() -> None:
    deep = '<tool_call>{"name": "w", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}</tool_call>"
    assert not called_whole(deep).ends_in_calls
    assert not called_whole(f'<tool_call>{{"name": "w", "arguments": {{"a": {"9" * 5000}}}}}').ends_in_calls
    name = "n" * 300
    assert called("mistral", f"[TOOL_CALLS]{name}[ARGS]{{}}").content == f"[TOOL_CALLS]{name}[ARGS]{{}}"


def called_whole(text: str) -> Parsed:
    return parse(text, Reading(tool_format=tool_format("hermes"), tools=ANY))


def test_markup_in_reasoning_is_no_call() -> None:
    text = '<think>I could emit <tool_call>{"name":"ping","arguments":{}}</tool_call></think>No need.'
    parsed = called("hermes", text, reasoning=reasoning_format("qwen3"))
    assert parsed == Parsed('I could emit <tool_call>{"name":"ping","arguments":{}}</tool_call>', "No need.")


def test_reasoning_comes_before_content_and_calls_in_one_flush_order() -> None:
    text = '<think>a</think>\n\nb\n<tool_call>{"name":"w"}</tool_call>'
    reading = Reading(reasoning=reasoning_format("qwen3"), tool_format=tool_format("hermes"), tools=ANY)
    assert events_of([text], reading) == [
        ReasoningDelta("a"),
        ContentDelta("b"),
        CallBegin(0, "w", None),
        ArgumentsDelta(0, "{}"),
        CallEnd(0, is_complete=True),
    ]


def test_a_tag_cut_in_two_leaks_nothing() -> None:
    pipeline = Pipeline(Reading(reasoning=reasoning_format("qwen3")))
    pieces = ["<think>", "internal", " reasoning</thi", "nk>answer"]
    assert [pipeline.feed(piece) for piece in pieces] == [
        [],
        [ReasoningDelta("internal")],
        [ReasoningDelta(" reasoning")],
        [ContentDelta("answer")],
    ]
    assert pipeline.finish() == []


def test_the_prompt_says_whether_the_text_begins_within_reasoning() -> None:
    format_ = reasoning_format("qwen3")
    assert format_.opened_by("<|im_start|>assistant\n<think>\n")
    assert not format_.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not format_.opened_by("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n")


def test_gpt_oss_thinks_calls_and_answers_in_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.w <|constrain|>json<|message|>{"c": "A"}<|call|>'
    )
    parsed = called("gpt-oss", text, reasoning=reasoning_format("gpt-oss"))
    assert (parsed.reasoning, parsed.content) == ("Look it up.", "One moment.")
    assert calls_of(parsed) == [("w", {"c": "A"})]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "x", "x"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "array"}, "[1, ", "[1, "),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/count"}, "4", 4),
        ({"$ref": "#/$defs/loop"}, "4", "4"),
        ({"type": "nonsense"}, "4", "4"),
        ("nonsense", "4", "4"),
        (None, "4", "4"),
    ],
)
def test_a_tagged_value_has_the_type_that_the_schema_allows(schema: object, text: str, value: object) -> None:
    definitions = {"count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    tools = Tools({"w": {"properties": {"v": schema}, "$defs": definitions}})
    glm = called("glm45", f"<tool_call>w<arg_key>v</arg_key><arg_value>{text}</arg_value></tool_call>", tools)
    coder = called("qwen3_coder", f"<function=w>\n<parameter=v>\n{text}\n</parameter>\n</function>", tools)
    assert calls_of(glm) == calls_of(coder) == [("w", {"v": value})]
    assert glm.ends_in_calls


def test_markers_that_could_be_taken_for_each_other_are_refused() -> None:
    for markers in (["<a", "<a>"], [""]):
        with pytest.raises(ValueError, match="marker"):
            Markers(markers)


def test_another_package_adds_formats_by_entry_points() -> None:
    tools = EntryPoint("mine", "millstream.parsing.formats.hermes:HERMES", "millstream.tool_parsers")
    wrong = EntryPoint("wrong", "millstream.parsing.formats.hermes:HERMES", "millstream.reasoning_parsers")

    def entry_points(group: str, name: str | None = None) -> object:
        found = [each for each in (tools, wrong) if each.group == group and name in (None, each.name)]

        class Points(list):  # type: ignore[type-arg]
            names = {each.name for each in found}

        return Points(found)

    with patch("millstream.parsing.registry.entry_points", entry_points):
        assert tool_format("mine").name == "hermes"
        assert "mine" in tool_format_names() and "wrong" in reasoning_format_names()
        with pytest.raises(StartupError, match="is a ToolFormat"):
            reasoning_format("wrong")
        with pytest.raises(KeyError):
            tool_format("nobody")


@pytest.mark.parametrize(
    ("body", "arguments", "content"),
    [
        ('{"name": "w", "arguments": {"a": nope}}', '{"a": ', "nope}}</tool_call>"),
        ('{"name": "w", "arguments": {"a": "b\\q"}}', '{"a": "b', '\\q"}}</tool_call>'),
        ('{"name": "w", "arguments": "[1]"}', "", '"[1]"}</tool_call>'),
        ('{"name": "w", "arguments": "b\\q"}', "", '"b\\q"}</tool_call>'),
        ('{"name": "w", "arguments": {}, "arguments": {}}', "{}", ": {}}</tool_call>"),
        ('{"name": "w", "name": "w"}', "", ': "w"}</tool_call>'),
    ],
)
def test_what_breaks_a_call_is_content_to_the_letter(body: str, arguments: str, content: str) -> None:
    parsed = called("hermes", f"<tool_call>{body}</tool_call>")
    assert [(call.arguments, call.is_complete) for call in parsed.calls] == [(arguments, False)]
    assert parsed.content == content


@pytest.mark.parametrize("arguments", ['{"a": 12', '{"a": tr', '{"a": "x\\u00', '{"a": "x\\', '{"a": [1, {"b'])
def test_arguments_that_break_off_are_told_as_far_as_they_came(arguments: str) -> None:
    parsed = called("hermes", f'<tool_call>{{"name": "w", "arguments": {arguments}')
    assert [(call.arguments, call.is_complete) for call in parsed.calls] == [(arguments, False)]
    assert parsed.content == ""


def test_several_objects_in_one_tag_are_several_calls() -> None:
    parsed = called("hermes", '<tool_call>\n{"name": "a"}\n{"name": "b", "arguments": {"x": 1}}\n</tool_call>\nSo.')
    assert calls_of(parsed) == [("a", {}), ("b", {"x": 1})]
    assert parsed.content == "So."


def test_calls_beyond_the_most_are_content() -> None:
    text = '<tool_call>{"name": "w"}</tool_call>'
    parsed = called("hermes", text + text, Tools(None, max_calls=1))
    assert (len(parsed.calls), parsed.content, parsed.ends_in_calls) == (1, text, True)
