"""Seed-OSS: a tag for the function and one for each parameter, within `seed` tags; so is what it thinks."""

from millstream.parsing.forms import SPACE, Tagged
from millstream.parsing.reasoning import ReasoningFormat, Thought
from millstream.parsing.stage import Example, ToolFormat

SEED_OSS_TOOLS = ToolFormat(
    name="seed_oss",
    form=Tagged(
        before=(SPACE, "<function="),
        after=(">",),
        key=("<parameter=", ">"),
        value=("", "</parameter>"),
        close="</function>",
        end=(SPACE, "</seed:tool_call>"),
    ),
    opens=("<seed:tool_call>",),
    template_marks=("seed:tool_call",),
    examples=(
        Example(
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>北京\n<海淀></parameter>\n<parameter=days>2</parameter>\n"
            "<parameter=hourly>None</parameter>\n</function>\n</seed:tool_call>",
            calls=(("get_weather", '{"city": "北京\\n<海淀>", "days": 2, "hourly": null}'),),
        ),
    ),
)

SEED_OSS = ReasoningFormat(
    name="seed_oss",
    begin="<seed:think>",
    end="</seed:think>",
    is_special=True,
    template_marks=("seed:think",),
    examples=(
        Thought(
            "<seed:think>Got it.\n<seed:cot_budget_reflect>9 tokens used.</seed:cot_budget_reflect> So.</seed:think>Yes.",
            "Got it.\n<seed:cot_budget_reflect>9 tokens used.</seed:cot_budget_reflect> So.",
            "Yes.",
        ),
    ),
)
