"""A corpus of what models write at their worst, for every format, and every way to cut it: one result, and nothing lost."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable

import pytest
import tokenizers

from millstream.parsing.draft import Tools
from millstream.parsing.events import Parsed, join
from millstream.parsing.pipeline import Pipeline, Reading, parse
from millstream.parsing.reasoning import ReasoningFormat, Span
from millstream.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, reasoning_format, tool_format
from millstream.parsing.stage import ToolFormat
from tests.support.cuts import events_of, parsed_in_any_cut
from tests.support.published_tokenizers import published_directory

TOOLS = Tools(
    {"f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}}}
)
DSML = "｜DSML｜"
# a call of `f` with arguments that are JSON, as each format has it
JSON_CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": @}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "f", "parameters": @}',
    "mistral": "[TOOL_CALLS]f[ARGS]@",
    "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n@\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseekv31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>@<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>@<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "gpt-oss": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>@<|call|>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": @}]',
    "phi4_mini": '<|tool_call|>[{"name": "f", "arguments": @}]<|/tool_call|>',
    "hunyuan": '<tool_calls>[{"name": "f", "arguments": @}]</tool_calls>',
    "nemotron": '<TOOLCALL>[{"name": "f", "arguments": @}]</TOOLCALL>',
    "internlm": '<|action_start|><|plugin|>\n{"name": "f", "parameters": @}<|action_end|>',
    "command_r7b": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": @}]<|END_ACTION|>',
}
# a call of `f` whose argument `a` is text between tags
TAGGED_CALLS = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\nTEXT\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>TEXT</arg_value>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=a>TEXT</parameter>\n</function>\n</seed:tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">TEXT</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "step3": '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">'
    '<steptml:parameter name="a">TEXT</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
    "deepseekv32": f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">TEXT'
    f"</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>",
}
PYTHON_CALLS = {"pythonic": "[f(a=TEXT)]", "lfm2": "<|tool_call_start|>[f(a=TEXT)]<|tool_call_end|>"}


def read(name: str, text: str, reasoning: ReasoningFormat | None = None) -> Parsed:
    return parsed_in_any_cut(text, Reading(tool_format=tool_format(name), tools=TOOLS, reasoning=reasoning), draws=2)


def test_every_format_is_in_the_corpus() -> None:
    assert {*JSON_CALLS, *TAGGED_CALLS, *PYTHON_CALLS} == {format_.name for format_ in TOOL_FORMATS}


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1, "a": 2}',
        '{"a": ' + "9" * 200 + "}",
        '{"a": -0.0e+9999}',
        '{"a": "\\ud800 \\udc00\\ud83d\\ude00"}',
        '{\r\n\t"a":\r\n1\r\n}',
        '{"a": "b\\\\", "c": "\\"}"}',
        '{"a": ' + "[" * 98 + "]" * 98 + "}",
        '{"<|im_end|>": "<|eot_id|></s><think></think>"}',
        '{"": [[], {}, [{}], "", null, true, false, 0]}',
        '{"é\u2028": "\u00a0\ufeff\u2029 北京 😀"}',
    ],
)
def test_arguments_that_are_json_come_out_as_they_are(name: str, arguments: str) -> None:
    parsed = read(name, JSON_CALLS[name].replace("@", arguments))
    assert [call.arguments for call in parsed.calls] == [arguments]
    assert (parsed.content, parsed.ends_in_calls) == ("", True)
    json.loads(arguments)


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1,}',
        '{"a": [1}',
        '{"a": 1]',
        "{'a': 1}",
        "{a: 1}",
        '{"a" 1}',
        '{"a": 01}',
        '{"a": "\\x"}',
        '{"a": ' + "9" * 300 + "}",
        '{"a": ' + "[" * 200 + "}",
        '{"a": tru}',
        '{"a": 1 "b": 2}',
        "[1]",
        '"text"',
        "7",
    ],
)
def test_arguments_that_are_none_are_never_taken_for_a_whole_call(name: str, arguments: str) -> None:
    parsed = read(name, JSON_CALLS[name].replace("@", arguments) + "\nAnd so on.")
    assert not parsed.ends_in_calls
    assert parsed.content.endswith("And so on.")
    told = "".join(call.arguments for call in parsed.calls)
    assert arguments[len(told) :] in parsed.content if arguments.startswith(told) else arguments in parsed.content


@pytest.mark.parametrize("name", JSON_CALLS)
def test_markers_in_strings_are_text(name: str) -> None:
    format_ = tool_format(name)
    markers = [
        *format_.opens,
        *(format_.section or ()),
        JSON_CALLS[name].replace("@", "{}"),
        "</tool_call>",
        "<|call|>",
        "<|end|>",
    ]
    for marker in markers:
        arguments = json.dumps({"a": f"{marker} {marker[:-1]}"}, ensure_ascii=False)
        text = JSON_CALLS[name].replace("@", arguments)
        for reasoning in (None, reasoning_format("gpt-oss" if name == "gpt-oss" else "qwen3")):
            parsed = read(name, text, reasoning)
            assert ([call.arguments for call in parsed.calls], parsed.content) == ([arguments], "")


@pytest.mark.parametrize("name", TAGGED_CALLS)
@pytest.mark.parametrize(
    "value",
    [
        '"',
        "\\",
        "a < b",
        "</",
        "</param",
        "<tool_call>",
        '{"a": "}',
        "\x00\x1f",
        "1",
        "null",
        "line\nline",
        "北京 😀",
        "\\ud800",
        "\r\nx\r\n ",
    ],
)
def test_text_between_tags_comes_out_as_it_is(name: str, value: str) -> None:
    parsed = read(name, TAGGED_CALLS[name].replace("TEXT", value))
    assert [json.loads(call.arguments) for call in parsed.calls] == [{"a": value}]
    assert (parsed.content, parsed.ends_in_calls) == ("", True)


@pytest.mark.parametrize("name", PYTHON_CALLS)
@pytest.mark.parametrize(
    "value",
    [
        "'it\\'s'",
        '"a]"',
        "'\\n\\t\\\\'",
        "[1, (2, 3,), {'k': None}]",
        "-1.5e3",
        "True",
        "{'a': {\"b\": [False]}}",
        "'\\u5317\\U0001f600\\x41'",
        "()",
    ],
)
def test_python_values_become_json(name: str, value: str) -> None:
    parsed = read(name, PYTHON_CALLS[name].replace("TEXT", value))
    wanted = json.loads(json.dumps(ast.literal_eval(value)))
    assert [json.loads(call.arguments) for call in parsed.calls] == [{"a": wanted}]
    assert (parsed.content, parsed.ends_in_calls) == ("", True)


@pytest.mark.parametrize("name", PYTHON_CALLS)
@pytest.mark.parametrize("value", ["x", "1 + 1", "f()", "'a", "{1}", "nan", "0x10", "[1", "'\\N{DEGREE SIGN", "lambda: 1"])
def test_what_is_no_python_value_is_never_taken_for_a_whole_call(name: str, value: str) -> None:
    assert not read(name, PYTHON_CALLS[name].replace("TEXT", value)).ends_in_calls


@pytest.mark.parametrize("name", [*JSON_CALLS, *TAGGED_CALLS])
def test_each_character_goes_to_one_place(name: str) -> None:
    calls = {**JSON_CALLS, **TAGGED_CALLS}

    def call(value: str) -> str:
        return calls[name].replace("@", json.dumps({"a": value}, ensure_ascii=False)).replace("TEXT", value)

    whole = f"①{call('②')}③\n{call('④')}⑤"
    others = (whole, whole.replace("f", "unheard"), call("①") + call("②")[:-1], f"①{call('②')}③".replace('"a"', '"a'))
    for text in others:
        for end in range(0, len(text) + 1, 7):
            part = text[:end]
            parsed = parse(part, Reading(tool_format=tool_format(name), tools=TOOLS, reasoning=reasoning_format("qwen3")))
            told = "".join((parsed.reasoning, parsed.content, *(f"{each.name}{each.arguments}" for each in parsed.calls)))
            for mark in "①②③④⑤":
                assert told.count(mark) == part.count(mark), (part, told)


@pytest.mark.parametrize("tokenizer", ["qwen3", "gptoss"])
def test_cuts_between_the_tokens_of_published_tokenizers_change_nothing(tokenizer: str) -> None:
    encode = tokenizers.Tokenizer.from_file(str(published_directory(tokenizer) / "tokenizer.json")).encode
    for format_ in TOOL_FORMATS:
        for reasoning in (reasoning_format("gpt-oss") if format_.name == "gpt-oss" else reasoning_format("qwen3"), None):
            reading = Reading(tool_format=format_, tools=Tools(), reasoning=reasoning)
            for example in format_.examples:
                text = f"<think>\nHm: {example.text}</think>\n\n{example.text}"
                ends = sorted({0, len(text), *(end for _, end in encode(text, add_special_tokens=False).offsets)})
                pieces = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
                assert len(pieces) > 5
                assert join(events_of(pieces, reading)) == parse(text, reading)


@pytest.mark.parametrize("format_", REASONING_FORMATS, ids=lambda format_: format_.name)
def test_reasoning_says_where_it_was_in_every_cut(format_: ReasoningFormat) -> None:
    if format_.frames is not None:
        head, tail = "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"
    else:
        head, tail = " ", "\n"
    text = f"{head}{format_.begin} a {format_.end}{tail}b {format_.begin}"
    begin = 0 if format_.frames else len(head)
    for size in (1, 3, len(text)):
        pipeline = Pipeline(Reading(reasoning=format_, is_open=False))
        for at in range(0, len(text), size):
            pipeline.feed(text[at : at + size])
            seen = min(at + size, len(text))
            for span in pipeline.reasoning_spans:
                assert span.end is None or span.end <= seen
        assert pipeline.reasoning_spans[0] == Span(begin, len(head + format_.begin + " a " + format_.end))
        pipeline.finish()
    opened = Pipeline(Reading(reasoning=format_, is_open=True))
    opened.feed("on and")
    assert opened.reasoning_spans == [Span(0, None)]
    opened.feed(" on")
    opened.finish()
    assert opened.reasoning_spans == [Span(0, len("on and on"))]
    assert Pipeline(Reading()).reasoning_spans == []


def work(do: Callable[[], object]) -> int:
    """How many calls `do` makes: what it costs, on any machine."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("format_", TOOL_FORMATS, ids=lambda format_: format_.name)
