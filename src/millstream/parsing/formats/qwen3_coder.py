"""Qwen3-Coder: a tag for the function, and one for each parameter, with the value between line breaks."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, Maybe, Tagged
from millstream.parsing.stage import Example, ToolFormat

QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    form=Tagged(
        before=(SPACE, Maybe("<function=")),
        after=(">",),
        key=("<parameter=", ">"),
        value=("", "</parameter>"),
        edge="\n",
        close="</function>",
        end=(SPACE, Maybe("</tool_call>")),
    ),
    opens=("<tool_call>", "<function="),
    template_marks=("<tool_call>", "<function=", "<parameter="),
    written=(
        Writing(
            begin="<tool_call>\n<function=",
            after_name=">\n",
            end="</function>\n</tool_call>",
            between="\n",
            style="tagged",
            key=("<parameter=", ">\n"),
            value=("\n", "</parameter>", "\n"),
        ),
    ),
    examples=(
        Example(
            "Well.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSão Paulo\n</parameter>\n<parameter=days>\n3\n"
            "</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n</function>\n</tool_call>",
            "Well.",
            (("get_weather", '{"city": "São Paulo", "days": 3, "hourly": true}'),),
        ),
        Example("<tool_call>\n<function=ping>\n</function>\n</tool_call>", calls=(("ping", "{}"),)),
        Example(
            '<function=get_weather>\n<parameter=city>\nif a < b:\n  "c"\n\n</parameter>\n</function>',
            calls=(("get_weather", '{"city": "if a < b:\\n  \\"c\\"\\n"}'),),
        ),
        Example("<tool_call>\nnothing\n</tool_call>", "<tool_call>\nnothing\n</tool_call>"),
    ),
)
