"""Hermes, Qwen 2.5, Qwen 3 and others: an object in `<tool_call>` tags."""

from millstream.grammar.writing import Writing
from millstream.parsing.forms import JsonObject
from millstream.parsing.stage import Example, ToolFormat

HERMES = ToolFormat(
    name="hermes",
    aliases=("qwen", "qwen25"),
    form=JsonObject(close="</tool_call>"),
    opens=("<tool_call>",),
    template_marks=("<tool_call>",),
    written=(
        Writing(
            begin='<tool_call>\n{"name": "',
            after_name='", "arguments": ',
            end="}\n</tool_call>",
            between="\n",
            in_string=True,
        ),
    ),
    examples=(
        Example(
            'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>',
            "I look.",
            (("get_weather", '{"city": "Bern"}'),),
        ),
        Example(
            '<tool_call>{"arguments": {"city": "北京 😀"}, "name": "get_weather"}</tool_call>\n'
            '<tool_call>{"name":"ping"}</tool_call>',
            calls=(("get_weather", '{"city": "北京 😀"}'), ("ping", "{}")),
        ),
        Example('<tool_call>{"name": "ping", "arguments": null}</tool_call> Done.', "Done.", (("ping", "{}"),)),
        Example(
            '<tool_call>{"name": "ping", "arguments": "{\\"a\\": [1, \\"}\\"]}"}</tool_call>',
            calls=(("ping", '{"a": [1, "}"]}'),),
        ),
        Example('<tool_call>\n{"name": "ping", "arguments": {}}', calls=(("ping", "{}"),)),
        Example("if a < b and <tool", "if a < b and <tool"),
        Example(
            '<tool_call>{"name": "unheard", "arguments": {"x": "<tool_call>"}}</tool_call>',
            '<tool_call>{"name": "unheard", "arguments": {"x": "<tool_call>"}}</tool_call>',
        ),
    ),
)