def test_twice_the_text_is_at_most_twice_the_work(format_: ToolFormat) -> None:
    opening = format_.opens[0]
    example = next(example.text for example in format_.examples if example.calls)
    reading = Reading(tool_format=format_, tools=Tools(), reasoning=reasoning_format("qwen3"))
    for unit in (opening, opening[:-1], example[: len(example) * 2 // 3], example[:-1] + "x"):
        pieces = [unit * (800 // len(unit)), unit * 2 * (800 // len(unit))]
        for cut in (False, True):

            def read_all(text: str, cut: bool = cut) -> None:
                pipeline = Pipeline(reading)
                for piece in text if cut else [text]:
                    pipeline.feed(piece)
                pipeline.finish()

            once, twice = (work(lambda text=text: read_all(text)) for text in pieces)  # type: ignore[misc]
            assert twice < 2.3 * once + 200, (unit, cut)


@pytest.mark.parametrize("format_", TOOL_FORMATS, ids=lambda format_: format_.name)
def test_no_depth_of_nesting_overruns_the_stack(format_: ToolFormat) -> None:
    calls = {**JSON_CALLS, **TAGGED_CALLS, **PYTHON_CALLS}
    for deep in ('{"o":' * 20_000, "[" * 100_000, '{"a": "' + '\\"{' * 20_000, "(" * 50_000):
        for text in (calls[format_.name].replace("@", deep).replace("TEXT", deep), deep):
            parsed = parse(text, Reading(tool_format=format_, tools=TOOLS))
            assert all(isinstance(json.loads(call.arguments), dict) for call in parsed.calls if call.is_complete)
