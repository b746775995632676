"""Kimi K2: calls in a section, each with an id that holds its name: `functions.NAME:NUMBER`."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, Maybe, NamedJson
from millstream.parsing.stage import Example, ToolFormat

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

KIMI_K2 = ToolFormat(
    name="kimi_k2",
    form=NamedJson(
        before=(SPACE,),
        name=r"(?P<id>(?:functions\.)?(?P<name>[^:]+):\d+)",
        after=(SPACE, _ARGUMENTS, SPACE),
        end=(SPACE, Maybe(_END)),
    ),
    opens=(_BEGIN,),
    section=_SECTION,
    template_marks=("<|tool_calls_section_begin|>",),
    written=(
        Writing(
            opening=_SECTION[0],
            begin=f"{_BEGIN}functions.",
            after_name=_ARGUMENTS,
            end=_END,
            closing=_SECTION[1],
            numbered=True,
        ),
    ),
    examples=(
        Example(
            f'{_SECTION[0]}{_BEGIN}functions.get_weather:0{_ARGUMENTS}{{"city": "杭州"}}{_END}'
            f"{_BEGIN}functions.ping:1{_ARGUMENTS}{{}}{_END}{_SECTION[1]}",
            calls=(("get_weather", '{"city": "杭州"}'), ("ping", "{}")),
            ids=("functions.get_weather:0", "functions.ping:1"),
        ),
    ),
)
