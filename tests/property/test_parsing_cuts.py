"""Whatever a model writes, and however it is cut, the pipeline finds the same and loses nothing."""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.parsing.draft import Tools
from millstream.parsing.events import join
from millstream.parsing.pipeline import Reading, parse
from millstream.parsing.registry import REASONING_FORMATS, TOOL_FORMATS
from millstream.parsing.stage import ToolFormat
from tests.support.cuts import events_of

SCHEMA = {"properties": {"s": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"}}}
TOOLS = Tools({"f": SCHEMA, "g-h": {}})
READINGS = [
    Reading(reasoning=reasoning, tool_format=tools, tools=TOOLS, is_open=is_open)
    for tools in TOOL_FORMATS
    for reasoning in (None, *REASONING_FORMATS)
    for is_open in (False, True)
]
ATOMS = sorted(
    {
        *("f", "g-h", "x", " ", "\n", "{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", ";", "=", "<", ">"),
        *("é", "😀", "1", "-", "."),
        *('"name": ', '"arguments": ', '"parameters": ', '"f"', "null", "true", "None", "\\u00", "\\n", "\x00", "s", "n", "o"),
        *(marker for format_ in TOOL_FORMATS for marker in (*format_.opens, *(format_.section or ()))),
        *("</tool_call>", "<function=", "<parameter=", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *("</arg_value>", "[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json", "```"),
        *("<|message|>", " to=functions.", "assistant", "analysis", "commentary", "final"),
        *(marker for format_ in REASONING_FORMATS for marker in (format_.begin, format_.end, *(format_.answer_tags or ()))),
        *(marker for format_ in REASONING_FORMATS if format_.frames for marker in format_.frames.all_marks),
    }
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=30).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(READINGS), TEXTS, st.lists(st.integers(0, 400), max_size=6))
def test_any_text_in_any_cut_comes_to_the_same(reading: Reading, text: str, places: list[int]) -> None:
    cuts = sorted(min(place, len(text)) for place in places)
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = join(events_of([text], reading))
    assert join(events_of(pieces, reading)) == whole
    assert join(events_of(text, reading)) == whole
    for call in whole.calls:
        if call.is_complete:
            assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TOOL_FORMATS), TEXTS)
def test_where_there_is_no_call_the_content_is_the_text(format_: ToolFormat, text: str) -> None:
    parsed = parse(text, Reading(tool_format=format_, tools=Tools({})))
    assert (parsed.content, parsed.calls) == (text, [])


def written(format_: ToolFormat, name: str, arguments: dict[str, object]) -> str | None:
    """A call as the format has it; None where it cannot write these arguments."""
    text = json.dumps(arguments, ensure_ascii=False)
    match format_.name:
        case "hermes":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        case "llama3":
            return f'<|python_tag|>{{"name": "{name}", "parameters": {text}}}'
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{text}"
        case "deepseekv31":
            return (
                f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            )
        case "kimi_k2":
            return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        case "gpt-oss":
            return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
    return None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TOOL_FORMATS), st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=3))
@example(next(f for f in TOOL_FORMATS if f.name == "hermes"), [{"a": "</tool_call>", "b": '}\\"'}])
def test_any_arguments_come_out_as_they_were_written(format_: ToolFormat, calls: list[dict[str, object]]) -> None:
    texts = [written(format_, "f", arguments) for arguments in calls]
    if None in texts:
        return
    separator = ";" if format_.name == "llama3" else "\n"
    joined = separator.join(text.removeprefix("<|python_tag|>") if n else text for n, text in enumerate(texts) if text)
    parsed = join(events_of([f"So.{joined}"], Reading(tool_format=format_, tools=TOOLS)))
    assert parsed.content == "So."
    assert [call.arguments for call in parsed.calls] == [json.dumps(each, ensure_ascii=False) for each in calls]
    assert parsed.ends_in_calls


@settings(max_examples=200, deadline=None)
@given(st.text().map(lambda s: s.replace("</parameter>", "")), st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_tagged_values_get_the_type_of_the_schema(text: str, number: float) -> None:
    format_ = next(each for each in TOOL_FORMATS if each.name == "qwen3_coder")
    call = (
        f"<tool_call>\n<function=f>\n<parameter=s>\n{text}\n</parameter>\n<parameter=n>\n{json.dumps(number)}\n</parameter>\n"
        f'<parameter=o>\n{{"k": [1]}}\n</parameter>\n<parameter=unknown>\n5\n</parameter>\n</function>\n</tool_call>'
    )
    parsed = join(events_of([call], Reading(tool_format=format_, tools=TOOLS)))
    assert json.loads(parsed.calls[0].arguments) == {"s": text, "n": number, "o": {"k": [1]}, "unknown": "5"}
