"""GLM 4.5 and later: the name, and pairs of tags with key and value."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import SPACE, Tagged
from millstream.parsing.stage import Example, ToolFormat

GLM45 = ToolFormat(
    name="glm45",
    aliases=("glm", "glm47"),
    form=Tagged(
        before=(SPACE,),
        key=("<arg_key>", "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
        close="</tool_call>",
    ),
    opens=("<tool_call>",),
    template_marks=("<tool_call>", "<arg_key>"),
    written=(
        Writing(
            begin="<tool_call>",
            after_name="\n",
            end="</tool_call>",
            between="\n",
            style="tagged",
            key=("<arg_key>", "</arg_key>\n<arg_value>"),
            value=("", "</arg_value>", "\n"),
        ),
    ),
    examples=(
        Example(
            "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>2</arg_value>\n</tool_call>",
            calls=(("get_weather", '{"city": "Köln", "days": 2}'),),
        ),
        Example(
            "<tool_call>ping</tool_call><tool_call>get_weather<arg_key>city</arg_key><arg_value>Rom</arg_value></tool_call>",
            calls=(("ping", "{}"), ("get_weather", '{"city": "Rom"}')),
        ),
    ),
)
