"""Lists of objects in a pair of tags: Hunyuan and Jamba, and Nemotron Nano."""

from millstream.parsing.forms import JsonObject
from millstream.parsing.stage import Example, ToolFormat

_TWO = '[{"name": "get_weather", "arguments": {"city": "上海"}}, {"name": "ping", "arguments": {}}]'
_CALLS = (("get_weather", '{"city": "上海"}'), ("ping", "{}"))

HUNYUAN = ToolFormat(
    name="hunyuan",
    aliases=("hunyuan_a13b", "jamba"),
    form=JsonObject(in_list=True, close="</tool_calls>"),
    opens=("<tool_calls>",),
    template_marks=("<tool_calls>",),
    examples=(
        Example(f"Hm.\n<tool_calls>\n{_TWO}\n</tool_calls>", "Hm.", _CALLS),
        Example("<tool_calls> are none", "<tool_calls> are none"),
    ),
)

NEMOTRON = ToolFormat(
    name="nemotron",
    form=JsonObject(in_list=True, close="</TOOLCALL>"),
    opens=("<TOOLCALL>",),
    template_marks=("<TOOLCALL>",),
    examples=(Example(f"<TOOLCALL>{_TWO}</TOOLCALL>", calls=_CALLS),),
)
